"""Kernels of eager functions, made ahead of their first use."""
from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core import dtypes as dt
from ..core.errors import ArgumentError
from . import machine
from .api import elementwise, reductions

Wanted = tuple[str, str, tuple[dt.DType, ...], dt.DType]


def _wanted(names: Sequence[str], dtypes: Sequence[dt.DType]) -> Iterator[Wanted]:
    """(form, function, dtypes of the operands, dtype of the result) of every kernel that a call would ask for."""
    for d in dtypes:
        tables = ((1, elementwise.UNARY), (2, elementwise.BINARY), (1, dict.fromkeys(elementwise.ACTIVATIONS, ("f", True, ""))))
        for count, table in tables:
            for name, (kinds, floats, rule) in table.items():
                if (not names or name in names) and d.kind in kinds and not (floats and d.kind in "biu"):
                    kernel = machine.MADE_OF.get(name, name) if d.kind == "f" else name
                    yield "elements", kernel, (d,) * count, dt.dtype(elementwise.result_dtype_of(rule, d.np))
        if not names or "where" in names:
            yield "elements", "where", (dt.bool_, d, d), d
        for other in dtypes:
            if other is not d and (not names or "astype" in names):
                yield "elements", "astype", (d,), other
        for name in reductions.NATIVE:
            if names and name not in names:
                continue
            own = dt.dtype(reductions.summed(d.np)) if name in ("sum", "prod") else d
            if name == "mean" and own.kind != "f":
                continue
            out = dt.bool_ if name in machine.TRUTHS else dt.i64 if name.startswith("arg") else own
            yield ("arg_rows" if name.startswith("arg") else "rows"), name, (own,), out
            if not name.startswith("arg"):
                yield "columns", name, (own,), out


def warm(names: Sequence[str], dtypes: Sequence[dt.DType]) -> tuple[int, int]:
    """Make and store kernels; gives how many there are now, and how many of those asked for do not exist."""
    known = {*elementwise.UNARY, *elementwise.BINARY, *elementwise.ACTIVATIONS, *reductions.NATIVE, "where", "astype"}
    for name in names:
        if name not in known:
            raise ArgumentError(f"warm: no eager function {name!r} has kernels of its own; functions: {' '.join(sorted(known))}")
    if machine.machine() is None:
        raise ArgumentError("warm: there is no native code on this Python")
    found = [bool(machine.kernel_of(*w)) for w in dict.fromkeys(_wanted(names, dtypes))]
    return sum(found), len(found) - sum(found)
