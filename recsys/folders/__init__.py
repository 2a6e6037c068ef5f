"""Folders that are whole or absent: written in one step, described, locked and checksummed."""
