"""Linear algebra on GPUs."""
