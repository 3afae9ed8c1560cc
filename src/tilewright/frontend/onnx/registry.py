"""What functions of the table ONNX op -> graph ops are given.

One small function an op, registered with `@op("Softmax", since=13)` (`tables.py`). It receives a `Context`, the node's inputs as `Value`s
(None where an optional one is left out, a list for a sequence) and the node's attributes by name, and returns a value, or a tuple of them
in the order of the node's outputs. `since` and `until` are opset versions of the op's domain: a node finds the entry that holds for its
model's opset.

Ops that only the host can do (strings, results whose size depends on data) stand in a second table, `@host("NonZero")`: their functions
take and give NumPy arrays and run between compiled segments.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.dims import Dim, Expr, at_least
from ...core.dtypes import DType
from ...core.errors import ShapeError, UnsupportedError
from ...ir.graph import Graph, Value
from ...ops import functions as F
from ...ops.base import Op
from ...ops.families import broadcast_shapes
from ...ops.random.draws import split
from .content import Contents
from .elements import ELEMS, OF_DTYPE, Elem

if TYPE_CHECKING:
    from .importer import Scope


class NeedsData(Exception):
    """Raised while a graph is made: something must be known that only a run knows (elements, a length, whether an optional is there)."""

    def __init__(self, value: Any, why: str) -> None:
        super().__init__(why)
        self.value, self.why = value, why


class NeedsHost(Exception):
    """Raised while a graph is made: this node cannot be compiled and runs on the host."""


class Unequal(UnsupportedError):
    """A node that could be built if two sizes were equal."""

    def __init__(self, message: str, *pairs: tuple[Dim, Dim]) -> None:
        super().__init__(message)
        self.pairs = pairs


class Context:
    """The graph under construction, seen from one node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.contents = Contents()
        self.coded: dict[Value, Elem] = {}  # element types that are not the dtype of their values
        self.scope: Scope | None = None  # the scope of the node: names around it, for subgraphs
        self.node: Any = None
        self.version = 0  # the version of the opset of the node's domain
        self.outputs: tuple[str, ...] = ()  # names of the node's results, "" where nobody wants one
        self.seed: Value | None = None  # the hidden input that random ops draw from
        self.seeds = 0
        self.notes: list[str] = []
        self._scalars: dict[Any, Value] = {}

    # --- element types

    def elem(self, x: Value) -> Elem:
        return self.coded.get(x) or OF_DTYPE[x.dtype]

    def typed(self, x: Value, e: Elem) -> Value:
        """x, which holds elements of type `e`."""
        if e.kind != "plain":
            if self.coded.get(x, e) is not e or x.op.name == "input":
                x = O.Reshape(shape=x.shape)(x)
            self.coded[x] = e
        return x

    # --- what is known while the graph is made

    def known(self, x: Value) -> np.ndarray[Any, Any] | None:
        """The elements of x where they do not depend on the inputs (objects where they depend on sizes)."""
        return self.contents.of(x)

    # What became an input in a later opset was an attribute before: these take a value, or an attribute as it is.

    def array(self, x: Any, what: str) -> np.ndarray[Any, Any]:
        """The elements of x; a run must supply them where the model's sizes do not tell."""
        found = self.contents.of(x) if isinstance(x, Value) else np.asarray(x)
        if found is None or found.dtype == object:
            raise NeedsData(x, f"{what} of {self.node.op_type} depends on data")
        return found

    def dims(self, x: Any, what: str) -> list[Dim]:
        """The elements of an integer tensor as dims, in row-major order."""
        found = self.contents.of(x) if isinstance(x, Value) else np.asarray(x)
        if found is None:
            raise NeedsData(x, f"{what} of {self.node.op_type} depends on data")
        return [d if isinstance(d, Expr) else int(d) for d in found.reshape(-1).tolist()]

    def ints(self, x: Any, what: str) -> list[int]:
        """The elements of an integer tensor, none of them symbolic."""
        return [] if x is None else [int(n) for n in self.array(x, what).reshape(-1)]

    def scalar_of(self, x: Any, what: str) -> Any:
        """The one element of x as a Python number."""
        found = self.array(x, what).reshape(-1)
        if found.size != 1:
            raise ShapeError(f"{what} must have one element, got {found.size}")
        return found[0].item()

    # --- building

    def scalar(self, value: Any, dtype: DType) -> Value:
        """A rank-0 constant (one per value and dtype), or the run-time value of a dim."""
        key = (type(value).__name__, repr(value), dtype)
        found = self._scalars.get(key)
        if found is None:
            if isinstance(value, Expr):
                found = F.dim_value(self.graph, value, dtype)
            else:
                with np.errstate(over="ignore", invalid="ignore"):
                    found = self.graph.constant(np.asarray(value).astype(dtype.np), "scalar")
            self._scalars[key] = found
        return found

    def constant(self, array: Any, name: str = "const") -> Value:
        return self.graph.constant(np.asarray(array), name)

    def vector(self, dims: Sequence[Dim], dtype: DType = dt.i64) -> Value:
        """Dims as a vector."""
        if all(isinstance(d, int) for d in dims):
            return self.constant(np.array(dims, dtype.np), "dims")
        made = F.concat([F.reshape(self.scalar(d, dtype), (1,)) for d in dims], 0)
        self.contents.tell(made, np.array([*dims, None], object)[:-1])
        return made

    def full(self, shape: Sequence[Dim], value: Any, dtype: DType) -> Value:
        return F.expand(self.scalar(value, dtype), tuple(shape))

    def broadcast(self, *values: Value) -> tuple[Value, ...]:
        shape = broadcast_shapes(*(v.shape for v in values))
        return tuple(F.expand(v, shape) for v in values)

    def key(self, seed: Any = None) -> Value:
        """A random key for one op: of the model's seed, or drawn from the hidden input that every call fills anew."""
        if seed is not None:
            bits = np.float32(seed).view(np.uint32)
            return self.constant(np.uint64(bits), "seed")
        if self.seed is None:
            from ...ir.types import TensorType

            self.seed = self.graph.input(TensorType(dt.u64, ()), "seed")
        self.seeds += 1
        rows = split(self.seed, self.seeds)
        return F.reshape(F.slice_(rows, 0, self.seeds - 1, 1), ())

    def wanted(self, k: int) -> bool:
        """Whether the node's result number k has a name."""
        return k < len(self.outputs) and self.outputs[k] != ""


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    if not -rank <= axis < max(rank, 1):
        raise ShapeError(f"{what} must be in {-rank}..{max(rank, 1) - 1}, got {axis}")
    return axis % max(rank, 1)


def axes_of(axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted axes; None means all."""
    return tuple(range(rank)) if axes is None else tuple(sorted({axis_of(a, rank) for a in axes}))


def elem_number(number: int) -> Elem:
    found = ELEMS.get(number)
    if found is None:
        raise NeedsHost(f"elements of type number {number}")
    return found


def static(dims: Sequence[Dim], what: str) -> tuple[int, ...]:
    """Dims that must be known before the program runs."""
    out = []
    for d in dims:
        if not isinstance(d, int):
            raise UnsupportedError(f"{what} must be known, got the symbolic size {d}")
        out.append(d)
    return tuple(out)


def limited(count: Any, most: int, what: str) -> int:
    """A number that decides how much is written down while the graph is made."""
    if not 0 <= count <= most:
        raise UnsupportedError(f"{what} must be in 0..{most}, got {count}")
    return int(count)


def nonnegative(c: Context, ids: Value, size: Dim) -> Value:
    """Indices with negative ones counted from the end."""
    if ids.dtype.kind == "u":
        return ids
    found = c.known(ids)
    if found is not None and found.dtype != object and isinstance(size, int):
        if np.all(found >= 0):
            return ids
        return c.constant(np.where(found < 0, found + size, found).astype(ids.dtype.np))
    if found is not None and found.dtype == object and all(at_least(d, 0) for d in found.reshape(-1)):
        return ids
    moves: list[tuple[Op, Sequence[Value]]] = []
    root = ids
    views = (O.Slice, O.Reshape, O.Transpose, O.Gather)
    while isinstance(root.op, views) and all(isinstance(v.op, O.Constant) for v in root.node.operands[1:]):
        moves.append((root.op, root.node.operands[1:]))
        root = root.node.operands[0]
    whole, part = root.type.numel, ids.type.numel
    if not isinstance(whole, int) or not isinstance(part, int) or whole > 64 * part:
        root, moves = ids, []
    out = F.where(F.less(root, 0), F.add(root, c.scalar(size, ids.dtype)), root)  # tables that share a tensor of indices share this
    for move, more in reversed(moves):
        out = F.emit(move, out, *more)
    return out
