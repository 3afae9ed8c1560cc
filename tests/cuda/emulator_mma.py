"""`mma.sync` for the emulator: D = A · B + C in every warp, from the registers of its lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def multiply(block: Any, opcode: str, xs: list[str], active: Array) -> None:
    """All warps at once; `block` reads and writes registers."""
    names = [[n.strip() for n in x.strip("{}").split(",")] for x in xs]
    if ".row.col.s32.s8.s8.s32" in opcode:
        _bytes(block, int(opcode.split("m16n8k")[1][:2]), names, active)
    elif ".m16n8k16.row.col.f32." in opcode:
        _floats(block, opcode, names, active)
    else:
        raise AssertionError(f"`{opcode}` is not emulated")


def _floats(block: Any, opcode: str, names: list[list[str]], active: Array) -> None:
    """m16n8k16 of f16 or bf16, f32 sums."""
    import ml_dtypes

    kind: Any = ml_dtypes.bfloat16 if ".bf16." in opcode else np.float16

    def halves(name: str) -> Array:
        return block.read(name, np.uint32).copy().view(np.uint16).reshape(-1, 32, 2).view(kind).astype(np.float32)

    warps, lane = block.n // 32, np.arange(32)
    row, column = lane // 4, lane % 4 * 2
    a, b, c = np.zeros((warps, 16, 16)), np.zeros((warps, 16, 8)), np.zeros((warps, 16, 8))
    for i, name in enumerate(names[1]):
        for h in range(2):
            a[:, row + 8 * (i % 2), column + 8 * (i // 2) + h] = halves(name)[..., h]
    for i, name in enumerate(names[2]):
        for h in range(2):
            b[:, column + 8 * i + h, row] = halves(name)[..., h]
    for i, name in enumerate(names[3]):
        c[:, row + 8 * (i // 2), column + i % 2] = block.read(name, np.float32).reshape(-1, 32)
    out = (a @ b + c).astype(np.float32)
    for i, name in enumerate(names[0]):
        block.write(name, np.ascontiguousarray(out[:, row + 8 * (i // 2), column + i % 2]).reshape(-1), active)


def _bytes(block: Any, k: int, names: list[list[str]], active: Array) -> None:
    """m16n8k32 (or k16) of signed bytes, integer sums."""
    warps, lane = block.n // 32, np.arange(32)
    row, quad = lane // 4, lane % 4

    def parts(name: str) -> Array:
        return block.read(name, np.uint32).copy().view(np.int8).reshape(-1, 32, 4).astype(np.int64)

    a, b, c = np.zeros((warps, 16, k), np.int64), np.zeros((warps, k, 8), np.int64), np.zeros((warps, 16, 8), np.int64)
    for j in range(4):
        for i, name in enumerate(names[1]):
            a[:, row + 8 * (i % 2), 4 * quad + j + 16 * (i // 2)] = parts(name)[..., j]
        for i, name in enumerate(names[2]):
            b[:, 4 * quad + j + 16 * i, row] = parts(name)[..., j]
    for i, name in enumerate(names[3]):
        c[:, row + 8 * (i // 2), 2 * quad + i % 2] = block.read(name, np.int32).reshape(-1, 32)
    out = (a @ b + c).astype(np.int32)
    for i, name in enumerate(names[0]):
        block.write(name, np.ascontiguousarray(out[:, row + 8 * (i // 2), 2 * quad + i % 2]).reshape(-1), active)
