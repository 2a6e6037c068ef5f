"""Counting models: baselines of every table, and the count ensemble beside a trained model."""
