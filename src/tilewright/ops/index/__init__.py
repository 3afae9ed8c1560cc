"""Gathers, scatters, sorting, counting, sampling."""
