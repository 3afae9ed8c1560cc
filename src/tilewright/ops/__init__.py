"""Every op, by class (`ops.Matmul`), by function (`ops.matmul`), and by name (`ops.REGISTRY["matmul"]`).

Modules of ops are found, not listed: a file below this folder may register classes. `__init__.pyi` names them for type checkers.
"""
from __future__ import annotations

import pkgutil
from importlib import import_module

from . import functions
from .base import REGISTRY, Op, Traits
from .families import Binary, Composite, Contraction, Elementwise, General, Reduction, Unary, View
from .pointwise.compare import Compare
from .structure import ConstantData, Joined, Seen

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
_CLASSES = {op.__name__.rstrip("_"): op for op in REGISTRY.values()}
_FUNCTIONS = {name: getattr(functions, name) for name in functions.__all__}
globals().update(_CLASSES | _FUNCTIONS)  # in front of the folders: `ops.matmul` is the function
__all__ = ["REGISTRY", "Binary", "Compare", "Composite", "ConstantData", "Contraction", "Elementwise", "General", "Joined", "Op",
           "Reduction", "Seen", "Traits", "Unary", "View", "functions"]
__all__ += [*_CLASSES, *_FUNCTIONS]
