"""The tables of ops, by domain and name: what a node becomes in a graph, and what the host does for it. Nothing is imported here, so that
a model from the cache finds the steps of the host without the compiler."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...core.errors import ExecutionError, TilewrightError, UnsupportedError
from ...core.records import dataclass

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


def prepared(*names: str, since: int = 1, until: int = NEWEST, domain: str = "") -> Callable[[H], H]:
    """Register a function of a node's attributes that gives the function of its inputs: what follows from attributes alone is made once."""
    def enter(fn: H) -> H:
        PREPARED.add(fn)
        return host(*names, since=since, until=until, domain=domain)(fn)

    return enter


def lookup(table: dict[tuple[str, str], list[Entry]], domain: str, name: str, version: int) -> Handler | None:
    for e in table.get((domain, name), ()):
        if e.since <= version <= e.until:
            return e.fn
    return None


UNLIKE = (ValueError, IndexError, TypeError, KeyError, ArithmeticError)  # what values that are not as a node wants them raise


def stepped(title: str, run: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a step of the host; its errors name the node."""
    try:
        made = run(*inputs)
    except TilewrightError:
        raise
    except UNLIKE as e:
        raise ExecutionError(f"onnx: node {title}: {e}") from None
    return made if isinstance(made, tuple) else (made,)
