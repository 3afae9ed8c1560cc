"""Random ONNX graphs of nested If, Loop and Scan, beside ONNX Runtime, bit for bit: conditions, trip counts and ends of slices are computed
from data, branches and bodies read values around them, scan outputs have as many rows as there were rounds.

All floats are small integers, so that no sum rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

from .engine.campaign import Campaign, Invalid
from .programs.program import Picks, Step

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
SHAPES: dict[int, list[int]] = {FLOAT: [2, 3], INT: [], BOOL: []}
PLAIN = ("float", "float", "whole", "truth", "slice")
CONTROL = ("if", "loop", "scan")
Scope = dict[int, list[str]]


@dataclass(frozen=True)
class Model:
    steps: tuple[Step, ...]
    dims: bool  # whether the second axis has a name
    data: int


def some(rng: np.random.Generator, count: int, depth: int) -> tuple[Step, ...]:
    made = []
    for _ in range(count):
        name = str(rng.choice(CONTROL if rng.random() < 0.4 and depth < 3 else PLAIN))
        body = some(rng, int(rng.integers(0, 5)), depth + 1) if name in CONTROL else ()
        made.append(Step(0, name, (), tuple(int(n) for n in rng.integers(0, 1 << 16, 10)), body))
    return tuple(made)


def draw(rng: np.random.Generator) -> Model:
    return Model(some(rng, int(rng.integers(1, 7)), 0), bool(rng.random() < 0.3), int(rng.integers(1 << 30)))


class Writer:
    """The nodes of one graph. Values of graphs around it can be read."""

    names = 0

    def __init__(self, scope: Scope) -> None:
        self.scope: Scope = {kind: list(v) for kind, v in scope.items()}
        self.nodes: list[Any] = []

    def node(self, op: str, inputs: list[str], count: int = 1, **attributes: Any) -> list[str]:
        outs = []
        for _ in range(count):
            Writer.names += 1
            outs.append(f"v{Writer.names}")
        self.nodes.append(helper.make_node(op, inputs, outs, **attributes))
        return outs

    def one(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.node(op, list(inputs), **attributes)[0]

    def const(self, value: Any, dtype: Any) -> str:
        return self.one("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def of(self, kind: int, p: Picks) -> str:
        known = self.scope[kind]
        return known[-1 - min(p(len(known)), p(len(known)))]

    def give(self, kind: int, name: str) -> None:
        self.scope[kind].append(name)

    def small(self, x: str) -> str:
        return self.one("Clip", x, self.const(-50, np.float32), self.const(50, np.float32))

    def count(self, p: Picks, below: int) -> str:
        """A computed integer in 0 .. below - 1."""
        return self.one("Mod", self.of(INT, p), self.const(below, np.int64))

    def graph(self, name: str, inputs: list[tuple[str, int]], outputs: list[tuple[str, int]]) -> Any:
        return helper.make_graph(self.nodes, name, [info(n, k) for n, k in inputs], [info(n, k) for n, k in outputs])

    def steps(self, steps: tuple[Step, ...]) -> None:
        for s in steps:
            getattr(self, f"_{s.op}")(Picks(s.picks), s.body)

    def _float(self, p: Picks, body: Any) -> None:
        x, y = self.of(FLOAT, p), self.of(FLOAT, p)
        kind = p(8)
        if kind < 5:
            made = self.one(("Add", "Sub", "Mul", "Max", "Min")[kind], x, y)
        elif kind == 5:
            made = self.one("Where", self.one("Greater", x, y), y, self.one("Neg", x))
        elif kind == 6:
            made = self.one("Add", x, self.one("Cast", self.count(p, 9), to=FLOAT))
        else:
            made = self.one("Transpose", self.one("Reshape", x, self.const([3, 2], np.int64)), perm=[1, 0])
        self.give(FLOAT, self.small(made))

    def _whole(self, p: Picks, body: Any) -> None:
        kind = p(6)
        if kind < 3:
            made = self.one(("Add", "Sub", "Mul")[kind], self.of(INT, p), self.of(INT, p))
        elif kind == 3:
            made = self.one("Cast", self.one("ReduceSum", self.of(FLOAT, p), keepdims=0), to=INT)
        elif kind == 4:
            made = self.one("Cast", self.of(BOOL, p), to=INT)
        else:
            made = self.const(p(5) - 1, np.int64)
        self.give(INT, self.one("Mod", made, self.const(17, np.int64)))

    def _truth(self, p: Picks, body: Any) -> None:
        kind = p(5)
        if kind == 0:
            made = self.one("Less", self.of(INT, p), self.of(INT, p))
        elif kind == 1:
            made = self.one("Greater", self.one("ReduceMax", self.of(FLOAT, p), keepdims=0), self.const(p(5), np.float32))
        elif kind < 4:
            made = self.one(("And", "Or")[kind - 2], self.of(BOOL, p), self.of(BOOL, p))
        else:
            made = self.one("Not", self.of(BOOL, p))
        self.give(BOOL, made)

    def _slice(self, p: Picks, body: Any) -> None:
        """A computed number of rows or columns; their sum is as wide as x again."""
        x, axis, one = self.of(FLOAT, p), p(2), self.const([0], np.int64)
        a, b = (self.one("Unsqueeze", self.count(p, 4), one) for _ in range(2))
        cut = self.one("Slice", x, *((a, self.one("Add", a, b)) if p(2) else (one, b)), self.const([axis], np.int64))
        more = self.one("Concat", cut, self.one("Slice", x, b, self.const([9], np.int64), self.const([axis], np.int64)), axis=axis)
        total = self.one("ReduceSum", more if p(2) else cut, self.const([axis], np.int64), keepdims=1)
        size = self.one("Cast", self.one("Size", more), to=FLOAT)
        self.give(FLOAT, self.small(self.one("Add", x, self.one("Add", total, size) if p(2) else total)))

    def _if(self, p: Picks, body: tuple[Step, ...]) -> None:
        kinds = [p.of((FLOAT, FLOAT, INT, BOOL)) for _ in range(1 + p(2))]
        half, graphs = len(body) // 2, []
        for part, name in ((body[:half], "then_branch"), (body[half:], "else_branch")):
            inner = Writer(self.scope)
            inner.steps(part)
            ends = [(inner.one("Identity", inner.of(k, p)), k) for k in kinds]
            graphs.append(inner.graph(name, [], ends))
        outs = self.node("If", [self.of(BOOL, p)], len(kinds), then_branch=graphs[0], else_branch=graphs[1])
        for kind, name in zip(kinds, outs, strict=True):
            self.give(kind, name)

    def _loop(self, p: Picks, body: tuple[Step, ...]) -> None:
        carried = [p.of((FLOAT, INT, FLOAT)) for _ in range(1 + p(3))]
        inner = Writer(self.scope)
        Writer.names += 9
        first, going, *given = (f"in{Writer.names}_{i}" for i in range(2 + len(carried)))
        inner.give(INT, first)
        inner.give(BOOL, going)
        for kind, name in zip(carried, given, strict=True):
            inner.give(kind, name)
        inner.steps(body)
        on = inner.one("Identity", inner.of(BOOL, p)) if p(2) else inner.const(True, np.bool_)
        ends = [(on, BOOL), *((inner.one("Identity", inner.of(k, p)), k) for k in carried)]
        rows = p(3)
        ends += [(inner.one("Identity", inner.of(FLOAT, p)), FLOAT) for _ in range(rows)]
        graph = inner.graph("body", [(first, INT), (going, BOOL), *zip(given, carried, strict=True)], ends)
        trips = self.count(p, 5) if p(3) else self.const(p(4), np.int64)
        start = self.of(BOOL, p) if p(2) else ""
        outs = self.node("Loop", [trips, start, *(self.of(k, p) for k in carried)], len(carried) + rows, body=graph)
        for kind, name in zip(carried, outs, strict=False):
            self.give(kind, self.small(name) if kind == FLOAT else name)
        for name in outs[len(carried) :]:
            total = self.one("ReduceSum", name, self.const([0], np.int64), keepdims=0)
            shape = self.one("Cast", self.one("ReduceSum", self.one("Shape", name), keepdims=0), to=FLOAT)
            self.give(FLOAT, self.small(self.one("Add", total, shape)))

    def _scan(self, p: Picks, body: tuple[Step, ...]) -> None:
        inner = Writer(self.scope)
        Writer.names += 9
        state, row = f"in{Writer.names}_0", f"in{Writer.names}_1"
        inner.give(FLOAT, state)
        inner.give(FLOAT, row)
        inner.steps(body)
        graph = inner.graph("body", [(state, FLOAT), (row, FLOAT)], [(inner.one("Identity", inner.of(FLOAT, p)), FLOAT) for _ in range(2)])
        rows = [self.one("Unsqueeze", self.of(FLOAT, p), self.const([0], np.int64)) for _ in range(1 + p(3))]
        stacked = self.one("Concat", *rows, axis=0)
        last, made = self.node("Scan", [self.of(FLOAT, p), stacked], 2, body=graph, num_scan_inputs=1, scan_input_directions=[p(2)],
                               scan_output_directions=[p(2)])  # fmt: skip
        self.give(FLOAT, self.small(last))
        first = self.one("Gather", made, self.const(0, np.int64))
        self.give(FLOAT, self.small(self.one("Sub", self.one("ReduceSum", made, self.const([0], np.int64), keepdims=0), first)))


def info(name: str, kind: int) -> Any:
    return helper.make_tensor_value_info(name, kind, SHAPES[kind])


def written(model: Model) -> Any:
    Writer.names = 0
    w = Writer({FLOAT: ["x", "y"], INT: ["n"], BOOL: ["b"]})
    w.steps(model.steps)
    outs = [(w.one("Identity", name), kind) for kind, names in w.scope.items() for name in names[-2:]]
    inputs = [info("x", FLOAT), info("y", FLOAT), info("n", INT), info("b", BOOL)]
    if model.dims:
        inputs[1] = helper.make_tensor_value_info("y", FLOAT, [2, "W"])
    graph = helper.make_graph(w.nodes, "random", inputs, [helper.make_tensor_value_info(n, k, None) for n, k in outs])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    return made


def check(model: Model) -> None:
    proto = written(model)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        theirs = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as e:  # what ONNX Runtime does not read
        raise Invalid(str(e)) from None
    session, rng = tw.compile(proto), np.random.default_rng(model.data)
    for _ in range(3):
        x, y = (rng.integers(-5, 6, (2, 3)).astype(np.float32) for _ in range(2))
        feed = {"x": x, "y": y, "n": np.array(rng.integers(0, 7)), "b": np.array(bool(rng.integers(2)))}
        want = theirs.run(None, feed)
        got = session(*feed.values())
        for i, (a, b) in enumerate(zip(got if isinstance(got, tuple) else (got,), want, strict=True)):
            a = np.asarray(a)
            assert (a.dtype, a.shape) == (np.asarray(b).dtype, np.shape(b)), f"output {i}: {a.dtype}{a.shape}"
            assert np.array_equal(a, b), f"output {i}: {a.tolist()}, {np.asarray(b).tolist()} expected"


CAMPAIGN = Campaign(draw=draw, check=check, keep=("op",), quick=4, seconds=60.0, growth=4 << 20)
