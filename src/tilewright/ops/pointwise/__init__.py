"""Elementwise ops."""

from . import activations, binary, casts, compare, elementwise, float_bits, hyperbolic, rounding  # noqa: F401
