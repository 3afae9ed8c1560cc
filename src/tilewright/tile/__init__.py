"""Tile IR: the language of kernels."""
