"""Attention written as PTX."""
