"""The tables that a run keeps, from which every metric is computed."""
