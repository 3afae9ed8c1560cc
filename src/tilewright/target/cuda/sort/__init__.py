"""Radix sorts, written as PTX."""
