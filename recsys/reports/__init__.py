"""Runs side by side, on the terminal and as pages: tables, tests, charts, the page of a run."""
