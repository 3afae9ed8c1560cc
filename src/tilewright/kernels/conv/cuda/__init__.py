"""Convolution and pooling on GPUs."""
