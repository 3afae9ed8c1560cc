"""Products, convolutions and attention of bf16 operands that come with the call, counted in pairs: generated code and the tile interpreter
against float64."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.dims import sym
from tilewright.core.dtypes import bf16
from tilewright.core.target_spec import TargetSpec
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.select import select
from tilewright.ops import functions as F
from tilewright.ops.attention.forward import Attention
from tilewright.ops.base import single
from tilewright.ops.matmul.contractions import Conv, Matmul
from tilewright.tile.text import to_text

from .harness import run_graph, target
from .interpreted import interpret_graph


def with_pairs() -> TargetSpec:
    """A CPU that multiplies pairs of bf16 numbers, as far as kernels are concerned."""
    spec = target("avx512")
    return replace(spec, features=spec.features | {"avx512bf16", "avx512vl"}, masked=frozenset(), checks=False)


def numbers(*shape: int) -> Any:
    return fresh_rng().standard_normal(shape).astype(bf16.np)


def check_near(got: Any, a: Any, b: Any) -> None:
    """Sums in f32, rounded once."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    sums = 2.0**-20 * (np.abs(a) @ np.abs(b))
    want = a @ b
    assert got.shape == want.shape and got.dtype == bf16.np
    assert np.all(np.abs(got.astype(np.float64) - want) <= 2.0**-8 * np.abs(want) + sums + 1e-30)


def product(a: Any, b: Any, **flags: Any) -> Graph:
    return single(lambda g, v: Matmul(**flags)(v[0], v[1]), TensorType(bf16, a.shape), TensorType(bf16, b.shape))


SHAPES = [
    ((7, 64), (64, 65)), ((1, 96), (96, 33)), ((5, 1), (1, 9)), ((13, 17), (17, 20)), ((2, 1031), (1031, 3)), ((70, 30), (30, 1)),
    ((2, 3, 8, 24), (2, 3, 24, 18)), ((4, 5, 24), (24, 40)), ((5, 25), (3, 25, 17)), ((2, 1, 6, 8), (3, 8, 7)),
    ((0, 16), (16, 4)), ((4, 16), (16, 0)), ((4, 0), (0, 5)), ((0, 3, 16), (0, 16, 5)),
]


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_products(left: tuple[int, ...], right: tuple[int, ...], flags: tuple[bool, bool]) -> None:
    a, b = numbers(*left), numbers(*right)
    x, y = (np.ascontiguousarray(m.swapaxes(-1, -2)) if turned else m for m, turned in zip((a, b), flags, strict=True))
    graph = product(x, y, transpose_a=flags[0], transpose_b=flags[1])
    (got,), _ = interpret_graph(graph, [x, y], with_pairs())
    check_near(got, a, b)


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize(("left", "right"), [SHAPES[0], SHAPES[3], SHAPES[8]])
def test_generated_code(left: tuple[int, ...], right: tuple[int, ...], flag: bool) -> None:
    a, b = numbers(*left), numbers(*right)
    y = np.ascontiguousarray(b.swapaxes(-1, -2)) if flag else b
    (got,), _ = run_graph(product(a, y, transpose_b=flag), [a, y], level="native", parts=3)
    check_near(got, a, b)


def kernels(graph: Graph) -> str:
    return "\n".join(to_text(launch.kernel) for launch in select(graph, with_pairs()).launches)


@pytest.mark.parametrize("rows", [4, 100])
def test_the_right_operand_is_read_where_it_lies(rows: int) -> None:
    for flag in (False, True):
        graph = product(numbers(rows, 64), numbers(64, 64), transpose_b=flag)
        assert len(select(graph, with_pairs()).launches) == 1
        assert "dot2" in kernels(graph) and "mma" not in kernels(graph)


def test_without_the_instruction_nothing_is_paired() -> None:
    graph = product(numbers(4, 64), numbers(64, 64))
    assert not any("dot2" in to_text(launch.kernel) for launch in select(graph, target("avx512")).launches)


def test_numbers_that_are_not_finite_stay_in_their_row_and_column() -> None:
    a, b = numbers(9, 33), numbers(33, 21)  # behind an odd K stands a zero on both sides
    a[2, 32], a[4, 0], b[5, 7] = np.nan, np.inf, -np.inf
    for flags in ({}, {"transpose_b": True}):
        y = np.ascontiguousarray(b.T) if flags else b
        (got,), _ = interpret_graph(product(a, y, **flags), [a, y], with_pairs())
        bad = ~np.isfinite(got.astype(np.float32))
        expected = np.zeros((9, 21), bool)
        expected[[2, 4]], expected[:, 7] = True, True
        np.testing.assert_array_equal(bad, expected)
        assert np.isnan(got[2].astype(np.float32)).all()


def test_symbolic_rows() -> None:
    rows = sym("S", 1, 300)
    graph = single(lambda g, v: Matmul(transpose_b=True)(v[0], v[1]), TensorType(bf16, (rows, 40)), TensorType(bf16, (19, 40)))
    b = numbers(19, 40)
    for m in (1, 6, 7, 41):
        a = numbers(m, 40)
        (got,), _ = interpret_graph(graph, [a, b], with_pairs())
        check_near(got, a, b.T)


@pytest.mark.parametrize("flag", [False, True])
def test_rows_have_the_same_bits_alone_and_for_any_thread_count(flag: bool) -> None:
    a, b = (torch.randn(80, 72).bfloat16(), torch.randn(*((40, 72) if flag else (72, 40))).bfloat16())

    def run(x: torch.Tensor, threads: int) -> torch.Tensor:
        class Product(torch.nn.Module):
            def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                return x @ (y.T if flag else y)

        got: torch.Tensor = tw.compile(Product(), (x, b), threads=threads)(x, b)
        return got

    whole = run(a, 1)
    assert torch.equal(whole, run(a, 2))
    for rows in (slice(3, 4), slice(10, 15)):
        assert torch.equal(whole[rows], run(a[rows], 1))


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 6, 5, 7), (9, 6, 3, 3), {"padding": 1}),
    ((1, 5, 6, 6), (4, 5, 2, 3), {"stride": (2, 1), "dilation": (1, 2)}),  # an odd number of channels
    ((1, 37, 3, 18), (70, 37, 1, 1), {}),  # words and pixels beyond a square
    ((1, 34, 4, 5), (17, 34, 3, 3), {"padding": 1}),
    ((1, 8, 5, 4), (6, 4, 3, 3), {"groups": 2, "padding": 1}),
    ((1, 3, 19), (5, 3, 4), {"stride": (3,)}),
    ((1, 2, 4, 3, 5), (3, 2, 2, 2, 2), {"padding": 1}),
    ((1, 1, 6, 6), (3, 1, 3, 3), {}),
    ((2, 50, 5, 21), (50, 1, 3, 3), {"groups": 50, "padding": 1}),  # every channel by itself, two lines of taps at once
    ((1, 34, 6, 23), (34, 1, 2, 5), {"groups": 34, "stride": (1, 2), "dilation": (3, 1), "padding": 2}),
    ((1, 96, 3, 4, 11), (96, 1, 2, 4, 3), {"groups": 96, "padding": 1}),
    ((1, 33, 4, 12), (33, 1, 3, 3), {"groups": 33}),
    ((0, 4, 5, 5), (3, 4, 3, 3), {}),
]


def convolution(x: Any, w: Any, **options: Any) -> Graph:
    axes = x.ndim - 2
    pad = options.pop("padding", 0)
    defaults = {"stride": (1,) * axes, "dilation": (1,) * axes, "groups": 1, "padding": ((pad, pad),) * axes}
    return single(lambda g, v: Conv(**(defaults | options))(v[0], v[1]), TensorType(bf16, x.shape), TensorType(bf16, w.shape))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("image", "weights", "options"), CONVOLUTIONS)
def test_convolutions(image: tuple[int, ...], weights: tuple[int, ...], options: dict[str, Any], turned: bool) -> None:
    x, w = numbers(*image), numbers(*weights)
    if turned:  # a transposed convolution, from the results' channels to the image's
        x = numbers(image[0], weights[0], *image[2:])
    graph = convolution(x, w, **options, transposed=turned)
    (got,), _ = interpret_graph(graph, [x, w], with_pairs())
    axes = x.ndim - 2
    way = getattr(torch.nn.functional, f"conv_transpose{axes}d" if turned else f"conv{axes}d")
    wide = [torch.from_numpy(a.astype(np.float64)) for a in (x, w)]
    want = way(*wide, **options).numpy()
    size = way(*(a.abs() for a in wide), **options).numpy()
    assert got.shape == want.shape
    assert np.all(np.abs(got.astype(np.float64) - want) <= 2.0**-8 * np.abs(want) + 2.0**-20 * size + 1e-30)


def test_channels_by_themselves_multiply_two_lines_at_once() -> None:
    x, w = numbers(1, 64, 6, 21), numbers(64, 1, 3, 3)
    x[0, 3, 1, 2], x[0, 32, 5, 20] = np.inf, np.nan
    graph = convolution(x, w, groups=64, padding=1)
    assert "dot2" in kernels(graph)
    (got,), _ = run_graph(graph, [x, w], level="native")
    (parted,), _ = run_graph(graph, [x, w], level="native", parts=3)
    assert got.tobytes() == parted.tobytes()
    expected = np.zeros(got.shape, bool)
    expected[0, 3, :3, 1:4], expected[0, 32, 4:, 19:] = True, True
    np.testing.assert_array_equal(~np.isfinite(got.astype(np.float32)), expected)
    wide = [torch.from_numpy(np.nan_to_num(a.astype(np.float64), posinf=0)) for a in (x, w)]
    want = torch.nn.functional.conv2d(*wide, groups=64, padding=1).numpy()  # type: ignore[call-overload]
    assert np.all(expected | (np.abs(got.astype(np.float64) - want) <= 2.0**-8 * np.abs(want) + 1e-5))


def test_convolutions_pack_pairs_of_channels() -> None:
    graph = convolution(numbers(1, 6, 5, 5), numbers(4, 6, 3, 3), padding=1)
    assert "dot2" in kernels(graph) and "mma" not in kernels(graph)


def test_a_channel_without_a_partner_meets_zeros() -> None:
    x, w = numbers(1, 33, 4, 17), numbers(3, 33, 1, 1)
    x[0, 32, 1, 2] = np.inf
    w[1, 32] = np.nan
    (got,), _ = interpret_graph(convolution(x, w), [x, w], with_pairs())
    bad = ~np.isfinite(got.astype(np.float32))
    expected = np.zeros(got.shape, bool)
    expected[0, :, 1, 2], expected[0, 1] = True, True
    np.testing.assert_array_equal(bad, expected)


@pytest.mark.parametrize("longest", [8192, 8])
def test_windows_too_long_for_squares(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a weight's gradient, whose window is a whole image."""
    from tilewright.kernels.conv import conv

    monkeypatch.setattr(conv, "LONGEST_LINE", longest)
    x, w = numbers(1, 3, 9, 8), numbers(5, 3, 6, 7)
    (got,), _ = interpret_graph(convolution(x, w), [x, w], with_pairs())
    want = torch.nn.functional.conv2d(*(torch.from_numpy(a.astype(np.float64)) for a in (x, w))).numpy()  # type: ignore[call-overload]
    assert np.all(np.abs(got.astype(np.float64) - want) <= 2.0**-8 * np.abs(want) + 1e-4)


def attention(q: Any, k: Any, v: Any, **options: Any) -> Graph:
    return single(lambda g, x: Attention(scale=q.shape[-1] ** -0.5, **options)(*x), *(TensorType(bf16, x.shape) for x in (q, k, v)))


@pytest.mark.parametrize(("heads", "kv_heads", "sq", "sk", "d", "dv"), [
    (2, 1, 25, 25, 10, 7), (1, 1, 30, 70, 16, 24), (2, 2, 26, 1, 2, 3), (1, 1, 24, 49, 48, 80), (1, 1, 29, 0, 4, 4)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(heads: int, kv_heads: int, sq: int, sk: int, d: int, dv: int, causal: bool) -> None:
    q, k, v = numbers(2, heads, sq, d), numbers(2, kv_heads, sk, d), numbers(2, kv_heads, sk, dv)
    graph = attention(q, k, v, causal=causal, offset=sk - sq)
    assert "dot2" in kernels(graph) and "mma" not in kernels(graph)
    (got,), _ = interpret_graph(graph, [q, k, v], with_pairs())
    wide = [torch.from_numpy(x.astype(np.float64)) for x in (q, *(np.repeat(x, heads // kv_heads, 1) for x in (k, v)))]
    seen = torch.ones(sq, sk, dtype=torch.bool).tril(sk - sq) if causal else torch.ones(sq, sk, dtype=torch.bool)
    scores = (wide[0] @ wide[1].mT * d**-0.5).masked_fill(~seen, -torch.inf)
    weights = torch.nan_to_num(torch.softmax(scores, -1))  # rows that see nothing are zeros
    size = (weights @ wide[2].abs()).numpy()
    assert np.all(np.abs(got.astype(np.float64) - (weights @ wide[2]).numpy()) <= 2.0**-7 * size + 1e-30)


def test_what_lies_behind_the_last_key_is_not_multiplied() -> None:
    """Rows of a cache that are not there yet: the keys and values of a sequence of 5 in a buffer of 40."""
    q, k, v = numbers(1, 1, 24, 6), numbers(1, 1, 40, 6), numbers(1, 1, 40, 8)
    k[:, :, 5:], v[:, :, 5:] = np.nan, np.nan

    def body(g: Graph, x: Any) -> Any:
        return Attention(scale=0.5)(x[0], *(F.slice_(y, 2, 0, 5) for y in x[1:]))

    graph = single(body, *(TensorType(bf16, x.shape) for x in (q, k, v)))
    (got,), _ = interpret_graph(graph, [q, k, v], with_pairs())
    assert np.isfinite(got.astype(np.float32)).all()


def test_few_queries_do_not_pack_values() -> None:
    x = numbers(1, 2, 8, 16)
    assert "dot2" not in kernels(attention(x, x, x))
