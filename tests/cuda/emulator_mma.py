"""The matrix instructions of the emulator: `ldmatrix` and `mma.sync` of every kind that kernels use, whole warps at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from tests.cuda.emulator import _Block

Array = Any
KINDS: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def _whole_warps(opcode: str, active: Array) -> None:
    from tests.cuda.emulator import Fault

    if not active.reshape(-1, 32).all(1)[active.reshape(-1, 32).any(1)].all():
        raise Fault(f"`{opcode}` needs whole warps")


def _names(operand: str) -> list[str]:
    return [n.strip() for n in operand.strip("{}").split(",")]


def load(block: _Block, opcode: str, xs: list[str], active: Array) -> None:
    """`ldmatrix.x4`: lane l names line l%8 of matrix l/8; it gets word l%4 of line l/4, or (`trans`) elements l/4 of lines l%4·2 (+ 1)."""
    from tests.cuda.emulator import Fault

    _whole_warps(opcode, active)
    base, _, offset = xs[1].strip("[]").partition("+")
    at = (block.read(base, np.uint64).astype(np.int64) + int(offset or 0)).reshape(-1, 4, 8)
    if (at % 16).any() or at.min() < 0 or at.max() + 16 > len(block.shared):
        raise Fault(f"`{opcode}` reads at {at.min()} to {at.max()} of {len(block.shared)} bytes")
    block.races.access(at.reshape(-1, 1) + np.arange(16), np.arange(block.n), False, opcode)
    lines = block.shared[at[..., None] + np.arange(16)]  # [warp, matrix, line, byte]
    for i, name in enumerate(_names(xs[0])):
        halves = np.ascontiguousarray(lines[:, i]).view(np.uint16)  # [warp, line, 8]
        if ".trans" in opcode:
            halves = np.ascontiguousarray(halves.swapaxes(1, 2))
        block.write(name, halves.reshape(-1, 64).view(np.uint32).reshape(-1), active)


def doubles(block: _Block, opcode: str, xs: list[str], active: Array) -> None:
    """`mma.sync` of f64, 8 or 16 rows: one element a lane of every 8 rows × 4 of K, eight rows before four of K."""
    shape = opcode.split(".")[3]
    rows, deep = (16 if shape.startswith("m16") else 8), int(shape.partition("k")[2])
    warps, lane = block.n // 32, np.arange(32)
    row, column = lane // 4, lane % 4
    d, a_names, b_names, c_names = (_names(x) for x in xs)
    assert (len(a_names), len(b_names), len(c_names)) == (rows * deep // 32, deep // 4, rows // 4), opcode

    def read(name: str) -> Array:
        return block.read(name, np.float64).reshape(-1, 32)

    a, b, c = np.zeros((warps, rows, deep)), np.zeros((warps, deep, 8)), np.zeros((warps, rows, 8))
    for i, name in enumerate(a_names):
        a[:, row + 8 * (i % (rows // 8)), column + 4 * (i // (rows // 8))] = read(name)
    for i, name in enumerate(b_names):
        b[:, column + 4 * i, row] = read(name)
    for i, name in enumerate(c_names):
        c[:, row + 8 * (i // 2), 2 * column + i % 2] = read(name)
    out = a @ b + c
    for i, name in enumerate(d):
        block.write(name, np.ascontiguousarray(out[:, row + 8 * (i // 2), 2 * column + i % 2]).reshape(-1), active)


def multiply(block: _Block, opcode: str, xs: list[str], active: Array) -> None:
    """`mma.sync.m16n8k…`: D = A[16, 32 bytes (or 16)] · B[as many, 8] + C in every warp, f32 or i32 sums."""
    _whole_warps(opcode, active)
    parts = opcode.split(".")
    if parts[-1] == "f64":
        doubles(block, opcode, xs, active)
        return
    kinds = [KINDS[p] for p in parts if p in KINDS]
    assert parts[3].startswith("m16n8k") and len(kinds) == 2
    whole = "s32" in parts
    wide: Any = np.int64 if whole else np.float64
    per = 4 // np.dtype(kinds[0]).itemsize  # elements of a register
    d, a_names, b_names, c_names = (_names(x) for x in xs)
    depth = 4 * per * len(b_names)
    assert parts[3] == f"m16n8k{depth}", opcode
    warps, lane = block.n // 32, np.arange(32)
    row, column = lane // 4, lane % 4

    def elements(name: str, kind: Any) -> Array:
        values = block.read(name, np.uint32).copy().view(kind).reshape(-1, 32, per)
        if kind is np.float32:
            values = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)  # the unit does not see the other bits
        return values.astype(wide)

    a, b, c = np.zeros((warps, 16, depth), wide), np.zeros((warps, depth, 8), wide), np.zeros((warps, 16, 8), wide)
    for i, name in enumerate(a_names):
        for h in range(per):
            a[:, row + 8 * (i % 2), column * per + 4 * per * (i // 2) + h] = elements(name, kinds[0])[..., h]
    for i, name in enumerate(b_names):
        for h in range(per):
            b[:, column * per + 4 * per * i + h, row] = elements(name, kinds[1])[..., h]
    number: Any = np.int32 if whole else np.float32
    for i, name in enumerate(c_names):
        c[:, row + 8 * (i // 2), 2 * column + i % 2] = block.read(name, number).reshape(-1, 32)
    out = (a @ b + c).astype(number)
    for i, name in enumerate(d):
        block.write(name, np.ascontiguousarray(out[:, row + 8 * (i // 2), 2 * column + i % 2]).reshape(-1), active)
