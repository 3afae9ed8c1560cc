"""The tile interpreter: runs any kernel in NumPy, slowly and strictly. It is the oracle for templates, passes and targets.

Every access is checked against the buffer it goes into, elements outside a limit are neither read nor written, scratch starts as
NaN (floats) or a noisy pattern, index divisions reject negative operands (targets divide unsigned). Programs run one after the other,
in an order of the caller's choice: the result must not depend on it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import ExecutionError, InputError
from . import numerics
from .ir import BINARY, INDEX, UNARY, Block, Instr, Kernel, Operand, TileType, Var, ViewType
from .numerics import Array
from .text import instr_text


@dataclass(frozen=True)
class Buffer:
    """An argument for a view: a flat array, the element where the view starts, and its strides in elements."""

    data: Array
    offset: int = 0
    strides: tuple[int, ...] = ()

    @staticmethod
    def of(x: Array) -> Buffer:
        """The view of an array (of any strides) on the memory it lives in. The base array bounds what the kernel may touch."""
        base = x
        while isinstance(base.base, np.ndarray):
            base = base.base
        if not base.flags.c_contiguous:
            raise InputError(f"interpreter: the array that owns the memory must be contiguous, got strides {base.strides}")
        offset = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return Buffer(base.view(x.dtype).reshape(-1), offset // x.itemsize, tuple(s // x.itemsize for s in x.strides))


Argument = Buffer | Array | int


def run(kernel: Kernel, args: Sequence[Argument], grid: int, order: Iterable[int] | None = None) -> None:
    """Run programs 0..grid-1 (or those of `order`, in that order). Views take a `Buffer` or an array, index parameters take ints."""
    _Interpreter(kernel, args).programs(range(grid) if order is None else order)


class _Fault(Exception):
    pass


class _Interpreter:
    def __init__(self, kernel: Kernel, args: Sequence[Argument]) -> None:
        self.kernel = kernel
        self.fixed: dict[Var, Any] = {}
        if len(args) != len(kernel.params):
            raise InputError(f"interpreter: kernel {kernel.name} takes {len(kernel.params)} arguments, got {len(args)}")
        for p, a in zip(kernel.params, args, strict=True):
            self.fixed[p] = _argument(kernel, p, a)

    def programs(self, order: Iterable[int]) -> None:
        with np.errstate(all="ignore"):
            for pid in order:
                self.env: dict[Var, Any] = {**self.fixed, self.kernel.pid: int(pid)}
                self.block(self.kernel.body)

    def block(self, block: Block) -> None:
        for instr in block.body:
            try:
                self.step(instr)
            except (_Fault, IndexError, ValueError, ZeroDivisionError, FloatingPointError) as error:
                raise ExecutionError(
                    f"kernel {self.kernel.name}, program {self.env[self.kernel.pid]}: {instr.op}: {error}"
                    f" (in `{instr_text(self.kernel, instr)}`)"
                ) from None

    def value(self, x: Operand) -> Any:
        return self.env[x] if isinstance(x, Var) else x

    def step(self, i: Instr) -> None:
        if i.op == "for":
            self.loop(i)
        elif i.op == "if":
            if bool(self.value(i.operands[0])):
                self.block(i.blocks[0])
        elif i.op.startswith("index."):
            a, b = (self.value(x) for x in i.operands)
            self.env[i.results[0]] = (
                np.asarray(bool(_INDEX_COMPARE[i.attrs["fn"]](a, b))) if i.op == "index.cmp" else _index(i.op[6:], a, b)
            )
        else:
            xs = [self.value(x) for x in i.operands]
            if i.op in UNARY:
                out = numerics.unary(i.op, xs[0], _dtype(i.operands[0]))
            elif i.op in BINARY:
                out = numerics.binary(i.op, xs[0], xs[1], _dtype(i.operands[0]))
            else:
                out = _OPS[i.op](i, xs)
            if i.results:
                self.env[i.results[0]] = out

    def loop(self, i: Instr) -> None:
        block, (start, stop, *carried) = i.blocks[0], [self.value(x) for x in i.operands]
        for n in range(start, stop, i.attrs.get("step", 1)):
            self.env[block.params[0]] = n
            for p, v in zip(block.params[1:], carried, strict=True):
                self.env[p] = v
            self.block(block)
            carried = [self.value(y) for y in block.yields]
        for r, v in zip(i.results, carried, strict=True):
            self.env[r] = v


def _argument(kernel: Kernel, param: Var, arg: Argument) -> Any:
    where = f"interpreter: kernel {kernel.name}, argument %{param.name}: {param.type}"
    if param.type == INDEX:
        if not isinstance(arg, (int, np.integer)):
            raise InputError(f"{where} needs an int, got {type(arg).__name__}")
        return int(arg)
    assert isinstance(param.type, ViewType)
    if isinstance(arg, np.ndarray):
        shape, arg = arg.shape, Buffer.of(arg)
        if len(shape) == param.type.rank:  # strides along sides of one or no element mean nothing: NumPy may have any there
            fitting = tuple(
                t if known is None or (d > 1 and 0 not in shape) else known
                for known, t, d in zip(param.type.strides, arg.strides, shape, strict=True)
            )
            arg = Buffer(arg.data, arg.offset, fitting)
    if not isinstance(arg, Buffer):
        raise InputError(f"{where} needs an array or a Buffer, got {type(arg).__name__}")
    if arg.data.dtype != param.type.dtype.np or arg.data.ndim != 1:
        raise InputError(f"{where} needs a flat array of {param.type.dtype}, got {arg.data.dtype}{list(arg.data.shape)}")
    if len(arg.strides) != param.type.rank or any(s is not None and s != t for s, t in zip(param.type.strides, arg.strides, strict=True)):
        raise InputError(f"{where} has other strides than the argument: {arg.strides}")
    return arg


def _dtype(x: Operand) -> Any:
    assert isinstance(x, Var) and isinstance(x.type, TileType)
    return x.type.dtype


def _out(i: Instr) -> TileType:
    t = i.results[0].type
    assert isinstance(t, TileType)
    return t


# --- index scalars ------------------------------------------------------------------------------------------------------
_INDEX_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_INDEX: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "and": lambda a, b: a & b,
}


def _index(fn: str, a: int, b: int) -> int:
    if fn in ("floordiv", "mod", "shr") and (a < 0 or b < 0 or (b == 0 and fn != "shr")):
        raise _Fault(f"operands must not be negative and the divisor not zero, got {a} and {b}")
    out = _INDEX[fn](a, b)
    if not -(1 << 63) <= out < 1 << 63:
        raise _Fault(f"overflows 64 bits, got {a} and {b}")
    return out


# --- memory -------------------------------------------------------------------------------------------------------------
def _alloc(i: Instr, xs: list[Any]) -> Buffer:
    t = i.results[0].type
    assert isinstance(t, ViewType)
    n = 1
    for d in i.attrs["shape"]:
        n *= d
    data: Array = np.frombuffer((b"\xa5\x5a\xc3\x3c" * (n * t.dtype.itemsize // 4 + 1))[: n * t.dtype.itemsize], t.dtype.np).copy()
    if t.dtype.is_float:
        data[:] = np.nan
    elif t.dtype.is_bool:
        data = np.arange(n) % 3 == 0
    return Buffer(data, 0, tuple(s or 0 for s in t.strides))


def _subview(i: Instr, xs: list[Any]) -> Buffer:
    view: Buffer = xs[0]
    offset = view.offset + sum(a * s for a, s in zip(xs[1:], view.strides, strict=True))
    return Buffer(view.data, offset, tuple(view.strides[k] for k in i.attrs["keep"]))


def _places(i: Instr, xs: list[Any], shape: tuple[int, ...]) -> tuple[Array, tuple[slice, ...]]:
    """The flat positions of the elements inside the limits, and where they lie in the tile."""
    view: Buffer = xs[0]
    rank, axes, limits = len(view.strides), i.attrs["axes"], i.attrs.get("limits", ())
    inside = list(shape)
    for axis, n in zip(limits, xs[1 + rank : 1 + rank + len(limits)], strict=True):
        inside[axis] = min(max(n, 0), inside[axis])
    flat = np.full(inside, view.offset + sum(a * s for a, s in zip(xs[1 : 1 + rank], view.strides, strict=True)), np.int64)
    for d, axis in enumerate(axes):
        flat += (np.arange(inside[d]) * view.strides[axis]).reshape([-1 if e == d else 1 for e in range(len(inside))])
    _check(flat, view)
    return flat, tuple(slice(0, n) for n in inside)


def _check(flat: Array, view: Buffer) -> None:
    if flat.size and (flat.min() < 0 or flat.max() >= view.data.size):
        raise _Fault(f"touches elements {flat.min()}..{flat.max()} of a buffer with {view.data.size}")


def _load(i: Instr, xs: list[Any]) -> Array:
    t = _out(i)
    flat, inside = _places(i, xs, t.shape)
    out: Array = np.full(t.shape, i.attrs.get("other", 0), t.dtype.np)
    out[inside] = xs[0].data[flat]
    return out


def _store(i: Instr, xs: list[Any]) -> None:
    flat, inside = _places(i, xs, xs[-1].shape)
    if flat.size and np.unique(flat).size != flat.size:
        raise _Fault("writes one element twice")
    xs[0].data[flat] = xs[-1][inside]


def _atomic(i: Instr, xs: list[Any]) -> Array:
    tile, data, fn, dtype = xs[-1], xs[0].data, i.attrs["fn"], _out(i).dtype
    flat, inside = _places(i, xs, tile.shape)
    old: Array = np.zeros(tile.shape, dtype.np)
    everything: Any = (*inside, ...)  # the dots: a view, also of a single number
    before, new = old[everything], tile[everything]
    for at in np.ndindex(flat.shape):
        before[at] = data[flat[at]]
        data[flat[at]] = new[at] if fn == "exchange" else numerics.binary(fn, np.asarray(before[at]), np.asarray(new[at]), dtype)
    return old


def _gather(i: Instr, xs: list[Any]) -> Array:
    view: Buffer = xs[0]
    rank, out = len(view.strides), _out(i)
    base = view.offset + sum(a * s for a, s in zip(xs[1 : 1 + rank], view.strides, strict=True))
    indices = xs[1 + rank].astype(np.int64)
    flat, inside = base + indices * view.strides[i.attrs["axis"]], np.ones(out.shape, bool)
    if i.attrs.get("masked"):
        inside &= indices >= 0
    if "run" in i.attrs:
        columns = np.arange(out.shape[1])
        flat = flat + columns * view.strides[-1]
        inside &= columns < (xs[2 + rank] if "limits" in i.attrs else out.shape[1])
    _check(flat[inside], view)
    found: Array = np.zeros(out.shape, out.dtype.np)
    found[inside] = view.data[flat[inside]]
    return found


def _scatter(i: Instr, xs: list[Any]) -> None:
    view: Buffer = xs[0]
    rank, tile = len(view.strides), xs[-1]
    base = view.offset + sum(a * s for a, s in zip(xs[1 : 1 + rank], view.strides, strict=True))
    indices = xs[1 + rank].astype(np.int64)
    flat, inside = base + indices * view.strides[i.attrs["axis"]], indices >= 0
    if indices.shape != tile.shape or "limits" in i.attrs:
        columns = np.arange(tile.shape[1])
        flat = flat + columns * view.strides[-1]
        inside = inside & (columns < (xs[2 + rank] if "limits" in i.attrs else tile.shape[1]))
    _check(flat[inside], view)
    if np.unique(flat[inside]).size != inside.sum():
        raise _Fault("writes one element twice")
    view.data[flat[inside]] = tile[inside]


def _call(i: Instr, xs: list[Any]) -> None:
    """The native function itself, on the arrays' own memory."""
    plain = {"i64": ctypes.c_int64, "i32": ctypes.c_int32, "f32": ctypes.c_float, "f64": ctypes.c_double}
    given: list[Any] = []
    for x, kind in zip(xs[1:], i.attrs["kinds"], strict=True):
        if isinstance(x, Buffer):
            _check(np.asarray([x.offset]), x)
            given.append(ctypes.c_void_p(x.data.ctypes.data + x.offset * x.data.itemsize))
        else:
            given.append(plain[kind](np.asarray(x).item()))
    ctypes.CFUNCTYPE(None, *(type(g) for g in given))(xs[0])(*given)


def _tile_dot(i: Instr, xs: list[Any]) -> None:
    c, a, b, count = xs
    rows, cols = i.attrs["rows"], i.attrs["cols"]

    def flat(view: Buffer, down: int, across: int) -> Array:
        at = view.offset + np.arange(down)[:, None] * view.strides[0] + np.arange(across) * view.strides[1]
        _check(at, view)
        return np.asarray(at)

    left, right = a.data[flat(a, rows, count)], b.data[flat(b, count, cols)]
    dtype = c.data.dtype
    total = np.zeros((rows, cols), dtype)
    for k in range(count):
        total = (numerics.dot4 if dtype == np.int32 else numerics.dot2)(left[:, k : k + 1], right[k : k + 1], total)
    c.data[flat(c, rows, cols)] = total


def _extract(i: Instr, xs: list[Any]) -> Array:
    x: Array = xs[0]
    return x[tuple(slice(s, s + n) for s, n in zip(i.attrs["starts"], _out(i).shape, strict=True))]


def _iota(i: Instr, xs: list[Any]) -> Array:
    t, axis = _out(i), i.attrs["axis"]
    column = np.arange(t.shape[axis]).reshape([-1 if e == axis else 1 for e in range(len(t.shape))])
    return np.broadcast_to(column, t.shape).astype(t.dtype.np)


def _select(i: Instr, xs: list[Any]) -> Array:
    return np.asarray(np.where(xs[0], xs[1], xs[2])).astype(_out(i).dtype.np)


_OPS: dict[str, Callable[[Instr, list[Any]], Any]] = {
    "full": lambda i, xs: np.full(_out(i).shape, i.attrs["value"]).astype(_out(i).dtype.np),
    "iota": _iota,
    "select": _select,
    "to_index": lambda i, xs: int(xs[0].reshape(())),
    "from_index": lambda i, xs: np.asarray(xs[0], np.int64).astype(_out(i).dtype.np),
    "cmp": lambda i, xs: numerics.compare(i.attrs["fn"], xs[0], xs[1], _dtype(i.operands[0])),
    "dot4": lambda i, xs: numerics.dot4(xs[0], xs[1], xs[2]),
    "dot2": lambda i, xs: numerics.dot2(xs[0], xs[1], xs[2]),
    "fma": lambda i, xs: numerics.fma(xs[0], xs[1], xs[2], _out(i).dtype),
    "mma": lambda i, xs: numerics.mma(xs[0], xs[1], xs[2], _out(i).dtype),
    "cast": lambda i, xs: numerics.cast(xs[0], _dtype(i.operands[0]), _out(i).dtype),
    "bitcast": lambda i, xs: xs[0].view(_out(i).dtype.np),
    "reduce": lambda i, xs: numerics.reduce(i.attrs["fn"], xs[0], i.attrs["axis"], _out(i).dtype),
    "scan": lambda i, xs: numerics.scan(i.attrs["fn"], xs[0], _out(i).dtype),
    "broadcast": lambda i, xs: np.broadcast_to(xs[0], _out(i).shape),
    "reshape": lambda i, xs: xs[0].reshape(_out(i).shape),
    "transpose": lambda i, xs: np.ascontiguousarray(xs[0].T),
    "extract": _extract,
    "shuffle": lambda i, xs: np.concatenate(xs)[list(i.attrs["order"])],
    "pick": lambda i, xs: xs[0][xs[1]],
    "alloc": _alloc,
    "subview": _subview,
    "load": _load,
    "store": _store,
    "atomic": _atomic,
    "gather": _gather,
    "scatter": _scatter,
    "tile_dot": _tile_dot,
    "prefetch": lambda i, xs: None,
    "call": _call,
    "join": lambda i, xs: None,
}
