"""Elementwise ops."""

from . import activations, binary, casts, compare, elementwise, hyperbolic  # noqa: F401
