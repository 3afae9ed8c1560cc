"""Rewrites of graphs, in one list."""
