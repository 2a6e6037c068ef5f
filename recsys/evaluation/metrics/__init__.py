"""Metrics as plain functions of arrays."""
