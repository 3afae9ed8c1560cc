"""Builds kernels: the API that templates use. Python operators work on index values (`Ix`) and tiles (`Tile`).

Memory order: `build()` threads one token per scratch allocation through its loads and stores, in program order, so templates
get a correct token graph without naming tokens; accesses to global views are unordered unless `after=` tokens are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.dtypes import DType, bool_, f32, i64
from ..core.errors import CompileError
from . import tokens
from .ir import INDEX, TOKEN, Block, Instr, Kernel, Operand, TileType, Type, Var, ViewType


def _index(fn: str, *, swap: bool = False) -> Callable[[Ix, Ix | int], Ix | int]:
    """A method of `Ix` for an operator."""
    return (lambda x, o: x.b.index_op(fn, o, x)) if swap else (lambda x, o: x.b.index_op(fn, x, o))


def _arithmetic(fn: str, *, swap: bool = False) -> Callable[[Tile, Tile | float], Tile]:
    """A method of `Tile` for an operator."""
    return (lambda x, o: x.b.binary(fn, o, x)) if swap else (lambda x, o: x.b.binary(fn, x, o))


class Ix:
    """An index value inside a kernel."""

    __slots__ = ("b", "var")

    def __init__(self, b: KernelBuilder, var: Var) -> None:
        self.b, self.var = b, var

    __add__ = __radd__ = _index("add")
    __sub__, __rsub__ = _index("sub"), _index("sub", swap=True)
    __mul__ = __rmul__ = _index("mul")
    __floordiv__, __rfloordiv__ = _index("floordiv"), _index("floordiv", swap=True)
    __mod__, __rmod__ = _index("mod"), _index("mod", swap=True)


class Tile:
    """A tile value inside a kernel. Operators broadcast like NumPy on the static shapes."""

    __slots__ = ("b", "var")

    def __init__(self, b: KernelBuilder, var: Var) -> None:
        self.b, self.var = b, var

    @property
    def type(self) -> TileType:
        assert isinstance(self.var.type, TileType)
        return self.var.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    __add__, __radd__ = _arithmetic("add"), _arithmetic("add", swap=True)
    __sub__, __rsub__ = _arithmetic("sub"), _arithmetic("sub", swap=True)
    __mul__, __rmul__ = _arithmetic("mul"), _arithmetic("mul", swap=True)
    __truediv__, __rtruediv__ = _arithmetic("div"), _arithmetic("div", swap=True)

    def __neg__(self) -> Tile:
        return self.b.unary("neg", self)


class View:
    """A view inside a kernel: its type's unknown strides are words of the argument block (or index values)."""

    __slots__ = ("b", "var")

    def __init__(self, b: KernelBuilder, var: Var) -> None:
        self.b, self.var = b, var

    @property
    def type(self) -> ViewType:
        assert isinstance(self.var.type, ViewType)
        return self.var.type


class Loop:
    """Handle of a `for`: `index`, `carried` inside the body; `results` after it."""

    def __init__(self, index: Ix, carried: list[Any]) -> None:
        self.index, self.carried = index, carried
        self.results: list[Any] = []
        self._yields: list[Any] | None = None

    def next(self, *values: Any) -> None:
        """Give the carried values of the next iteration."""
        self._yields = list(values)


__all__ = ["Ix", "KernelBuilder", "Loop", "Tile", "View"]


class KernelBuilder:
    """Appends instructions to the innermost open block."""

    def __init__(self, name: str) -> None:
        self.kernel = Kernel(name)
        self._blocks = [self.kernel.body]
        self._count = 0
        self._contract = False

    # --- parameters ---------------------------------------------------------------------------------------------------
    def view(self, name: str, dtype: DType, strides: Sequence[int | None]) -> View:
        var = Var(ViewType(dtype, tuple(strides)), name)
        self.kernel.params.append(var)
        return View(self, var)

    def index(self, name: str) -> Ix:
        var = Var(INDEX, name)
        self.kernel.params.append(var)
        return Ix(self, var)

    def error(self) -> View:
        """The error block: four i64 words (code, site, position, value)."""
        return self.view("error", i64, (1,))

    @property
    def pid(self) -> Ix:
        return Ix(self, self.kernel.pid)

    # --- plumbing -----------------------------------------------------------------------------------------------------
    def _emit(self, op: str, operands: Sequence[Operand], types: Sequence[Type] = (), blocks: Sequence[Block] = (),
              **attrs: Any) -> list[Var]:
        results = [self._fresh(t) for t in types]
        self._blocks[-1].body.append(Instr(op, list(operands), {k: v for k, v in attrs.items() if v is not None}, results, list(blocks)))
        return results

    def _emit_access(self, op: str, operands: Sequence[Operand], types: Sequence[Type], after: Sequence[Var], **attrs: Any) -> list[Var]:
        out = self._emit(op, operands, types, **attrs)
        self._blocks[-1].body[-1].tokens = tuple(after)
        return out

    def _fresh(self, type_: Type) -> Var:
        self._count += 1
        return Var(type_, str(self._count))

    @staticmethod
    def _ix(x: Ix | int) -> Operand:
        return x if isinstance(x, int) else x.var

    def _wrap(self, var: Var) -> Any:
        if isinstance(var.type, TileType):
            return Tile(self, var)
        return View(self, var) if isinstance(var.type, ViewType) else Ix(self, var) if var.type == INDEX else var

    # --- index arithmetic ---------------------------------------------------------------------------------------------
    def index_op(self, fn: str, a: Ix | int, b: Ix | int) -> Ix | int:
        if isinstance(a, int) and isinstance(b, int):
            if fn in ("floordiv", "mod"):
                return a // b if fn == "floordiv" else a % b
            return {"add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b)}[fn]
        if (fn in ("add", "sub") and b == 0) or (fn in ("mul", "floordiv") and b == 1):
            return a
        if (fn == "add" and a == 0) or (fn == "mul" and a == 1):
            return b
        if (fn == "mul" and (a == 0 or b == 0)) or (fn == "mod" and b == 1):
            return 0
        return Ix(self, self._emit("index." + fn, [self._ix(a), self._ix(b)], [INDEX])[0])

    def minimum(self, a: Ix | int, b: Ix | int) -> Ix | int:
        return self.index_op("min", a, b)

    def maximum(self, a: Ix | int, b: Ix | int) -> Ix | int:
        return self.index_op("max", a, b)

    def ceildiv(self, a: Ix | int, b: int) -> Ix | int:
        return (a + (b - 1)) // b

    def compare(self, fn: str, a: Ix | int, b: Ix | int) -> Tile:
        """A rank-0 bool tile from two index values: conditions of `if_` and of `select`."""
        return Tile(self, self._emit("index.cmp", [self._ix(a), self._ix(b)], [TileType((), bool_)], fn=fn)[0])

    def to_index(self, scalar: Tile) -> Ix:
        """The index value of a rank-0 (or one-element) integer tile."""
        return Ix(self, self._emit("to_index", [scalar.var], [INDEX])[0])

    def from_index(self, x: Ix | int, dtype: DType = i64) -> Tile:
        """A rank-0 tile from an index value, converted to dtype."""
        return Tile(self, self._emit("from_index", [self._ix(x)], [TileType((), dtype)])[0])

    # --- tiles --------------------------------------------------------------------------------------------------------
    def full(self, shape: tuple[int, ...], value: float | int | bool, dtype: DType = f32) -> Tile:
        return Tile(self, self._emit("full", [], [TileType(shape, dtype)], value=value)[0])

    def iota(self, shape: tuple[int, ...], axis: int, dtype: DType = i64) -> Tile:
        """Element = its index along axis."""
        return Tile(self, self._emit("iota", [], [TileType(shape, dtype)], axis=axis % len(shape))[0])

    def _lift(self, x: Tile | float | int | bool, like: Tile) -> Tile:
        return x if isinstance(x, Tile) else self.full((), x, like.dtype)

    @staticmethod
    def broadcast_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        n = max(len(a), len(b))
        out = []
        for x, y in zip((1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b, strict=True):
            if x != y and 1 not in (x, y):
                raise CompileError(f"tile: shapes {a} and {b} do not broadcast")
            out.append(max(x, y))
        return tuple(out)

    def unary(self, fn: str, x: Tile, *, short: bool = False) -> Tile:
        dtype = bool_ if fn in ("isnan", "isinf") else x.dtype
        return Tile(self, self._emit(fn, [x.var], [TileType(x.shape, dtype)], short=short or None)[0])

    def binary(self, fn: str, a: Tile | float, b: Tile | float, *, short: bool = False) -> Tile:
        like = a if isinstance(a, Tile) else b
        assert isinstance(like, Tile)
        x, y = self._lift(a, like), self._lift(b, like)
        if x.dtype is not y.dtype:
            raise CompileError(f"tile: {fn} needs one dtype, got {x.type} and {y.type}")
        contract = True if self._contract and x.dtype.is_float and fn in ("add", "sub", "mul") else None
        out = TileType(self.broadcast_shape(x.shape, y.shape), x.dtype)
        return Tile(self, self._emit(fn, [x.var, y.var], [out], contract=contract, short=short or None)[0])

    @contextmanager
    def contracting(self) -> Iterator[None]:
        """Inside, products and sums may be fused to `fma` (by the pass of that name)."""
        before, self._contract = self._contract, True
        yield
        self._contract = before

    def cmp(self, fn: str, a: Tile | float, b: Tile | float) -> Tile:
        like = a if isinstance(a, Tile) else b
        assert isinstance(like, Tile)
        x, y = self._lift(a, like), self._lift(b, like)
        return Tile(self, self._emit("cmp", [x.var, y.var], [TileType(self.broadcast_shape(x.shape, y.shape), bool_)], fn=fn)[0])

    def select(self, cond: Tile, a: Tile | float, b: Tile | float) -> Tile:
        like = a if isinstance(a, Tile) else b
        assert isinstance(like, Tile)
        x, y = self._lift(a, like), self._lift(b, like)
        shape = self.broadcast_shape(cond.shape, self.broadcast_shape(x.shape, y.shape))
        return Tile(self, self._emit("select", [cond.var, x.var, y.var], [TileType(shape, x.dtype)])[0])

    def fma(self, a: Tile, b: Tile, c: Tile) -> Tile:
        """a*b + c with one rounding."""
        shape = self.broadcast_shape(c.shape, self.broadcast_shape(a.shape, b.shape))
        return Tile(self, self._emit("fma", [a.var, b.var, c.var], [TileType(shape, c.dtype)])[0])

    def dot4(self, a: Tile, b: Tile, acc: Tile) -> Tile:
        """acc + the dot product of four bytes per element: a's are unsigned, b's signed, packed in i32, lowest byte first."""
        shape = self.broadcast_shape(acc.shape, self.broadcast_shape(a.shape, b.shape))
        return Tile(self, self._emit("dot4", [a.var, b.var, acc.var], [TileType(shape, acc.dtype)])[0])

    def dot2(self, a: Tile, b: Tile, acc: Tile) -> Tile:
        """acc (f32) + the dot product of two bf16 numbers per element, packed in i32, the first in the low half. Products and sums are
        rounded as the target's instruction rounds them; subnormal numbers may count as zeros."""
        shape = self.broadcast_shape(acc.shape, self.broadcast_shape(a.shape, b.shape))
        return Tile(self, self._emit("dot2", [a.var, b.var, acc.var], [TileType(shape, acc.dtype)])[0])

    def tile_dot(self, c: View, a: View, b: View, count: Ix | int, *, rows: int, cols: int) -> None:
        """c[rows, cols] = a[rows, count] · b[count, cols] of 32-bit words, for matrix tiles: four bytes each where c is i32 (as `dot4`),
        two bf16 numbers where it is f32 (as `dot2`). `count` is a multiple of 16, cols too; all views have rank 2 and contiguous rows."""
        self._emit("tile_dot", [c.var, a.var, b.var, self._ix(count)], rows=rows, cols=cols)

    def cast(self, x: Tile, dtype: DType, *, flush: bool = False) -> Tile:
        """With `flush`, f32 numbers below the smallest normal one may become zeros of bf16, as a CPU's own instruction has it."""
        return x if x.dtype is dtype else Tile(self, self._emit("cast", [x.var], [TileType(x.shape, dtype)], flush=flush or None)[0])

    def bitcast(self, x: Tile, dtype: DType) -> Tile:
        return Tile(self, self._emit("bitcast", [x.var], [TileType(x.shape, dtype)])[0])

    def reduce(self, fn: str, x: Tile, axis: int = -1) -> Tile:
        """Combine along axis (kept with size 1), as a balanced tree whose shape depends on the size alone."""
        axis %= len(x.shape)
        shape = tuple(1 if i == axis else d for i, d in enumerate(x.shape))
        return Tile(self, self._emit("reduce", [x.var], [TileType(shape, x.dtype)], fn=fn, axis=axis)[0])

    def scan(self, fn: str, x: Tile) -> Tile:
        """Running sum (or product) along the last axis, by doubling: in step s = 1, 2, 4… element i takes element i - s in front of it."""
        return Tile(self, self._emit("scan", [x.var], [x.type], fn=fn)[0])

    def broadcast(self, x: Tile, shape: tuple[int, ...]) -> Tile:
        if x.shape == shape:
            return x
        return Tile(self, self._emit("broadcast", [x.var], [TileType(self.broadcast_shape(x.shape, shape), x.dtype)])[0])

    def reshape(self, x: Tile, shape: tuple[int, ...]) -> Tile:
        return x if x.shape == shape else Tile(self, self._emit("reshape", [x.var], [TileType(shape, x.dtype)])[0])

    def transpose(self, x: Tile) -> Tile:
        """Swap the two axes of a rank-2 tile."""
        return Tile(self, self._emit("transpose", [x.var], [TileType((x.shape[1], x.shape[0]), x.dtype)])[0])

    def extract(self, x: Tile, starts: tuple[int, ...], shape: tuple[int, ...]) -> Tile:
        """A static sub-tile."""
        return Tile(self, self._emit("extract", [x.var], [TileType(shape, x.dtype)], starts=starts)[0])

    def shuffle(self, a: Tile, b: Tile, order: Sequence[int]) -> Tile:
        """Elements of two rank-1 tiles, a's numbered before b's, in a fixed order."""
        return Tile(self, self._emit("shuffle", [a.var, b.var], [TileType((len(order),), a.dtype)], order=tuple(order))[0])

    def pick(self, table: Tile, index: Tile) -> Tile:
        """Elements of a rank-1 tile by a tile of integers of its element's size, which must be in range."""
        return Tile(self, self._emit("pick", [table.var, index.var], [TileType(index.shape, table.dtype)])[0])

    def interleave(self, *parts: Tile) -> Tile:
        """a0 b0 … a1 b1 … of two or more rank-1 tiles of one size."""
        n, k, joined = parts[0].shape[0], len(parts), parts[0]
        for i, part in enumerate(parts[1:-1], 1):
            joined = self.shuffle(joined, part, range((i + 1) * n))
        return self.shuffle(joined, parts[-1], [i // k + i % k * n for i in range(k * n)])

    def reverse(self, x: Tile) -> Tile:
        """A rank-1 tile from behind."""
        return self.shuffle(x, x, range(x.shape[0] - 1, -1, -1))

    def mma(self, a: Tile, b: Tile, acc: Tile, **attrs: Any) -> Tile:
        """acc[m,n] + sum_k a[m,k]*b[k,n], one fused chain per element, k in order."""
        if (a.shape[0], b.shape[1]) != acc.shape or a.shape[1] != b.shape[0]:
            raise CompileError(f"mma: shapes do not fit, got {a.type} @ {b.type} + {acc.type}")
        return Tile(self, self._emit("mma", [a.var, b.var, acc.var], [acc.type], **attrs)[0])

    # --- memory -------------------------------------------------------------------------------------------------------
    def scratch(self, dtype: DType, shape: tuple[int, ...], space: str = "local") -> View:
        """Per-program memory, contiguous, 64-byte aligned, uninitialised; it lives for one program."""
        strides, step = [], 1
        for d in reversed(shape):
            strides.append(step)
            step *= d
        return View(self, self._emit("alloc", [], [ViewType(dtype, tuple(reversed(strides)), space)], shape=shape)[0])

    def subview(self, view: View, at: Sequence[Ix | int], keep: Sequence[int]) -> View:
        """The view that starts at `at` and keeps only axes `keep`."""
        strides = tuple(view.type.strides[i] for i in keep)
        ty = ViewType(view.type.dtype, strides, view.type.space)
        out = View(self, self._emit("subview", [view.var, *map(self._ix, at)], [ty], keep=tuple(keep))[0])
        return out

    def load(self, view: View, at: Sequence[Ix | int], shape: tuple[int, ...], limit: Sequence[Ix | int | None] | None = None,
             other: float = 0, axes: tuple[int, ...] | None = None, after: Sequence[Var] = (), order: str | None = None,
             scope: str | None = None) -> Tile:
        """Read the tile whose first element is at `at`. Tile axis i runs along view axis `axes[i]` (default: the last ones).

        `limit[i]` elements of tile axis i are inside (None: all); elements outside become `other` and are not touched in memory.
        """
        axes = axes if axes is not None else tuple(range(len(at) - len(shape), len(at)))
        ops, lim = self._limits(limit, len(shape))
        var = self._emit_access("load", [view.var, *map(self._ix, at), *ops], [TileType(shape, view.type.dtype)], after, axes=axes,
                                limits=lim, other=other if lim else None, order=order, scope=scope)[0]
        return Tile(self, var)

    def gather(self, view: View, at: Sequence[Ix | int], axis: int, indices: Tile, *, run: int | None = None, limit: Ix | int | None = None,
               masked: bool = False) -> Tile:
        """Element e is at `at` with `indices[e]` added to axis. Indices must be in range, or negative where `masked`: those elements are 0
        and not touched in memory. With `run`, indices are a column [R, 1] and row r is `run` elements along the last axis of the view
        from there on, of which the first `limit` are inside."""
        shape = indices.shape if run is None else (indices.shape[0], run)
        operands = [view.var, *map(self._ix, at), indices.var, *([] if limit is None else [self._ix(limit)])]
        var = self._emit("gather", operands, [TileType(shape, view.type.dtype)], axis=axis, run=run, masked=masked or None,
                         limits=(1,) if limit is not None else None)[0]
        return Tile(self, var)

    def store(self, view: View, at: Sequence[Ix | int], tile: Tile, limit: Sequence[Ix | int | None] | None = None,
              axes: tuple[int, ...] | None = None, after: Sequence[Var] = (), order: str | None = None, scope: str | None = None) -> None:
        axes = axes if axes is not None else tuple(range(len(at) - len(tile.shape), len(at)))
        ops, lim = self._limits(limit, len(tile.shape))
        operands = [view.var, *map(self._ix, at), *ops, tile.var]
        self._emit_access("store", operands, [], after, axes=axes, limits=lim, order=order, scope=scope)

    def scatter(self, view: View, at: Sequence[Ix | int], axis: int, indices: Tile, tile: Tile, *, limit: Ix | int | None = None) -> None:
        """Row r of a tile goes along the last axis of the view, from `at` with `indices[r]` (a column [R, 1]) added to axis; the first
        `limit` elements of a row are inside. With as many indices as elements, element e goes to `indices[e]` of axis. What has a negative
        index is not written; rows must not meet."""
        operands = [view.var, *map(self._ix, at), indices.var, *([] if limit is None else [self._ix(limit)]), tile.var]
        self._emit("scatter", operands, axis=axis, limits=(1,) if limit is not None else None)

    def atomic(self, fn: str, view: View, at: Sequence[Ix | int], tile: Tile, limit: Sequence[Ix | int | None] | None = None,
               axes: tuple[int, ...] | None = None, after: Sequence[Var] = (), order: str = "relaxed", scope: str = "device") -> Tile:
        """Combine each element into memory as one step that others cannot divide; gives the values before."""
        axes = axes if axes is not None else tuple(range(len(at) - len(tile.shape), len(at)))
        ops, lim = self._limits(limit, len(tile.shape))
        operands = [view.var, *map(self._ix, at), *ops, tile.var]
        var = self._emit_access("atomic", operands, [tile.type], after, fn=fn, axes=axes, limits=lim, order=order, scope=scope)[0]
        return Tile(self, var)

    def token(self) -> Var:
        """The token of the memory operation just built, to give to `after=` of another."""
        last = self._blocks[-1].body[-1] if self._blocks[-1].body else None
        if last is None or last.op not in tokens.ACCESS:
            raise CompileError("tile: token() must follow a load, store, gather or atomic")
        last.tokens_out = last.tokens_out or (self._fresh(TOKEN),)
        return last.tokens_out[0]

    def join(self, *after: Var) -> Var:
        """One token that stands for all of `after`."""
        self._emit("join", [])
        instr = self._blocks[-1].body[-1]
        instr.tokens, instr.tokens_out = after, (self._fresh(TOKEN),)
        return instr.tokens_out[0]

    def prefetch(self, view: View, at: Sequence[Ix | int], locality: int = 3) -> None:
        self._emit("prefetch", [view.var, *map(self._ix, at)], locality=locality)

    def call(self, function: Ix | int, *arguments: View | Ix | int | Tile, kinds: Sequence[str] | None = None) -> None:
        """Call a native function: it gets a pointer to the first element of a view (`subview` moves that), an index as 64 bits (`kinds`
        may say i32), a number as it is. It may read and write what its pointers reach, nothing else; no other access is moved across it.
        CPUs only."""
        if kinds is None:
            kinds = ["ptr" if isinstance(x, View) else x.dtype.name if isinstance(x, Tile) else "i64" for x in arguments]
        self._emit("call", [self._ix(function), *(x if isinstance(x, int) else x.var for x in arguments)], kinds=tuple(kinds))

    def _limits(self, limit: Sequence[Ix | int | None] | None, rank: int) -> tuple[list[Operand], tuple[int, ...] | None]:
        """Operands for the limited tile axes, and which axes those are."""
        if limit is None or all(x is None for x in limit):
            return [], None
        if len(limit) != rank:
            raise CompileError(f"tile: limit needs {rank} entries, got {len(limit)}")
        return [self._ix(x) for x in limit if x is not None], tuple(i for i, x in enumerate(limit) if x is not None)

    # --- control ------------------------------------------------------------------------------------------------------
    @contextmanager
    def loop(self, start: Ix | int, stop: Ix | int, step: int = 1, carried: Sequence[Any] = (),
             unroll: int | None = None, nonempty: bool = False) -> Iterator[Loop]:
        """`for index in range(start, stop, step)`. Inside, call `loop.next(*values)` when values are carried. `nonempty` promises that
        start < stop, so that no guard is needed."""
        index = self._fresh(INDEX)
        params = [self._fresh(c.var.type) for c in carried]
        block = Block([index, *params])
        handle = Loop(Ix(self, index), [self._wrap(p) for p in params])
        self._blocks.append(block)
        yield handle
        self._blocks.pop()
        if carried and handle._yields is None:
            raise CompileError("tile: a loop with carried values needs loop.next(...)")
        block.yields = [v.var for v in handle._yields or []]
        operands = [self._ix(start), self._ix(stop), *(c.var for c in carried)]
        results = self._emit("for", operands, [c.var.type for c in carried], [block], step=step, unroll=unroll,
                             nonempty=nonempty or None)
        handle.results = [self._wrap(r) for r in results]

    @contextmanager
    def if_(self, cond: Tile) -> Iterator[None]:
        """Run the body when the rank-0 bool is true."""
        block = Block()
        self._blocks.append(block)
        yield
        self._blocks.pop()
        self._emit("if", [cond.var], [], [block])

    def build(self) -> Kernel:
        """The finished kernel."""
        if len(self._blocks) != 1:
            raise CompileError("tile: build() inside an open loop or if")
        tokens.thread(self.kernel)
        return self.kernel
