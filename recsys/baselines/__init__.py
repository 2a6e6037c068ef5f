"""Count models that stand beside the trained ones in every table."""
