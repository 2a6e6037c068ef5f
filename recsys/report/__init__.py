"""The page of a run, and attention maps as pictures and as a page."""
