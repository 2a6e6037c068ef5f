"""Preparation of logs larger than memory: staged, sorted in partitions and split on disk."""
