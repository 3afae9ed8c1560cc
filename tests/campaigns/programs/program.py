"""Random programs over Tilewright's functions, as plain data that can be shrunk, and as straight lines of calls.

A `Program` is total: whatever its numbers are, it means something. A reference names the latest value whose number is not larger; an op
chooses axes, shapes and partners from its `picks` modulo what there is, and gives its operand back where it cannot apply. `resolve` turns
it into `Call`s once, on types whose dims may be symbols, beside a reference that computes the values at the program's sizes; any library
can then run the calls at any sizes, and `text` prints them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.core import dtypes as dt
from tilewright.core.dims import Expr, evaluate, sym
from tilewright.core.pytree import flatten
from tilewright.ir.types import TensorType
from tilewright.transform.trace import Leaf, Trace, Tracer, entered

from ..engine.campaign import Invalid

LARGEST = 1 << 16  # elements of any value
SYMBOLS = {name: sym(name, 0, 9) for name in ("S", "T")}


@dataclass(frozen=True)
class Input:
    dtype: str
    shape: tuple[int | str, ...]  # a string is a dim that varies


@dataclass(frozen=True)
class Step:
    out: int  # the number of its value
    op: str
    args: tuple[int, ...]
    picks: tuple[int, ...]
    body: tuple[Step, ...] = ()  # the body of a loop or a branch


@dataclass(frozen=True)
class Program:
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    sizes: tuple[tuple[str, int], ...]  # sizes of the dims that vary
    data: int  # what the elements are
    way: int  # how it runs: see the campaign
    threads: int
    off: tuple[str, ...]  # passes that are left out


KEEP = ("out", "op", "dtype")


@dataclass(frozen=True)
class Ref:
    """The value of a call."""

    number: int

    def __repr__(self) -> str:
        return f"v{self.number}"


@dataclass(frozen=True)
class Const:
    """A constant array of the function."""

    dtype: str  # NumPy's name
    items: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"np.array({list(self.items)!r}, np.{self.dtype})"

    @property
    def array(self) -> np.ndarray[Any, Any]:
        return np.array(self.items, self.dtype)


@dataclass(frozen=True)
class Body:
    """A function inside a program: of a loop or a branch. It reads values around it too."""

    params: tuple[int, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Ref | None, ...]
    packed: bool = False  # a function of one tuple

    def function(self, functions: Callable[[str], Any], values: Mapping[int, Any], env: Mapping[str, int] | None) -> Callable[..., Any]:
        def body(*args: Any) -> Any:
            args = args[0] if self.packed else args
            inner = {**values, **dict(zip(self.params, args, strict=True))}
            for call in self.calls:
                inner[call.out] = call.run(functions, inner, env)
            made = tuple(None if r is None else inner[r.number] for r in self.outputs)
            return made if len(made) > 1 else made[0]

        return body


@dataclass(frozen=True)
class Call:
    out: int
    fn: str
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()

    def run(self, functions: Callable[[str], Any], values: Mapping[int, Any], env: Mapping[str, int] | None) -> Any:
        args, options = (mapped(x, functions, values, env) for x in (self.args, dict(self.options)))
        return functions(self.fn)(*args, **options)


def mapped(x: Any, functions: Callable[[str], Any], values: Mapping[int, Any], env: Mapping[str, int] | None) -> Any:
    """References as values, bodies as functions; dims as numbers where the sizes are given."""
    if isinstance(x, Ref):
        return values[x.number]
    if isinstance(x, Const):
        return x.array
    if isinstance(x, Body):
        return x.function(functions, values, env)
    if isinstance(x, Expr):
        return x if env is None else evaluate(x, env)
    if isinstance(x, (tuple, list)):
        return type(x)(mapped(i, functions, values, env) for i in x)
    if isinstance(x, dict):
        return {k: mapped(v, functions, values, env) for k, v in x.items()}
    return x


class Unfit(Exception):
    """The op does not apply here, or its result could not be compared exactly."""


class Reference(Protocol):
    """What computes beside the tracer: NumPy for integers, torch in f64 for smooth programs."""

    def function(self, name: str) -> Any: ...
    def array(self, value: Any) -> np.ndarray[Any, Any]: ...


@dataclass(frozen=True, eq=False)
class Val:
    number: int
    tracer: Tracer
    known: Any  # what is known of the reference

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.tracer.shape

    @property
    def dtype(self) -> dt.DType:
        found: dt.DType = self.tracer.value.dtype
        return found


class Builder:
    """Applies ops: each call runs in a trace (its types) and in the reference (its values)."""

    def __init__(self, reference: Reference, env: Mapping[str, int], outer: Builder | None = None) -> None:
        self.reference, self.env = reference, dict(env)
        self.trace = Trace("program")
        self.traces: list[Trace] = [*(outer.traces if outer else []), self.trace]
        self.calls: list[Call] = []
        self.values: dict[int, Val] = dict(outer.values) if outer else {}
        self.next: int = outer.next if outer else 0
        self.inputs: list[Val] = []

    def body(self, params: Sequence[Val], make: Callable[[Builder, list[Val]], Sequence[Val | None]]) -> Body:
        """A function of arrays like these; `make` gives its results. What it reads of the values so far is captured."""
        inner = Builder(self.reference, self.env, self)
        given = [inner.input(v.dtype.name, v.shape, v.known) for v in params]
        outputs = make(inner, given)
        self.next = inner.next
        refs = tuple(None if v is None else Ref(v.number) for v in outputs)
        return Body(tuple(v.number for v in given), tuple(needed(inner.calls, [r.number for r in refs if r])), refs)

    def input(self, dtype: str, shape: tuple[Any, ...], known: Any) -> Val:
        made = self.trace.wrap(self.trace.graph.input(TensorType(dt.dtype(dtype), shape), f"x{self.next}"))
        self.inputs.append(self._value(made, known))
        return self.inputs[-1]

    def _value(self, tracer: Tracer, known: Any) -> Val:
        made = Val(self.next, tracer, known)
        self.values[self.next] = made
        self.next += 1
        return made

    def call(self, fn: str, *args: Any, **options: Any) -> Val:
        """One call, of a function that gives one value."""
        from .run import tilewright_function

        plain = tuple(_refs(a) for a in args)
        call = Call(self.next, fn, plain, tuple((k, _refs(v)) for k, v in options.items()))
        traced = {n: v.tracer for n, v in self.values.items()}
        with ExitStack() as stack:
            for t in self.traces:
                stack.enter_context(entered(t))
            made = call.run(tilewright_function, traced, None)
        known = call.run(self.reference.function, {n: v.known for n, v in self.values.items()}, self.env)
        if isinstance(made, (tuple, list)):
            raise TypeError(f"{fn} gives several values")
        if math.prod(evaluate(d, self.env) for d in made.shape) > LARGEST:
            raise Unfit
        self.calls.append(call)
        return self._value(made, known)


def _refs(x: Any) -> Any:
    if isinstance(x, Val):
        return Ref(x.number)
    if isinstance(x, (tuple, list)):
        return type(x)(_refs(i) for i in x)
    return x


class Picks:
    """The picks of a step, one after the other; after the last one all are 0."""

    def __init__(self, given: Sequence[int]) -> None:
        self.given, self.at = given, 0

    def __call__(self, below: int) -> int:
        if below < 1:
            raise Unfit
        found = self.given[self.at] % below if self.at < len(self.given) else 0
        self.at += 1
        return found

    def of(self, options: Sequence[Any]) -> Any:
        return options[self(len(options))]


Op = Callable[[Builder, list[Val], Picks, Step], Any]


def resolve(program: Program, ops: Mapping[str, Op], reference: Reference, arrays: Iterable[Any]) -> tuple[Builder, list[Val]]:
    """The calls of a program, and its outputs: what no step uses."""
    env = {name: int(size) for name, size in program.sizes}
    builder = Builder(reference, env)
    values: list[tuple[int, Val]] = []
    for i, (given, array) in enumerate(zip(program.inputs, arrays, strict=True)):
        shape = tuple(SYMBOLS[d] if isinstance(d, str) and dynamic(program) else env[d] if isinstance(d, str) else d for d in given.shape)
        values.append((i, builder.input(given.dtype, shape, array)))
    if not values:
        raise Invalid
    used: set[int] = set()
    steps(builder, values, program.steps, ops, used)
    outputs = [v for _, v in dict.fromkeys(values) if v.number not in used]
    return builder, outputs or [values[-1][1]]


def steps(builder: Builder, values: list[tuple[int, Val]], given: Iterable[Step], ops: Mapping[str, Op], used: set[int]) -> None:
    """Append the value of every step that applies."""
    for step in given:
        args = [next((v for n, v in reversed(values) if n <= k), values[0][1]) for k in step.args] or [values[-1][1]]
        calls, number, held = len(builder.calls), builder.next, dict(builder.values)
        try:
            made = ops[step.op](builder, args, Picks(step.picks), step)
        except Unfit:
            del builder.calls[calls:]
            builder.next, builder.values = number, held
            continue
        used.update(a.number for a in args if a.number != made.number)
        values.append((step.out, made))


def dynamic(program: Program) -> bool:
    return program.way == DYNAMIC and any(isinstance(d, str) for i in program.inputs for d in i.shape)


JIT, EAGER, STATIC, DYNAMIC = range(4)
WAYS = ("tw.jit", "one call at a time", "a graph", "a graph with dims that vary")


def needed(calls: Sequence[Call], outputs: Iterable[int]) -> list[Call]:
    """The calls that the outputs depend on."""
    wanted = set(outputs)
    kept = []
    for call in reversed(calls):
        if call.out in wanted:
            wanted |= {r.number for r in _all_refs((call.args, [v for _, v in call.options]))}
            kept.append(call)
    return kept[::-1]


def _all_refs(x: Any) -> list[Ref]:
    if isinstance(x, Ref):
        return [x]
    if isinstance(x, Body):
        return [r for c in x.calls for r in _all_refs((c.args, [v for _, v in c.options]))] + [r for r in x.outputs if r]
    return [r for i in x for r in _all_refs(i)] if isinstance(x, (tuple, list)) else []


def leaves_of(inputs: Sequence[Val]) -> tuple[Any, list[Leaf]]:
    """What `trace` wants for a function of these inputs."""
    return flatten((tuple(range(len(inputs))), {}))[1], [Leaf(v.tracer.value.type) for v in inputs]
