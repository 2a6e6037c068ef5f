"""The simulated shop: purchase histories with planted rules and their ground truth."""
