"""Sizes that depend on data, inside one fragment: memory of the largest size, and a count beside it.

A value of such a size is padded: rows behind the count hold anything. Ops that treat rows apart, and sums of rows, are ours; an op that
would mix padding with data is refused and runs in PyTorch, on tensors of the exact size.
"""
from __future__ import annotations

import operator
from typing import Any

from ..core import dtypes as dt
from ..core.dims import UNBOUNDED, Dim, minimum
from ..core.errors import UnsupportedError
from ..frontend.torch.aten.registry import Context, key_of
from ..frontend.torch.aten.shape import SIZED
from ..frontend.torch.symbols import Symbols
from ..ir.graph import Value
from ..ops import functions as F

ROWS = ("alias", "clone", "detach", "_to_copy", "t", "transpose", "permute", "unsqueeze", "squeeze", "full_like", "zeros_like", "ones_like")
SHAPED = ("expand", "view", "_unsafe_view", "reshape", "new_zeros", "new_full", "zeros", "ones", "sym_size", "sym_numel")
ALONG = ("select", "slice", "_softmax", "_log_softmax", "cumsum", "amax", "amin", "sort", "argmax", "argmin")  # argument 1 names axes
SUMS = {"sum": 0, "mean": 0, "any": False, "all": True, "prod": 1}


class Bounded:
    """The symbols of one fragment that stand for counts."""

    def __init__(self, shown: Symbols, ranges: dict[Any, Any]) -> None:
        self.shown, self.ranges = shown, ranges
        self.given: set[Any] = set()  # symbols that an argument shows: those are exact
        self.counts: dict[Any, Value] = {}
        self.capacity: dict[Any, Dim] = {}
        self.tight: set[Any] = set()  # whose capacity may be exceeded

    def padded(self, meta: Any) -> list[Any]:
        """The symbols of counts in the sizes of a fake tensor, or in a size."""
        return [s for d in _dims(meta) for s in _free(d) if s in self.capacity]

    def new(self, node: Any) -> Any:
        """The symbol of the size that a node finds, if it is of a kind that we have."""
        if key_of(node.target) not in SIZED:
            return None
        found = {s for s in sizes_of(node) if str(s).startswith("u") and s not in self.capacity}
        found -= {s for a in node.all_input_nodes for s in sizes_of(a)}
        return found.pop() if len(found) == 1 else None

    def make(self, c: Context, node: Any, symbol: Any, args: tuple[Any, ...]) -> Any:
        """The results of a node that finds a size."""
        if any(self.padded(m) for a in node.all_input_nodes for m in _metas(a)):
            raise UnsupportedError("torch.compile: a size depends on another one that depends on data")
        fn, most = SIZED[key_of(node.target)]
        if symbol in self.given:
            return fn(c, self.shown.dim(symbol), *args)[0]
        limit = getattr(self.ranges.get(symbol), "upper", None)
        bound = int(limit) if limit is not None and limit.is_Integer and int(limit) < UNBOUNDED else None
        natural = most(*args)
        if natural is None and bound is None:
            raise UnsupportedError("torch.compile: no bound of a result's size is known; torch._check(result.shape[0] <= n) gives one")
        size = bound if natural is None else natural if bound is None else minimum(natural, bound)
        assert size is not None
        self.capacity[symbol] = size
        if natural is None or size != natural:
            self.tight.add(symbol)
        self.shown.fix(symbol, size)
        out, self.counts[symbol] = fn(c, size, *args)
        return out

    def check(self, c: Context, node: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operands of a node that reads padded values, or an error if padding would change what it computes."""
        if not self.capacity:
            return args
        held = {a: self.padded(m) for a in node.all_input_nodes for m in _metas(a) if self.padded(m)}
        made = [s for m in _metas(node) for s in self.padded(m)]
        if not held and not made:
            return args
        if len({s for found in (*held.values(), made) for s in found}) > 1 or any(not _lone(d) for m in _metas(node) for d in _dims(m)
                                                                                    if any(s in self.capacity for s in _free(d))):
            raise UnsupportedError("torch.compile: sizes that depend on data are mixed")
        if node.target is operator.getitem:
            return args
        base = key_of(node.target).partition(".")[0]
        tensors = {a: self._axes(a) for a in held if self._axes(a)}
        sizes = [a for a in held if a not in tensors]
        first = node.args[0] if node.args else None
        if sizes and base not in SHAPED:
            return self._counted(c, node, args)
        if base in ROWS or _pointwise(node.target):
            return args
        if base in SHAPED:
            lead = all(axes == [0] for axes in (*tensors.values(), self._axes(node)) if axes)
            if lead or base == "expand" or base.startswith("sym_"):
                return args
        if base in ALONG and list(tensors) == [first] and len(node.args) > 1 and not self._over(node, tensors[first]):
            return args
        if base in ("index", "embedding", "index_select") and all(a is not (node.args[0]) for a in tensors):
            return tuple(self._indices(c, a, v) for a, v in zip(node.args, args, strict=False)) + args[len(node.args):]
        if base == "index_put" and first not in tensors and all(i is not None and _is_mask(i) for i in node.args[1]):
            return args  # the k-th row goes where the mask is True for the k-th time
        if base in ("mm", "addmm") and list(tensors) == [node.args[-2]] and tensors[node.args[-2]] == [0]:
            return args
        if base in SUMS and list(tensors) == [first] and len(tensors[first]) == 1:
            return self._summed(c, node, args, tensors[first][0])
        raise UnsupportedError("torch.compile: an op mixes rows, whose number depends on data")

    def _counted(self, c: Context, node: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The counts themselves as operands of arithmetic."""
        if not _pointwise(node.target) or c.dtype.is_bool or c.dtype.kind == "c" or any(
                self.padded(a.meta.get("val")) and not _lone(a.meta["val"]) for a in node.all_input_nodes if not self._axes(a)):
            raise UnsupportedError("torch.compile: the number of rows, which depends on data, is used in arithmetic")
        found = [self.padded(a.meta.get("val")) if hasattr(a, "meta") and not self._axes(a) else [] for a in node.args]
        return tuple(c.cast(self.counts[s[0]], c.dtype) if s else a for a, s in zip(args, found, strict=True))

    def _axes(self, node: Any) -> list[int]:
        """The padded axes of a tensor."""
        import torch

        meta = node.meta.get("val")
        shape = meta.shape if isinstance(meta, torch.Tensor) else ()
        return [a for a, d in enumerate(shape) if any(s in self.capacity for s in _free(d))]

    def _over(self, node: Any, padded: list[int]) -> bool:
        """Whether one of the axes that a node names is padded."""
        rank = len(node.args[0].meta["val"].shape)
        return any(a % rank in padded for a in _listed(node.args[1]))

    def _summed(self, c: Context, node: Any, args: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
        """The neutral element stands in the padding."""
        base = key_of(node.target).partition(".")[0]
        if len(node.args) > 1 and node.args[1] and not self._over(node, [axis]):
            return args
        x, count = args[0], self.counts[self.padded(node.args[0].meta["val"])[0]]
        before, c.graph.place = c.graph.place, c.place
        rest: Any = F.full(c.graph, (), SUMS[base], x.dtype)
        if base == "mean":
            if x.dtype not in (dt.f32, dt.f64):
                raise UnsupportedError(f"the mean over rows, whose number depends on data, in {x.dtype}")
        x = self._within(c, x, axis, count, rest)
        if base == "mean":  # a mean over one row leaves it as it is
            x = F.div(F.sum_(x, (axis,), keepdims=True), F.cast(count, x.dtype))
        c.graph.place = before
        return (x, *args[1:])

    @staticmethod
    def _within(c: Context, x: Value, axis: int, count: Value, rest: Value) -> Value:
        """x with `rest` in the padding."""
        number = F.iota(c.graph, (x.shape[axis], *(1,) * (len(x.shape) - axis - 1)), 0, count.dtype)
        return F.where(F.less(number, count), x, rest)

    def _indices(self, c: Context, arg: Any, value: Any) -> Any:
        """An operand of a lookup, or a list of them: zeros stand in the padding, which would be an error where it is out of range."""
        if isinstance(arg, (list, tuple)):
            return [self._indices(c, a, v) for a, v in zip(arg, value, strict=True)]
        for axis in self._axes(arg) if hasattr(arg, "meta") else ():
            count = self.counts[self.padded(arg.meta["val"])[0]]
            value = self._within(c, value, axis, count, F.full(c.graph, (), 0, value.dtype))
        return value


def sizes_of(node: Any) -> set[Any]:
    """The symbols in the shapes of a node's results."""
    return {s for m in _metas(node) for d in _dims(m) for s in _free(d)}


def _is_mask(node: Any) -> bool:
    import torch

    return node.meta["val"].dtype is torch.bool


def _metas(node: Any) -> list[Any]:
    meta = node.meta.get("val")
    return list(meta) if isinstance(meta, (tuple, list)) else [meta]


def _dims(meta: Any) -> list[Any]:
    import torch

    return list(meta.shape) if isinstance(meta, torch.Tensor) else [meta] if isinstance(meta, torch.SymInt) else []


def _free(dim: Any) -> set[Any]:
    import torch

    return dim.node.expr.free_symbols if isinstance(dim, torch.SymInt) else set()


def _lone(dim: Any) -> bool:
    return bool(dim.node.expr.is_Symbol)


def _listed(axes: Any) -> list[int]:
    return [axes] if isinstance(axes, int) else list(axes)


def _pointwise(target: Any) -> bool:
    import torch

    return torch.Tag.pointwise in getattr(target, "tags", ())
