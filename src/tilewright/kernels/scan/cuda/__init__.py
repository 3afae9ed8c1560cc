"""Running sums on GPUs."""
