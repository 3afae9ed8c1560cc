"""Results that go past the caches: a launch that moves more than the last cache holds evicts what it writes before anyone reads it, and an
ordinary store first reads the line that it then overwrites. Its stores of whole registers become nontemporal."""

from __future__ import annotations

from dataclasses import replace

from ..core.hashing import blake2b
from ..core.target_spec import TargetSpec
from ..tile.ir import TileType, Var
from ..tile.text import to_text
from .launch import Launch

BEYOND = 1.25  # of the last cache: below, a part of the result is still there for the next reader
LINE = 64  # bytes that a row of a tile must fill


def past_caches(launch: Launch, target: TargetSpec) -> Launch:
    """The launch with nontemporal stores to views of long rows where that pays. What a kernel reads back itself stays in the caches."""
    if not launch.long_rows or not target.is_x86 or not isinstance(launch.bytes, int) or launch.bytes <= BEYOND * target.l3:
        return launch
    kernel = launch.kernel
    read = {x for i in kernel.walk() if i.op != "store" for x in i.operands}
    for i in kernel.walk():
        if i.op == "store" and i.operands[0] in launch.long_rows and i.operands[0] not in read and "order" not in i.attrs:
            tile = i.operands[-1]
            if isinstance(tile, Var) and isinstance(tile.type, TileType) and tile.type.shape \
                    and tile.type.shape[-1] * tile.type.dtype.itemsize % LINE == 0:
                i.attrs["past"] = True
    kernel.name = f"{kernel.name.partition('_past_')[0]}_past_{blake2b(to_text(kernel).encode(), digest_size=4).hexdigest()}"
    return replace(launch, long_rows=())
