"""Execution order, lifetimes and places of all memory."""
