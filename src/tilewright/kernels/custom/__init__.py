"""Kernels that come with their op."""
