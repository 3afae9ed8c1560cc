"""From a model to something to call: one compiled session where the model is one segment, a `SegmentedSession` otherwise."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.dims import UNBOUNDED, Expr, substitute, symbols
from ...core.errors import STRANGE, FormatError, InputError, TilewrightError, UnsupportedError
from ...core.pytree import LEAF, Spec
from ...core.signature import Signature, Slot
from ...core.tensors import is_tensor, tensor_to_numpy
from ...ir.graph import Graph
from . import families as _families  # noqa: F401  fills the tables
from .assume import Assumed, assumptions
from .calls import save_call
from .elements import elem, type_text
from .load import Source
from .model import Frame, require_all
from .program import Program, Segment, Stage, Tensor, declared, input_names, trimmed

ROUNDS = 8  # nodes that may ask for something
FINE = 256  # types and sizes of inputs that need no second look
STORED, LOOKED = 8, 1000  # calls of one session: so many are stored, each through other segments, and so many are looked at


@dataclass
class Imported:
    """A model as a program. `graph` and `signature` where it is one segment that a plain session can hold."""

    source: Source
    program: Program
    names: list[str]
    graph: Graph | None
    signature: Signature | None
    assumed: Assumed = field(default_factory=dict)  # what the graph takes for granted of sizes that the file leaves open

    @property
    def notes(self) -> list[str]:
        """What the graph assumes, for reports."""
        texts = [f"{n} is {d}" for n, d in sorted(self.assumed.items()) if str(d) != n]
        ends = sorted({s for d in self.assumed.values() for s in symbols(d)}, key=str)
        texts += [f"{s} is at least {s.lo}" for s in ends if s.lo > 1] + [f"{s} is at most {s.hi}" for s in ends if s.hi < UNBOUNDED]
        return [f"sizes that the file takes for equal: {', '.join(texts)}; others are compiled when they come"]

    @property
    def arguments(self) -> list[list[list[Any]]]:
        """Inputs and outputs as the file declares them: name, type and sizes."""
        graph = self.source.proto.graph
        infos = {i.name: i for i in graph.input}
        return [[[str(i.name), *type_text(i.type)] for i in side] for side in ([infos[n] for n in self.names], graph.output)]


def import_onnx(model: Any, compile_: Callable[[Graph], Any], *, name: str | None = None, assume: bool = True) -> Imported:
    """Read a model, check that everything in it is supported, and plan its first segment. `assume`: sizes may be taken for equal."""
    source = model if isinstance(model, Source) else Source(model)
    try:
        return _imported(source, compile_, name, assume)
    except STRANGE as e:
        raise FormatError(f"onnx: {source.name} is not as the standard has it: {type(e).__name__}: {e}") from e


def _imported(source: Source, compile_: Callable[[Graph], Any], name: str | None, assume: bool) -> Imported:
    require_all(source)
    graph = source.proto.graph
    program = Program(source, graph, Frame({}, source.opsets), compile_, name or source.name)
    names = input_names(graph)
    sizes: dict[str, Expr] = {}
    infos = {i.name: i for i in graph.input}

    def planned(assumed: Assumed) -> tuple[Stage, dict[str, Any]]:
        found = {n: declared(source, infos[n], sizes, assumed) for n in names}
        specs = {n: s if s is not None else _unknown() for n, s in found.items()}
        return program.plan(program.items, specs, compiled=False)[0], specs

    try:
        (stage, specs), assumed = _settled(program, planned) if assume else (planned({}), {})
    except TilewrightError as e:
        if not sizes:
            raise
        program.notes.append(f"sizes are taken from each call: {e}")
        return Imported(source, program, names, None, None)
    if sizes and stage.rest:  # known sizes may decide what symbols leave open: the first call has them
        program.notes.append("sizes are taken from the first call: " + "; ".join(stage.why[:3]))
        return Imported(source, program, names, None, None)
    plain = not stage.rest and not stage.host and stage.segment is not None and not stage.segment.seeded and _is_plain(stage.segment, specs)
    if plain:
        assert stage.segment is not None
        outs = dict(stage.segment.outputs)
        inputs = {n: v for (n, _, _), v in zip(stage.segment.inputs, stage.segment.graph.inputs, strict=True)}
        return Imported(source, program, names, *_whole(stage.segment.graph, program.outputs, outs, inputs), assumed)
    if assumed:  # steps of the host see the sizes of each call
        return _imported(source, compile_, name, False)
    if stage.segment is not None and stage.segment.graph.outputs:
        stage.segment.inputs = trimmed(stage.segment.graph, stage.segment.inputs)
        stage.segment.session = compile_(stage.segment.graph)
        stage.segment.__post_init__()
    program.start = stage
    return Imported(source, program, names, None, None)


def _settled(program: Program, planned: Callable[[Assumed], Any]) -> tuple[Any, Assumed]:
    """A plan, and what it assumes. The error is that of the plan which assumes nothing."""
    try:
        return planned({}), {}
    except TilewrightError as e:
        first, (at, pairs), assumed = e, program.stuck, Assumed()
    for _ in range(ROUNDS):
        for more in assumptions(pairs):
            tried = {n: substitute(d, more) for n, d in assumed.items()} | {n: d for n, d in more.items() if n not in assumed}
            try:
                return planned(tried), tried
            except TilewrightError:
                if program.stuck[0] > at:  # that was it, and a later node asks for more
                    (at, pairs), assumed = program.stuck, tried
                    break
        else:
            break
    raise first


def _unknown() -> Any:
    from .importer import Pending

    return Pending()


def _is_plain(segment: Segment, specs: Mapping[str, Any]) -> bool:
    return (all(isinstance(s, Tensor) and s.elem.kind == "plain" for s in specs.values()) and all(e.kind == "plain" for e in segment.elems)
            and all(isinstance(s, int) for _, s in segment.outputs))


def _whole(graph: Graph, outputs: list[str], made: Mapping[str, int], inputs: Mapping[str, Any]) -> tuple[Graph, Signature]:
    names = tuple(v.name for v in graph.inputs)
    for o in outputs:
        if o not in made:
            graph.outputs.append(inputs[o])
    order = {o: made[o] if o in made else graph.outputs.index(inputs[o]) for o in outputs}
    outs = tuple(Slot(order[o]) for o in outputs)
    out_spec = LEAF if len(outs) == 1 else Spec("tuple", (), (LEAF,) * len(outs))
    in_spec = Spec("tuple", (), (Spec("tuple", (), (LEAF,) * len(names)), Spec("dict")))
    return graph, Signature(names, in_spec, out_spec, tuple(Slot(i) for i in range(len(names))), outs, names)


class SegmentedSession:
    """A model as compiled segments with steps of the host between them: called like a session, with NumPy arrays. One result comes as it
    is, several as a tuple; a sequence is a list, and comes in a tuple also where it is the only result."""

    def __init__(self, imported: Imported, key: str | None = None) -> None:
        self._imported, self._key = imported, key  # under which calls are stored
        self._stored: set[Any] = set()  # ids of the stages of stored calls
        self._straight: dict[Any, Any] = {}  # by types and sizes of arguments which decide the stages of a call: the call
        self._calls = 0
        self._program, self._names = imported.program, imported.names
        self._source = imported.source
        self.arguments = imported.arguments
        self.name = imported.program.name
        self._infos = {i.name: i for i in imported.source.proto.graph.input}
        self._fine: set[tuple[str, Any, tuple[int, ...]]] = set()  # inputs that are taken as they are
        self._closed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._closed:
            raise InputError(f"session: {self.name} is closed")
        names = self._names
        if len(args) != len(names) or kwargs:
            args = self._ordered(args, kwargs)
        kinds = tuple([(v.dtype, v.shape) if type(v) is np.ndarray else None for v in args])
        if (straight := self._straight.get(kinds)) is not None:
            return self._ran(straight, args)
        fine = self._fine
        env = {n: v if type(v) is np.ndarray and (n, v.dtype, v.shape) in fine else self._taken(n, v)
               for n, v in zip(names, args, strict=True)}
        given, stages = dict(env), list[Stage]()
        out = self._ran(self._program_run, (env, stages))
        if kinds not in self._straight and len(self._straight) < FINE and None not in kinds:
            same = all(given[n] is v for n, v in zip(names, args, strict=True))
            self._straight[kinds] = self._program.straight(names, stages) if same else None
        if self._key is None:  # nothing of it will be stored
            return out
        if (last := id(stages[-1])) not in self._stored:
            self._stored.add(last)
            save_call(self._key, self._imported, given, stages)
        self._calls += 1
        if len(self._stored) == STORED or self._calls == LOOKED:
            self._key = None
        return out

    def _ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments in the order of the inputs."""
        names = self._names
        if len(args) > len(names):
            raise InputError(f"session: takes ({', '.join(names)}), got {len(args)} positional arguments")
        env = dict(zip(names, args, strict=False))
        for k, v in kwargs.items():
            if k not in names or k in env:
                raise InputError(f"session: unexpected argument {k!r}; takes ({', '.join(names)})")
            env[k] = v
        for n in names:
            if n not in env:
                raise InputError(f"session: argument {n!r} is missing; takes ({', '.join(names)})")
        return tuple([env[n] for n in names])

    @property
    def stores(self) -> bool:
        """Whether calls may be found in the cache by the next process."""
        return self._key is not None

    def _program_run(self, env: dict[str, Any], stages: list[Stage]) -> list[Any]:
        given = {} if self._program.start.rest else dict(env)
        try:
            return self._program.run(env, stages)
        except InputError:
            if not given:
                raise
            self._program.forget()  # the one segment does not serve these sizes: from here on calls say theirs
            self._straight.clear()
            stages.clear()
            return self._program.run(given, stages)

    def _ran(self, call: Callable[..., list[Any]], args: Sequence[Any]) -> Any:
        try:
            out = call(*args)
        except STRANGE as e:
            raise FormatError(f"onnx: {self.name} is not as the standard has it: {type(e).__name__}: {e}") from e
        return out[0] if len(out) == 1 and not isinstance(out[0], list) else tuple(out)

    def _taken(self, name: str, value: Any) -> Any:
        """An argument as an array of the declared element type and rank, a list of them, or None."""
        if type(value) is np.ndarray and (name, value.dtype, value.shape) in self._fine:
            return value
        info = self._infos[name].type
        if info.WhichOneof("value") == "optional_type":
            if value is None:
                return None
            info = info.optional_type.elem_type
        if info.WhichOneof("value") == "sequence_type":
            if not isinstance(value, (list, tuple)):
                raise InputError(f"session: input {name!r} must be a list of arrays, got a {type(value).__name__}")
            return [np.asarray(v) for v in value]
        if value is None:
            raise InputError(f"session: input {name!r} must be an array, got None")
        array = tensor_to_numpy(value) if is_tensor(value) else np.asarray(value)
        want = info.tensor_type.elem_type
        if want == 8:
            if array.dtype.kind not in "OUS":
                raise InputError(f"session: input {name!r} must be an array of strings, got {array.dtype}")
            array = array if array.dtype.kind == "O" else array.astype(object)
        elif want and array.dtype != elem(want).np and array.dtype != elem(want).held.np:
            raise InputError(f"session: input {name!r} must be {elem(want).name}, got {array.dtype}")
        elif want and elem(want).kind == "coded" and array.dtype == np.uint8:
            array = array.view(elem(want).np)
        if info.tensor_type.HasField("shape"):
            dims = info.tensor_type.shape.dim
            fits = array.ndim == len(dims) and all(not d.HasField("dim_value") or d.dim_value in (n, -1) for d, n in zip(dims, array.shape,
                                                                                                                 strict=False))
            if not fits:
                shown = ",".join(str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims)
                raise InputError(f"session: input {name!r} must have shape [{shown}], got {list(array.shape)}")
        if array is value and len(self._fine) < FINE:
            self._fine.add((name, array.dtype, array.shape))
        return array

    def report(self) -> str:
        """The segments that have been compiled so far, the steps of the host between them, and why the program is cut there."""
        lines = [f"{self.name}: compiled segments and steps of the host"]
        _describe(self._program.start, lines, "  ")
        for body in self._program.bodies.values():
            lines.append(f"  body {body.name}, run by the host")
            _describe(body.start, lines, "    ")
        return "\n".join([*lines, *(f"  note: {n}" for n in self._program.notes)])

    def save(self, path: Any) -> None:
        raise UnsupportedError(f"session: {self.name} has steps of the host and cannot be saved; keep the ONNX file")

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> SegmentedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SegmentedSession {self.name}({', '.join(self._names)})>"


def _describe(stage: Stage, lines: list[str], indent: str) -> None:
    if stage.segment is not None and stage.segment.graph.outputs:
        lines.append(f"{indent}segment of {len(stage.segment.graph.nodes)} ops")
    for b in stage.host:
        lines.append(f"{indent}host: {b.item.title}: {b.why}")
    for w in stage.why if stage.rest else ():
        lines.append(f"{indent}cut: {w}")
    for k, after in enumerate(stage.next.values()):
        lines.append(f"{indent}plan {k}" if len(stage.next) > 1 else f"{indent}then")
        _describe(after, lines, indent + "  ")
