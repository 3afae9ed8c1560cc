"""Tile IR to PTX for programs on groups of threads."""
