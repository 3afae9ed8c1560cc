"""Factorizations, triangular systems, eigenvalues and singular values."""
