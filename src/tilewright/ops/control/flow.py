"""Control flow: ops that hold graphs and run them again and again, or one of them.

A body takes what changes (carried values, slices) and then what does not: values captured from outside are operands like any other, read
in every iteration, never copied per iteration. Derivatives and batching are in `rules.py` and `branches.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...core.dims import Dim
from ...core.errors import UnsupportedError, require
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, Op, S, Values, register, single
from ..families import General, N, body_flops, boolean, f32, i64
from ..views import Expand
from . import branches, rules

Out = TensorType | tuple[TensorType, ...]


def _show(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _types(values: Sequence[Value]) -> tuple[TensorType, ...]:
    return tuple(v.type for v in values)


def _same(what: str, got: Sequence[TensorType], want: Sequence[TensorType]) -> None:
    require(tuple(got) == tuple(want), "{what} must be {want}", what=what, want=_show(want), types=_show(got))


def _carries_keep_their_types(what: str, enters: Sequence[TensorType], leaves: Sequence[TensorType]) -> None:
    for k, (a, b) in enumerate(zip(enters, leaves, strict=True)):
        require(a == b, "a carried value keeps its type, but carry {k} enters {what} as {a} and leaves it as {b}; cast or reshape it",
                k=k, what=what, a=a, b=b)


def _run(graph: Graph, arrays: Sequence[Any]) -> list[Any]:
    from ...ir.interp import run

    return run(graph, arrays)


def _rnn(length: Dim = 4) -> dict[str, Any]:
    """h' = tanh(h @ w + x); y = h' * h"""
    def step(g: Graph, v: Values) -> Values:
        h = F.tanh(F.add(F.matmul(v[0], v[2]), v[1]))
        return h, F.mul(h, v[0])

    return {"body": single(step, f32(2, 3), f32(2, 3), f32(3, 3)), "carries": 1, "xs": 1, "length": length}


class Controlled(General):
    """An op that holds graphs: its rules, which the modules beside this one have. `forward` gives results and their tangents together."""

    forward: ClassVar[Callable[[Any, Values, MaybeValues], tuple[Values, MaybeValues]]]
    over_batches: ClassVar[Callable[[Any, Values, tuple[bool, ...], Dim], Values]]

    def push(self, inputs: Values, tangents: MaybeValues) -> tuple[Values, MaybeValues]:
        return type(self).forward(self, inputs, tangents)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        return self.push(inputs, tangents)[1]

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return type(self).over_batches(self, inputs, batched, size)


@register
class Scan(Controlled):
    """Run `body` once for each slice: (carries, slices of xs, captured) -> (carries, slices of ys). Operands: the first carries, the
    stacked xs, what is captured. Results: the last carries, the stacked ys. `reverse` goes from the last slice to the first."""

    body: Graph
    carries: int
    xs: int
    length: Dim
    reverse: bool = False
    forward, over_batches = rules.scan_jvp, rules.scan_batch
    samples = [S(f32(2, 3), f32(4, 2, 3), f32(3, 3), low=(-2, -2, -1), high=(2, 2, 1), **_rnn()),
               S(f32(2, 3), f32(4, 2, 3), f32(3, 3), low=(-2, -2, -1), high=(2, 2, 1), reverse=True, **_rnn()),
               S(f32(2, 3), f32(0, 2, 3), f32(3, 3), **_rnn(0)),
               S(f32(2, 3), f32(N, 2, 3), f32(3, 3), low=(-2, -2, -0.3), high=(2, 2, 0.3), **_rnn(N)),  # many steps add up no rounding
               S(f32(3), f32(3), i64(), length=5, carries=3, xs=0,  # carries that exchange places, and an integer
                 body=single(lambda g, v: (v[1], F.add(v[0], v[1]), F.add(v[2], 1), v[0], F.cast(v[2], v[0].dtype)),
                             f32(3), f32(3), i64()), low=(-1, -1, 0), high=(1, 1, 3)),
               S(f32(6, 2), f32(2), length=6, carries=0, xs=1,  # no carry: a map
                 body=single(lambda g, v: F.exp(F.mul(v[0], v[1])), f32(2), f32(2)))]
    errors = [E(f32(2, 3), f32(5, 2, 3), f32(3, 3), match=r"stacked operand 0 must have 4 slices of f32\[2,3\]", **_rnn()),
              E(f32(2, 4), f32(4, 2, 3), f32(3, 3), match=r"the first carries must be f32\[2,3\]", **_rnn()),
              E(f32(2, 3), f32(4, 2, 3), f32(3, 4), match=r"captured values must be f32\[3,3\]", **_rnn()),
              E(f32(2, 3), match="the step takes 1 carries, 1 slices and 1 captured values", **_rnn()),
              E(f32(3), length=2, carries=1, xs=0, body=single(lambda g, v: F.cast(F.greater(v[0], 0.0), i64().dtype), f32(3)),
                match=r"carry 0 enters the step as f32\[3\] and leaves it as i64\[3\]; cast or reshape it"),
              E(f32(3), length=2, carries=1, xs=0, body=single(lambda g, v: (), f32(3)), match="must return its 1 carries"),
              E(f32(3), length=-1, carries=1, xs=0, body=single(lambda g, v: v, f32(3)), match="length must not be negative")]

    def infer(self, *types: TensorType) -> Out:
        ins, outs = _types(self.body.inputs), _types(self.body.outputs)
        n, m = self.carries, self.xs
        require(len(types) == len(ins), "the step takes {n} carries, {m} slices and {rest} captured values", n=n, m=m,
                rest=len(ins) - n - m, operands=len(types))
        require(not isinstance(self.length, int) or self.length >= 0, "length must not be negative", length=self.length)
        require(len(outs) >= n, "the step must return its {n} carries first", n=n, results=len(outs))
        require(len(outs) > 0, "the step must return a carry or a result")
        _same("the first carries", types[:n], ins[:n])
        for k, (got, one) in enumerate(zip(types[n : n + m], ins[n : n + m], strict=True)):
            require(got == one.with_shape((self.length, *one.shape)), "stacked operand {k} must have {length} slices of {one}", k=k,
                    length=self.length, one=one, type=got)
        _same("captured values", types[n + m :], ins[n + m :])
        _carries_keep_their_types("the step", ins[:n], outs[:n])
        made = (*outs[:n], *(t.with_shape((self.length, *t.shape)) for t in outs[n:]))
        return made[0] if len(made) == 1 else made

    def ref(self, *arrays: Any) -> Any:
        n, m, length = self.carries, self.xs, self.length
        assert isinstance(length, int)
        carries, xs, captured = list(arrays[:n]), arrays[n : n + m], arrays[n + m :]
        ys = [np.empty((length, *v.shape), v.dtype.np) for v in self.body.outputs[n:]]
        for i in range(length)[:: -1 if self.reverse else 1]:
            out = _run(self.body, [*carries, *(x[i] for x in xs), *captured])
            carries = out[:n]
            for y, slice_ in zip(ys, out[n:], strict=True):
                y[i] = slice_
        made = (*carries, *ys)
        return made[0] if len(made) == 1 else made

    def flops(self, *types: TensorType) -> Dim:
        return body_flops(self.body) * self.length

    def for_vjp(self) -> Op:
        return rules.scan_saving(self)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        return rules.scan_vjp(self, inputs, outputs, cotangents, wanted)


@register
class Cond(Controlled):
    """`then(*xs)` where the first operand is true, else `other(*xs)`. Only one of them runs."""

    then: Graph
    other: Graph
    forward, over_batches = branches.cond_jvp, branches.cond_batch
    samples = [S(boolean(), f32(3, 5), f32(5), then=single(lambda g, v: F.mul(v[0], v[1]), f32(3, 5), f32(5)),
                 other=single(lambda g, v: F.tanh(v[0]), f32(3, 5), f32(5))),
               S(boolean(), f32(N), i64(), then=single(lambda g, v: (F.exp(v[0]), v[1]), f32(N), i64()),
                 other=single(lambda g, v: (v[0], F.add(v[1], 1)), f32(N), i64())),
               S(boolean(), f32(2, 2), then=single(lambda g, v: F.matmul(v[0], v[0]), f32(2, 2)),
                 other=single(lambda g, v: Expand(shape=(2, 2))(F.scalar(g, 3.0, v[0].dtype)), f32(2, 2)))]
    errors = [E(f32(), f32(3), then=single(lambda g, v: v, f32(3)), other=single(lambda g, v: v, f32(3)),
                match=r"the predicate must be a bool scalar; compare or use \.all\(\), got predicate=f32\[\]"),
              E(boolean(2), f32(3), then=single(lambda g, v: v, f32(3)), other=single(lambda g, v: v, f32(3)),
                match="the predicate must be a bool scalar"),
              E(boolean(), f32(3), then=single(lambda g, v: v, f32(3)), other=single(lambda g, v: F.greater(v[0], 0.0), f32(3)),
                match=r"both branches must give the same types, got f32\[3\] and bool\[3\]"),
              E(boolean(), f32(4), then=single(lambda g, v: v, f32(3)), other=single(lambda g, v: v, f32(3)),
                match=r"operands after the predicate must be f32\[3\]"),
              E(boolean(), f32(3), then=single(lambda g, v: (), f32(3)), other=single(lambda g, v: (), f32(3)), match="must give a result")]

    def infer(self, predicate: TensorType, *types: TensorType) -> Out:
        require(predicate == boolean(), "the predicate must be a bool scalar; compare or use .all()", predicate=predicate)
        for graph in (self.then, self.other):
            _same("operands after the predicate", types, _types(graph.inputs))
        a, b = _types(self.then.outputs), _types(self.other.outputs)
        require(a == b, "both branches must give the same types, got {a} and {b}; cast or broadcast one of them", a=_show(a), b=_show(b))
        require(len(a) > 0, "the branches must give a result")
        return a[0] if len(a) == 1 else a

    def ref(self, predicate: Any, *arrays: Any) -> Any:
        out = _run(self.then if bool(predicate) else self.other, arrays)
        return out[0] if len(out) == 1 else tuple(out)

    def flops(self, *types: TensorType) -> Dim:
        """Those of the branch that has more, as far as that is known."""
        a, b = body_flops(self.then), body_flops(self.other)
        return max(a, b) if isinstance(a, int) and isinstance(b, int) else a

    def for_vjp(self) -> Op:
        return branches.cond_saving(self)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        return branches.cond_vjp(self, inputs, outputs, cotangents, wanted)


def _halving(limit: int | None) -> dict[str, Any]:
    """while k < 3: x, k = x * w, k + 1"""
    types = f32(3), i64(), f32(3)
    return {"test": single(lambda g, v: F.less(v[1], 3), *types), "carries": 2, "max_iterations": limit,
            "body": single(lambda g, v: (F.mul(v[0], v[2]), F.add(v[1], 1)), *types)}


@register
class While(Controlled):
    """Run `body` on the carries as long as `test` of them is true, at most `max_iterations` times. Both take (carries, captured)."""

    test: Graph
    body: Graph
    carries: int
    max_iterations: int | None = None
    forward, over_batches = branches.while_jvp, branches.while_batch
    samples = [S(f32(3), i64(), f32(3), low=(-1, -2, -1), high=(1, 4, 1), **_halving(8)),
               S(f32(3), i64(), f32(3), low=(-1, -2, -1), high=(1, 4, 1), **_halving(2)),
               S(f32(3), i64(), f32(3), low=(-1, -2, -1), high=(1, 4, 1), **_halving(0))]
    errors = [E(f32(3), i64(), match="the loop takes 2 carries and 1 captured values", **_halving(None)),
              E(f32(4), i64(), f32(3), match=r"operands must be f32\[3\], i64\[\], f32\[3\]", **_halving(None)),
              E(f32(3), carries=1, test=single(lambda g, v: F.less(v[0], 3.0), f32(3)), body=single(lambda g, v: v, f32(3)),
                match=r"the condition must give one bool scalar; compare or use \.all\(\), got result=bool\[3\]"),
              E(f32(), carries=1, test=single(lambda g, v: F.less(v[0], 3.0), f32()),
                body=single(lambda g, v: F.cast(v[0], i64().dtype), f32()),
                match=r"carry 0 enters the body as f32\[\] and leaves it as i64\[\]"),
              E(f32(), carries=1, test=single(lambda g, v: F.less(v[0], 3.0), f32()), body=single(lambda g, v: (v[0], v[0]), f32()),
                match="the body must return its 1 carries"),
              E(f32(), carries=1, max_iterations=-1, test=single(lambda g, v: F.less(v[0], 3.0), f32()), body=single(lambda g, v: v, f32()),
                match="max_iterations must not be negative")]

    def infer(self, *types: TensorType) -> Out:
        n, ins, outs = self.carries, _types(self.body.inputs), _types(self.body.outputs)
        require(len(types) == len(ins), "the loop takes {n} carries and {rest} captured values", n=n, rest=len(ins) - n,
                operands=len(types))
        require(self.max_iterations is None or self.max_iterations >= 0, "max_iterations must not be negative",
                max_iterations=self.max_iterations)
        for graph in (self.test, self.body):
            _same("operands", types, _types(graph.inputs))
        result = _types(self.test.outputs)
        require(result == (boolean(),), "the condition must give one bool scalar; compare or use .all()", result=_show(result))
        require(n > 0 and len(outs) == n, "the body must return its {n} carries", n=n, results=len(outs))
        _carries_keep_their_types("the body", ins[:n], outs)
        return outs[0] if n == 1 else outs

    def ref(self, *arrays: Any) -> Any:
        carries, captured, left = list(arrays[: self.carries]), arrays[self.carries :], self.max_iterations
        while left != 0 and bool(_run(self.test, [*carries, *captured])[0]):
            carries = _run(self.body, [*carries, *captured])
            left = None if left is None else left - 1
        return carries[0] if len(carries) == 1 else tuple(carries)

    def flops(self, *types: TensorType) -> Dim:
        """Those of one iteration where nothing bounds their number."""
        return (body_flops(self.test) + body_flops(self.body)) * (1 if self.max_iterations is None else self.max_iterations)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule == "vjp" and self.max_iterations is not None

    def decompose(self, *values: Value) -> Value | Values:
        """A scan that stops changing its carries: what reverse mode goes through."""
        return branches.while_as_scan(self, values)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        raise UnsupportedError("while: has no reverse-mode derivative: nothing bounds its iterations; give max_iterations, or use tw.scan "
                               "or tw.fori_loop with fixed bounds")


CONTROL = (Scan, Cond, While)
