"""Enters the transforms where the rules of ops with a body find them (`ops/control/bodies.py`)."""
from __future__ import annotations

from ..ops.control import bodies
from .jvp import jvp_graph
from .vjp import pull_back, split_vjp
from .vmap import batch_graph


class GraphTransforms:
    pull_back = staticmethod(pull_back)
    split_vjp = staticmethod(split_vjp)
    jvp_graph = staticmethod(jvp_graph)
    batch_graph = staticmethod(batch_graph)


bodies.Slot.transforms = GraphTransforms()
