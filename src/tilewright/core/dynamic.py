"""Dims that a user declares dynamic: `{"x": {0: "N"}}` beside the arguments of a call."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .dims import Expr, Symbol, sym
from .errors import ConfigError


def named(tree: Any) -> Any:
    """The declaration with a dim of any size for every string: {"x": {0: "N"}}."""
    if isinstance(tree, str):
        return sym(tree, 1)
    if isinstance(tree, Mapping):
        return {k: named(v) for k, v in tree.items()}
    return type(tree)(named(v) for v in tree) if isinstance(tree, (tuple, list)) else tree


def linear(e: Expr) -> tuple[int, int]:
    """(a, b) of `a*S + b`; ConfigError for any other form."""
    terms = dict(e.terms)
    offset = terms.pop((), 0)
    if len(terms) != 1:
        raise ConfigError(f"dynamic: a dim must be a symbol or a*symbol + b, got {e}")
    ((mono, factor),) = terms.items()
    if len(mono) != 1 or not isinstance(mono[0], Symbol):
        raise ConfigError(f"dynamic: a dim must be a symbol or a*symbol + b, got {e}")
    return factor, offset


@dataclass(frozen=True)
class Tensor:
    """An example tensor: its number among the tensors of the call, and its shape."""

    index: int
    shape: tuple[Any, ...]


@dataclass(frozen=True)
class Axis:
    """One axis that the user declared dynamic: `dim` is our Expr, or torch's own Dim."""

    tensor: Tensor
    axis: int
    dim: Any
    where: str


def declared(tree: Any, values: Any, path: str) -> Iterator[Axis]:
    """Walk the declaration beside the arguments (their tensors replaced by `Tensor`s)."""
    if tree is None:
        return
    if isinstance(values, Tensor):
        if not isinstance(tree, (Mapping, tuple, list)):
            raise ConfigError(f"dynamic: {path} needs {{axis: Dim}}, got {tree!r}")
        rank = len(values.shape)
        if isinstance(tree, (tuple, list)) and len(tree) != rank:
            raise ConfigError(f"dynamic: {path} has {rank} axes, got a {type(tree).__name__} of {len(tree)}; {{axis: Dim}} names some")
        for axis, dim in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            if dim is None:
                continue
            if not isinstance(axis, int) or not -rank <= axis < rank:
                raise ConfigError(f"dynamic: {path} has {rank} axes, got axis {axis!r}")
            if isinstance(dim, (float, Mapping, tuple, list, set)):
                raise ConfigError(f"dynamic: {path}.shape[{axis}] must be a name or a tw.Dim, got {dim!r}")
            yield Axis(values, axis % rank, dim, f"{path}.shape[{axis}]")
    elif isinstance(values, Mapping):
        for k, v in tree.items():
            if k not in values:
                raise ConfigError(f"dynamic: {path} has no entry {k!r}; it has {list(values)}")
            yield from declared(v, values[k], f"{path}[{k!r}]")
    elif isinstance(values, (tuple, list)):
        for i, (t, v) in enumerate(zip(tree, values, strict=False)):
            yield from declared(t, v, f"{path}[{i}]")
    else:
        raise ConfigError(f"dynamic: {path} is a {type(values).__name__}, not a tensor; only tensor axes can be dynamic")
