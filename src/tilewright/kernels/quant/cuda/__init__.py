"""Packed matrices on GPUs."""
