"""Calls of models that are several segments, in the code cache: the next process runs the segments of an earlier call that had the same
types and sizes, and imports the model when another one comes.

A call is stored where it is segments alone: no steps of the host, no strings or sequences, nothing random. Its entry says between any two
segments what the second was planned for: types and sizes, and the elements of what its plan made constants.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import STRANGE, InputError, TilewrightError
from ...core.hashing import blake2b
from ...runtime.archive.entry import Data, entry_bytes, read_entry
from ...target.cpu.cache import CodeCache
from . import store

if TYPE_CHECKING:
    from ...runtime.session import Session
    from .program import Stage
    from .session import Imported, SegmentedSession

Env = dict[str, Any]
Load = Callable[[str], "Session | None"]  # the session of a stored segment
KEPT = 64  # calls of one model


def _sizes(env: Env) -> list[Any] | None:
    """Types and sizes of a call's arguments; None where one of them is no array."""
    found = [[n, str(a.dtype), list(a.shape)] for n, a in env.items() if isinstance(a, np.ndarray) and a.dtype.kind not in "OUS"]
    return found if len(found) == len(env) else None


def scalars(env: Mapping[str, Any]) -> set[str]:
    """Names of integers and flags by themselves."""
    return {n for n, v in env.items() if isinstance(v, np.ndarray) and v.size == 1 and v.dtype.kind in "iub"}


def _name(key: str, *parts: object) -> str:
    return blake2b(repr((key, parts)).encode(), digest_size=20).hexdigest()


# --- writing


def save_model(key: str, imported: Imported) -> None:
    """Say that the model of this key is several segments, and what it takes and gives."""
    with contextlib.suppress(TypeError, ValueError):  # a name in the file that is no text
        header = {"name": imported.program.name, "names": imported.names, "arguments": imported.arguments}
        CodeCache().put(_name(key), entry_bytes(header, []))


def save_call(key: str, imported: Imported, given: Env, stages: list[Stage], env: Env) -> None:
    """Store a call that went through these stages. `env` is what it had in the end."""
    sizes, outputs = _sizes(given), imported.program.outputs
    if sizes is None or not all(isinstance(env.get(n), np.ndarray) for n in outputs):
        return
    blobs, described, there = list[bytes](), list[Data](), set(given)
    for s in stages:
        there.update(s.known, (n for n, _ in s.segment.outputs) if s.segment is not None else ())
        stage = _described(s, {n: env[n] for n in there if n in env}, blobs)
        if stage is None:
            return
        described.append(stage)
    name = _name(key, sizes)
    for k, s in enumerate(stages):
        if s.segment is not None and s.segment.session is not None:
            store.save(_name(name, k), s.segment.session, imported)
    with contextlib.suppress(TypeError, ValueError):
        CodeCache().put(name, entry_bytes({"stages": described, "outputs": outputs}, [blobs]))


def _described(stage: Stage, env: Env, blobs: list[bytes]) -> Data | None:
    """A stage whose end finds these values; None where it cannot be stored."""
    segment = stage.segment
    if stage.host:
        return None
    reads = [n for n in stage.reads or () if n in env and n not in stage.known] if stage.rest else []
    values = [*stage.known.values(), *(env[n] for n in reads)]
    if not all(isinstance(v, np.ndarray) and v.dtype.kind not in "OUSV" for v in values):
        return None
    if segment is not None and (segment.seeded or any(e.kind != "plain" for e in (*segment.elems, *(e for _, _, e in segment.inputs)))
                                or any(p for _, p, _ in segment.inputs) or not all(isinstance(s, int) for _, s in segment.outputs)):
        return None

    def blob(a: Any) -> Data:
        blobs.append(np.ascontiguousarray(a).tobytes())
        return {"dtype": str(a.dtype), "shape": list(a.shape), "blob": len(blobs) - 1}

    return {"runs": segment is not None and segment.session is not None,
            "inputs": [] if segment is None else [n for n, _, _ in segment.inputs],
            "gives": [] if segment is None else [list(o) for o in segment.outputs],
            "known": {n: blob(a) for n, a in stage.known.items()},
            "asks": {n: blob(env[n]) if n in stage.needs else {"dtype": str(env[n].dtype), "shape": list(env[n].shape)} for n in reads}}


# --- reading


class StoredCalls:
    """A model whose earlier calls are in the cache. What it does not find there it asks the imported model for."""

    def __init__(self, key: str, header: Data, segment: Load, imported: Callable[[], SegmentedSession]) -> None:
        self.name, self.arguments, self._names = str(header["name"]), header["arguments"], list(map(str, header["names"]))
        self._key, self._segment, self._imported = key, segment, store.Later(imported)
        self._calls: dict[Any, _Call | None] = {}
        self._closed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._closed:
            raise InputError(f"session: {self.name} is closed")
        if self._imported.found is not None and not self._imported.found.stores:
            return self._imported.found(*args, **kwargs)
        env = {**dict(zip(self._names, args, strict=False)), **kwargs}
        if len(args) + len(kwargs) == len(env) and set(env) == set(self._names):
            found = self._ran({n: env[n] for n in self._names})
            if found is not None:
                return found[0] if len(found) == 1 else tuple(found)
        return self._imported(*args, **kwargs)

    def _ran(self, env: Env) -> list[Any] | None:
        kinds = tuple([(a.shape, a.dtype) if isinstance(a, np.ndarray) else None for a in env.values()])
        if kinds not in self._calls and len(self._calls) < KEPT:
            sizes = _sizes(env)
            self._calls[kinds] = None if sizes is None else self._read(_name(self._key, sizes))
        call = self._calls.get(kinds)
        return None if call is None else call(env)

    def _read(self, name: str) -> _Call | None:
        data = CodeCache().get(name)
        if data is None:
            return None
        try:
            return _Call(name, *read_entry(memoryview(data)), self._segment)
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


class _Call:
    """The segments of one call, and what each was planned for."""

    def __init__(self, name: str, header: Data, groups: list[list[memoryview]], segment: Load) -> None:
        blobs = groups[0]

        def array(d: Mapping[str, Any]) -> Any:
            return np.frombuffer(blobs[d["blob"]], np.dtype(d["dtype"])).reshape(d["shape"]).copy()

        self._outputs = header["outputs"]
        self._few: tuple[list[str], int] | None = None
        self._begun: dict[Any, Env | None] = {}  # what the first stages give that scalars alone decide
        self._stages = []
        for k, s in enumerate(header["stages"]):
            session = segment(_name(name, k)) if s["runs"] else None
            if s["runs"] and session is None:
                raise InputError("onnx: a segment of a stored call is not in the cache")
            asks = [(n, np.dtype(d["dtype"]), tuple(d["shape"]), array(d).tobytes() if "blob" in d else None) for n, d in s["asks"].items()]
            self._stages.append((session, s["inputs"], s["gives"], {n: array(d) for n, d in s["known"].items()}, asks))

    def __call__(self, env: Env) -> list[Any] | None:
        """The results; None where a later segment was planned for something else."""
        if self._few is None:
            self._few = self._find_few(env)
        few, at = self._few
        if at:
            key = tuple([env[n].tobytes() for n in few])
            if key not in self._begun:
                begun = dict(env)
                fits = self._through(self._stages[:at], begun)
                later = {n for _, inputs, _, _, asks in self._stages[at:] for n in (*inputs, *(a[0] for a in asks))} | set(self._outputs)
                self._begun[key] = {n: v for n, v in begun.items() if n not in env and n in later} if fits else None
                if len(self._begun) > KEPT:
                    self._begun.pop(next(iter(self._begun)), None)
            found = self._begun.get(key)
            if found is None:
                return None
            env.update((n, v.copy() if n in self._outputs else v) for n, v in found.items())
        return [env[n] for n in self._outputs] if self._through(self._stages[at:], env) else None

    def _find_few(self, env: Env) -> tuple[list[str], int]:
        """Scalar arguments, and how many of the first stages they alone decide."""
        given, at = scalars(env), 0
        few = sorted(given)
        while at < len(self._stages) - 1 and given.issuperset(self._stages[at][1]):
            given |= {n for n, _ in self._stages[at][2]} | set(self._stages[at][3])
            at += 1
        return few, at

    def _through(self, stages: list[Any], env: Env) -> bool:
        """Whether the segments after these were planned for what these give."""
        for session, inputs, gives, known, asks in stages:
            if session is not None:
                made = session(*(env[n] for n in inputs))
                results = made if isinstance(made, (tuple, list)) else (made,)
                env.update((n, np.asarray(results[at])) for n, at in gives)
            env.update(known)
            for n, kind, shape, wanted in asks:
                a = env[n]
                if a.shape != shape or a.dtype != kind or (wanted is not None and a.tobytes() != wanted):
                    return False
        return True


def load_model(key: str, segment: Load, imported: Callable[[], SegmentedSession]) -> StoredCalls | None:
    data = CodeCache().get(_name(key))
    if data is None:
        return None
    try:
        return StoredCalls(key, read_entry(memoryview(data))[0], segment, imported)
    except (TilewrightError, *STRANGE):
        return None
