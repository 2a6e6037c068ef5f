"""Columns of items, interactions and users as numbers that a model reads."""
