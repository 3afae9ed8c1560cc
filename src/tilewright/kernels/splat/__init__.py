"""Gaussian splats: tile lists, compositing of tiles, and its backward pass."""
