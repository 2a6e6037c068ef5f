"""Lightning's loop around a model: losses, optimiser, callbacks, checkpoints."""
