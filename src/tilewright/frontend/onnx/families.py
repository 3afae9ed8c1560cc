"""Importing this module fills the tables of ops: one file a family."""
from __future__ import annotations

from importlib import import_module

FAMILIES = tuple(import_module(f"{__package__}.{name}") for name in (
    "flow", "host_flow", "host_ml", "host_sizes", "host_strings", "ops_attention", "ops_cast", "ops_hybrid", "ops_image", "ops_index",
    "ops_math", "ops_microsoft", "ops_ml", "ops_nn", "ops_random", "ops_recurrent", "ops_reduce", "ops_sequence", "ops_shape",
    "ops_signal", "ops_training"))
