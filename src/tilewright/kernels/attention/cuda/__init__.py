"""Attention on GPUs: many rows, one row over a cache, paged caches, the backward pass."""
