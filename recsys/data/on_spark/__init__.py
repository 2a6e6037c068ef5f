"""Preparation of logs in Spark: rows are checked, numbered, sorted and filtered there."""
