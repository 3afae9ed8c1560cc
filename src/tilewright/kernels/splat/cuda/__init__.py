"""Gaussian splats on GPUs."""
