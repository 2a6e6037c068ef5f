"""Losses: pure functions of logits and targets; they never see a model."""
