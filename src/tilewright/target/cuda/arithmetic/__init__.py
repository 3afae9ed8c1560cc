"""Scalar arithmetic, conversions and functions on PTX registers."""
