"""Experiments: from config and dataset to bundle, metrics and MLflow run."""
