"""Runs side by side: tables, paired tests, seeds, pictures and the page."""
