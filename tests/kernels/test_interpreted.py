"""The kernels that templates build, in the tile interpreter, against the graph's own reference: no machine code in between.

Every op's samples (odd and zero sizes, symbolic dims) go through the passes and `select`; below stand the regions and forms that samples
cannot have. A template that no case reaches fails `test_every_template_is_reached`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.core.dims import sym
from tilewright.core.dtypes import bf16, bool_, f16, f32, i64, real_of
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.kernels.select import TEMPLATES, select
from tilewright.ops import functions as F
from tilewright.ops.attention.forward import Attention, Rope
from tilewright.ops.base import REGISTRY, single
from tilewright.ops.families import Composite, Elementwise
from tilewright.ops.matmul.contractions import Matmul
from tilewright.ops.packed.quant_dot import FORMATS
from tilewright.ops.rows.norms import LayerNorm
from tilewright.passes.pipeline import run_pipeline
from tilewright.tile.ir import Block, Instr, Kernel

from .harness import target
from .interpreted import interpret_graph
from .test_qdot import packed, product
from .test_registry import CASES, RTOL, build, values
from .test_templates import draw, fused, t

S = sym("S", 1, 64)


def agree(graph: Graph, got: list[Any], want: list[Any]) -> None:
    for g, w, v in zip(got, want, graph.outputs, strict=True):
        if v.dtype.is_float or v.dtype.kind == "c":
            wide = np.complex128 if v.dtype.kind == "c" else np.float64
            x, y = g.astype(wide), np.asarray(w).astype(wide)
            limit = RTOL[real_of(v.dtype).name]
            np.testing.assert_allclose(x, y, rtol=limit, atol=limit * max(1.0, float(np.abs(y[np.isfinite(y)]).max(initial=0))))
        else:
            np.testing.assert_array_equal(g, w)


def check(graph: Graph, level: str = "avx512", **env: int) -> None:
    rng = fresh_rng()
    inputs = [draw(rng, v.type, env) for v in graph.inputs]
    got, error = interpret_graph(graph, inputs, level)
    assert not error.any()
    agree(graph, got, run(graph, inputs))


# Elementwise ops share one template, and tests/ops runs each of their lowerings: one sample of each is enough here.
SAMPLES = [(n, i) for n, i in CASES if i == 0 or not issubclass(REGISTRY[n], Elementwise)]


def optimised(graph: Graph) -> Graph:
    """After the passes; composites that have a kernel on the target keep it."""
    here = target("avx512")
    own = any(isinstance(n.op, Composite) and not n.op.decomposes(n.operands, here) for n in graph.nodes)
    return run_pipeline(graph, here if own else None)


@pytest.mark.parametrize(("name", "index"), SAMPLES, ids=[f"{n}-{i}" for n, i in SAMPLES])
def test_samples(name: str, index: int) -> None:
    op = REGISTRY[name]
    graph = build(op, op.samples[index])
    rng = np.random.default_rng(index)  # samples of quantized formats need bytes that are sane numbers
    inputs = [*values(op.samples[index], {"N": 5, "M": 3}, rng), np.zeros(5, "i1"), np.zeros(3, "i1")]
    got, error = interpret_graph(optimised(graph), inputs)
    assert not error.any()
    agree(graph, got, run(graph, inputs))


@pytest.mark.parametrize("level", ["avx512", "baseline"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 65, 70), (3, 5, 0), (0, 4, 4), (14, 33, 130)])
def test_matmul_with_prologue_and_epilogue(level: str, m: int, n: int, k: int) -> None:
    w = fresh_rng().standard_normal((n, k)).astype("f4")

    def body(g: Graph, v: tuple[Value, ...]) -> Value:
        return F.add(F.gelu(F.add(Matmul(transpose_b=True)(v[0], g.constant(w, "w")), v[1])), v[2])

    check(single(body, t(f32, m, k), t(f32, n), t(f32, m, n)), level)


@pytest.mark.parametrize("rows", [1, 6, 13])
def test_matmul_for_any_number_of_rows(rows: int) -> None:
    def body(v: tuple[Value, ...]) -> Value:
        return F.relu(Matmul(transpose_b=True)(v[0], v[1]))

    check(fused(body, t(f32, 2, S, 24), t(f32, 40, 24)), S=rows)


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_matmul_of_small_floats(dtype: Any) -> None:
    w = fresh_rng().standard_normal((19, 37)).astype(dtype.np)
    check(single(lambda g, v: Matmul()(v[0], g.constant(w, "w")), t(dtype, 3, 19)))


@pytest.mark.parametrize("level", ["avx512", "baseline"])
@pytest.mark.parametrize(("sq", "sk"), [(1, 1), (1, 40), (5, 17), (33, 70)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(level: str, sq: int, sk: int, causal: bool) -> None:
    op = Attention(scale=0.3, causal=causal, offset=sk - sq)
    check(single(lambda g, v: op(*v), t(f32, 1, 4, sq, 8), t(f32, 1, 2, sk, 8), t(f32, 1, 2, sk, 12)), level)


@pytest.mark.parametrize(("mask", "bias", "window", "softcap"), [
    (True, False, None, None), (False, True, 5, None), (True, True, None, 3.0), (False, False, 3, 2.0)])
def test_attention_with_everything(mask: bool, bias: bool, window: int | None, softcap: float | None) -> None:
    op = Attention(scale=0.25, causal=window is not None, window=window, softcap=softcap, has_mask=mask, has_bias=bias)
    types = [t(f32, 1, 2, 21, 8)] * 3 + ([t(bool_, 1, 1, 21, 21)] if mask else []) + ([t(f32, 2, 1, 21)] if bias else [])
    check(single(lambda g, v: op(*v), *types))


@pytest.mark.parametrize("s", [1, 19])
def test_attention_rotates_and_reads_one_buffer(s: int) -> None:
    def body(g: Graph, v: tuple[Value, ...]) -> Value:
        parts = F.split(v[0], 2, (32, 32, 32))
        q, k, x = (F.transpose(F.reshape(p, (1, S, 2, 16)), (0, 2, 1, 3)) for p in parts)
        q, k = Rope()(q, v[1], v[2]), Rope()(k, v[1], v[2])
        return F.reshape(F.transpose(Attention(scale=0.25, causal=True)(q, k, x), (0, 2, 1, 3)), (1, S, 32))

    check(single(body, t(f32, 1, S, 96), t(f32, S, 8), t(f32, S, 8)), S=s)


@pytest.mark.parametrize("level", ["avx512", "baseline"])
@pytest.mark.parametrize("n", [1, 15, 70])
def test_residual_and_norm(level: str, n: int) -> None:
    def body(v: tuple[Value, ...]) -> Any:
        s = F.add(v[0], v[1])
        return s, F.relu(LayerNorm(eps=1e-5, affine="both")(s, v[2], v[3]))

    check(fused(body, t(f32, 3, n), t(f32, 3, n), t(f32, n), t(f32, n)), level)


def swept(n: int) -> Graph:
    """Deviations from rows' means, over the sum of their squares; and that sum."""

    def body(g: Any, v: Any) -> Any:
        d = F.sub(v[0], F.mean(v[0], (1,), keepdims=True))
        total = F.sum_(F.square(d), (1,), keepdims=True)
        return F.div(d, total), total

    return single(body, t(f32, 9, n))


@pytest.mark.parametrize("level", ["avx512", "baseline"])
@pytest.mark.parametrize("n", [64, 131])
def test_reductions_go_back_along_their_rows(level: str, n: int) -> None:
    check(run_pipeline(swept(n)), level)


def test_views_copies_and_several_outputs() -> None:
    def body(g: Graph, v: tuple[Value, ...]) -> Any:
        x = F.transpose(v[0], (1, 0, 2))
        return F.reshape(x, (3, 10)), F.relu(x), v[0]

    check(single(body, t(f32, 2, 3, 5)))


def test_a_tied_weight_is_gathered_from_panels() -> None:
    w = fresh_rng().standard_normal((70, 24)).astype("f4")

    def body(g: Graph, v: tuple[Value, ...]) -> Value:
        c = g.constant(w, "wte")
        return F.matmul(F.relu(F.gather(c, v[0])), c, transpose_b=True)

    check(single(body, t(i64, 1, S)), S=3)


@pytest.mark.parametrize("name", FORMATS)
def test_integer_products(name: str) -> None:
    rng = fresh_rng()
    k = 256 if name.endswith("K") else 64
    graph = product(name, packed(name, 19, k, rng), k, 2)
    x = rng.standard_normal((2, 2, k)).astype("f4")
    got, _ = interpret_graph(graph, [x])
    want = run(graph, [x])[0].astype(np.float64)
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))


def test_a_bad_index_is_reported() -> None:
    graph = single(lambda g, v: F.gather(v[0], v[1]), t(f32, 3, 4), t(i64, 2))
    _, error = interpret_graph(graph, [np.zeros((3, 4), "f4"), np.array([1, 7])])
    assert error.tolist()[0] == 1
    assert error.tolist()[2:] == [1, 7]


# constant stacks of matrices, which no sample of an op can have: tests/llm; kernels of users: tests/lang
ELSEWHERE = {"QExpertsDotTemplate", "Own"}


def test_every_template_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases above are all there is to run; `select` alone says which templates they use."""
    used: set[str] = set()
    for template in TEMPLATES:
        kind = type(template)

        def building(self: Any, *args: Any, kind: Any = kind, build: Any = kind.build) -> Any:
            used.add(kind.__name__)
            return build(self, *args)

        monkeypatch.setattr(kind, "build", building)
    for name, index in SAMPLES:
        if not issubclass(REGISTRY[name], Elementwise):
            select(optimised(build(REGISTRY[name], REGISTRY[name].samples[index])), target("avx512"))
    select(product("Q4_0", packed("Q4_0", 19, 64, fresh_rng()), 64, 2), target("avx512"))
    select(run_pipeline(swept(64)), target("avx512"))
    assert {type(x).__name__ for x in TEMPLATES} - used <= ELSEWHERE


def swapped(block: Block, wanted: str, other: str) -> tuple[Block, int]:
    """The block with every `wanted` instruction made an `other`, and how many there were."""
    body: list[Instr] = []
    count = 0
    for i in block.body:
        inner = [swapped(b, wanted, other) for b in i.blocks]
        count += sum(n for _, n in inner) + (i.op == wanted)
        body.append(dataclasses.replace(i, op=other if i.op == wanted else i.op, blocks=[b for b, _ in inner]))
    return dataclasses.replace(block, body=body), count


BREAKABLE: list[tuple[str, str, Callable[[], Graph]]] = [
    ("add", "sub", lambda: single(lambda g, v: F.add(v[0], v[1]), t(f32, 5), t(f32, 5))),
    ("max", "min", lambda: single(lambda g, v: F.relu(Matmul()(v[0], v[1])), t(f32, 3, 8), t(f32, 8, 5))),
    ("exp", "abs", lambda: single(lambda g, v: F.apply("softmax", v[0], axis=1), t(f32, 3, 9))),
    ("mul", "add", lambda: single(lambda g, v: Attention(scale=0.5)(*v), *[t(f32, 1, 1, 5, 8)] * 3)),
]


@pytest.mark.parametrize(("wanted", "other", "graph"), BREAKABLE, ids=[a for a, _, _ in BREAKABLE])
def test_this_suite_can_fail(wanted: str, other: str, graph: Callable[[], Graph]) -> None:
    """One instruction exchanged in every kernel: the comparison must notice."""
    found = 0

    def broken(kernel: Kernel) -> Kernel:
        nonlocal found
        body, count = swapped(kernel.body, wanted, other)
        found += count
        return dataclasses.replace(kernel, body=body)

    g = graph()
    inputs = [draw(np.random.default_rng(3), v.type, {}) for v in g.inputs]
    got, _ = interpret_graph(g, inputs)
    agree(g, got, run(g, inputs))
    got, _ = interpret_graph(g, inputs, change=broken)
    assert found > 0
    with pytest.raises(AssertionError):
        agree(g, got, run(g, inputs))


def test_leaving_a_buffer_is_noticed() -> None:
    """The interpreter checks every access: a limit taken away must be an error, not a wrong number."""
    from tilewright.core.errors import ExecutionError

    def unlimited(block: Block) -> Block:
        body = []
        for i in block.body:
            attrs, operands = dict(i.attrs), i.operands
            if i.op == "load" and attrs.get("limits"):
                operands = operands[: -len(attrs["limits"])]
                attrs = {"axes": attrs["axes"]}
            body.append(dataclasses.replace(i, attrs=attrs, operands=operands, blocks=[unlimited(b) for b in i.blocks]))
        return dataclasses.replace(block, body=body)

    g = single(lambda g, v: F.relu(v[0]), TensorType(f32, (5,)))
    x = np.ones(5, "f4")
    with pytest.raises(ExecutionError, match="touches elements"):
        interpret_graph(g, [x], change=lambda k: dataclasses.replace(k, body=unlimited(k.body)))
