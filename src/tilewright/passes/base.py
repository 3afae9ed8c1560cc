"""What a pass is, and the log it writes: named rules that applied, times, and the graph's text after each pass when asked."""
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from .. import ops as o
from ..core.dtypes import DType, compute_dtype, f32
from ..core.exact import same
from ..ir.graph import Graph, Value
from ..ir.rewrite import Rule, rewrite
from ..ops.structure import Number

DIGITS = {"f8e4m3": 4, "f8e5m2": 3, "f16": 11, "bf16": 8, "f32": 24, "f64": 53}  # bits of a significand


@dataclass
class Log:
    """What happened in a pipeline: rule applications and seconds by pass, in order, and dumps (pass name -> graph text)."""

    hits: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    dumps: dict[str, str] = field(default_factory=dict)
    keep_dumps: bool = False
    current: str = ""

    def hit(self, rule: str, count: int = 1) -> None:
        if count:
            self.hits.setdefault(self.current, Counter())[rule] += count

    @contextmanager
    def entered(self, name: str) -> Iterator[None]:
        """Everything logged inside belongs to pass `name`."""
        before, self.current = self.current, name
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            self.current = before

    def __str__(self) -> str:
        lines = []
        for name, s in self.seconds.items():
            rules = " ".join(f"{rule}:{n}" for rule, n in sorted(self.hits.get(name, Counter()).items()))
            lines.append(f"{name:20s} {s * 1e3:7.1f} ms  {rules}".rstrip())
        return "\n".join(lines)


@dataclass(frozen=True)
class Pass:
    """A graph -> graph rewrite. Its docstring is its contract. `run` may change the graph it is given and returns the result."""

    name: ClassVar[str] = ""
    rules: ClassVar[tuple[Rule, ...]] = ()  # the named rewrites that it applies
    optional: ClassVar[bool] = True  # programs are right without it, only slower

    def run(self, graph: Graph, log: Log) -> Graph:
        """By default: the rules, until none applies."""
        apply_rules(graph, self.rules, log, self.known(graph))
        return graph

    def known(self, graph: Graph) -> Any:
        """What the rules may ask about the graph as it was before them (`Match.known`)."""
        return None


def apply_rules(graph: Graph, rules: Sequence[Rule], log: Log, known: Any = None) -> bool:
    hits: Counter[str] = Counter()
    changed = rewrite(graph, rules, hits, known=known)
    for name, count in hits.items():
        log.hit(name, count)
    return changed


def scalar(value: Value) -> float | int | bool | None:
    """The number that a one-element constant (or an expansion of one) holds, as a Python number."""
    op = value.op
    while isinstance(op, (o.Expand, o.Reshape)):
        value = value.node.operands[0]
        op = value.op
    if not isinstance(op, o.Constant) or op.data.array.size != 1 or value.dtype.kind == "c":
        return None
    found: float | int | bool = op.data.number
    return found


def is_number(value: Value, wanted: float) -> bool:
    """The value is the scalar constant that `wanted` is in its dtype: what differs in the last place is another number."""
    dtype = f32 if isinstance(value.op, o.Constant) and isinstance(value.op.data, Number) else value.dtype
    return value.dtype.is_float and same(scalar(value), rounded(wanted, dtype))


def rounded(number: float, dtype: DType) -> float:
    """The nearest number of a float dtype."""
    with np.errstate(over="ignore"):
        return float(np.asarray(number, np.float64).astype(dtype.np))


def close(got: float, wanted: float, dtype: DType) -> bool:
    """As near as a product of a few numbers of `dtype` can be to what it stands for."""
    return abs(got - wanted) <= 2.0 ** (2 - DIGITS[dtype.name]) * abs(wanted)


def normal(factor: float, dtype: DType) -> bool:
    """What dtype computes in holds the factor with all digits."""
    info = np.finfo(compute_dtype(dtype).np)
    return bool(float(info.tiny) <= abs(factor) <= float(info.max))


def hides(number: float, dtype: DType) -> bool:
    """A score of `dtype` below a quarter of the dtype's range is nothing beside this mask number: it has no weight next to a score that is
    seen, and added to the number it leaves it as it is (but for the last digits)."""
    return number <= -float(ml_dtypes.finfo(dtype.np).max) / 4  # type: ignore[no-untyped-call]


def constant(graph: Graph, number: float | int | bool, dtype: DType) -> Value:
    """A rank-0 constant."""
    return graph.constant(Number.of(number, dtype), "scalar")


def swapped(x: Value) -> Value:
    """x with its last two axes exchanged, as a view."""
    n = len(x.shape)
    return o.emit(o.Transpose(perm=(*range(n - 2), n - 1, n - 2)), x)


def swaps_last_two(perm: tuple[int, ...]) -> bool:
    n = len(perm)
    return n >= 2 and perm == (*range(n - 2), n - 1, n - 2)


def elementwise_classes(least: int = 1) -> tuple[type[o.Op], ...]:
    """Every elementwise op class with at least `least` operands."""
    return tuple(c for c in o.REGISTRY.values() if c.traits.elementwise and (c.arity or (1, 1))[0] >= least)
