"""Count models: the baselines of every table, and the count ensemble of a trained model."""
