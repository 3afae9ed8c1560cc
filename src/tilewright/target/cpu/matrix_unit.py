"""The matrix unit of x86 CPUs (AMX, bf16): tile registers 0–1 hold the large sums of the two halves of the columns, 2–3 the small ones."""

from __future__ import annotations

from ...core.target_spec import TargetSpec
from ...tile.matrix_unit import COLUMNS, DEPTH, HIGH, LOW, MIDDLE, PARTS, ROWS
from .access import Address
from .llvm_text import FunctionText

_LINE = 64  # bytes of one row of a tile register
_TILE = ROWS * _LINE
_NAMES = {
    "ldtilecfg": "ptr", "tilezero": "i8 immarg", "tileloadd64": "i8 immarg, ptr, i64", "tilestored64": "i8 immarg, ptr, i64",
    "tdpbf16ps": "i8 immarg, i8 immarg, i8 immarg", "tilerelease": "",
}  # fmt: skip


def supported(target: TargetSpec) -> bool:
    return target.has("amx-tile", "amx-bf16", "avx512f")


def enter(f: FunctionText) -> None:
    """Eight tile registers of 16 rows × 64 bytes."""
    config = bytes([1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[ROWS] * 8, *[0] * 8])
    text = "".join(f"\\{b:02X}" for b in config)
    f.declarations["amx.config"] = f'@amx.config = private unnamed_addr constant [64 x i8] c"{text}", align 64'
    _call(f, "ldtilecfg", "ptr @amx.config")


def leave(f: FunctionText) -> None:
    _call(f, "tilerelease", "")


def zero(f: FunctionText) -> None:
    for register in range(4):
        _call(f, "tilezero", f"i8 {register}")


def step(f: FunctionText, a: Address, b: Address) -> None:
    """Six products for each half of the columns; a register is loaded again rather than kept where the eight do not suffice."""

    def left(register: int, part: int) -> None:
        _load(f, register, a.pointer, part * _TILE)

    def right(part: int) -> None:
        for half in range(2):
            _load(f, 5 + half, b.pointer, (part * 2 + half) * _TILE)

    def multiply(sums: int, register: int) -> None:
        for half in range(2):
            _call(f, "tdpbf16ps", f"i8 {sums + half}, i8 {register}, i8 {5 + half}")

    assert (PARTS, DEPTH, COLUMNS) == (3, 32, 32)
    left(4, HIGH)
    right(LOW)
    multiply(2, 4)
    right(MIDDLE)
    multiply(2, 4)
    left(7, MIDDLE)
    multiply(2, 7)
    right(HIGH)
    multiply(0, 4)
    multiply(2, 7)
    left(4, LOW)
    multiply(2, 4)


def store(f: FunctionText, c: Address) -> None:
    for sums in range(2):
        for half in range(2):
            pointer = f.gep("i8", c.pointer, str(sums * ROWS * COLUMNS * 4 + half * _LINE))
            _call(f, "tilestored64", f"i8 {sums * 2 + half}, ptr {pointer}, i64 {COLUMNS * 4}")


def _load(f: FunctionText, register: int, pointer: str, offset: int) -> None:
    _call(f, "tileloadd64", f"i8 {register}, ptr {f.gep('i8', pointer, str(offset))}, i64 {_LINE}")


def _call(f: FunctionText, name: str, args: str) -> None:
    f.declarations[f"llvm.x86.{name}"] = f"declare void @llvm.x86.{name}({_NAMES[name]})"
    f.emit(f"call void @llvm.x86.{name}({args})")
