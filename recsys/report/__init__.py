"""Attention maps as pictures and as a page."""
