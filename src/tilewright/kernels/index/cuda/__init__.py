"""Gathers and scatters on GPUs."""
