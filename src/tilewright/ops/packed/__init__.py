"""Packed and quantized matrices."""
