"""A functional FX graph of AOTAutograd as a graph of ours, and the plan of its calls.

Inputs keep torch's memory: strided ones enter as what lies in memory, with a transpose or an expand in the graph. Outputs have the strides
that torch would give them; those that are views of one another, or of an input, are views again.
"""
from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.dims import Dim, Expr, Symbol, evaluate, product, symbols
from ..core.errors import UnsupportedError
from ..core.target_spec import REFERENCE
from ..frontend.torch.aten.registry import key_of
from ..frontend.torch.aten.shape import SIZED
from ..frontend.torch.constants import Constants
from ..frontend.torch.convert import Converter, Missing, Poison, Problems
from ..frontend.torch.place import place_of
from ..frontend.torch.symbols import Symbols
from ..frontend.torch.tensors import dtype_of
from ..ir.graph import Graph, Value
from ..ir.rewrite import sort_nodes
from ..ir.text import all_symbols
from ..ir.types import TensorType
from ..kernels.conv.channels_last import channels_last_layouts
from ..ops import Cast, Expand
from .bounded import Bounded, sizes_of
from .layouts import Layout, layout_of


@dataclass(frozen=True)
class Source:
    """A graph input: argument `arg` of the call. One without a layout is copied to contiguous memory first."""

    arg: int
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    layout: Layout | None
    trusted: bool  # a parameter, whose type and strides dynamo guards
    away: bool = False  # on the CPU, where the graph runs on a GPU


@dataclass(frozen=True)
class Target:
    """A graph output: a new tensor of this shape and these strides, or the memory of graph input `donor`."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    donor: int | None = None


@dataclass(frozen=True)
class Argument:
    """A result: an argument itself."""

    arg: int


@dataclass(frozen=True)
class Slot:
    """A result: a graph output."""

    index: int


@dataclass(frozen=True)
class ViewOf:
    """A result: a view of a graph output, or of an argument, `offset` elements behind its first."""

    base: Slot | Argument
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim


@dataclass(frozen=True)
class Laid:
    """A result: a copy of a graph output in memory with gaps, whose strides the graph asked for."""

    base: Slot
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Fetched:
    """A result: a copy of a graph output of a GPU on the CPU."""

    base: Slot


@dataclass(frozen=True)
class Fixed:
    value: Any


@dataclass(frozen=True)
class Size:
    dim: Dim


COMPARED = {operator.ge: ">=", operator.le: "<=", operator.gt: ">", operator.lt: "<", operator.eq: "==", operator.ne: "!="}
Result = Argument | Slot | ViewOf | Laid | Fetched | Fixed | Size


@dataclass(eq=False)
class Fragment:
    """What a call does: arguments to graph inputs, graph outputs to results."""

    graph: Graph
    arity: int
    sources: list[Source] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # symbol -> the argument that is its value
    copies: list[tuple[int, int]] = field(default_factory=list)  # (argument, graph output that is copied into it after the run)
    counts: dict[str, tuple[int, Dim]] = field(default_factory=dict)  # symbol -> the graph output that is its value, and its bound
    asserts: list[tuple[Dim, str, Dim, str]] = field(default_factory=list)  # left side, comparison, right side, message
    loose: dict[int, tuple[tuple[Dim, ...], tuple[Dim, ...]]] = field(default_factory=dict)  # arguments that results are views of and
    # whose strides nobody guards: the shape and strides that the views count on
    seeded: bool = False  # the last graph input is a random seed
    device: str = "cpu"
    released: frozenset[int] = frozenset()  # arguments whose memory may be nobody else's: the call lets go of each behind its last reader

    def shown(self) -> list[Symbol]:
        """Symbols of the shapes of arguments and results."""
        dims = [d for s in self.sources for d in (*s.shape, *s.strides)] + [most for _, most in self.counts.values()]
        dims += [d for a, _, b, _ in self.asserts for d in (a, b)]
        dims += [d for t in self.targets for d in (*t.shape, *t.strides)]
        for r in self.results:
            dims += [*r.shape, *r.strides] if isinstance(r, (ViewOf, Laid)) else []
            dims += [r.offset] if isinstance(r, ViewOf) else [r.dim] if isinstance(r, Size) else []
        return sorted({s for d in dims for s in symbols(d)}, key=lambda s: s.name)


@dataclass(frozen=True)
class Refusal:
    """Why a node is not ours."""

    reason: str
    place: str


class Walk(Converter):
    """An import that goes on behind nodes that it cannot import: `refused` names them, and fresh inputs stand for their results."""

    def __init__(self, module: Any, graph: Graph, symbols: Symbols, constants: Constants, bounded: Bounded) -> None:
        super().__init__(graph, symbols, constants)
        self.module, self.bounded = module, bounded
        self.refused: dict[Any, Refusal] = {}
        self.updates: dict[Any, Value] = {}  # placeholder -> its new value

    def _call(self, module: Any, node: Any, env: dict[Any, Any], place: str) -> Any:
        if module is not self.module:
            return super()._call(module, node, env, place)
        self.problems = Problems()
        try:
            if _is_update(node):
                return self._update(node, env)
            out = super()._call(module, node, env, place)
        except Exception as e:  # a handler that meets arguments it was not written for must not end the compile
            self.refuse(node, f"{type(e).__name__}: {e}")
            return self._stand_in(node)
        if isinstance(out, Poison) and not _is_flag(node):
            self.refuse(node, self.problems.first() or "an operand of a kind that is not supported")
            return self._stand_in(node)
        if key_of(node.target) == "_local_scalar_dense.default":  # the parts behind it have the number as an argument
            self.refuse(node, "a number that depends on data decides sizes")
        return out

    def _op(self, node: Any, key: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: str) -> Any:
        if node.graph is self.module.graph:
            c = self.context
            c.name, c.place, c.meta, c.args = node.name, place, node.meta.get("val"), ()
            symbol = self.bounded.new(node)
            if key == "repeat_interleave.Tensor" and symbol is None and not self.bounded.padded(c.meta):
                return SIZED[key][0](c, c.shape[0], args[0])[0]  # output_size= says how many
            if symbol is not None:
                return self.bounded.make(c, node, symbol, (*args, *kwargs.values()))
            args = self.bounded.check(c, node, args)
        return super()._op(node, key, args, kwargs, place)

    def refuse(self, node: Any, reason: str) -> None:
        if node.target is operator.getitem:
            node = node.args[0]
        self.refused.setdefault(node, Refusal(" ".join(reason.split()), place_of(node)))

    def _update(self, node: Any, env: dict[Any, Any]) -> Any:
        """`copy_` to an argument, which AOTAutograd puts at the end of a graph that writes to it."""
        hole, new = node.args[0], self._resolve(node.args[1], env)
        old = self._resolve(hole, env)
        if isinstance(new, Poison):
            raise UnsupportedError("torch.compile: the new value of an argument depends on what is not supported")
        if new.dtype is not old.dtype:
            new = self.graph.add(Cast(dtype=old.dtype), new).value
        if new.shape != old.shape:
            new = self.graph.add(Expand(shape=old.shape), new).value
        self.updates[hole] = new
        return new

    def _stand_in(self, node: Any) -> Any:
        import torch

        def one(meta: Any) -> Any:
            if not isinstance(meta, torch.Tensor):
                return Poison()
            try:
                return self.graph.input(TensorType(dtype_of(meta.dtype), self.symbols.shape(meta.shape)), node.name)
            except UnsupportedError:
                return Poison()

        meta = node.meta.get("val")
        return tuple(map(one, meta)) if isinstance(meta, (tuple, list)) else one(meta)


def _is_update(node: Any) -> bool:
    return key_of(node.target) == "copy_.default" and getattr(node.args[0], "op", "") == "placeholder"


def _is_flag(node: Any) -> bool:
    """A boolean about sizes, which only checks read."""
    import torch

    return isinstance(node.meta.get("val"), torch.SymBool)


class Reader:
    """Reads one FX graph module."""

    def __init__(self, module: Any, name: str, *, constants: Mapping[int, Any] | None = None, trusted: int = 0,
                 saved: slice = slice(0)) -> None:
        """`saved`: outputs that only the backward pass reads, so that they may have any strides."""
        self.module, self.constants, self.trusted = module, constants or {}, trusted
        self.holes = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.outputs = next(n for n in reversed(module.graph.nodes) if n.op == "output").args[0]
        self.saved = self._only(self.outputs[saved])
        self.graph = Graph(name)
        self.env = _shape_env(module)
        self.ranges = dict(getattr(self.env, "var_to_range", {}) or {})
        self.symbols, self.exact = Symbols(self.ranges), Symbols(self.ranges)
        self.fragment = Fragment(self.graph, len(self.holes), device=_device(module))

    def read(self) -> tuple[Fragment, dict[Any, Refusal]]:
        """The fragment; where nodes are refused it is of no use."""
        held = Constants(self.graph)
        self.bounded = Bounded(self.symbols, self.ranges)
        walk = Walk(self.module, self.graph, self.symbols, held, self.bounded)
        self.bounded.given |= {s for hole in self.holes for s in sizes_of(hole)}
        values = {hole: self._input(i, hole, held) for i, hole in enumerate(self.holes)}
        self.inputs = dict(values)
        walk.run(self.module, values)
        if walk.refused:
            return self.fragment, walk.refused
        self._updates(walk)
        self._results(walk, values)
        if walk.refused:
            return self.fragment, walk.refused
        self._lone_views()
        self._asserts()
        self._counts()
        self._seed(walk)
        self._symbols()
        return self.fragment, {}

    def _only(self, nodes: Sequence[Any]) -> set[Any]:
        """Those of some outputs whose memory no other output shows, and whose sizes are known."""
        roots = [_base(n) for n in self.outputs if hasattr(n, "meta")]
        known = (n for n in nodes if hasattr(getattr(n, "meta", {}).get("val"), "shape"))
        return {n for n in known if roots.count(n) == 1 and n.op != "placeholder" and all(type(d) is int for d in n.meta["val"].shape)}

    # ---- inputs

    def _input(self, i: int, hole: Any, held: Constants) -> Any:
        import torch

        fake = hole.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            if isinstance(fake, torch.SymInt):
                try:
                    dim = self.symbols(fake)
                except UnsupportedError:
                    return Poison()
                if isinstance(dim, Expr) and (found := _lone(dim)) is not None:
                    self.fragment.sizes.setdefault(found, i)
                return dim
            return Poison() if isinstance(fake, (torch.SymFloat, torch.SymBool)) or fake is None else fake
        if not hole.users:
            return None
        if i in self.constants:
            return held.value(self.constants[i], hole.name)
        try:
            dtype = dtype_of(fake.dtype)
        except UnsupportedError:
            return Poison()
        shape, strides = self.symbols.shape(fake.shape), self.symbols.shape(fake.stride())
        signed = fake.is_conj() or fake.is_neg()  # the signs are not in the memory: the call resolves them
        away = self._away(fake)
        layout = None if signed or away else layout_of(shape, strides, self._hint)
        stored = self.graph.input(TensorType(dtype, shape if layout is None else layout.memory(shape)), hole.name)
        self.fragment.sources.append(Source(i, shape, strides, layout, i < self.trusted, away))
        return stored if layout is None else layout.logical(self.graph, stored, shape)

    def _away(self, fake: Any) -> bool:
        """Whether a tensor is on the CPU where the graph runs on a GPU."""
        return fake.device.type == "cpu" and self.fragment.device != "cpu"

    def _hint(self, dim: Dim) -> int | None:
        if isinstance(dim, int):
            return dim
        values = getattr(self.env, "backed_var_to_val", None)  # called var_to_val before torch 2.12
        values = getattr(self.env, "var_to_val", {}) if values is None else values
        hints = {str(k): int(v) for k, v in (values or {}).items()}
        return evaluate(dim, hints) if all(s.name in hints for s in dim.symbols) else None

    def _seed(self, walk: Walk) -> None:
        seed = walk.context.seed
        if seed is None:
            return
        sort_nodes(self.graph)
        self.graph.inputs.remove(seed)
        if self.graph.users()[seed]:
            self.graph.inputs.append(seed)
            self.fragment.seeded = True
        else:
            self.graph.nodes.remove(seed.node)

    def _asserts(self) -> None:
        """What torch wants to hold of sizes that depend on data, as far as a capacity does not say it."""
        import torch

        for node in self.module.graph.nodes:
            if key_of(node.target) != "_assert_scalar.default" or getattr(node.args[0], "target", None) not in COMPARED:
                continue
            sides = [a.meta.get("val") if isinstance(a, torch.fx.Node) else a for a in node.args[0].args]
            if not all(isinstance(v, (int, torch.SymInt)) for v in sides):
                continue
            a, b = map(self.exact, sides)
            kind = COMPARED[node.args[0].target]
            found = self.bounded.padded(sides[0])
            if not found or (kind, b) not in ((">=", 0), ("<=", self.bounded.capacity[found[0]])):
                self.fragment.asserts.append((a, kind, b, str(node.args[1])))

    def _counts(self) -> None:
        """Counts are graph outputs too, for the results that show them."""
        shown = {s.name for s in self.fragment.shown()}
        for symbol, count in self.bounded.counts.items():
            most = self.bounded.capacity[symbol]
            if str(symbol) in shown or symbol in self.bounded.tight:
                self.graph.outputs.append(count)
                self.fragment.targets.append(Target((), ()))
                self.fragment.counts[str(symbol)] = len(self.graph.outputs) - 1, most

    def _symbols(self) -> None:
        """Symbols that no input's shape shows come with the call."""
        shown = {s.name for s in self.graph.symbols()}
        self.graph.call_symbols = tuple(s for s in all_symbols(self.graph) if s.name not in shown and s.name in self.fragment.sizes)

    # ---- outputs

    def _slot(self, node: Any, value: Value) -> Slot:
        fake = node.meta["val"]
        if value.dtype is not dtype_of(fake.dtype):  # statistics of a norm, which we hold in f32: what reads them expects torch's dtype
            value = self.graph.add(Cast(dtype=dtype_of(fake.dtype)), value).value
        if self.bounded.padded(fake):
            self.graph.outputs.append(value)
            self.fragment.targets.append(Target(value.shape, contiguous(value.shape)))
            return Slot(len(self.graph.outputs) - 1)
        shape, strides = self.symbols.shape(fake.shape), self.symbols.shape(fake.stride())
        layout = layout_of(shape, strides, self._hint)
        if layout is None or layout.broadcast:
            layout, strides = Layout(tuple(range(len(shape)))), contiguous(shape)
        if node in self.saved and value in self.last:  # the backward pass reads it as it lies
            layout, strides = Layout((0, *range(2, len(shape)), 1)), self.last[value].strides
        self.graph.outputs.append(layout.stored(self.graph, value))
        self.fragment.targets.append(Target(shape, strides))
        return Slot(len(self.graph.outputs) - 1)

    def _updates(self, walk: Walk) -> None:
        f = self.fragment
        position = {s.arg: k for k, s in enumerate(f.sources)}
        for hole, new in walk.updates.items():
            arg = self.holes.index(hole)
            source = f.sources[position[arg]] if arg in position else None
            layout = source.layout if source is not None else None
            own = source is not None and layout is not None and not layout.broadcast
            moves = any(_root(new) is _root(v) for v in self.inputs.values() if isinstance(v, Value))
            if own and not moves:
                assert source is not None and layout is not None
                self.graph.outputs.append(layout.stored(self.graph, new))
                f.targets.append(Target(source.shape, source.strides, position[arg]))
                self.graph.donated[position[arg]] = len(self.graph.outputs) - 1
            else:  # its memory cannot be written while the program runs
                self.graph.outputs.append(new)
                f.targets.append(Target(new.shape, contiguous(new.shape)))
                f.copies.append((arg, len(self.graph.outputs) - 1))

    def _results(self, walk: Walk, values: dict[Any, Any]) -> None:
        import torch

        slots: dict[Any, Slot] = {}
        self.last = channels_last_layouts(self.graph, REFERENCE) if self.saved else {}
        roots = [_base(n) for n in self.outputs if isinstance(n, torch.fx.Node)]
        for node in self.outputs:
            if not isinstance(node, torch.fx.Node):
                self.fragment.results.append(Size(self.exact(node)) if isinstance(node, torch.SymInt) else Fixed(node))
                continue
            meta = node.meta.get("val")
            if node.op == "placeholder" or (_is_update(node) and node.op == "call_function"):
                hole = node if node.op == "placeholder" else node.args[0]
                self.fragment.results.append(Argument(self.holes.index(hole)))
            elif isinstance(meta, torch.Tensor):
                try:
                    self.fragment.results.append(self._tensor(walk, values, node, slots, roots))
                except UnsupportedError as e:  # a handler gave nothing for a result that is read
                    walk.refuse(node, str(e))
            elif isinstance(meta, torch.SymInt):
                self.fragment.results.append(Size(self.exact(meta)))
            elif meta is None or isinstance(meta, (bool, int, float)):
                self.fragment.results.append(Fixed(meta))
            else:
                walk.refuse(node, f"a result of kind {type(meta).__name__}")

    def _tensor(self, walk: Walk, values: dict[Any, Any], node: Any, slots: dict[Any, Slot], roots: Sequence[Any]) -> Result:
        root = _base(node)
        fake, whole = node.meta["val"], root.meta.get("val")
        if self.bounded.padded(fake):
            return self._rows(walk, values, node, slots)
        away = root.op != "placeholder" and self._away(fake)
        if root is not node and not away and (roots.count(root) > 1 or root.op == "placeholder" or self._no_smaller(fake, whole)):
            base: Slot | Argument | None = None
            if root.op == "placeholder":
                if root not in walk.updates:
                    base = Argument(self.holes.index(root))
            elif isinstance(value := walk._resolve(root, values), Value) and self._dense(whole):
                base = slots[root] if root in slots else slots.setdefault(root, self._slot(root, value))
            if base is not None and fake.dtype == whole.dtype:
                if isinstance(base, Argument) and base.arg >= self.trusted:
                    self.fragment.loose[base.arg] = self.symbols.shape(whole.shape), self.symbols.shape(whole.stride())
                offset = self.symbols(fake.storage_offset()) - self.symbols(whole.storage_offset())
                return ViewOf(base, self.symbols.shape(fake.shape), self.symbols.shape(fake.stride()), offset)
        if node not in slots:
            value = walk._resolve(node, values)
            if not isinstance(value, Value):
                what = value.what if isinstance(value, Missing) else f"a result of kind {type(value).__name__}"
                raise UnsupportedError(what)
            slots[node] = self._slot(node, value)
        if away:
            return Fetched(slots[node])
        gaps = root is node and layout_of(self.symbols.shape(fake.shape), self.symbols.shape(fake.stride()), self._hint) is None
        return Laid(slots[node], tuple(fake.shape), tuple(fake.stride())) if gaps and apart(fake) else slots[node]

    def _lone_views(self) -> None:
        """A view that shows all of a graph output, and that alone does, needs no base: the output is made with the view's shape."""
        f = self.fragment
        shown = Counter(r if isinstance(r, Slot) else getattr(r, "base", None) for r in f.results)
        copied = {k for _, k in f.copies}
        for i, r in enumerate(f.results):
            if not isinstance(r, ViewOf) or not isinstance(r.base, Slot) or shown[r.base] > 1 or r.base.index in copied or r.offset != 0:
                continue
            target, layout = f.targets[r.base.index], layout_of(r.shape, r.strides, self._hint)
            whole = layout is not None and not layout.broadcast and product(r.shape) == product(target.shape)
            if whole and target.donor is None:
                f.targets[r.base.index], f.results[i] = Target(r.shape, r.strides), r.base

    def _rows(self, walk: Walk, values: dict[Any, Any], node: Any, slots: dict[Any, Slot]) -> Result:
        """The first rows of a padded value: as many as there are."""
        shape = self.exact.shape(node.meta["val"].shape)
        value = walk._resolve(node, values)
        if not isinstance(value, Value) or any(symbols(d) for d in shape[1:]):
            raise UnsupportedError("torch.compile: the number of elements along another axis than the first depends on data")
        slot = slots[node] if node in slots else slots.setdefault(node, self._slot(node, value))
        return ViewOf(slot, shape, contiguous(shape), 0)

    def _no_smaller(self, view: Any, whole: Any) -> bool:
        """Whether a view shows all of a tensor, or elements of it several times. (One that shows a part may be all that is computed.)"""
        if not hasattr(whole, "shape"):
            return False
        if any(s == 0 and n != 1 for s, n in zip(self.symbols.shape(view.stride()), self.symbols.shape(view.shape), strict=True)):
            return True
        a, b = (product(self.symbols.shape(x.shape)) for x in (view, whole))
        return a >= b if isinstance(a, int) and isinstance(b, int) else a == b

    def _dense(self, fake: Any) -> bool:
        found = layout_of(self.symbols.shape(fake.shape), self.symbols.shape(fake.stride()), self._hint)
        return found is not None and not found.broadcast


def _device(module: Any) -> str:
    """Where the graph runs: on the GPU that any of its tensors lies on. (What nobody reads may lie anywhere.)"""
    import torch

    found = {m.device for n in module.graph.nodes if n.users for m in _tensors(n.meta.get("val")) if isinstance(m, torch.Tensor)}
    others = sorted({d.type if not d.index else str(d) for d in found} - {"cpu"})
    return ", ".join(others) or "cpu"


def _tensors(meta: Any) -> Sequence[Any]:
    return meta if isinstance(meta, (tuple, list)) else (meta,)


def _base(node: Any) -> Any:
    """The node whose memory a chain of views shows."""
    import torch

    while node.op == "call_function":
        if node.target is operator.getitem:
            source = node.args[0]
            if not _is_view(source):
                return node
            node = source
        if not _is_view(node) or not isinstance(node.args[0], torch.fx.Node):
            return node
        node = node.args[0]
    return node


def _is_view(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or not node.args or key_of(node.target) in ("_conj.default", "_neg_view.default"):
        return False
    return any(r.alias_info is not None for r in schema.returns)


def _root(v: Value) -> Value:
    """The value that a chain of views shows."""
    while v.node.op.traits.view and v.node.operands:
        v = v.node.operands[0]
    return v


def apart(fake: Any) -> bool:
    """Whether the elements of a tensor of known strides all lie at places of their own."""
    if not all(type(d) is int for d in (*fake.shape, *fake.stride())):
        return False
    reach = 0  # the reach of the axes with smaller steps
    for step, n in sorted((s, n) for s, n in zip(fake.stride(), fake.shape, strict=True) if n > 1):
        if step <= reach:
            return False
        reach += step * (n - 1)
    return True


def contiguous(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    strides: list[Dim] = []
    step: Dim = 1
    for n in reversed(shape):
        strides.append(step)
        step = step * n
    return tuple(reversed(strides))


def _lone(dim: Expr) -> str | None:
    """The name of a symbol that is the whole dim."""
    if len(dim.terms) == 1 and dim.terms[0][1] == 1:
        mono = dim.terms[0][0]
        if len(mono) == 1 and isinstance(mono[0], Symbol):
            return mono[0].name
    return None


def _shape_env(module: Any) -> Any:
    import torch

    for node in module.graph.nodes:
        meta = node.meta.get("val")
        if isinstance(meta, torch._subclasses.FakeTensor) and meta.fake_mode.shape_env is not None:
            return meta.fake_mode.shape_env
        if isinstance(meta, torch.SymInt):
            return meta.node.shape_env
    return None

