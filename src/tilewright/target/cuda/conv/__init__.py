"""Convolution written as PTX."""
