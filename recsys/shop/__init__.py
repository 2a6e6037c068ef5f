"""The simulated shop: purchase histories with planted rules whose ground truth is kept."""
