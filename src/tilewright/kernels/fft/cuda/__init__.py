"""Fourier transforms on GPUs."""
