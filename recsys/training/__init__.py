"""From a config and a prepared dataset to a trained bundle and an MLflow run."""
