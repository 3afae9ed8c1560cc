"""What an op is: one frozen dataclass that holds everything known about it.

`infer` is the only place where user errors about an op are raised; `ref` is its meaning in NumPy; `lower` is its meaning
in tile IR (elementwise ops); `decompose` its meaning in other ops (composites); `view` its meaning as a layout.
`vjp`, `jvp` and `batch` are its derivatives and its batched form: they append nodes to the operands' graph, and `transform/` calls them.
"""
from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform

from ..core.dims import Dim, Expr, substitute
from ..core.errors import ParseError, UnsupportedError
from ..core.exact import fields_key, same
from ..core.places import within
from ..core.target_spec import TargetSpec
from ..ir.graph import Graph, Node, Value, exchanged
from ..ir.layout import Layout
from ..ir.types import TensorType
from .tiles import TileBuilder


@dataclass(frozen=True)
class Traits:
    """Facts that passes and the planner use."""

    elementwise: bool = False  # output element i depends on operand elements that broadcast to i
    view: bool = False  # operand 0 seen through another layout, nothing computed
    reduction: bool = False
    contraction: bool = False
    composite: bool = False  # not elementwise, and has `decompose`
    linear: bool = False  # in operand 0, whose tangent goes the same way; others have a `jvp` of their own
    commutative: bool = False
    source: bool = False  # no operands: inputs, constants, iota

    @property
    def anchor(self) -> bool:
        """Whether a region is built around the op: one at most stands among elementwise ops, views and sources."""
        return not (self.elementwise or self.view or self.source)


@dataclass(frozen=True)
class Sample:
    """Operand types and attributes of one valid application; tests draw fresh values for it.

    `low`/`high` bound the values of every operand (or of operand i, given sequences).
    """

    types: tuple[TensorType, ...]
    attrs: dict[str, Any]
    low: float | Sequence[float] = -2.0
    high: float | Sequence[float] = 2.0
    fit: Callable[[list[Any]], list[Any]] | None = None  # brings the drawn operands into the op's domain

    def fitted(self, arrays: list[Any]) -> list[Any]:
        return arrays if self.fit is None else self.fit(arrays)


@dataclass(frozen=True)
class ErrorSample:
    """An application that `infer` must reject with a message matching `match`."""

    types: tuple[TensorType, ...]
    attrs: dict[str, Any]
    match: str


def S(*types: TensorType, low: float | Sequence[float] = -2.0, high: float | Sequence[float] = 2.0,
      fit: Callable[[list[Any]], list[Any]] | None = None, **attrs: Any) -> Sample:
    return Sample(types, attrs, low, high, fit)


def E(*types: TensorType, match: str, **attrs: Any) -> ErrorSample:
    return ErrorSample(types, attrs, match)


@dataclass(frozen=True)
class NotSupported:
    """A written reason why an op lacks a rule."""

    reason: str


Values = tuple[Value, ...]
MaybeValues = tuple[Value | None, ...]
Pulled = Value | None | MaybeValues  # a value alone is the cotangent of operand 0, the only one


@dataclass(frozen=True, eq=False)
class Op:
    """Base of all ops. Subclasses add dataclass fields (attributes) and override rules."""

    name: ClassVar[str] = ""
    traits: ClassVar[Traits] = Traits()
    samples: ClassVar[list[Sample]] = []
    errors: ClassVar[list[ErrorSample]] = []
    public: ClassVar[str] = ""  # names of its function in `tw.`, the function's own first
    aten: ClassVar[str] = ""  # ATen ops of the same operands and meaning: `exp`, `mul.Tensor|Scalar`
    numpy: ClassVar[str] = ""  # NumPy's function of the same meaning
    fusion: ClassVar[str] = ""  # what a region around it is: a "contraction", a "norm", a "gather" or a "reduction"
    complex: ClassVar[str] = ""  # how complex operands are computed: both "parts" alike, or by a "rule" of `ops/complex`
    whole: ClassVar[bool] = False  # a composite that kernels compute without taking it apart
    work: ClassVar[int | None] = None  # arithmetic operations an element of operand 0, where `flops` is that
    cases: ClassVar[bool] = False  # a batch is one more axis in front of every operand, behind which its `axis` or `axes` count
    by_heads: ClassVar[bool] = False  # its result lies as a projection behind it reads it, head by head
    arity: ClassVar[tuple[int, int | None] | None] = None  # fewest and most operands; `register` reads it off `infer`
    unsupported: ClassVar[dict[str, NotSupported]] = {}  # rule name -> why this op has none
    faults: ClassVar[bool] = False  # may find bad data while it runs: its nodes know what the user wrote (core/places.py)

    def __eq__(self, other: object) -> bool:
        """One class and one value of every attribute: 0.0 and -0.0 differ, NaN is itself."""
        return type(self) is type(other) and fields_key(self) == fields_key(other)

    def __hash__(self) -> int:
        return hash(fields_key(self))

    # The rules take one argument per operand; `*Any, **Any` lets subclasses name them.
    def infer(self, *types: Any, **_: Any) -> TensorType | tuple[TensorType, ...]:
        raise UnsupportedError(f"{self.name}: has no type rule")

    def ref(self, *arrays: Any, **_: Any) -> Any:
        raise UnsupportedError(f"{self.name}: has no NumPy reference")

    def lower(self, t: TileBuilder, *tiles: Any, **_: Any) -> Any:
        """Emit this op on tiles with the tile builder `t` (elementwise ops only)."""
        raise UnsupportedError(f"{self.name}: is not elementwise")

    def view(self, layout: Layout) -> Layout | None:
        """Layout of the result given the operand's (view ops only), or None when it needs a copy."""
        raise UnsupportedError(f"{self.name}: is not a view")

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        """One layout per output (view ops only)."""
        return (self.view(layout),)

    def decompose(self, *values: Any, **_: Any) -> Value | tuple[Value, ...]:
        """The same result in plainer ops, appended to the operands' graph (composites only)."""
        raise UnsupportedError(f"{self.name}: has no decomposition")

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        """Whether a target (None: a CPU) takes this op apart because no kernel of it computes it whole."""
        return self.traits.composite and not self.whole

    def faulty(self, inputs: Values) -> bool:
        """Whether an elementwise op checks these operands while it runs. Such a node stands in pointwise regions only."""
        return False

    # --- derivatives and batching: appended to the operands' graph. Only float operands and results have (co)tangents. -------------
    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        """Whether transform `rule` ("vjp", "jvp" or "batch") goes through `decompose` instead of the op's own rule. `active` says which
        operands are differentiated (or batched)."""
        return not self.has_rule(rule)

    @classmethod
    def has_rule(cls, rule: str) -> bool:
        """Whether the class has this rule, written or derived from its facts."""
        derived = {"jvp": cls.traits.linear, "batch": cls.cases, "vjp": cls.pull is not Op.pull}[rule]
        return derived or getattr(cls, rule) is not getattr(Op, rule)

    def for_vjp(self) -> Op:
        """The op that the forward pass holds where this one is differentiated: its first outputs are this op's, further ones are what its
        `vjp` wants to have saved. `vjp` is then called on that op."""
        return self

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        """One cotangent an input; None: zero, or not wanted. A cotangent of None is zero. A result may have the broadcast shape of its
        input: the transform sums it. An op of one output writes `pull`."""
        g, = cotangents
        assert g is not None, "the transform asks for what depends on the operands"
        found = self.pull(inputs, outputs[0], g, wanted)
        return found if isinstance(found, tuple) else (found, *(None for _ in inputs[1:]))

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        """`vjp` of an op with one output, whose cotangent is g."""
        raise UnsupportedError(f"{self.name}: has no reverse-mode derivative{self._why('vjp')}")

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        """One tangent an output, None for zero. A tangent of None is zero."""
        if self.traits.linear:
            made = None if tangents[0] is None else self(tangents[0], *inputs[1:])
            return made if isinstance(made, tuple) else (made,)
        raise UnsupportedError(f"{self.name}: has no forward-mode derivative{self._why('jvp')}")

    def push(self, inputs: Values, tangents: MaybeValues) -> tuple[Values, MaybeValues] | None:
        """Results and their tangents in one go, for ops whose tangents would need all the work of the results again. None: `jvp`."""
        return None

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        """The op for `size` cases at once: a batched input has a new axis in front, every output gets one."""
        if self.cases:
            from .functions import broadcast_batch

            new = {k: v + 1 if k == "axis" else tuple(a + 1 for a in v) for k, v in self.attrs().items() if k in ("axis", "axes")}
            made = dataclasses.replace(self, **new)(*(broadcast_batch(v, b, size) for v, b in zip(inputs, batched, strict=True)))
            return made if isinstance(made, tuple) else (made,)
        raise UnsupportedError(f"{self.name}: cannot be batched{self._why('batch')}")

    def _why(self, rule: str) -> str:
        return f": {self.unsupported[rule].reason}" if rule in self.unsupported else ""

    def flops(self, *types: Any, **_: Any) -> Dim:
        """Arithmetic operations of one application; elementwise ops count one an element."""
        if self.work is not None:
            return self.work * types[0].numel if self.work else 0
        out = self.infer(*types)
        first = out if isinstance(out, TensorType) else out[0]
        return first.numel

    def __call__(self, *values: Value, name: str | None = None, place: str = "") -> Any:
        """Append to the graph of the operands; returns the value, or a tuple when there are several outputs."""
        node = values[0].node.graph.add(self, *values, name=name, place=place)
        return node.values[0] if len(node.values) == 1 else node.values

    def bind(self, env: Mapping[str, Dim]) -> Any:
        """This op with the symbols of its attributes replaced from env (itself when there are none)."""
        new = {}
        for f in dataclasses.fields(self):
            old = getattr(self, f.name)
            bound = bind_attribute(old, env)
            if bound is not old:
                new[f.name] = bound
        return dataclasses.replace(self, **new) if new else self

    def wrong_arity(self, count: int) -> str | None:
        """What to say when the op cannot take `count` operands."""
        least, most = self.arity or (0, None)
        if least <= count and (most is None or count <= most):
            return None
        want = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        return f"takes {want} operands, got {count}"

    def attrs(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __str__(self) -> str:
        shown = [f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self) if not same(getattr(self, f.name), f.default)]
        return self.name + ("{" + ", ".join(shown) + "}" if shown else "")


def bind_attribute(value: Any, env: Mapping[str, Dim]) -> Any:
    """`value` with symbols replaced; the same object when nothing changes."""
    if isinstance(value, Expr):
        return substitute(value, env)
    if isinstance(value, tuple):
        bound = tuple(bind_attribute(v, env) for v in value)
        return bound if any(a is not b for a, b in zip(bound, value, strict=True)) else value
    if isinstance(value, TensorType):
        shape = bind_attribute(value.shape, env)
        return value if shape is value.shape else TensorType(value.dtype, shape)
    if isinstance(value, Graph):
        return _bind_graph(value, env)
    return value


def _bind_graph(graph: Graph, env: Mapping[str, Dim]) -> Graph:
    ops = [n.op.bind(env) for n in graph.nodes]
    if all(op is n.op for op, n in zip(ops, graph.nodes, strict=True)):
        return graph
    bound = dict(zip(graph.nodes, ops, strict=True))
    return exchanged(graph, lambda n, new, values: new.add(bound[n], *(values[v] for v in n.operands), name=n.name, place=n.place).values)


def name_origin(made: Sequence[Node], origin: Node) -> None:
    """The nodes that a node was taken apart into report bad data in its name."""
    for n in made:
        if n.op.faults:
            n.place = within(origin.op.name, n.place or origin.place)


REGISTRY: dict[str, type[Op]] = {}


@dataclass_transform(frozen_default=True)
def register(cls: type[Any]) -> Any:
    """Make `cls` a frozen dataclass and enter it under its snake-case name (`LayerNorm` -> `layer_norm`)."""
    # Making a dataclass costs half a millisecond of import time: an op that adds no attribute is one already.
    made: Any = dataclass(frozen=True, repr=False, eq=False)(cls) if inspect.get_annotations(cls) else cls
    if "name" not in cls.__dict__:
        made.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
    if made.arity is None:
        made.arity = _arity(made)
    if made.name in REGISTRY:
        raise ParseError(f"op {made.name!r} is registered twice")
    REGISTRY[made.name] = made
    return made


def _arity(cls: type[Op]) -> tuple[int, int | None]:
    params = list(inspect.signature(cls.infer).parameters.values())[1:]
    least = sum(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in params)
    return least, None if any(p.kind is p.VAR_POSITIONAL for p in params) else len(params)


def single(fn: Callable[[Graph, tuple[Value, ...]], Any], *types: TensorType) -> Graph:
    """A graph with inputs of `types` whose outputs are what `fn(graph, inputs)` returns. Handy in tests and passes."""
    g = Graph()
    ins = tuple(g.input(t, f"x{i}") for i, t in enumerate(types))
    out = fn(g, ins)
    g.outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    return g
