"""Encoders that turn columns of items, interactions and users into model inputs."""
