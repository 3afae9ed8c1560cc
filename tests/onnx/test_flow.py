"""Loops and branches of files: what bodies read around them, and loops that stop for themselves."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.fresh import fresh_rng
from tests.onnx.models import agree, info, model
from tilewright.runtime import profile


def f(*shape: int) -> Any:
    return fresh_rng().standard_normal(shape).astype(np.float32)


def test_a_body_that_reads_one_value_under_two_names_takes_it_once() -> None:
    """Branches and bodies that hand through what is around them name it again; each graph takes it once, however deep it lies."""
    n, t, go, end = helper.make_node, f(2, 3), np.array(True), np.array(3)

    def sides(out: str, then: list[Any], other: list[Any]) -> tuple[Any, ...]:
        return tuple(helper.make_graph(nodes, name, [], [info(out, t)]) for name, nodes in (("then", then), ("other", other)))

    def branch(cond: str, out: str, then: list[Any], other: list[Any]) -> Any:
        a, b = sides(out, then, other)
        return n("If", [cond], [out], then_branch=a, else_branch=b)

    inner = helper.make_graph(
        [n("Identity", ["c1"], ["go1"]), n("Identity", ["same"], ["again"]), branch("rate", "u", [n("Add", ["same", "x"], ["u"])],
         [n("Sub", ["x", "again"], ["u"])]), n("Add", ["h", "u"], ["k"]), n("Add", ["k", "a"], ["h1"])],
        "inner", [info("i1", end), info("c1", go), info("a", t)], [info("go1", go), info("h1", t)])
    outer = helper.make_graph(
        [n("Identity", ["c0"], ["go0"]), n("Identity", ["h"], ["same"]), n("Identity", ["yes"], ["on"]),
         n("Loop", ["end", "on", "h"], ["h2"], body=inner), n("Add", ["h2", "x"], ["h0"]), n("Identity", ["same"], ["ys"])],
        "outer", [info("i0", end), info("c0", go), info("h", t)], [info("go0", go), info("h0", t), info("ys", t)])
    nodes = [n("Greater", ["s", "zero"], ["rate"]), n("Loop", ["end", "yes", "x"], ["y", "rows"], body=outer)]
    proto = model(nodes, [info("x", t), info("s", np.float32(1))], ["y", "rows"], {"end": end, "yes": go, "zero": np.float32(0)})
    for s in (-1.0, 1.0):
        agree(proto, {"x": np.round(f(2, 3)), "s": np.array(s, np.float32)})


@pytest.mark.parametrize("stacks", [False, True])
def test_a_loop_that_data_does_not_end_can_be_left(stacks: bool) -> None:
    """By Ctrl-C, run by the host or compiled; the next call is right."""
    n, x = helper.make_node, f(3)
    steps = [n("Abs", ["h"], ["h2"]), n("ReduceSum", ["h2"], ["s"], keepdims=0), n("Greater", ["limit", "s"], ["go2"])]
    steps, each = ([*steps, n("Identity", ["s"], ["each"])], [info("each", x[0])]) if stacks else (steps, [])
    body = helper.make_graph(steps, "b", [info("i", np.array(0)), info("go", np.array(True)), info("h", x)],
                             [info("go2", np.array(True)), info("h2", x), *each])
    loop = n("Loop", ["", "yes", "start"], ["y", "rows"] if stacks else ["y"], body=body)
    proto = model([n("Sqrt", ["x"], ["start"]), loop], [info("x", x), info("limit", x[0])], list(loop.output), {"yes": np.array(True)})
    session: Any = tw.compile(proto)
    assert hasattr(session, "interface") != stacks
    x, limits = np.abs(x), (np.array(-1, np.float32), np.array(np.inf, np.float32))
    agree(proto, {"x": x, "limit": limits[0]})
    session(x, limits[0])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session(x, limits[1])
    finally:
        signal.signal(signal.SIGINT, before)
    np.testing.assert_array_equal(np.asarray(session(x, limits[0])[0] if stacks else session(x, limits[0])), np.sqrt(x))


def test_a_report_leaves_a_loop_that_zeros_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "LIMIT_S", 0.05)
    n, x = helper.make_node, f(3)
    steps = [n("Add", ["h", "h"], ["h2"]), n("ReduceMax", ["h2"], ["s"], keepdims=0), n("Less", ["s", "top"], ["go2"])]
    body = helper.make_graph(steps, "b", [info("i", np.array(0)), info("go", np.array(True)), info("h", x)],
                             [info("go2", np.array(True)), info("h2", x)])
    proto = model([n("Loop", ["", "yes", "x"], ["y"], body=body)], [info("x", x)], ["y"], {"yes": np.array(True), "top": np.float32(99)})
    session: Any = tw.compile(proto)
    assert session.report().data["total_us"] > 0
    np.testing.assert_array_equal(session(np.array([1, 2, 3], np.float32)), np.array([64, 128, 192], np.float32))


@pytest.mark.parametrize("limit", [1, 5])
def test_a_loop_that_counts_for_itself_and_stacks_is_compiled(limit: int) -> None:
    """TensorFlow's loops over time: the number of rounds is in no input of the Loop."""
    n = helper.make_node
    body = helper.make_graph(
        [n("Add", ["t", "one"], ["next"]), n("Less", ["next", "limit"], ["go"]), n("Gather", ["x", "t"], ["row"]),
         n("Add", ["h", "row"], ["sum"]), n("Tanh", ["sum"], ["new"]), n("Identity", ["new"], ["out"])], "body",
        [info("i", np.array(0)), info("c", np.array(True)), info("t", np.array(0)), info("h", f(3))],
        [info("go", np.array(True)), info("next", np.array(0)), info("new", f(3)), info("out", f(3))])  # fmt: skip
    nodes = [n("Loop", ["most", "yes", "zero", "h0"], ["last", "h1", "y"], body=body)]
    weights = {"most": np.array(2**63 - 1), "yes": np.array(True), "zero": np.array(0), "one": np.array(1), "limit": np.array(limit)}
    x, h = f(5, 3), f(3)
    proto = model(nodes, [info("x", x), info("h0", h)], ["y", "h1"], weights)
    assert hasattr(tw.compile(proto), "interface")  # one segment
    agree(proto, {"x": x, "h0": h})


def test_what_a_loop_carries_unchanged_is_a_constant_of_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are handed through a loop, as exporters of Paddle write them; the loop is the host's."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "0")
    n = helper.make_node
    body = helper.make_graph(
        [n("MatMul", ["h", "w"], ["p"]), n("Tanh", ["p"], ["h2"]), n("Identity", ["w"], ["w2"]),
         n("ReduceMax", ["h2"], ["top"], keepdims=0), n("Less", ["top", "limit"], ["go2"]), n("NonZero", ["h2"], ["z"]),
         n("Shape", ["z"], ["count"])],
        "body", [info("i", np.array(1)), info("go", np.array(True)), info("h", f(2, 3)), info("w", f(3, 3))],
        [info("go2", np.array(True)), info("h2", f(2, 3)), info("w2", f(3, 3)), info("count", np.array([1, 2]))])
    nodes = [n("Loop", ["most", "yes", "x", "weight"], ["y", "same", "counts"], body=body)]
    weights = {"weight": f(3, 3) * 0.5, "most": np.array(6), "yes": np.array(True), "limit": np.float32(5)}
    proto = model(nodes, [info("x", f(2, 3))], ["y", "same", "counts"], weights)
    agree(proto, {"x": f(2, 3)})
    session: Any = tw.compile(proto)
    session(f(2, 3))
    (made,) = session._program.bodies.values()
    taken = {name for s in made.start.next.values() if s.segment is not None for name, _, _ in s.segment.inputs}
    assert "weight" in made.constants and taken and "weight" not in taken
