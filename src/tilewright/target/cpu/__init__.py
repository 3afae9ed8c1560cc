"""Tile IR to LLVM IR, and object code."""
