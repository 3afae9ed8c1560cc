"""Proofs about PTX text without a GPU: barriers, divergence, asynchronous copies and products."""
