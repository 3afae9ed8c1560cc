"""How many bytes an instruction touches: widths of accesses, and the matrices that `wgmma` reads through its descriptors."""

from __future__ import annotations

import re

from ..ptx.flow import Op

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_WIDTH = re.compile(r"(?:\.v(\d))?\.[a-z]+(\d+)$")
LINE = 128  # bytes of a swizzled row
ROWS = 8  # whose pieces change places among each other


def width(op: Op) -> int:
    """Bytes that one thread's address stands for; 0 where there is none."""
    if op.stem in ("ldmatrix", "stmatrix"):
        return 16
    found = _WIDTH.search(op.opcode) if op.stem in ("ld", "st", "atom", "red") else None
    if found is None:
        return 0
    return int(found[1] or 1) * int(found[2]) // 8


def matrix_ranges(op: Op, descriptors: tuple[int, ...], rows: int) -> list[tuple[int, int]]:
    """(first byte, bytes) of what a `wgmma` reads from shared memory; the left operand has `rows` rows that matter. A range whose start
    breaks the swizzle's rule is given as (minus its start, 0)."""
    shape = _SHAPE.search(op.opcode)
    assert shape is not None, op.text
    n, deep = int(shape[1]), int(shape[2])
    flags = [x.strip() for x in op.operands.split("}")[-1].split(",")]
    turned = [x == "1" for x in flags[flags.index(next(x for x in flags if x.startswith("%p"))) + 3 :]]  # after both signs
    if len(descriptors) == 1:
        sides = [(descriptors[0], n, bool(turned and turned[-1]))]
    else:
        sides = [(descriptors[0], rows, bool(turned and turned[0])), (descriptors[1], n, bool(turned and turned[-1]))]
    found = []
    for d, wide, across in sides:
        start, leading, stride = (d & 0x3FFF) << 4, (d >> 16 & 0x3FFF) << 4, (d >> 32 & 0x3FFF) << 4
        if not across:  # rows along K: the offset inside a row of 128 bytes chooses the step of K
            first, eights = start // LINE * LINE, -(-wide // ROWS)
            if stride % (ROWS * LINE):  # lines of an image: the swizzle goes by the address
                found += [(first + i * stride, ROWS * LINE) for i in range(eights)]
            else:
                found.append((-start, 0) if start % (ROWS * LINE) >= LINE else (first, eights * stride))
        else:  # rows along M or N: blocks of 64 columns
            if start % (ROWS * LINE):
                found.append((-start, 0))
                continue
            found += [(start + block * leading, deep * LINE) for block in range(-(-wide // 64))]
    return found
