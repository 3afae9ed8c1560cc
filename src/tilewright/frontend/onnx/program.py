"""A model as compiled segments and steps of the host.

Most models are one segment. Where a node needs elements that only a run knows (a shape that was computed from data), gives a result whose
size depends on data, works on strings, or loops over values that change their shape, the program is cut: the segment before it runs, the
host does its step, and what follows is planned with what is then known. Plans are kept by what they were made for: a size that differs
from an earlier call becomes a symbol, so that further sizes need no further compile.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...core.dims import Dim, Expr, Symbol, substitute, sym
from ...core.errors import FormatError, TilewrightError
from ...core.seeds import draw_seed
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from .assume import Assumed, Pair
from .calls import SIZES, scalars, sizes_of
from .elements import Elem, elem, elem_of
from .host_flow import Callee, Gives
from .importer import Blocked, Builder, Nothing, Pending, Strings, constants_of
from .load import Source, on_host
from .model import Frame, Item, items_of
from .tables import HOST, STEADY, HostStep, lookup, straight

SMALL = 4096  # elements of a value that the next plan takes as a constant
KEPT = 64  # plans of one place in the program
Compile = Callable[[Graph], Any]


@dataclass(frozen=True)
class Tensor:
    """What a plan assumes of a tensor: its type (dims may be symbols) and how its elements are to be read."""

    type: TensorType
    elem: Elem


@dataclass
class Known:
    """A tensor whose elements the plan uses."""

    array: Any


@dataclass
class Sized:
    """A tensor whose elements are dims."""

    type: TensorType
    elem: Elem
    dims: Sequence[Dim]


Spec = Any  # Tensor | Known | Sized | list | Nothing | Strings | Pending


@dataclass
class Segment:
    """One compiled graph: names of its inputs, and where its results go."""

    session: Any
    graph: Graph
    inputs: list[tuple[str, tuple[int, ...], Elem]]  # a name, and the place in a sequence
    outputs: list[tuple[str, Any]]  # a name, and its structure: an index of the graph's outputs, a list, or None
    elems: list[Elem]
    seeded: bool
    plain: list[str] | None = field(init=False)  # inputs, where nothing needs another form on its way in or out

    def __post_init__(self) -> None:
        kinds = {e.kind for e in (*self.elems, *(e for _, _, e in self.inputs))}
        simple = kinds <= {"plain"} and not any(p for _, p, _ in self.inputs) and all(isinstance(s, int) for _, s in self.outputs)
        self.plain = [n for n, _, _ in self.inputs] if simple and not self.seeded and self.session is not None else None

    def __call__(self, env: dict[str, Any]) -> None:
        if self.plain is not None:
            results = self.session(*[env[n] for n in self.plain])
            results = results if type(results) is tuple else (results,)
            for name, at in self.outputs:
                env[name] = on_host(results[at])
            return
        given = []
        for name, place, e in self.inputs:
            a = env[name]
            for i in place:
                a = a[i]
            given.append(e.inward(a))
        if self.seeded:
            given.append(np.asarray(draw_seed([]), np.uint64))
        results = self.session(*given) if self.session is not None else ()
        if not isinstance(results, (tuple, list)):
            results = (results,)
        for name, structure in self.outputs:
            env[name] = self._filled(structure, results)

    def _filled(self, structure: Any, results: Sequence[Any]) -> Any:
        if isinstance(structure, list):
            return [self._filled(s, results) for s in structure]
        if structure is None:
            return None
        return self.elems[structure].outward(on_host(results[structure]))


@dataclass
class Stage:
    """A plan for the nodes that are left at some point: a segment, steps of the host, and what comes after them."""

    segment: Segment | None
    host: list[Blocked]
    rest: list[Item]
    needs: set[str]
    types: dict[str, TensorType]
    next: OrderedDict[Any, Stage] = field(default_factory=OrderedDict)
    recent: dict[Any, Stage] = field(default_factory=dict)  # the same by the sizes themselves, which are faster to compare
    seen: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # shapes of earlier calls; None where they differed
    known: dict[str, Any] = field(default_factory=dict)  # values that this plan makes constants
    reads: list[str] | None = None  # names that the nodes of `rest` and the outputs need
    names: list[str] = field(default_factory=list)  # those of the names that the keys of `next` speak of
    why: list[str] = field(default_factory=list)  # the program is cut here
    alike: bool = False  # sizes that are equal in a call are one symbol; symbols of their own did not work out here
    plain: bool = False  # elements that the plan needs are no symbols; they did not work out here
    exact: bool = False  # symbols did not work out here: every set of sizes has its own plan

    @property
    def steady(self) -> bool:
        """Whether types and sizes of a call's inputs decide what follows."""
        return not self.needs and all(map(is_steady, self.host))


class Program:
    """The nodes of one graph (of the model, or of a body that the host runs)."""

    def __init__(self, source: Source, graph: Any, frame: Frame, compile_: Compile, name: str, notes: list[str] | None = None) -> None:
        self.source, self.graph, self.frame, self.compile, self.name = source, graph, frame, compile_, name
        self.constants = constants_of(source, graph, frame)
        self.items = []
        for item in items_of(source, graph.node, frame):
            if item.op_type == "Constant" and not item.domain and isinstance(item.attrs.get("value"), np.ndarray):
                self.constants[item.outputs[0]] = item.attrs["value"]
            else:
                self.items.append(item)
        self.outputs = [frame.names.get(o.name, o.name) for o in graph.output]
        self.inputs = [i.name for i in graph.input]
        tensors = [o.type.tensor_type for o in graph.output]
        self.gives = [Gives(t.elem_type, tuple(d.dim_value for d in t.shape.dim)) for t in tensors]
        self.notes: list[str] = [] if notes is None else notes
        self.bodies: dict[int, Program] = {}
        self.forget()
        self.stuck: tuple[int, list[Pair]] = (0, [])  # the state of the last plan
        self._symbols = 0
        self._begun: dict[Any, tuple[list[Stage], dict[str, Any]]] = {}  # stages of calls, and values they give, that scalars alone decide

    # --- planning

    def forget(self) -> None:
        """Plan anew, for the sizes of the next call."""
        self.start = Stage(None, [], self.items, set(), {})

    def plan(self, items: list[Item], specs: Mapping[str, Spec], *, compiled: bool = True) -> tuple[Stage, Builder]:
        """What can be compiled of `items` with what is known, and what is left."""
        builder = Builder(self.source, self.name)
        builder.scope.constants = self.constants
        places: list[tuple[str, tuple[int, ...], Elem]] = []
        for name, spec in specs.items():
            builder.scope.bindings[name] = self._enter(builder, name, spec, (), places)
        try:
            builder.run(items)
        finally:
            self.stuck = builder.stuck
        ready = [b for b in builder.left if isinstance(b, Blocked) and not b.needs]
        early = all(is_steady(b) and all(n in specs or n in self.constants for n in b.item.reads) for b in ready)
        if ready and early and not any(isinstance(b, Blocked) and b.needs for b in builder.left):  # what is compiled can come after
            done = {id(b.item) for b in ready}
            rest = [i for i in items if id(i) not in done]
            return Stage(None, ready, rest, set(), {}, why=["what follows takes what they give"]), builder
        rest = [b.item if isinstance(b, Blocked) else b for b in builder.left if b not in ready]
        wanted = {n for i in (*(b.item for b in ready), *rest) for n in i.reads} | set(self.outputs)
        stage = Stage(None, ready, rest, {n for b in builder.left if isinstance(b, Blocked) for n in b.needs}, {})
        stage.why = [f"{b.item.title}: {b.why}" for b in builder.left if isinstance(b, Blocked)]
        stage.segment = self._segment(builder, wanted, places, stage, compiled)
        return stage, builder

    def _enter(self, builder: Builder, name: str, spec: Spec, place: tuple[int, ...], places: list[Any]) -> Any:
        if isinstance(spec, Tensor):
            places.append((name, place, spec.elem))
            return builder.input(spec.type, name, spec.elem)
        if isinstance(spec, Known):
            return builder.lift(spec.array, name)
        if isinstance(spec, Sized):
            places.append((name, place, spec.elem))
            value = builder.input(spec.type, name, spec.elem)
            builder.context.contents.tell(value, np.array([*spec.dims, None], object)[:-1].reshape(spec.type.shape))
            return value
        if isinstance(spec, list):
            return [self._enter(builder, name, s, (*place, i), places) for i, s in enumerate(spec)]
        return spec

    def _segment(self, builder: Builder, wanted: set[str], places: list[Any], stage: Stage, compiled: bool) -> Segment | None:
        graph, bindings = builder.graph, builder.scope.bindings
        index: dict[Value, int] = {}
        elems: list[Elem] = []

        def structure(b: Any) -> Any:
            if isinstance(b, list):
                return [structure(x) for x in b]
            if isinstance(b, Nothing):
                return None
            if b not in index:
                index[b] = len(graph.outputs)
                graph.outputs.append(b)
                elems.append(builder.context.elem(b))
            return index[b]

        outputs = []
        for name in dict.fromkeys((*self.outputs, *sorted(wanted))):
            if name not in self.outputs and name in self.constants:  # found there by those who need it
                continue
            if name not in bindings and name not in builder.scope.constants:
                continue
            b = builder.scope.get(name)
            if isinstance(b, (Pending, Strings)) or _holds_strings(b):
                continue
            if stage.rest and isinstance(b, Value) and b not in builder.context.coded:
                found = builder.context.known(b)
                if found is not None and found.dtype != object and found.size <= SMALL:
                    stage.known[name] = found
                    continue
            if any(n == name for n, _, _ in places):  # it entered the segment as it is
                continue
            if isinstance(b, Value):
                stage.types[name] = b.type
            outputs.append((name, structure(b)))
        seeded = builder.context.seed is not None
        if seeded:
            graph.inputs.remove(builder.context.seed)  # type: ignore[arg-type]
            graph.inputs.append(builder.context.seed)  # type: ignore[arg-type]
        if not outputs:
            return None
        if compiled:
            places = trimmed(graph, places)
        session = self.compile(graph) if compiled and graph.outputs else None
        return Segment(session, graph, places, outputs, elems, seeded)

    # --- running

    def run(self, env: dict[str, Any], stages: list[Stage] | None = None) -> list[Any]:
        """The graph's outputs; env holds its inputs and whatever its nodes capture. `stages` receives what the call went through."""
        stage = self.start if stages is None else self._first(env, stages)
        while True:
            if stages is not None:
                stages.append(stage)
            self._run_stage(stage, env)
            if not stage.rest:
                break
            stage = self._following(stage, env)
        return [env[n] if n in env else np.array(self._output(n, env)) for n in self.outputs]

    def straight(self, names: Sequence[str], stages: list[Stage]) -> Callable[..., list[Any]] | None:
        """The same for arguments of the types and sizes of a call that went through these stages, where types and sizes decide them."""
        if not all(s.steady for s in stages[:-1]) or any(s.segment is not None and s.segment.plain is None for s in stages):
            return None
        parts = []
        for s in stages:
            g = s.segment
            segment = (None, (), ()) if g is None else (g.session, g.plain or (), g.outputs)
            parts.append((*segment, s.known, [b.go for b in s.host if b.go is not None]))
        return straight(names, parts, [(n, self.constants.get(n)) for n in self.outputs])

    def _run_stage(self, stage: Stage, env: dict[str, Any]) -> None:
        if stage.segment is not None:
            stage.segment(env)
        env.update(stage.known)
        for b in stage.host:
            if b.go is None:
                b.go = self._going(b, env)
            b.go(env)

    def _first(self, env: dict[str, Any], stages: list[Stage]) -> Stage:
        """The first stage that reads more than scalars. Those before it (a choice by a sampling rate or a flag) are remembered by the
        scalars' values: they give what they gave."""
        few = scalars(env)
        if not few or not self.start.rest:
            return self.start
        key = tuple([_exact(v, n in few) for n, v in env.items()])
        if (found := self._begun.get(key)) is None:
            passed, given, stage = list[Stage](), dict[str, Any](), self.start
            while stage.rest and not stage.host and all(n in few for n in stage.needs if n in env) and \
                    (stage.segment is None or all(n in few for n, _, _ in stage.segment.inputs)):
                before = set(env)
                self._run_stage(stage, env)
                passed.append(stage)
                stage = self._following(stage, env)
                given.update((n, env[n]) for n in env if n not in before)
                few |= set(given)
            later = {n for i in (*(b.item for b in stage.host), *stage.rest) for n in i.reads} | set(self.outputs)
            later |= {n for n, _, _ in stage.segment.inputs} if stage.segment is not None else set()
            found = self._begun[key] = [*passed, stage], {n: v for n, v in given.items() if n in later}
            if len(self._begun) > KEPT:
                self._begun.pop(next(iter(self._begun)), None)
        env.update((n, v.copy() if n in self.outputs and isinstance(v, np.ndarray) else v) for n, v in found[1].items())
        stages += found[0][:-1]
        return found[0][-1]

    def _output(self, name: str, env: dict[str, Any]) -> Any:
        if name in env:
            return env[name]
        if name in self.constants:
            return self.constants[name]
        raise FormatError(f"onnx: nothing gives the output {name!r} of {self.name}")

    def _following(self, stage: Stage, env: dict[str, Any]) -> Stage:
        if stage.reads is None:
            stage.reads = sorted(({n for i in stage.rest for n in i.reads} | set(self.outputs)) & env.keys())
        known, needs = stage.known, stage.needs
        sized: list[str] = []
        for n in needs - known.keys() if needs else ():
            if (sizes := sizes_of(env.get(n))) is not None:
                env[n + SIZES] = sizes
                sized.append(n)
        get = env.get
        quick = tuple([(v.shape, v.dtype) if type(v := get(n)) is np.ndarray and n not in needs else n in env and _exact(v, n in needs)
                       for n in stage.reads if n not in known])
        if (found := stage.recent.get(quick)) is not None:
            return found
        names = [n for n in stage.reads if n in env] + [n + SIZES for n in sized]

        def key() -> Any:
            whole = needs if stage.plain else needs - set(sized)
            own = [_key(env[n], n in whole, self._shape(stage, n, env[n])) for n in names if n not in known]
            return *own, *self._equal(stage, env, names)

        found = stage.next.get(now := key())
        if found is None:
            found = self._planned(stage, env, names)
            stage.names = [n for n in names if n not in known]
            stage.next[now := key()] = found
            if len(stage.next) > KEPT:
                stage.next.popitem(last=False)
                stage.recent.clear()
        else:
            stage.next.move_to_end(now)
        if len(stage.recent) > KEPT:
            stage.recent.clear()
        stage.recent[quick] = found
        return found

    def _planned(self, stage: Stage, env: dict[str, Any], names: list[str]) -> Stage:
        renamed: dict[Any, Expr] = {}
        needs = stage.needs | set(stage.known)
        def given(alike: bool) -> dict[str, Spec]:
            shapes = {n: self._shape(stage, n, env[n]) for n in names}
            free = set(self._free(stage, env, names)) if alike else set[int]()
            found = {n: self._spec(n, env[n], n in needs, s, stage.types.get(n), renamed, free) for n, s in shapes.items()}
            for n in [n for n in found if n.endswith(SIZES)]:
                dims, of = found[n].type.shape[:-1], n.removesuffix(SIZES)
                if stage.plain or not any(isinstance(d, Expr) for d in dims):
                    del found[n]
                else:
                    e = elem_of(env[of])
                    found[of] = Sized(TensorType(e.held, env[of].shape), e, dims)
            return found

        specs = given(stage.alike)
        if any(isinstance(s, Sized) for s in specs.values()):
            try:
                made = self.plan(stage.rest, specs)[0]
                if not made.needs & {n for n, s in specs.items() if isinstance(s, Sized)}:
                    made.needs |= stage.needs
                    return made
            except TilewrightError as e:
                self.notes.append(f"one plan for each of the numbers that decide sizes: {e}")
            stage.plain = True
            specs = given(stage.alike)
        has_symbols = any(isinstance(d, Expr) for s in specs.values() for d in _dims(s))
        try:
            made = self.plan(stage.rest, specs)[0]
        except TilewrightError as e:
            if not has_symbols:
                raise
            try:
                if stage.alike:
                    raise
                stage.alike = True
                made = self.plan(stage.rest, given(True))[0]
            except TilewrightError:
                self.notes.append(f"one plan for each set of sizes: {e}")
                stage.exact = True
                specs = {n: self._spec(n, env[n], n in needs, None, None, renamed) for n in names}
                made = self.plan(stage.rest, specs)[0]
        if made.rest and not made.segment and not made.host and {id(i) for i in made.rest} == {id(i) for i in stage.rest} \
                and not made.needs - stage.needs:
            raise FormatError(f"onnx: {self.name}: nothing gives what the nodes {', '.join(i.title for i in made.rest[:5])} wait for")
        made.needs |= stage.needs
        return made

    def _shape(self, stage: Stage, name: str, value: Any) -> tuple[Any, ...] | None:
        """Sizes that have been the same in every call, None where they were not. None alone: take them as they are."""
        if stage.exact or not isinstance(value, np.ndarray):
            return None
        seen = stage.seen.get(name)
        if seen is None or len(seen) != value.ndim:
            declared = stage.types.get(name)
            seen = tuple(None if isinstance(d, Expr) else d for d in declared.shape) if declared is not None else value.shape
        seen = tuple(a if a == n else None for a, n in zip(seen, value.shape, strict=True)) if len(seen) == value.ndim else value.shape
        stage.seen[name] = seen
        return seen

    def _equal(self, stage: Stage, env: dict[str, Any], names: list[str]) -> tuple[int, ...]:
        """Which of the sizes that differ from call to call are equal in this one: each by the first that is the same."""
        if not stage.alike or stage.exact:
            return ()
        sizes = self._free(stage, env, names)
        return tuple(sizes.index(d) for d in sizes)

    def _free(self, stage: Stage, env: dict[str, Any], names: list[str]) -> list[int]:
        """The sizes in this call of dims that differ from call to call."""
        arrays = [(a.shape, stage.seen.get(n, ())) for n in names if isinstance(a := env[n], np.ndarray)]
        return [d for shape, seen in arrays for d, s in zip(shape, seen, strict=False) if s is None]

    def _spec(self, name: str, value: Any, needed: bool, shape: tuple[Any, ...] | None, type_: TensorType | None,
              renamed: dict[Any, Expr], free: Collection[int] = ()) -> Spec:
        """`free`: sizes that are one symbol each, wherever they stand."""
        if value is None:
            return Nothing()
        if isinstance(value, list):
            if any(isinstance(v, np.ndarray) and v.dtype.kind in "OUS" for v in value):
                return Strings()
            return [self._spec(name, v, needed, None, None, renamed) for v in value]
        a = np.asarray(value)
        if a.dtype.kind in "OUS":
            return Strings(a)
        if needed:
            return Known(a)
        e = elem_of(a)
        dims: list[Dim] = []
        for k, n in enumerate(a.shape):
            if shape is None or shape[k] is not None:
                dims.append(n)
                continue
            d = n if free else type_.shape[k] if type_ is not None and k < type_.ndim else (name, k)
            if d not in renamed:
                self._symbols += 1
                only = next(iter(d.symbols)) if isinstance(d, Expr) and len(d.terms) == 1 and len(d.symbols) == 1 else None
                low = only.lo if isinstance(only, Symbol) else int(name.endswith(SIZES))
                renamed[d] = sym(f"n{self._symbols}", low)
            dims.append(renamed[d])
        return Tensor(TensorType(e.held, tuple(dims)), e)

    def _going(self, blocked: Blocked, env: dict[str, Any]) -> HostStep:
        """A node of the host. What is a constant at its first run is one at each."""
        item = blocked.item
        sources = [(n, None if not n or n in env else self._output(n, env)) for n in item.inputs]
        return HostStep((item.domain, item.op_type, item.version), item.title, item.attrs, sources, item.outputs, partial(Step, self, item))


@dataclass
class Step:
    """What a function of the host is given beside its inputs."""

    program: Program
    item: Item
    env: dict[str, Any]

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.item.outputs

    @property
    def version(self) -> int:
        return self.item.version

    def body(self, sub: Any) -> Callee:
        """A subgraph as a function of its inputs. It is planned once and kept."""
        program = self.program.bodies.get(id(sub))
        if program is None:
            prefix = f"{sub.frame.prefix}{self.item.op_type}.{len(self.program.bodies)}/"
            own = {o for n in sub.graph.node for o in n.output if o} | {t.name for t in sub.graph.initializer}
            own |= {i.name for i in sub.graph.input}
            frame = Frame({**sub.frame.names, **{n: prefix + n for n in own}}, sub.frame.opsets, sub.frame.attrs, prefix, sub.frame.depth)
            root = self.program
            program = Program(root.source, sub.graph, frame, root.compile, f"{root.name}.{self.item.op_type}", root.notes)
            program.constants |= {n: root.constants[n] for n in sub.captured() if n not in self.env and n in root.constants}
            self.program.bodies[id(sub)] = program
            program.keep = sub  # type: ignore[attr-defined]
        captured = {n: self.env[n] for n in sub.captured() if n in self.env}

        def call(*args: Any) -> list[Any]:
            env = dict(captured)
            env.update((program.frame.names[i], a) for i, a in zip(program.inputs, args, strict=True))
            return program.run(env)

        return Callee(call, program.gives)


def is_steady(blocked: Blocked) -> bool:
    return lookup(HOST, blocked.item.domain, blocked.item.op_type, blocked.item.version) in STEADY


def trimmed(graph: Graph, places: list[Any]) -> list[Any]:
    """The places of inputs that the results depend on; the graph loses the others, but for those whose sizes are symbols."""
    live = set(graph.outputs)
    for n in reversed(graph.nodes):
        if not live.isdisjoint(n.values):
            live.update(n.operands)
    gone = {v for v in graph.inputs[:len(places)] if v not in live and all(isinstance(d, int) for d in v.type.shape)}
    if gone:
        kept = [p for p, v in zip(places, graph.inputs, strict=False) if v not in gone]
        dead = {n for n in graph.nodes if live.isdisjoint(n.values) and (n.values[0] in gone or n.values[0] not in graph.inputs)}
        graph.nodes = [n for n in graph.nodes if n not in dead]
        graph.inputs = [v for v in graph.inputs if v not in gone]
        return kept
    return places


def _holds_strings(b: Any) -> bool:
    return isinstance(b, list) and any(isinstance(x, Strings) or _holds_strings(x) for x in b)


def _dims(spec: Spec) -> Sequence[Dim]:
    return spec.type.shape if isinstance(spec, Tensor) else ()


def _exact(value: Any, needed: bool) -> Any:
    """All that a plan may depend on, of a tensor quickly."""
    if type(value) is np.ndarray:
        if value.dtype.kind in "OUS":
            return "strings"
        return (value.shape, value.dtype, value.tobytes()) if needed else (value.shape, value.dtype)
    return _key(value, needed, None)


def _key(value: Any, needed: bool, shape: tuple[Any, ...] | None) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return ("maps", len(value)) if value and type(value[0]) is dict else tuple(_key(v, needed, None) for v in value)
    a = np.asarray(value)
    if a.dtype.kind in "OUS":
        return "strings"
    if needed:
        return a.shape, a.dtype.str, str(a.dtype), a.tobytes()
    return (a.shape if shape is None else shape), str(a.dtype)


def declared(source: Source, info: Any, symbols: dict[str, Expr], assumed: Assumed | None = None) -> Spec:
    """The spec of a graph input, as far as the file tells; None where it does not. `assumed` takes the place of symbols."""
    t = info.type
    if t.WhichOneof("value") != "tensor_type" or t.tensor_type.elem_type in (0, 8) or not t.tensor_type.HasField("shape"):
        return None
    dims: list[Dim] = []
    for k, d in enumerate(t.tensor_type.shape.dim):
        if d.HasField("dim_value") and d.dim_value >= 0:  # some writers say -1 where they do not know
            dims.append(int(d.dim_value))
            continue
        named = any(ch.isalnum() for ch in d.dim_param)  # "?" is no name: two of them are two sizes
        label = d.dim_param if named else f"{info.name}_{k}"
        if label not in symbols:
            clean = "".join(ch if ch.isalnum() or ch == "_" else "_" for ch in label) or "d"
            clean = clean if not clean[0].isdigit() else f"d{clean}"
            taken = {str(e) for e in symbols.values()}
            while clean in taken:
                clean += "_"
            symbols[label] = sym(clean, 1)
        dims.append(substitute(symbols[label], assumed or {}))
    e = elem(t.tensor_type.elem_type)
    return Tensor(TensorType(e.held, tuple(dims)), e)


def input_names(graph: Any) -> list[str]:
    """Inputs that a call gives: those without an initializer."""
    fixed = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    names = [i.name for i in graph.input if i.name not in fixed]
    if len(set(names)) < len(names):
        raise FormatError(f"onnx: two inputs of {graph.name or 'the graph'} have one name, got {', '.join(names)}")
    return names
