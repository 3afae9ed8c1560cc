"""Arithmetic of the kernel language: which dtype an operation has, and the instructions it becomes.

Small floats are widened to f32 by arithmetic. Of two dtypes the wider wins, a float wins over integers, and Python numbers take the dtype
of the tile they meet. Index values stay index values among themselves.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core.dtypes import DType, bool_, compute_dtype, f32, f64, i32, i64
from ..core.dtypes import dtype as dtype_of
from ..core.errors import CompileError
from ..tile.builder import Ix, Tile
from .context import Recorder
from .values import shown

CPU_ELEMENTS = 1 << 14  # of a tile that is held in registers and written out instruction by instruction
_INDEX = {"add", "sub", "mul", "floordiv", "rem", "max", "min", "shl", "shr", "and"}
_BITS = {"and", "or", "xor", "shl", "shr"}


class Arithmetic:
    """What tile functions ask of the kernel that is being built."""

    b: Recorder
    kind: str
    debug: bool

    def dtype(self, given: Any) -> DType:
        """A dtype from its name, from NumPy or from PyTorch."""
        if type(given).__module__.split(".")[0] == "torch":
            from ..core.tensors import torch_dtypes

            return torch_dtypes()[given]
        return dtype_of(given)

    def tile(self, x: Any) -> Tile:
        """A value as a tile; numbers become tiles of rank 0."""
        if isinstance(x, Tile):
            return x
        if isinstance(x, Ix):
            return self.b.from_index(x)
        if isinstance(x, (bool, np.bool_)):
            return self.b.full((), bool(x), bool_)
        if isinstance(x, (int, np.integer)):
            return self.b.full((), int(x), i64)
        if isinstance(x, (float, np.floating)):
            return self.b.full((), float(x), f32)
        raise CompileError(f"needs a tile or a number, got {shown(x)}")

    def computed(self, x: Tile) -> Tile:
        """The tile in the dtype that arithmetic on it has."""
        return self.b.cast(x, compute_dtype(x.dtype))

    def promote(self, what: str, a: Any, b: Any) -> tuple[Tile, Tile]:
        """Both as tiles of one dtype."""
        d = common(what, a, b)
        return self._as(a, d), self._as(b, d)

    def _as(self, x: Any, d: DType) -> Tile:
        if isinstance(x, (bool, int, float, np.generic)):
            number = x.item() if isinstance(x, np.generic) else x
            if d.is_int and isinstance(number, int) and not isinstance(number, bool):
                bits = 8 * d.itemsize
                low, high = (0, (1 << bits) - 1) if d.kind == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
                if not low <= number <= high:
                    raise CompileError(f"{number} does not fit {d}; cast the tile to a wider dtype")
            return self.b.full((), number, d)
        if isinstance(x, Ix):
            return self.b.from_index(x, d)
        return self.b.cast(x, d)

    def unary(self, fn: str, x: Any, ints: bool = False) -> Any:
        if fn == "abs" and isinstance(x, (int, float)):
            return abs(x)
        t = self.computed(self.tile(x))
        if not t.dtype.is_float and not (ints and t.dtype.is_int):
            t = self.b.cast(t, f32)
        return self.b.unary(fn, t)

    def binary(self, fn: str, a: Any, b: Any) -> Any:
        if isinstance(a, (Ix, int)) and isinstance(b, (Ix, int)) and not isinstance(a, bool) and not isinstance(b, bool):
            if fn not in _INDEX:
                raise CompileError(f"index values have no {fn}; use // for division, or tl.cast(i, 'f32') for arithmetic with floats")
            if isinstance(b, int) and b == 0 and fn in ("floordiv", "rem"):
                raise CompileError(f"{fn}: an index is divided by 0")
            if isinstance(a, int) and isinstance(b, int):
                return {"max": max, "min": min}[fn](a, b)
            if isinstance(b, Ix) and fn in ("floordiv", "rem") and not self.debug:
                b = self.b.maximum(b, 1)  # a division by 0 would end the process; the debugger names its line
            return self.b.index_op("mod" if fn == "rem" else fn, a, b)
        if fn == "pow" and isinstance(b, (int, float)) and b == 2:
            x = self.computed(self.tile(a))
            return self.b.binary("mul", x, x)
        x, y = self.promote(fn, a, b)
        if fn in _BITS and x.dtype.is_float:
            raise CompileError(f"{fn}: needs bools or integers, got {shown(a)} and {shown(b)}")
        if fn == "div" and not x.dtype.is_float:
            x, y = self.b.cast(x, f32), self.b.cast(y, f32)
        if x.dtype.is_bool and fn not in _BITS and fn not in ("max", "min"):
            x, y = self.b.cast(x, i32), self.b.cast(y, i32)
        return self.b.binary(fn, x, y)

    def compare(self, fn: str, a: Any, b: Any) -> Tile:
        if isinstance(a, (Ix, int)) and isinstance(b, (Ix, int)):
            return self.b.compare(fn, a, b)
        x, y = self.promote(fn, a, b)
        return self.b.cmp(fn, x, y)

    def reduce(self, fn: str, x: Any, axis: int) -> Tile:
        if not isinstance(x, Tile) or not x.shape:
            raise CompileError(f"{fn}: needs a tile with axes, got {shown(x)}; maximum and minimum work on pairs")
        if not isinstance(axis, int) or not -len(x.shape) <= axis < len(x.shape):
            raise CompileError(f"{fn}: axis must be in {-len(x.shape)}..{len(x.shape) - 1}, got {shown(axis)}")
        t = self.computed(x)
        if (fn in ("any", "all")) != t.dtype.is_bool:
            if fn in ("any", "all"):
                raise CompileError(f"{fn}: needs bools, got {shown(x)}")
            t = self.b.cast(t, i32)
        return self.b.reduce(fn, t, axis)

    def cast_for_store(self, name: str, x: Any, dtype: DType) -> Tile:
        """A tile as a view's elements: narrowed, never from floats to integers unasked."""
        if isinstance(x, (bool, int, float)):
            if isinstance(x, float) and not dtype.is_float:
                raise CompileError(f"{name}.store: {name} holds {dtype}, got {x!r}")
            return self._as(x, dtype)
        if isinstance(x, Ix):
            return self.b.from_index(x, dtype)
        if not isinstance(x, Tile):
            raise CompileError(f"{name}.store: needs a tile, got {shown(x)}")
        if x.dtype.is_float and not dtype.is_float:
            raise CompileError(f"{name}.store: {name} holds {dtype}, got {shown(x)}; cast it with .to({dtype.name!r})")
        return self.b.cast(x, dtype)

    def check_sides(self, what: str, sides: tuple[int, ...]) -> None:
        """The limits of the target on a tile."""
        n = 1
        for d in sides:
            n *= d
            if self.kind == "cuda" and d & (d - 1):
                low = 1 << (d.bit_length() - 1)
                raise CompileError(f"{what}: on a GPU the sides of a tile are powers of two, got {sides}; {low} or {2 * low} fits")
        if self.kind == "cpu" and n > CPU_ELEMENTS:
            raise CompileError(f"{what}: a tile is held in registers, and on a CPU has at most {CPU_ELEMENTS} elements, got {sides}; "
                               "loop over smaller tiles")


def common(what: str, a: Any, b: Any) -> DType:
    """The dtype of an operation on two values."""
    tiles = [compute_dtype(x.dtype) for x in (a, b) if isinstance(x, Tile)]
    if not tiles:
        floats = any(isinstance(x, (float, np.floating)) for x in (a, b))
        return f32 if floats else i64
    if len(tiles) == 1:
        d = tiles[0]
        other = b if isinstance(a, Tile) else a
        if not isinstance(other, (Ix, bool, int, float, np.generic)):
            raise CompileError(f"{what}: needs a tile or a number, got {shown(other)}")
        if isinstance(other, (float, np.floating)) and not d.is_float:
            return f32
        if d.is_bool and not isinstance(other, (bool, np.bool_)):
            return i64
        return d
    x, y = tiles
    if x is y:
        return x
    if x.is_float or y.is_float:
        return f64 if f64 in (x, y) else x if x.is_float else y
    if x.is_bool or y.is_bool:
        return y if x.is_bool else x
    wide = np.promote_types(x.np, y.np)
    if wide.kind == "f":
        raise CompileError(f"{what}: {x} and {y} have no common integer dtype; cast one")
    return dtype_of(wide)
