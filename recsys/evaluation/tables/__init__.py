"""The tables that a run saves, from which metrics are computed."""
