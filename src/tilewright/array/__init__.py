"""Functions over arrays: `jit` compiles a traced function, and derivatives, batching and the NumPy-like functions run on plain arrays."""
