"""Reductions, norms, softmax, losses, pooling, running sums."""
