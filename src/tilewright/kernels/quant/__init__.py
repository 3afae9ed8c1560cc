"""Kernels over elements that stand several to a 32-bit word."""
