"""MLflow: runs, their settings, metrics and artifacts."""
