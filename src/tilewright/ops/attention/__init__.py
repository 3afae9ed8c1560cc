"""Attention, its backward pass, paged and 8-bit caches, rotary embedding."""
