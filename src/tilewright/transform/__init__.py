"""Tracing Python functions into graphs, and transforms of graphs: reverse and forward derivatives, batching."""
from . import bodies as _bodies  # noqa: F401  rules of ops with a body find the transforms
