"""Random programs with nested loops and branches, as graphs."""

from __future__ import annotations

import random
from typing import Any

from tilewright.core import dtypes as dt
from tilewright.ir.graph import Graph, Value
from tilewright.ir.types import TensorType
from tilewright.ops import Cond, Scan, While
from tilewright.ops import functions as F


class Maker:
    """Draws graphs over square matrices of one size. Values stay bounded: sums are squashed."""

    def __init__(self, seed: int, size: int, *, dtype: Any = dt.f32, bounded: bool = False) -> None:
        """`bounded`: every loop has a limit, so that it has a reverse mode."""
        self.rng, self.size, self.bounded = random.Random(seed), size, bounded
        self.type = TensorType(dtype, (size, size))

    def program(self) -> Graph:
        g = Graph("program")
        values = [g.input(self.type, f"x{i}") for i in range(self.rng.randint(1, 3))]
        values = self.grow(g, values, self.rng.randint(2, 5), depth=0)
        g.outputs = [self.rng.choice(values) for _ in range(self.rng.randint(1, 3))]
        return g

    def grow(self, g: Graph, values: list[Value], steps: int, depth: int) -> list[Value]:
        values = list(values)
        for _ in range(steps):
            kinds = ["plain"] * 4 + (["scan", "scan", "cond", "while"] if depth < 3 else [])
            values += getattr(self, self.rng.choice(kinds))(g, values, depth)
        return values

    def pick(self, values: list[Value]) -> Value:
        return self.rng.choice(values[-4:])

    def plain(self, g: Graph, values: list[Value], depth: int) -> list[Value]:
        a, b = self.pick(values), self.pick(values)
        kind = self.rng.randrange(6)
        if kind == 0:
            return [F.tanh(F.add(a, b))]
        if kind == 1:
            return [F.tanh(F.mul(F.matmul(a, b), 0.2))]
        if kind == 2:
            return [F.add(F.mul(a, 0.5), F.mul(F.transpose(b, (1, 0)), 0.5))]
        if kind == 3:
            return [F.sub(a, F.mean(b, (1,), keepdims=True))]
        if kind == 4:
            return [F.flip(a, (0,))]
        return [F.mul(a, 0.5)]

    def body(self, inputs: int, outputs: int, depth: int, *, slices: int = 0) -> Graph:
        g = Graph("body")
        values = [g.input(self.type, f"x{i}") for i in range(inputs)]
        values = self.grow(g, values, self.rng.randint(1, 3), depth + 1)
        g.outputs = [self.rng.choice(values) for _ in range(outputs)]
        return g

    def scan(self, g: Graph, values: list[Value], depth: int) -> list[Value]:
        n, m, captured, ys = self.rng.randint(0, 2), self.rng.randint(0, 1), self.rng.randint(0, 2), self.rng.randint(0, 2)
        if n + ys == 0 or n + m + captured == 0:
            n = 1
        length = self.rng.choice([0, 1, 2, 3, 3, 4])
        operands = [self.pick(values) for _ in range(n)]
        operands += [self.stack(values, length) for _ in range(m)]
        operands += [self.pick(values) for _ in range(captured)]
        body = self.body(n + m + captured, n + ys, depth)
        made = g.add(Scan(body=body, carries=n, xs=m, length=length, reverse=self.rng.random() < 0.4), *operands).values
        return [*made[:n], *(self.unstack(v) for v in made[n:])]

    def stack(self, values: list[Value], length: int) -> Value:
        s = self.size
        if length == 0:
            return F.slice_(F.reshape(self.pick(values), (1, s, s)), 0, 0, 0)
        parts = [F.reshape(self.pick(values), (1, s, s)) for _ in range(length)]
        whole = F.concat(parts, 0) if length > 1 else parts[0]
        if self.rng.random() < 0.3:  # slices that are no contiguous memory
            whole = F.transpose(whole, (0, 2, 1))
        return whole

    def unstack(self, v: Value) -> Value:
        return F.sum_(v, (0,)) if self.rng.random() < 0.5 or v.shape[0] == 0 else F.reshape(F.slice_(v, 0, v.shape[0] - 1, 1), v.shape[1:])

    def predicate(self, a: Value) -> Value:
        return F.greater(F.mean(a, (0, 1)), self.rng.choice([-0.213, 0.0131, 0.187]))

    def cond(self, g: Graph, values: list[Value], depth: int) -> list[Value]:
        inputs, outputs = self.rng.randint(1, 3), self.rng.randint(1, 2)
        operands = [self.pick(values) for _ in range(inputs)]
        op = Cond(then=self.body(inputs, outputs, depth), other=self.body(inputs, outputs, depth))
        return list(g.add(op, self.predicate(self.pick(values)), *operands).values)

    def while_(self, g: Graph, values: list[Value], depth: int) -> list[Value]:
        """A counter bounds it; its start decides how often it runs."""
        n, captured, count = self.rng.randint(1, 2), self.rng.randint(0, 1), self.rng.randint(0, 4)
        whole: Any = TensorType(dt.i64, ())
        body = self.body(n + captured, n, depth)
        counter = body.input(whole, "k")
        body.inputs = [counter, *body.inputs[:-1]]
        body.outputs = [F.add(counter, 1), *body.outputs]
        test = Graph("test")
        k = test.input(whole, "k")
        for i in range(n + captured):
            test.input(self.type, f"x{i}")
        test.outputs = [F.less(k, 3)]
        start = F.scalar(g, 3 - count, dt.i64)
        limit = self.rng.choice([5 if self.bounded else None, 2, 9])
        op = While(test=test, body=body, carries=n + 1, max_iterations=limit)
        return list(g.add(op, start, *(self.pick(values) for _ in range(n + captured))).values[1:])


setattr(Maker, "while", Maker.while_)
