"""The tables of ops, by domain and name: what a node becomes in a graph, and what the host does for it. Nothing is imported here, so that
a model from the cache finds the steps of the host without the compiler."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ...core.errors import ExecutionError, InputError, TilewrightError, UnsupportedError
from ...core.records import dataclass

Env = dict[str, Any]  # values by name
Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)
NEWEST = 1 << 30
ML, MICROSOFT, TRAINING, PREVIEW = "ai.onnx.ml", "com.microsoft", "ai.onnx.preview.training", "ai.onnx.preview"


@dataclass(frozen=True)
class Entry:
    """A function of the table and the opsets it holds for."""

    fn: Handler
    since: int
    until: int


TABLE: dict[tuple[str, str], list[Entry]] = {}
HOST: dict[tuple[str, str], list[Entry]] = {}
PREPARED: set[Handler] = set()  # the handlers of HOST that `prepared` registered
IMPORTING: set[Handler] = set()  # the handlers of HOST that build graphs while they run
STEADY: set[Handler] = set()  # those whose results have types and sizes that follow from the types and sizes of their inputs


def _enter(table: dict[tuple[str, str], list[Entry]], names: Sequence[str], since: int, until: int, domain: str) -> Callable[[H], H]:
    def enter(fn: H) -> H:
        for name in names:
            entries = table.setdefault((domain, name), [])
            if any(e.since <= until and since <= e.until for e in entries):
                raise UnsupportedError(f"onnx op {name!r} is registered twice")
            entries.append(Entry(fn, since, until))
        return fn

    return enter


def op(*names: str, since: int = 1, until: int = NEWEST, domain: str = "") -> Callable[[H], H]:
    """Register a function for these ops, from opset `since` to opset `until`."""
    return _enter(TABLE, names, since, until, domain)


def rows(table: dict[str, Handler], domain: str = "", enter: Callable[..., Callable[[Handler], Handler]] = op) -> None:
    """Register functions of one line for every opset: the ops, separated by spaces, and what is built (or, with `host`, what runs)."""
    for names, fn in table.items():
        enter(*names.split(), domain=domain)(fn)


def host(*names: str, since: int = 1, until: int = NEWEST, domain: str = "", importing: bool = False) -> Callable[[H], H]:
    """Register a function that runs on the host. `importing`: it needs the importer."""
    def enter(fn: H) -> H:
        if importing:
            IMPORTING.add(fn)
        return _enter(HOST, names, since, until, domain)(fn)

    return enter


def prepared(*names: str, since: int = 1, until: int = NEWEST, domain: str = "", steady: bool = True) -> Callable[[H], H]:
    """Register a function of a node's attributes that gives the function of its inputs: what follows from attributes alone is made once."""
    def enter(fn: H) -> H:
        PREPARED.add(fn)
        if steady:
            STEADY.add(fn)
        return host(*names, since=since, until=until, domain=domain)(fn)

    return enter


def lookup(table: dict[tuple[str, str], list[Entry]], domain: str, name: str, version: int) -> Handler | None:
    for e in table.get((domain, name), ()):
        if e.since <= version <= e.until:
            return e.fn
    return None


UNLIKE = (ValueError, IndexError, TypeError, KeyError, ArithmeticError)  # what values that are not as a node wants them raise


class HostStep:
    """A node of the host as a function of the values by name; its errors name the node. `sources`: its inputs, each with what stands for
    one that is a constant. `step` makes of a call's values what functions that are not prepared are given beside their inputs."""

    def __init__(self, op: tuple[str, str, int], title: str, attrs: dict[str, Any], sources: Sequence[tuple[str, Any]],
                 outputs: Sequence[str], step: Callable[[Env], Any]) -> None:
        fn = lookup(HOST, *op)
        if fn is None:
            raise InputError(f"onnx: the host has no op {op[1]!r}")
        self.fn, self.title, self.attrs, self.sources, self.outputs, self.step = fn, title, attrs, sources, outputs, step
        self.run = _named(title, fn, (), attrs) if fn in PREPARED else None

    def __call__(self, env: Env) -> None:
        given = [env.get(n, v) for n, v in self.sources]
        if self.run is not None:
            made = _named(self.title, self.run, given, {})
        else:
            made = _named(self.title, self.fn, (self.step(env), *given), self.attrs)
        env.update((n, v) for n, v in zip(self.outputs, made if isinstance(made, tuple) else (made,), strict=False) if n)


def _named(title: str, fn: Callable[..., Any], inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    try:
        return fn(*inputs, **attrs)
    except TilewrightError:
        raise
    except UNLIKE as e:
        raise ExecutionError(f"onnx: node {title}: {e}") from None


Part = tuple[Any, Sequence[str], Sequence[tuple[str, int]], Mapping[str, Any], Sequence[HostStep]]


def straight(names: Sequence[str], parts: Sequence[Part], outputs: Sequence[tuple[str, Any]]) -> Callable[..., list[Any]] | None:
    """Stages that follow each other in every call (a session, its inputs, its results by number, constants, steps of the host) as one
    function of the arguments, whose values are variables: names and outputs need no dicts. `outputs`: each with the constant that it is,
    where nothing gives it. None where a step is not prepared."""
    values: dict[str, str] = {}
    from .load import on_host

    scope: dict[str, Any] = {"copied": np.array, "ndarray": np.ndarray, "on_host": on_host, "UNLIKE": UNLIKE,
                             "ExecutionError": ExecutionError, "TilewrightError": TilewrightError}
    fixed: set[str] = set()

    def entered(value: Any) -> str:
        scope[name := f"c{len(scope)}"] = value
        return name

    def given(name: str) -> str:
        return values.setdefault(name, f"v{len(values)}")

    arguments, lines = [given(n) for n in names], list[str]()
    for session, inputs, gives, known, steps in parts:
        if session is not None:
            lines += ["at = None", f"r = {entered(session)}({', '.join(values[n] for n in inputs)})", "r = r if type(r) is tuple else (r,)"]
            lines += [f"{given(n)} = r[{k}] if type(r[{k}]) is ndarray else on_host(r[{k}])" for n, k in gives]
        for n, v in known.items():
            values[n] = entered(v)
            fixed.add(n)
        for s in steps:
            if s.run is None or len(s.outputs) != 1:
                return None
            sources = ", ".join(values[n] if n in values else entered(v) for n, v in s.sources)
            lines.append(f"at = {s.title!r}; {given(s.outputs[0])} = {entered(s.run)}({sources})")
    gives_all = ", ".join(f"copied({values.get(n) or entered(v)})" if n in fixed or n not in values else values[n] for n, v in outputs)
    body = "".join(f"        {line}\n" for line in [*lines, f"return [{gives_all}]"])
    exec(f"def call({', '.join(arguments)}):\n    try:\n{body}    except TilewrightError:\n        raise\n    except UNLIKE as e:\n"
         "        if at is None:\n            raise\n        raise ExecutionError(f'onnx: node {at}: {e}') from None\n", scope)
    return scope["call"]  # type: ignore[no-any-return]
