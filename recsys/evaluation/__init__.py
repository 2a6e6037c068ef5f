"""Evaluation: held-out targets, ranks and lists of a scorer, and metrics with intervals."""
