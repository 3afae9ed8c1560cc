"""Choosing a token, written as PTX."""
