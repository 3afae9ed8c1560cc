"""Choosing a token on GPUs."""
