"""Calls of models that are several segments or have steps of the host, in the code cache: the next process runs what an earlier call of
the same types and sizes ran, or the last one of the same ranks, and imports the model where neither serves.

An entry holds the stages of a call one after the other: the segment, the host's steps as ops with their attributes, and what the stage
after it was planned for: types and sizes, and the elements of what its plan made constants. A body that the host runs in a loop goes
through other stages from round to round: of such a body the tree of all stages is stored.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import STRANGE, FormatError, InputError, TilewrightError
from ...core.hashing import blake2b
from ...runtime.archive.entry import Data, entry_bytes, read_entry
from ...target.cpu.cache import CodeCache
from . import store
from .tables import HOST, IMPORTING, STEADY, Env, HostStep, lookup, straight

if TYPE_CHECKING:
    from ...runtime.session import Session
    from .importer import Blocked
    from .program import Program, Stage
    from .session import Imported, SegmentedSession

Load = Callable[[str], "Session | None"]  # the session of a stored segment
KEPT = 64  # calls of one model
WORDS = 1 << 16  # strings of one constant that are stored


def _sizes(env: Env) -> list[Any] | None:
    """Types and sizes of a call's arguments; None where one of them is no array."""
    found = [[n, str(a.dtype), list(a.shape)] for n, a in env.items() if isinstance(a, np.ndarray)]
    return found if len(found) == len(env) else None


def _ranks(sizes: list[Any]) -> list[Any]:
    """The same for any sizes."""
    return [[n, kind, len(shape)] for n, kind, shape in sizes]


def scalars(env: Mapping[str, Any]) -> set[str]:
    """Names of integers and flags by themselves."""
    return {n for n, v in env.items() if isinstance(v, np.ndarray) and v.size == 1 and v.dtype.kind in "iub"}


SIZES = " as sizes"  # ends the name of what `sizes_of` makes of a value
FEW = 4  # elements of such a value


def sizes_of(value: Any) -> np.ndarray[Any, Any] | None:
    """A few positive integers as the sizes of an array without elements: a plan takes those that differ from call to call for symbols."""
    if type(value) is not np.ndarray or value.dtype.kind not in "iu" or not 1 <= value.size <= FEW:
        return None
    sizes = value.reshape(-1).tolist()
    return np.empty((*sizes, 0), np.uint8) if min(sizes) >= 1 and prod(sizes) < 1 << 40 else None


def _name(key: str, *parts: object) -> str:
    return blake2b(repr((key, parts)).encode(), digest_size=20).hexdigest()


# --- writing


class _NotStored(Exception):
    """A call that goes through something that an entry cannot hold."""


def save_model(key: str, imported: Imported) -> None:
    """Say that the model of this key is several segments, and what it takes and gives."""
    with contextlib.suppress(TypeError, ValueError):  # a name in the file that is no text
        header = {"name": imported.program.name, "names": imported.names, "arguments": imported.arguments}
        CodeCache().put(_name(key), entry_bytes(header, []))


def save_call(key: str, imported: Imported, given: Env, stages: list[Stage]) -> None:
    """Store a call that went through these stages."""
    sizes, cache = _sizes(given), CodeCache()
    if sizes is None:
        return
    writer = _Writer()
    try:
        program = writer.program(imported.program, stages)
    except _NotStored:
        return
    if sum(map(len, writer.blobs)) > cache.limit // store.SHARE:
        return
    name = _name(key, sizes)
    for k, session in enumerate(writer.sessions):
        store.save(_name(name, k), session, imported)
    with contextlib.suppress(TypeError, ValueError):  # attributes that are no plain data
        data = entry_bytes({**program, "name": name}, [writer.blobs])
        cache.put(name, data)
        cache.put(_name(key, _ranks(sizes)), data)


class _Writer:
    """Plain data for stages. `sessions` and `blobs` are what they refer to by number."""

    def __init__(self) -> None:
        self.sessions, self.blobs = list[Any](), list[bytes]()

    def program(self, program: Program, path: Sequence[Stage] = ()) -> Data:
        """Its inputs and outputs, and the stages of one call, or all where `path` is empty."""
        return {"inputs": [program.frame.names.get(n, n) for n in program.inputs], "outputs": program.outputs,
                "fixed": {n: self.array(program.constants[n]) for n in program.outputs if n in program.constants},
                "gives": [[g.elem, list(g.dims)] for g in program.gives],
                "start": self.stage(program, path[0] if path else program.start, path[1:], whole=not path)}

    def stage(self, program: Program, stage: Stage, path: Sequence[Stage], *, whole: bool) -> Data:
        segment, number = stage.segment, None
        if segment is not None:
            if segment.seeded or any(e.kind != "plain" for e in (*segment.elems, *(e for _, _, e in segment.inputs))) \
                    or any(p for _, p, _ in segment.inputs) or not all(isinstance(s, int) for _, s in segment.outputs):
                raise _NotStored
            if segment.session is not None:
                number = len(self.sessions)
                self.sessions.append(segment.session)
        after = [(k, s) for k, s in reversed(stage.next.items()) if whole or s is path[0]] if whole or path else []
        return {"segment": number, "inputs": [] if segment is None else [n for n, _, _ in segment.inputs],
                "gives": [] if segment is None else [list(o) for o in segment.outputs],
                "known": {n: self.array(a) for n, a in stage.known.items()}, "host": [self.step(program, b) for b in stage.host],
                "ends": not stage.rest,
                "next": [[self.asks(stage.names, k, s), self.stage(program, s, path[1:], whole=whole)] for k, s in after]}

    def step(self, program: Program, blocked: Blocked) -> Data:
        item, constants = blocked.item, program.constants
        if lookup(HOST, item.domain, item.op_type, item.version) in IMPORTING:
            raise _NotStored
        return {"op": [item.domain, item.op_type, item.version], "title": item.title, "inputs": list(item.inputs),
                "outputs": list(item.outputs), "fixed": {n: self.array(constants[n]) for n in item.inputs if n in constants},
                "attrs": {k: self.attribute(program, v) for k, v in item.attrs.items()}}

    def attribute(self, program: Program, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"array": self.array(value)}
        if not hasattr(value, "captured"):
            return value
        body = program.bodies.get(id(value))
        if body is None:  # it has not run
            raise _NotStored
        return {"body": self.program(body), "captured": sorted(value.captured())}

    def array(self, a: Any) -> Data:
        if not isinstance(a, np.ndarray):
            raise _NotStored
        if a.dtype.kind in "OUS":
            words = a.reshape(-1).tolist()
            if len(words) > WORDS or not all(isinstance(w, str) for w in words):
                raise _NotStored
            return {"words": words, "shape": list(a.shape)}
        self.blobs.append(np.ascontiguousarray(a).tobytes())
        return {"dtype": str(a.dtype), "shape": list(a.shape), "blob": len(self.blobs) - 1}

    def asks(self, names: list[str], key: Any, plan: Stage) -> list[Any]:
        """What a plan was made for, from its key: [name, type, sizes (None: any), elements] and which of the sizes that may be any must be
        equal, each by the first that is the same. Two types are no dtypes: "" of strings and "maps" of a list of them."""
        found = list[Any]()
        for n, k in zip(names, key, strict=False):
            if k == "strings":
                found.append([n, "", None, None])
            elif isinstance(k, tuple) and k[:1] == ("maps",):
                found.append([n, "maps", [None if plan.segment is None and not plan.known else k[1]], None])  # steps take any number
            elif isinstance(k, tuple) and len(k) == 2 and isinstance(k[1], str):
                found.append([n, k[1], list(k[0]), None])
            elif isinstance(k, tuple) and len(k) == 4 and isinstance(k[3], bytes):
                self.blobs.append(k[3])
                found.append([n, k[2], list(k[0]), len(self.blobs) - 1])
            else:
                raise _NotStored
        return [found, list(key[len(names):])]


# --- reading


class _Missing(Exception):
    """The stages of an entry do not serve this call."""


class StoredCalls:
    """A model whose earlier calls are in the cache. What it does not find there it asks the imported model for."""

    def __init__(self, key: str, header: Data, segment: Load, imported: Callable[[], SegmentedSession]) -> None:
        self.name, self.arguments, self._names = str(header["name"]), header["arguments"], list(map(str, header["names"]))
        self._key, self._segment, self._imported = key, segment, store.Later(imported)
        self._calls: dict[Any, _Call | None] = {}
        self._of_ranks: dict[str, _Program | None] = {}
        self._closed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._closed:
            raise InputError(f"session: {self.name} is closed")
        if self._imported.found is not None and not self._imported.found.stores:
            return self._imported.found(*args, **kwargs)
        names = self._names
        given: Sequence[Any] = args
        if kwargs or len(args) != len(names):
            env = {**dict(zip(names, args, strict=False)), **kwargs}
            if len(args) + len(kwargs) != len(env) or set(env) != set(names):
                return self._imported(*args, **kwargs)  # which says what is wrong
            given = [env[n] for n in names]
        found = self._ran(given)
        if found is None:
            return self._imported(*args, **kwargs)
        return found[0] if len(found) == 1 and not isinstance(found[0], list) else tuple(found)

    def _ran(self, args: Sequence[Any]) -> list[Any] | None:
        kinds = tuple([(a.shape, a.dtype) if type(a) is np.ndarray else None for a in args])
        call = self._calls.get(kinds)
        if call is None or call.texts:
            texts = any(k is not None and k[1].kind in "US" for k in kinds)
            if texts:
                args = [a.astype(object) if type(a) is np.ndarray and a.dtype.kind in "US" else a for a in args]
            if call is None and kinds not in self._calls and len(self._calls) < KEPT:
                sizes = _sizes(dict(zip(self._names, args, strict=True)))
                program = None if sizes is None else self._found(sizes)
                call = self._calls[kinds] = None if program is None else _Call(program, self._names, texts)
        try:
            return None if call is None else call(args)
        except (_Missing, InputError):  # the imported model knows whether there is something wrong with it
            return None
        except STRANGE as e:
            raise FormatError(f"onnx: {self.name} is not as the standard has it: {type(e).__name__}: {e}") from e

    def _found(self, sizes: list[Any]) -> _Program | None:
        program = self._read(_name(self._key, sizes))
        declared = {n: shape for n, _, shape in self.arguments[0]}
        if program is None and all(len(shape) == len(declared[n]) and all(not isinstance(d, int) or d in (m, -1) for d, m in
                                                                       zip(declared[n], shape, strict=True)) for n, _, shape in sizes):
            ranks = _name(self._key, _ranks(sizes))
            if ranks not in self._of_ranks:
                self._of_ranks[ranks] = self._read(ranks)
            program = self._of_ranks[ranks]
        return program

    def _read(self, name: str) -> _Program | None:
        data = CodeCache().get(name)
        if data is None:
            return None
        try:
            header, groups = read_entry(memoryview(data))
            return _Reader(header["name"], groups[0], self._segment).program(header)
        except (TilewrightError, *STRANGE, OSError):
            return None  # written by something else, or a segment has been dropped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._imported.made, name)

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> StoredCalls:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SegmentedSession {self.name}({', '.join(self._names)})>"


class _Stage:
    """A stored stage, as functions and names."""

    session: Any
    inputs: list[str]
    gives: list[tuple[str, int]]
    known: Env
    host: list[HostStep]
    reads: set[str]  # names that it or one after it needs
    needs: set[str]  # names whose elements decide which stage follows
    sized: list[str]  # what `sizes_of` makes for the stage that follows
    ends: bool
    steady: bool  # types and sizes decide which stage follows
    next: list[tuple[list[tuple[str, Any, Any, Any]], list[int], _Stage]]

    def run(self, env: Env) -> None:
        if self.session is not None:
            made = self.session(*[env[n] for n in self.inputs])
            results = made if type(made) is tuple else (made,)
            for n, at in self.gives:
                env[n] = results[at]
        if self.known:
            env.update(self.known)
        for step in self.host:
            step(env)

    def following(self, env: Env) -> _Stage:
        """The stage that was planned for what this one has given."""
        for n in self.sized:
            if (found := sizes_of(env[n.removesuffix(SIZES)])) is None:
                raise _Missing
            env[n] = found
        for asks, equal, stage in self.next:
            if all(_fits(env[n], *asked) for n, *asked in asks) and (not equal or _alike(asks, env) == equal):
                return stage
        raise _Missing


def _fits(a: Any, kind: Any, shape: Sequence[int | None] | None, elements: bytes | None) -> bool:
    if type(a) is not np.ndarray:
        return kind == "maps" and isinstance(a, list) and shape in ([len(a)], [None])
    if shape is None:
        return a.dtype.kind in "OUS"
    return (a.dtype == kind and len(a.shape) == len(shape) and all(b is None or b == n for n, b in zip(a.shape, shape, strict=True))
            and (elements is None or a.tobytes() == elements))


def _alike(asks: list[tuple[str, Any, Any, Any]], env: Env) -> list[int]:
    """Sizes that may be any, each by the first that is the same."""
    sizes = [m for n, _, shape, _ in asks if shape and type(env[n]) is np.ndarray
             for m, d in zip(env[n].shape, shape, strict=True) if d is None]
    return [sizes.index(m) for m in sizes]


class _Program:
    """A stored program: that of a call, or of a body."""

    def __init__(self, inputs: list[str], outputs: list[str], fixed: Env, start: _Stage) -> None:
        self.inputs, self.outputs, self.fixed, self.start = inputs, outputs, fixed, start

    def run(self, env: Env, stage: _Stage | None = None) -> list[Any]:
        stage = stage or self.start
        stage.run(env)
        while not stage.ends:
            stage = stage.following(env)
            stage.run(env)
        return [env[n] if n in env else self.fixed[n].copy() for n in self.outputs]

    def path(self, env: Env) -> list[_Stage] | None:
        """The stages of a call, where it can be told from types and sizes alone."""
        found = [self.start]
        while found[-1].steady and not found[-1].ends:
            found[-1].run(env)
            found.append(found[-1].following(env))
        return found if found[-1].ends else None


class _Step:
    """What a function of the host is given beside its inputs."""

    def __init__(self, outputs: tuple[str, ...], version: int, env: Env) -> None:
        self.outputs, self.version, self._env = outputs, version, env

    def body(self, sub: tuple[_Program, list[str], Sequence[Any]]) -> Any:
        from .host_flow import Callee

        program, names, gives = sub
        env = self._env
        captured = {n: env[n] for n in names if n in env}
        return Callee(lambda *args: program.run({**captured, **dict(zip(program.inputs, args, strict=True))}), gives)


class _Reader:
    """Stages from plain data."""

    def __init__(self, name: str, blobs: list[memoryview], segment: Load) -> None:
        self.name, self.blobs, self.segment = name, blobs, segment

    def program(self, d: Data) -> _Program:
        return _Program(d["inputs"], d["outputs"], {n: self.array(a) for n, a in d["fixed"].items()}, self.stage(d["start"], d["outputs"]))

    def array(self, d: Mapping[str, Any]) -> Any:
        if "words" in d:
            words = np.empty(len(d["words"]), object)
            words[:] = d["words"]
            return words.reshape(d["shape"])
        return np.frombuffer(self.blobs[d["blob"]], np.dtype(d["dtype"])).reshape(d["shape"]).copy()

    def stage(self, d: Data, outputs: Sequence[str]) -> _Stage:
        s = _Stage()
        s.session = None if d["segment"] is None else self.segment(_name(self.name, d["segment"]))
        if d["segment"] is not None and s.session is None:
            raise InputError("onnx: a segment of a stored call is not in the cache")
        s.inputs, s.gives, s.ends = d["inputs"], [(n, at) for n, at in d["gives"]], d["ends"]
        s.known = {n: self.array(a) for n, a in d["known"].items()}
        s.reads = {*s.inputs, *outputs}
        s.host = [self.step(h, s.reads) for h in d["host"]]
        s.next = [([self.asked(*a) for a in asks], equal, self.stage(after, outputs)) for (asks, equal), after in d["next"]]
        s.sized = sorted({n for asks, _, _ in s.next for n, *_ in asks if n.endswith(SIZES)})
        s.needs = {n for asks, _, _ in s.next for n, _, _, elements in asks if elements is not None}
        s.needs |= {n.removesuffix(SIZES) for n in s.sized}
        s.steady = not s.needs and all(lookup(HOST, *h["op"]) in STEADY for h in d["host"])
        for asks, _, after in s.next:
            s.reads |= {n.removesuffix(SIZES) for n, *_ in asks} | after.reads
        return s

    def asked(self, n: str, kind: str, shape: list[int | None] | None, blob: int | None) -> tuple[str, Any, Any, Any]:
        return n, np.dtype(kind) if kind not in ("", "maps") else kind, shape, None if blob is None else bytes(self.blobs[blob])

    def step(self, d: Data, reads: set[str]) -> HostStep:
        from . import host_flow, host_ml, host_sizes, host_strings  # noqa: F401  fill the table

        inputs, outputs = d["inputs"], tuple(d["outputs"])
        fixed, attrs = {n: self.array(a) for n, a in d["fixed"].items()}, {k: self.attribute(v, reads) for k, v in d["attrs"].items()}
        reads.update(inputs)
        return HostStep(d["op"], d["title"], attrs, [(n, fixed.get(n)) for n in inputs], outputs, partial(_Step, outputs, d["op"][2]))

    def attribute(self, value: Any, reads: set[str]) -> Any:
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return self.array(value["array"])
        from .host_flow import Gives

        reads.update(value["captured"])
        return self.program(value["body"]), value["captured"], [Gives(e, tuple(dims)) for e, dims in value["body"]["gives"]]


class _Call:
    """The stages of calls with arguments of the same types and sizes. Those that scalars alone decide (a choice by a sampling rate or a
    flag) run once for each value."""

    def __init__(self, program: _Program, names: Sequence[str], texts: bool) -> None:
        self._program, self._names, self.texts = program, names, texts  # texts: some arguments are strings of NumPy's own types
        self._straight: Callable[..., list[Any]] | None = None
        self._few: tuple[list[str], int] | None = None
        self._begun: dict[Any, tuple[Env, _Stage]] = {}

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        if self._straight is not None:
            return self._straight(*args)
        env = dict(zip(self._names, args, strict=True))
        if self._few is None:
            self._few = self._find_few(env)
            if path := self._program.path(dict(env)):
                parts = [(s.session, s.inputs, s.gives, s.known, s.host) for s in path]
                self._straight = straight(self._names, parts, [(n, self._program.fixed.get(n)) for n in self._program.outputs])
        few, at = self._few
        if not at:
            return self._program.run(env)
        key = tuple([env[n].tobytes() for n in few])
        found = self._begun.get(key)
        if found is None:
            begun, stage = dict(env), self._program.start
            for _ in range(at):
                stage.run(begun)
                stage = stage.following(begun)
            found = self._begun[key] = {n: v for n, v in begun.items() if n not in env and n in stage.reads}, stage
            if len(self._begun) > KEPT:
                self._begun.pop(next(iter(self._begun)), None)
        outputs = self._program.outputs
        env.update((n, v.copy() if n in outputs else v) for n, v in found[0].items())
        return self._program.run(env, found[1])

    def _find_few(self, env: Env) -> tuple[list[str], int]:
        """Scalar arguments, and how many of the first stages they alone decide."""
        given, at, stage = scalars(env), 0, self._program.start
        few = sorted(given)
        while stage.next and not stage.host and given.issuperset(stage.inputs) and given.issuperset(stage.needs):
            given |= {n for n, _ in stage.gives} | set(stage.known)
            stage, at = stage.next[0][-1], at + 1
        return few, at


def load_model(key: str, segment: Load, imported: Callable[[], SegmentedSession]) -> StoredCalls | None:
    data = CodeCache().get(_name(key))
    if data is None:
        return None
    try:
        return StoredCalls(key, read_entry(memoryview(data))[0], segment, imported)
    except (TilewrightError, *STRANGE):
        return None
