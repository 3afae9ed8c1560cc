"""Ops whose kernels come with them: what users write in the kernel language, and functions of the host."""
from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakSet

from ..core.dims import Dim
from ..core.errors import UnsupportedError
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from .base import NotSupported, Values
from .families import General, values_of


class OwnKernel(General):
    """An op that makes its own launches. `launches(region, target)` gives them, `unserved(target)` says why it has none for a target.
    A saved session may contain it where it is `stored`: as its name, the digest of its source and its constants."""

    stored = False

    unsupported = {"vjp": NotSupported("a kernel has no derivative of its own; wrap it in a function with tw.custom_vjp"),
                   "jvp": NotSupported("a kernel has no derivative of its own; wrap it in a function with tw.custom_jvp")}

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return False

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        """One case after the other: a kernel has the axes that it was written for."""
        from .control.flow import Scan

        body = Graph(self.name)
        given: dict[int, Value] = {}
        order = sorted(range(len(inputs)), key=lambda i: not batched[i])
        for i in order:
            t = inputs[i].type
            given[i] = body.input(t.with_shape(t.shape[1:]) if batched[i] else t, f"x{i}")
        body.outputs = list(body.add(self, *(given[i] for i in range(len(inputs)))).values)
        return values_of(Scan(body=body, carries=0, xs=sum(batched), length=size)(*(inputs[i] for i in order)))

    def unserved(self, target: Any) -> str | None:
        """Why this op does not run on a target, or None."""
        return None

    def without(self, unread: tuple[int, ...]) -> OwnKernel:
        """An op that need not write the results of these numbers."""
        return self

    def launches(self, region: Any, target: Any) -> list[Any]:
        """The launches of a region that is this op alone."""
        raise NotImplementedError



# ---- kernels of saved sessions

_known: dict[tuple[str, str], WeakSet[type]] = {}  # by name and digest of the source: the classes of kernels in this process


def remember(cls: Any, digest: str) -> None:
    _known.setdefault((cls.name, digest), WeakSet()).add(cls)


@dataclass(frozen=True, repr=False, eq=False)
class AbsentKernel(OwnKernel):
    """A kernel of a file that cannot be compiled in this process; machine code of it can run."""

    constants: tuple[tuple[str, Any], ...] = ()
    source: str = ""
    why: ClassVar[str] = ""
    types: ClassVar[tuple[TensorType, ...]] = ()
    stored = True

    def infer(self, *types: TensorType) -> Any:
        return self.types[0] if len(self.types) == 1 else self.types

    def unserved(self, target: Any) -> str | None:
        raise UnsupportedError(f"load: the graph contains {self.name}, which must be compiled here, {self.why}")


def kernel_class(name: str, digest: str, types: Sequence[TensorType], *, trusted: bool) -> Any:
    """The class of a kernel that a text names: one of this process, where the text is trusted to give it constants, else one that only
    stands for it."""
    found = list(_known.get((name, digest), ()))
    if len(found) > 1:
        gc.collect()
        found = list(_known[name, digest])
    if len(found) == 1 and trusted:
        return found[0]
    if not found:
        why = "and its source is Python; import the module that defines it first, unchanged since it was saved"
    elif trusted:
        why = f"and {len(found)} kernels of this process have its name and source; a file holds one that is made once"
    else:
        why = "and takes its constants from a file that is not trusted; load it with trust=True or with its digest"
    return type("AbsentKernel", (AbsentKernel,), {"name": name, "why": why, "types": tuple(types), "arity": (0, None)})
