"""Templates that turn regions of a graph into kernels, by kind of op, and `select`, which chooses among them."""
