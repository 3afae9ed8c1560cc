"""The runtime on GPUs."""
