"""`cp.async` for the emulator: copies in groups, which land in shared memory when the kernel waits for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.target.cuda.ptx_flow import Op

Array = Any


def copy(block: Any, op: Op, xs: list[str], active: Array) -> None:
    """16 bytes from global to shared memory, zeros after the first `size`. They land where the kernel waits for them."""
    if "commit_group" in op.opcode:
        block.groups.append(block.flying)
        block.flying = []
        return
    if "wait_group" in op.opcode:
        while len(block.groups) > int(xs[0]):
            for where, data in block.groups.pop(0):
                block.shared[where : where + 16] = data
        return
    to, source = (block.read(x.strip("[]").partition("+")[0], np.uint64).astype(np.int64) + int(x.strip("[]").partition("+")[2] or 0)
                  for x in xs[:2])  # fmt: skip
    sizes = block.read(xs[3], np.int32)
    who = np.flatnonzero(active)
    block.races.access(to[who][:, None] + np.arange(16), who, True, op.text)
    for t in who:
        n, where = int(sizes[t]), int(to[t])
        if where % 16 or (n and source[t] % 16) or not 0 <= n <= 16 or where + 16 > len(block.shared):
            raise AssertionError(f"`{op.text}` copies {n} bytes from {source[t]:#x} to {where}")
        data = np.zeros(16, np.uint8)
        if n:
            found, at = block.heap.find(int(source[t]), n)
            data[:n] = found[at : at + n]
        block.shared[where : where + 16] = 0xA5  # who reads too early sees nonsense
        block.flying.append((where, data))
