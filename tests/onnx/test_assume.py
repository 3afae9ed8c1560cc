"""Sizes that a file takes for equal: one compile for those that keep to it, compiles of their own for the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.onnx.models import helper, info, model, peer
from tilewright.core.dims import maximum, sym
from tilewright.frontend.onnx.assume import assumptions
from tilewright.frontend.onnx.load import Source

RNG = np.random.default_rng(0)
n = helper.make_node


def image(*sizes: int) -> Any:
    return RNG.standard_normal((1, 2, *sizes)).astype(np.float32)


def agree(session: Any, proto: Any, *args: Any) -> None:
    names = [i.name for i in proto.graph.input]
    got = session(*args)
    np.testing.assert_allclose(got, peer(proto, dict(zip(names, args, strict=True)))[0], rtol=1e-5, atol=1e-5)


def doubled() -> Any:
    """What was halved twice and doubled is added to what was halved once: any size of 4 m, and 4 m + 3."""
    halve = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [n("MaxPool", ["x"], ["a"], **halve), n("MaxPool", ["a"], ["b"], **halve),  # type: ignore[arg-type]
             n("Resize", ["b", "", "two"], ["c"], mode="nearest"), n("Add", ["a", "c"], ["y"])]
    return model(nodes, [info("x", image(4, 4), [1, 2, "h", "w"])], ["y"], {"two": np.array([1, 1, 2, 2], np.float32)})


def test_sizes_that_are_halved_and_doubled_are_multiples() -> None:
    proto = doubled()
    session = tw.compile(proto)
    assert isinstance(session, tw.Session) and str(session.interface.inputs[0]) == "f32[1,2,4*h,4*w]"
    assert "h is 4*h, w is 4*w" in str(session.report())
    for sizes in ((4, 8), (12, 4), (7, 8)):  # the last is no multiple, and right all the same
        agree(session, proto, image(*sizes))
    with pytest.raises(tw.TilewrightError, match=r"shapes do not broadcast|node Add"):
        session(image(5, 8))


def test_a_start_from_the_cache_serves_other_sizes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = doubled()
    tw.compile(proto)
    with monkeypatch.context() as patch:
        patch.setattr(Source, "proto", property(lambda self: pytest.fail("the model was parsed")))
        again = tw.compile(proto)
        again(image(8, 8))
    agree(again, proto, image(3, 8))


def test_a_size_that_is_taken_for_one_may_be_another() -> None:
    """n² + n and its half, doubled, are equal for every n, which nothing here can tell; 1 serves the compile alone."""
    nodes = [n("Shape", ["x"], ["n"]), n("Mul", ["n", "n"], ["nn"]), n("Add", ["nn", "n"], ["m"]), n("Div", ["m", "two"], ["half"]),
             n("Mul", ["half", "two"], ["same"]), n("ReduceSum", ["x"], ["x1"]),
             n("Expand", ["x1", "m"], ["a"]), n("Expand", ["x1", "same"], ["b"]), n("Add", ["a", "b"], ["y"])]
    proto = model(nodes, [info("x", RNG.standard_normal(3).astype(np.float32), ["N"])], ["y"], {"two": np.array([2])})
    first = tw.compile(proto)
    assert isinstance(first, tw.Session) and str(first.interface.inputs[0]) == "f32[1]"
    for session in (first, tw.compile(proto)):
        for size in (3, 1, 4):
            agree(session, proto, RNG.standard_normal(size).astype(np.float32))


def test_positions_of_a_table_bound_a_length() -> None:
    table = RNG.standard_normal((1, 12, 2)).astype(np.float32)
    nodes = [n("Shape", ["x"], ["s"], start=1, end=2), n("Slice", ["t", "zero", "s", "one"], ["p"]), n("Add", ["x", "p"], ["y"])]
    proto = model(nodes, [info("x", table, ["b", "s", 2])], ["y"], {"t": table, "zero": np.array([0]), "one": np.array([1])})
    session = tw.compile(proto)
    assert isinstance(session, tw.Session) and session.interface.symbols[1].hi == 12
    for shape in ((2, 12, 2), (1, 3, 2)):
        agree(session, proto, RNG.standard_normal(shape).astype(np.float32))
    with pytest.raises(tw.TilewrightError, match="do not broadcast"):
        session(np.zeros((1, 13, 2), np.float32))


def test_a_state_of_one_row_fixes_the_batch() -> None:
    x, h = RNG.standard_normal((3, 1, 2)).astype(np.float32), RNG.standard_normal((1, 1, 4)).astype(np.float32)
    weights = {"w": RNG.standard_normal((1, 16, 2)).astype(np.float32), "r": RNG.standard_normal((1, 16, 4)).astype(np.float32)}
    nodes = [n("LSTM", ["x", "w", "r", "", "", "h", "c"], ["y"], hidden_size=4)]
    proto = model(nodes, [info("x", x, ["t", "b", 2]), info("h", h), info("c", h)], ["y"], weights)
    session = tw.compile(proto)
    assert isinstance(session, tw.Session) and str(session.interface.inputs[0]) == "f32[t,1,2]"
    agree(session, proto, x, h, h)


def test_sizes_without_names_may_be_one() -> None:
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    proto = model([n("Add", ["x", "z"], ["y"])], [info("x", x, [None, 4]), info("z", x, [None, 4])], ["y"])
    session = tw.compile(proto)
    assert isinstance(session, tw.Session) and session.interface.inputs[0] == session.interface.inputs[1]
    agree(session, proto, x, x)
    agree(session, proto, x, x[:1])  # broadcast


@pytest.mark.parametrize("mode,at,nearest,scale", [
    ("nearest", "asymmetric", "round_prefer_floor", 3.0), ("nearest", "half_pixel", "ceil", 2.0), ("linear", "half_pixel", "floor", 2.0),
    ("linear", "align_corners", "floor", None), ("linear", "pytorch_half_pixel", "floor", 0.5)])
def test_resize_of_symbolic_sizes(mode: str, at: str, nearest: str, scale: float | None) -> None:
    more: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": at, "nearest_mode": nearest}
    by = {"k": np.array([1, 1, scale or 2, scale or 3], np.float32 if scale else np.int64)}
    nodes = [n("Resize", ["x", "", "k"], ["y"], **more)] if scale else [
        n("Shape", ["x"], ["s"]), n("Mul", ["s", "k"], ["o"]), n("Resize", ["x", "", "", "o"], ["y"], **more)]
    proto = model(nodes, [info("x", image(4, 4), [1, 2, "h", "w"])], ["y"], by)
    session = tw.compile(proto)
    assert isinstance(session, tw.Session)
    for sizes in ((4, 6), (2, 8)):
        agree(session, proto, image(*sizes))


@pytest.mark.parametrize("op", ["MaxPool", "ConvTranspose", "same"])
def test_windows_over_symbolic_sizes(op: str) -> None:
    w = RNG.standard_normal((2, 3, 3, 3)).astype(np.float32)
    nodes = {"MaxPool": n("MaxPool", ["x"], ["y"], kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
             "ConvTranspose": n("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 0]),
             "same": n("Conv", ["x", "v"], ["y"], strides=[2, 2], auto_pad="SAME_UPPER")}
    weights = {"w": w} if op == "ConvTranspose" else {"v": np.ascontiguousarray(w.transpose(1, 0, 2, 3))} if op == "same" else {}
    proto = model([nodes[op]], [info("x", image(4, 4), [1, 2, "h", "w"])], ["y"], weights)
    session = tw.compile(proto)
    assert isinstance(session, tw.Session) and "spread out" not in str(session.report())
    for sizes in ((4, 6), (5, 7)):
        agree(session, proto, image(*sizes))


def test_quotients_of_sizes_are_those_of_windows() -> None:
    """Integer division truncates, and so differs from a window's count where a size is too small for the window."""
    x = RNG.standard_normal((2, 3, 9)).astype(np.float32)
    nodes = [n("AveragePool", ["x"], ["a"], kernel_shape=[1], strides=[2]),
             n("AveragePool", ["a"], ["b"], kernel_shape=[2], strides=[2]), n("Shape", ["x"], ["s"], start=2),
             n("Sub", ["s", "one"], ["c"]), n("Div", ["c", "two"], ["d"]), n("Sub", ["d", "one"], ["e"]), n("Div", ["e", "two"], ["f"]),
             n("Add", ["f", "one"], ["g"]), n("Shape", ["x"], ["k"], end=1), n("Concat", ["k", "g", "three"], ["h"], axis=0),
             n("Reshape", ["b", "h"], ["y"])]
    proto = model(nodes, [info("x", x, ["b", 3, "t"])], ["y"], {"one": np.array([1]), "two": np.array([2]), "three": np.array([3])})
    session = tw.compile(proto)
    assert isinstance(session, tw.Session)
    for size in (9, 3):
        agree(session, proto, x[:, :, :size])


@pytest.mark.parametrize("last", ["Softmax", "NonZero"])
def test_empty_sizes_give_empty_results(last: str) -> None:
    """A program of one segment, and one with a step of the host behind it; from the cache, too."""
    w = RNG.standard_normal((4, 3)).astype(np.float32)
    proto = model([n("MatMul", ["x", "w"], ["a"]), n(last, ["a"], ["y"])], [info("x", w, ["N", 4])], ["y"], {"w": w})
    for _ in range(2):
        session = tw.compile(proto)
        for rows in (2, 0, 5, 0):
            x = RNG.standard_normal((rows, 4)).astype(np.float32)
            got, want = session(x), peer(proto, {"x": x})[0]
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_sizes_of_one_name_may_differ_where_the_graph_lets_them() -> None:
    """Exporters name every first size alike, states of one row among them. What does not work out stays the error of the names."""
    x, z = RNG.standard_normal((3, 4)).astype(np.float32), RNG.standard_normal((1, 4)).astype(np.float32)
    proto = model([n("Add", ["x", "z"], ["y"])], [info("x", x, ["N", 4]), info("z", x, ["N", 4])], ["y"])
    session = tw.compile(proto)
    agree(session, proto, x, z)
    with pytest.raises(tw.InputError, match=r"'z' must be f32\[N,4\] with N = 3 \(from 'x'\), got f32\[2,4\]"):
        session(x, x[:2])
    with pytest.raises(tw.InputError, match="'z' must be f32"):
        session(x, z.astype(np.float64))
    assert session.otherwise.found is not None


def test_what_is_asked_of_symbols() -> None:
    s, t = sym("s", 1), sym("t", 1)
    assert list(assumptions([(s, t)])) == [{"s": s, "t": s}]
    assert list(assumptions([((s // 4) * 8, 2 * s)])) == [{"s": 4 * s}]
    assert list(assumptions([(s, 7)])) == [{"s": 7}]
    (found,) = assumptions([((s - 399) // 320 + 1, maximum((s - 399) // 320 + 1, 0))])
    assert found == {"s": sym("s", 79)}
    assert list(assumptions([(s, s + 1), (3, 4)])) == []
