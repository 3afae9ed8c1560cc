"""Row kernels and sums of columns on GPUs."""
