"""Templates that serve exactly one kind of op each, in no order: no two of them match the same region."""

from __future__ import annotations

from .arg_reduce import ArgReduce
from .eigh import Eigh
from .gather_last import GatherLast
from .lu import Factor
from .pool import Pool
from .qr import Qr
from .scans import Running
from .sorting import Sort
from .svd import Svd
from .template import Template
from .topk import TopK
from .triangular import TriangularSolve

CATALOGUE: list[Template] = [
    ArgReduce(),
    Eigh(),
    Factor(),
    GatherLast(),
    Pool(),
    Qr(),
    Running(),
    Sort(),
    Svd(),
    TopK(),
    TriangularSolve(),
]
