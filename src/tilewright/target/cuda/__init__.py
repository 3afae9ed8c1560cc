"""Tile IR to PTX."""
