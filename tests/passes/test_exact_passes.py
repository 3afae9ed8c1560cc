"""Passes that are no list of rules keep what they say they keep too: each is named here with a probe, or with the reason why not.

The names are those of the pipeline and of what the passes write into the log, so that a new one without a probe fails.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.passes
from tests.fresh import fresh_rng
from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dtypes import DType
from tilewright.core.pytree import flatten
from tilewright.ir.graph import Graph
from tilewright.ir.rewrite import Changes
from tilewright.passes.base import Log, Pass
from tilewright.passes.cache_attention import CacheAttention
from tilewright.passes.decompose import Decompose
from tilewright.passes.drop_ones import DropOnes
from tilewright.passes.pipeline import pipeline
from tilewright.passes.quantized_rows import QuantizedRows
from tilewright.passes.row_products import MergePacked, RowProducts
from tilewright.passes.save_logsumexp import SaveLogSumExp
from tilewright.passes.slice_first import SliceFirst
from tilewright.transform.trace import leaf_of, trace

from .kit import FLOATS, PRODUCTS, Kit, built, differences, draws

ON_GPUS: tuple[Any, ...] = (SaveLogSumExp, MergePacked, RowProducts, QuantizedRows, CacheAttention)
ELSEWHERE = {  # name in the pipeline or the log -> why it has no probe here
    "integer-products": "rounds to quantized values: tests/quantize compares with PyTorch's and exact arithmetic",
    "lower-quantized": "rounds activations to quantized values: tests/kernels/test_qdot.py compares with the formats' own arithmetic",
    "save-logsumexp": "for GPUs: tests/cuda", "merge-packed": "for GPUs: tests/cuda", "row-products": "for GPUs: tests/cuda",
    "quantized-rows": "for GPUs: tests/cuda", "cache-attention": "for GPUs: tests/cuda",
    "attention": "of save-logsumexp", "merge_packed": "of merge-packed", "products_with_norm": "of row-products",
    "products_with_quantized": "of quantized-rows", "caches": "of cache-attention",
    "row_sweeps": "of fuse, which computes the same ops in one kernel: tests/kernels/test_registry.py and tests/opinfo",
    "cheap_again": "of fuse for GPUs, which computes the same ops twice: tests/cuda/test_training.py",
    "gate-products": "for GPUs: tests/cuda", "gates": "of gate-products",
    "lower-complex": "tests/complex compares with PyTorch; infinities follow C's naive product in both",
}


def traced(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[Kit], None]:
    """A probe that is a function of arrays."""
    def build(k: Kit) -> None:
        leaves, spec = flatten((tuple(np.zeros(s, k.dtype.np) for s in shapes), {}))
        k.graph = trace(fn, spec, [leaf_of(x) for x in leaves]).graph
        k.tame = [False] * len(shapes)

    return build


def twins(k: Kit) -> list[Any]:
    """Pairs that are one value, and pairs that only look like it."""
    x, y = k.x(), k.x()
    pads = [o.Pad(lo=(1, 0), hi=(0, 0), value=v)(x) for v in (0.0, -0.0, 0.0)]
    zeros = [o.Mul()(x, k.c(v)) for v in (0.0, -0.0)]
    return [o.Add()(x, y), o.Add()(y, x), o.Maximum()(x, y), o.Maximum()(y, x), o.Minimum()(y, x), o.Minimum()(x, y), *pads, *zeros]


def merged(k: Kit) -> list[Any]:
    x = k.x(k.b, k.s, k.d)
    return [o.Reshape(shape=(k.b * k.s, 3))(o.Add()(o.Matmul()(x, k.weights(k.d, 3)), k.weights(3))) for _ in range(3)]


def regions(k: Kit) -> list[Any]:
    x, y = k.x(k.b, k.s, k.d), k.x(k.b, k.s, k.d)
    wide = o.Cast(dtype=dt.f32 if k.dtype.itemsize < 4 else dt.f64)(x)
    total = o.Sum(axes=(2,), keepdims=True)(o.Exp()(wide))
    return [o.Tanh()(o.Add()(o.Matmul()(x, k.weights(k.d, k.d)), y)), o.Div()(o.Exp()(wide), total), o.Neg()(o.Square()(wide)),
            o.LayerNorm(affine="none")(o.Add()(x, y)), o.Mul()(o.Sin()(x), o.Cos()(y))]


def constants(k: Kit) -> list[Any]:
    c = k.c([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-6, 3e4])
    return [o.Add()(k.x(9), op()(c)) for op in (o.Neg, o.Abs, o.Exp, o.Sqrt, o.Reciprocal, o.Sign)] + [
        o.Sub()(k.x(9), op()(c, k.c(-0.0))) for op in (o.Add, o.Mul, o.Div, o.Maximum, o.Minimum)]


def loop(x: Any, y: Any) -> Any:
    """A loop with work that does not change, results that nobody reads, and a branch that is known."""
    def step(carry: Any, row: Any) -> Any:
        a, b, unused = carry
        scale = tw.exp(y) * -1.0
        chosen = tw.cond(np.array(True), lambda z: z + 0.0, lambda z: z * 2, row)
        return (a + chosen * scale, b, unused + row), (a, row - y)

    (a, b, _), (rows, _) = tw.scan(step, (x[0], y, x[0]), x)
    same, _ = tw.scan(lambda c, r: (c, ()), y, x)
    one = tw.cond(x[0, 0] > 0, lambda u, v: u + 1, lambda u, v: -u, y, b)
    return a, b, rows, same, one


def unread(k: Kit) -> Any:
    x = k.x()
    o.Exp()(x)
    return o.Neg()(x)


def products_of_slices(k: Kit) -> Any:
    """Products of all slices, with one row added to each; then of most, with other readers, whose results are one tensor again."""
    x, w, row = k.x(k.b, 5, k.d), k.weights(k.d, 3), k.weights(3)
    cuts = [o.Slice(starts=(0, t, 0), sizes=(k.b, 1, k.d), steps=(1, 1, 1))(x) for t in range(5)]
    added = [o.Add()(o.Matmul()(o.Reshape(shape=(k.b, k.d))(c), w), row) for c in cuts]
    others = [o.Matmul()(o.Neg()(c), w) for c in cuts]
    return [*map(o.Tanh(), added), *(o.Matmul()(c, w) for c in cuts[1:]), o.Concat(axis=1)(*others)]


def added_up(k: Kit) -> Any:
    """Products, sums, and values in zeros: alone, in places twice, every second, and such that meet."""
    shape = (k.b, 6)
    xs, ys = ([k.x(2, n) for _ in range(4)] for n in (16, 6))
    products = [o.Matmul(transpose_a=True)(x, y) for x, y in zip(xs, ys, strict=True)]
    sums = [o.Reshape(shape=(6,))(o.Sum(axes=(0,), keepdims=True)(y)) for y in ys]
    zeros = [o.Expand(shape=(k.b, n))(k.c(0.0)) for n in range(7)]
    v = [k.x(k.b, 2) for _ in range(6)]
    joined = [o.Concat(axis=1)(v[0], zeros[4]), o.Pad(lo=(0, 2), hi=(0, 2))(v[1]), o.Concat(axis=1)(zeros[3], v[2], zeros[1]),
              o.Concat(axis=1)(zeros[4], v[3]), o.Concat(axis=1)(zeros[4], v[4])]
    every = [o.UpdateSlice(axis=1, start=i, step=2)(zeros[4], x) for i, x in enumerate((v[5], o.Neg()(v[5])))]
    apart = [o.Pad(lo=(0, 0), hi=(0, 4), value=-0.0)(o.Exp()(v[0])), o.Pad(lo=(0, 2), hi=(0, 2), value=-0.0)(o.Exp()(v[1]))]
    add = o.Add()

    def total(values: list[Any]) -> Any:
        first, *others = values
        for x in others:
            first = add(first, x)
        return first

    assert all(x.shape == shape for x in (*joined, *apart))
    behind = o.Pad(lo=(0, 2), hi=(0, 0))(total(every))
    some = [o.Concat(axis=1)(o.Neg()(v[0]), zeros[4]), behind, k.x(k.b, 6)]
    return [total(products), total(sums), total(joined), total(some), total(apart)]


def neighbours(k: Kit) -> list[Any]:
    """Slices of elementwise results: of results of slices, of what is broadcast, every second, of sums that a reduction reads, too."""
    cut: Any = lambda v, start, size, step=1: o.Slice(starts=(0, start), sizes=(v.shape[0], size), steps=(1, step))(v)
    column, row = k.x(3, 1), k.x(9)
    steps = o.Mul()(o.Sub()(column, row), k.x(3, 9))
    for n in (8, 7):
        steps = o.Add()(o.Mul()(cut(steps, 0, n), k.scalar()), o.Div()(cut(steps, 1, n), k.x(3, n)))
    halves = o.Exp()(k.x(4, 8))
    both = o.Neg()(k.x(4, 8))
    gated = o.Mul()(cut(halves, 0, 4, 2), o.Sigmoid()(cut(halves, 1, 4, 2)))
    return [o.Tanh()(steps), gated, o.Abs()(cut(both, 2, 3)), o.Sum(axes=(1,))(both)]


def steps_of_a_loop(k: Kit) -> list[Any]:
    """States that the next step takes as they are, and results that are stacked."""
    x, first, state, rows = k.x(k.b, 4, k.d), k.x(k.d), k.x(k.b, k.d), []
    for t in range(4):
        at = o.Slice(starts=(0, t, 0), sizes=(k.b, 1, k.d), steps=(1, 1, 1))(x)
        e = o.Exp()(o.Mul()(at, first))
        rows.append(o.Div()(o.Add()(o.Reshape(shape=(k.b, 1, k.d))(state), e), o.Add()(o.Square()(e), k.c(1.0))))
        state = o.Mul()(o.Tanh()(state), o.Reshape(shape=(k.b, k.d))(at))
    return [o.Concat(axis=1)(*rows), state, rows[1]]


EVERY = (*pipeline(), SliceFirst(), DropOnes())
PROBES: dict[str, tuple[Changes, list[Any]]] = {
    "cse": ("nothing", [twins]), "dce": ("nothing", [unread]), "fold-constants": ("nothing", [constants]), "fuse": ("nothing", [regions]),
    "merge-matmuls": ("rounding", [merged]), "simplify-control": ("nothing", [traced(loop, (3, 2), (2,))]),
    "join-steps": ("rounding", [products_of_slices, added_up]),
    "slice-first": ("nothing", [neighbours]), "drop-ones": ("nothing", [steps_of_a_loop]),
    "canonicalize": ("rounding", [lambda k: o.Svd(vectors=True)(k.c(np.eye(2)))[0]]),
}


def applied(owner: Pass, probe: Any, dtype: DType) -> tuple[Kit, Graph, Log] | None:
    kit = Kit(dtype)
    if probe(kit) is None:
        ready: Kit | None = kit
    else:
        ready = built(probe, {"dtype": dtype})
    if ready is None:
        return None
    log = Log()
    with log.entered(owner.name):
        after = owner.run(ready.graph.clone()[0], log)
    return ready, after, log


def logged() -> set[str]:
    """The names that passes write into the log by themselves."""
    texts = [p.read_text() for p in Path(tilewright.passes.__path__[0]).glob("*.py")]
    found = {name for text in texts for call in re.findall(r"hit\((.*)\)", text) for name in re.findall(r'(?<!f)"(\w+)"', call)}
    assert {"values_alone", "known_branch", "unused_operands"} <= found
    return found


def test_every_pass_has_a_probe() -> None:
    names = {p.name for p in pipeline() if not p.rules} | {c.name for c in ON_GPUS}
    assert names <= {*PROBES, *ELSEWHERE, "decompose"}
    written: set[str] = set()
    for p in EVERY:
        for probe in PROBES.get(p.name, ("nothing", []))[1]:
            found = applied(p, probe, dt.f32)
            assert found is not None
            written |= set(found[2].hits.get(p.name, ()))
    assert logged() - written - ELSEWHERE.keys() == set()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", PROBES)
def test_a_pass_keeps_what_it_says(name: str) -> None:
    rng, owner = fresh_rng(), next(p for p in EVERY if p.name == name)
    changes, probes = PROBES[name]
    for probe in probes:
        for dtype in FLOATS if name != "simplify-control" and name != "canonicalize" else (dt.f32, dt.f64):
            found = applied(owner, probe, dtype)
            if found is None:
                continue
            kit, after, _ = found
            for inputs in draws(kit, rng, 6, changes):
                assert not differences(kit.graph, after, inputs, changes, rng)


LINEAR = "what an infinity or a number at the end of the range does depends on the order of the steps"
APART = {  # composites whose decomposition is not held to special values here, and why
    **dict.fromkeys(("det", "pinv", "solve", "real_dft", "real_dft_back", "dft"), LINEAR),
    **dict.fromkeys(("attention_backward", "attention_saved", "norm_backward", "lora_matmul", "paged_attention"), LINEAR),
    **dict.fromkeys(("grouped_matmul", "index_order", "max_pool_backward", "scatter_ordered", "softmax_cross_entropy"),
                    "random indices are out of range"),
    **dict.fromkeys(("quantize", "requantize"), "half a unit decides between two quantized values"),
    **dict.fromkeys(("fake_quantize", "dequantize", "resize"), "the formula multiplies by a scale and divides by it, or by a weight of 0"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(n for n, c in o.REGISTRY.items() if c.traits.composite and n not in APART))
def test_decompositions(name: str) -> None:
    """A composite and what it is taken apart into."""
    rng = fresh_rng()
    for sample in o.REGISTRY[name].samples:
        if not all(t.is_static and t.dtype.kind != "c" for t in sample.types):
            continue
        k = Kit(sample.types[0].dtype)
        node = k.graph.add(o.REGISTRY[name](**sample.attrs), *(k.graph.input(t, f"x{i}") for i, t in enumerate(sample.types)))
        if not node.op.decomposes(node.operands, None):
            continue
        k.tame, k.graph.outputs = [False] * len(sample.types), list(node.values)
        after = Decompose().run(k.graph.clone()[0], Log())
        for drawn in draws(k, rng, 4, "rounding", PRODUCTS.get(k.dtype.name, 2)):  # references compute in f64, which ends elsewhere
            inputs = sample.fitted(drawn)
            assert not differences(k.graph, after, inputs, "rounding", rng)
