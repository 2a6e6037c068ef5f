"""A model, or counts, as a `Scorer`: exact ranks, best items, generated lists."""
