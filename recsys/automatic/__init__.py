"""From a log to a trained recommender within a time limit, with no settings to write."""
