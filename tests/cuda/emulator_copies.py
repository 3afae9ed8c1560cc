"""`cp.async` for the emulator: copies in groups of a thread, which land in shared memory when that thread waits for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.target.cuda.ptx.flow import Op

Array = Any


def copy(block: Any, op: Op, xs: list[str], active: Array) -> None:
    """16 bytes (or 4, or 8) from global to shared memory, zeros after the first `size`. They land where the kernel waits for them."""
    if "commit_group" in op.opcode:
        block.groups[active] += 1
        return
    if "wait_group" in op.opcode:
        still = []
        for who, group, to, data in block.flying:
            lands = active[who] & (group < block.groups[who] - int(xs[0]))
            block.shared[to[lands][:, None] + np.arange(data.shape[1])] = data[lands]
            if not lands.all():
                still.append((who[~lands], group[~lands], to[~lands], data[~lands]))
        block.flying = still
        return
    to, source = (block.read(x.strip("[]").partition("+")[0], np.uint64).astype(np.int64) + int(x.strip("[]").partition("+")[2] or 0)
                  for x in xs[:2])  # fmt: skip
    width = int(xs[2])
    sizes = block.read(xs[3], np.int32) if len(xs) > 3 else np.full(block.n, width)
    who = np.flatnonzero(active)
    block.races.access(to[who][:, None] + np.arange(width), who, True, op.text)
    made = np.zeros((len(who), width), np.uint8)
    for i, t in enumerate(who):
        n, where = int(sizes[t]), int(to[t])
        if where % width or (n and source[t] % width) or not 0 <= n <= width or where + width > len(block.shared):
            raise AssertionError(f"`{op.text}` copies {n} bytes from {source[t]:#x} to {where}")
        if n:
            found, at = block.heap.find(int(source[t]), n)
            made[i, :n] = found[at : at + n]
    block.shared[to[who][:, None] + np.arange(width)] = 0xA5  # who reads too early sees nonsense
    block.flying.append((who, block.groups[who], to[who], made))
