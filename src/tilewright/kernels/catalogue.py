"""Templates that serve exactly one kind of op each, in no order: no two of them match the same region."""

from __future__ import annotations

from .arg_reduce import ArgReduce
from .gather_last import GatherLast
from .pool import Pool
from .scans import Running
from .sorting import Sort
from .template import Template
from .topk import TopK

CATALOGUE: list[Template] = [
    ArgReduce(),
    GatherLast(),
    Pool(),
    Running(),
    Sort(),
    TopK(),
]
