"""What is narrowed behind a concatenation is narrowed before it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..ir.graph import Value
from ..ir.rewrite import Match, P, Rule, rule
from .base import Pass


@rule(P(o.Cast, P(o.Concat, name="joined"), name="root"))
def narrow_before_concat(joined: Any, root: Any, m: Match) -> Value | None:
    """Kernels that compute the parts store the narrower numbers, at once in their places, and nothing is left to copy."""
    to = root.types[0].dtype
    narrower = to.is_float and joined.types[0].dtype.is_float and to.itemsize < joined.types[0].dtype.itemsize
    users = m.users(joined.value)
    if not narrower or m.readers(joined.value) != len(users) or not all(isinstance(u.op, o.Cast) and u.types[0].dtype is to for u in users):
        return None
    narrow = o.Cast(dtype=to)
    return o.emit(joined.op, *(v.op(narrow(v.node.operands[0])) if isinstance(v.op, o.Reshape) else narrow(v) for v in joined.operands))


@dataclass(frozen=True)
class NarrowConcats(Pass):
    """Before: everything is recognized. After: no concatenation of floats is only read by casts to one narrower dtype (autocast in front of
    products): its parts are cast."""

    name: ClassVar[str] = "narrow-concats"
    rules: ClassVar[tuple[Rule, ...]] = (narrow_before_concat,)
