"""Donated inputs are overwritten while the program runs: no other input may lie in their memory."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.errors import InputError
from .executable import Interface

FEW = 12  # inputs that are compared in Python faster than NumPy is called


def overlap_check(interface: Interface, name: str) -> Callable[[Any], None]:
    """A function of the addresses (`io`) of a call: raises where a donated input shares memory with another one."""
    donated = {i for i, _ in interface.donated}
    sizes = [t.nbytes if isinstance(t.nbytes, int) else 0 for t in interface.inputs]
    count, widths = len(sizes), np.array(sizes, np.int64)

    def explain(addresses: Any) -> None:
        spans = sorted((int(a), int(a) + n, i) for i, (a, n) in enumerate(zip(addresses, sizes, strict=True)) if n)
        for k, (_, end, i) in enumerate(spans):
            for start, _, j in spans[k + 1 :]:
                if start >= end:
                    break
                if i in donated or j in donated:
                    own, other = (i, j) if i in donated else (j, i)
                    raise InputError(f"jit: {name}: array {own} of the arguments is donated, and array {other} shares its memory; "
                                     "it would be overwritten while it is still read: pass a copy")

    def few(io: Any) -> None:
        addresses = io[:count]
        end = 0
        for a, n in sorted(zip(addresses, sizes, strict=True)):
            if a < end and n:
                explain(addresses)
                return
            end = max(end, a + n)

    def many(io: Any) -> None:
        addresses = np.frombuffer(io, np.int64, count)
        order = addresses.argsort()
        starts = addresses[order]
        ends = np.maximum.accumulate(starts + widths[order])
        if (ends[:-1] > starts[1:]).any():
            explain(addresses)

    return few if count <= FEW else many
