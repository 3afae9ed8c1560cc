"""Elementwise regions and transposes on GPUs."""
