"""The families ops belong to: what their authors need not write again.

An elementwise op states which dtypes it takes and a scalar meaning; broadcasting is derived. A view states layouts. A
reduction states axes. Type shorthands (`f32(2, 3)`) keep samples readable.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..core import dtypes as dt
from ..core.dims import Dim, Shape, bounds, sym
from ..core.dtypes import DType
from ..core.errors import UnsupportedError, require
from ..ir.graph import Graph, Value, inline
from ..ir.layout import Layout
from ..ir.types import TensorType
from . import functions as F
from .base import E, MaybeValues, Op, Pulled, S, Sample, Traits, Values, register
from .tiles import TileBuilder

Item = TypeVar("Item")
N = sym("N", 0, 16)  # the symbolic dim of samples
M = sym("M", 1, 12)


def typed(dtype: DType, *shape: Dim) -> TensorType:
    return TensorType(dtype, shape)


f32, f64, f16, bf16, f8e4m3, f8e5m2, c64, c128 = (
    partial(typed, d) for d in (dt.f32, dt.f64, dt.f16, dt.bf16, dt.f8e4m3, dt.f8e5m2, dt.c64, dt.c128))
i32, i64, i8, u8, u32, u64, boolean = (
    partial(typed, d) for d in (dt.i32, dt.i64, dt.i8, dt.u8, dt.u32, dt.u64, dt.bool_))
KINDS = {"f": "float", "i": "integer", "u": "unsigned", "b": "bool", "c": "complex"}


def require_kind(types: Sequence[TensorType], kinds: str) -> None:
    """Every dtype is of one of `kinds` (letters of DType.kind)."""
    wanted = " or ".join(KINDS[k] for k in kinds if k != "c" and (k != "u" or "i" not in kinds))
    for x in types:
        require(x.dtype.kind in kinds, "needs {wanted} operands; cast first", wanted=wanted, dtype=x.dtype)


def require_one_dtype(types: Sequence[TensorType]) -> DType:
    require(len({x.dtype for x in types}) == 1, "operands must have one dtype; cast first", dtypes=", ".join(str(x.dtype) for x in types))
    return types[0].dtype


def broadcast_shapes(*shapes: Shape) -> Shape:
    """NumPy's rule; dims are compared structurally, and a 1 stretches to any dim, symbolic ones too."""
    out: list[Dim] = []
    for axis in range(-max((len(s) for s in shapes), default=0), 0):
        dims = {s[axis] for s in shapes if len(s) >= -axis}
        wide = dims - {1}
        require(len(wide) <= 1, "shapes do not broadcast", shapes=" ".join(show_shape(s) for s in shapes))
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def require_broadcasts_to(name: str, shape: Shape, target: Shape) -> None:
    lead = len(target) - len(shape)
    ok = lead >= 0 and all(d in (1, t) for d, t in zip(shape, target[lead:], strict=True))
    require(ok, "{name} must broadcast to {target}", name=name, target=show_shape(target), shape=show_shape(shape))


def show_shape(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


def require_axis(axis: int, ndim: int) -> None:
    require(0 <= axis < ndim, "axis must be in 0..{last}", last=ndim - 1, axis=axis)


def require_axes(axes: tuple[int, ...], ndim: int) -> None:
    ok = all(0 <= a < ndim for a in axes) and list(axes) == sorted(set(axes))
    require(ok, "axes must be distinct, ascending and in 0..{last}", last=ndim - 1, axes=axes)


def provably_negative(d: Dim) -> bool:
    return bounds(d)[1] < 0


def aligned(inputs: Values, batched: tuple[bool, ...]) -> list[Value]:
    """Operands with equal ranks behind the batch axis, so that broadcasting still means the same."""
    rank = max(len(v.shape) - b for v, b in zip(inputs, batched, strict=True))
    return [F.reshape(v, (v.shape[0], *(1,) * (rank + 1 - len(v.shape)), *v.shape[1:])) if b else v
            for v, b in zip(inputs, batched, strict=True)]


class Elementwise(Op):
    """Output element i depends on the operand elements that broadcast to i."""

    traits = Traits(elementwise=True)
    kinds: ClassVar[str] = "f"  # dtype kinds it takes
    to_bool: ClassVar[bool] = False
    steps: ClassVar[bool] = False  # its result jumps: operands of small floats are rounded to their dtype first, as comparisons' are
    arity = (1, 1)

    def infer(self, *types: TensorType) -> TensorType:
        require_kind(types, self.kinds + "c" * bool(self.complex))
        dtype = require_one_dtype(types)
        return TensorType(dt.bool_ if self.to_bool else dtype, broadcast_shapes(*(x.shape for x in types)))

    def on_bits(self, t: TileBuilder, *words: Any) -> Any:
        """The bits of the result from those of floats of one width, for ops that need no numbers (else None): small floats stay small."""
        return None

    def ref(self, *arrays: Any) -> Any:
        if not self.numpy:
            raise UnsupportedError(f"{self.name}: has no NumPy reference")
        with np.errstate(all="ignore"):
            return getattr(np, self.numpy)(*arrays)

    def partials(self, inputs: Values, output: Value, wanted: tuple[bool, ...]) -> tuple[Value | float | None, ...]:
        """The derivative with respect to each wanted input: a value, a number, or None for zero everywhere."""
        raise UnsupportedError(f"{self.name}: has no derivative{self._why('vjp')}")

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value | None:
        """g times the derivative with respect to input i; None for zero. Ops for which 0 * inf matters override this one."""
        d = self.partials(inputs, output, tuple(k == i for k in range(len(inputs))))[i]
        if d is None or isinstance(d, Value):
            return None if d is None else F.mul(g, d)
        return g if d == 1 else F.neg(g) if d == -1 else F.mul(g, d)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return tuple(self.scaled(i, g, inputs, output) if w else None for i, w in enumerate(wanted))

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        total: Value | None = None
        for i, t in enumerate(tangents):
            part = None if t is None else self.scaled(i, t, inputs, outputs[0])
            if part is not None:
                total = part if total is None else F.add(total, part)
        return (None if total is None else F.expand(total, outputs[0].shape),)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (self(*aligned(inputs, batched)),)


def unary_samples(low: float = -4.0, high: float = 4.0, *more: TensorType) -> list[Sample]:
    """Odd sizes, a scalar, an empty tensor, a symbolic dim and every float dtype."""
    types = (f32(3, 5), f64(7), f32(), f32(0, 3), bf16(2, 9), f16(5), f32(N, 3), *more)
    return [S(x, low=low, high=high) for x in types]


class Unary(Elementwise):
    samples = unary_samples()
    errors = [E(i32(3), match="needs float operands; cast first, got dtype=i32")]
    tile: ClassVar[str] = ""  # the instruction of the same meaning, where there is one
    dydx: ClassVar[Callable[[Value, Value], Any] | None] = None

    def derivative(self, x: Value, y: Value) -> Value | float | None:
        """dy/dx of y = op(x); None for zero everywhere. `dydx` says it where no attribute is needed."""
        if (rule := type(self).dydx) is None:
            raise UnsupportedError(f"{self.name}: has no derivative{self._why('vjp')}")
        found: Value | float | None = rule(x, y)
        return found

    def partials(self, inputs: Values, output: Value, wanted: tuple[bool, ...]) -> tuple[Value | float | None, ...]:
        return (self.derivative(inputs[0], output),)

    def lower(self, t: TileBuilder, *tiles: Any, **_: Any) -> Any:
        return t.unary(type(self).tile, *tiles)


def few(low: float, high: float) -> list[Sample]:
    """Samples of a function whose shapes go the same way as those of every other elementwise op."""
    return [S(f32(3, 5), low=low, high=high), S(f64(7), low=low, high=high), S(bf16(2, 3), low=low, high=high)]


class Formula(Unary):
    """Written in tile operations; the reference is NumPy's function."""

    formula: ClassVar[Any] = None

    def lower(self, t: TileBuilder, *tiles: Any, **_: Any) -> Any:
        return type(self).formula(t, *tiles)


def enter_ops(base: type[Op], module: str, table: dict[str, tuple[str, dict[str, Any]]]) -> None:
    """Register ops that differ in facts alone. A row: class name -> what it computes, and its class attributes. An op with attributes or
    rules of its own is a class."""
    for name, (what, facts) in table.items():
        register(type(name, (base,), {"__doc__": what, "__module__": module, **facts}))


def enter_formulas(base: type[Formula], module: str, table: dict[str, tuple[str, Any, Any, list[Sample], dict[str, Any]]]) -> None:
    """The same for formulas. A row: class name -> what it computes, its formula in tile operations, dy/dx, samples, further attributes."""
    enter_ops(base, module, {name: (what, {"formula": staticmethod(formula), "dydx": dydx, "samples": samples, **facts})
                             for name, (what, formula, dydx, samples, facts) in table.items()})


BOTH = Traits(elementwise=True, commutative=True)


def binary_samples(low: float | Sequence[float] = -3.0, high: float | Sequence[float] = 3.0, *more: TensorType) -> list[Sample]:
    pairs = [(f32(3, 5), f32(3, 5)), (f32(2, 1, 4), f32(3, 1)), (f64(4), f64()), (f32(N, 3), f32(1, 3)),
             (bf16(5), bf16(2, 5)), (f16(3), f16(3)), (f32(0, 3), f32(3))]
    return [S(a, b, low=low, high=high) for a, b in [*pairs, *((x, x) for x in more)]]


class Binary(Elementwise):
    arity = (2, 2)
    samples = binary_samples()
    tile: ClassVar[str] = ""  # the instruction of the same meaning, where there is one

    def lower(self, t: TileBuilder, *tiles: Any, **_: Any) -> Any:
        return t.binary(type(self).tile, *tiles)


class View(Op):
    """Operand 0 seen through another layout."""

    work = 0
    traits = Traits(view=True, linear=True)

    def view(self, layout: Layout) -> Layout | None:
        only, = self.views(layout)
        return only

    def transposed(self, x: Value, g: Value) -> Value:
        """The cotangent of operand x given the result's (single-output views; they are linear)."""
        raise UnsupportedError(f"{self.name}: has no transpose rule")

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return self.transposed(inputs[0], g)


def values_of(made: Any) -> Values:
    """What an op's application returned, always as a tuple."""
    return made if isinstance(made, tuple) else (made,)


def behind(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes of an operand that has got a batch axis in front."""
    return tuple(a + 1 for a in axes)


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    return tuple(1 if i in axes else d for i, d in enumerate(shape) if keepdims or i not in axes)


class Reduction(Op):
    """Combines elements along axes. Attributes of most: axes (ascending, not negative), keepdims."""

    traits = Traits(reduction=True)
    fusion = "reduction"
    work = 1
    cases = True


class Contraction(Op):
    """Sums of products over shared axes."""

    traits = Traits(contraction=True)


class Bilinear(Contraction):
    """A contraction that is linear in each of its first two operands."""

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        parts = [self(*(t if k == i else v for k, v in enumerate(inputs))) for i, t in enumerate(tangents[:2]) if t is not None]
        return (reduce(F.add, parts) if parts else None,)


class Composite(Op):
    """Made of plainer ops: `decompose` says how; templates may do it faster."""

    traits = Traits(composite=True)
    work = 1


class Applied(Op):
    """Applies the graph `body`: operands are its inputs, results its outputs."""

    body: Graph

    def infer(self, *types: TensorType) -> TensorType | tuple[TensorType, ...]:
        want = tuple(v.type for v in self.body.inputs)
        require(types == want, "operand types must be those of the body's inputs ({want})", want=", ".join(map(str, want)),
                types=", ".join(map(str, types)))
        return one_or_all(tuple(v.type for v in self.body.outputs))

    def ref(self, *arrays: Any) -> Any:
        from ..ir.interp import run

        return one_or_all(tuple(run(self.body, arrays)))

    def decompose(self, *values: Value) -> Value | Values:
        if not values:
            raise UnsupportedError(f"{self.name}: a body without inputs has no graph to be inlined into; copy it with Graph.copy_into")
        return one_or_all(inline(self.body, values[0].node.graph, values))

    def flops(self, *types: TensorType) -> Dim:
        return body_flops(self.body)


def one_or_all(items: tuple[Item, ...]) -> Item | tuple[Item, ...]:
    """What an op gives: one thing by itself, several as a tuple."""
    return items[0] if len(items) == 1 else items


def body_flops(graph: Graph) -> Dim:
    """Arithmetic operations of one run of a graph that an op holds."""
    total: Dim = 0
    for n in graph.nodes:
        if not (n.op.traits.view or n.op.traits.source):
            total = total + n.op.flops(*(v.type for v in n.operands))
    return total


class General(Op):
    """An op that shares no structure with others."""
