"""Experts: grouped products against PyTorch's and transformers', and what they may not do: copy matrices, depend on other rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as T
from torch import Tensor, nn
from transformers.integrations import moe

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.dtypes import dtype
from tilewright.core.errors import ExecutionError
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops import GroupedGemm, GroupedMatmul, Matmul
from tilewright.ops.base import single
from tilewright.passes.pipeline import run_pipeline
from tilewright.runtime.session import Session


def type_of(a: Any) -> TensorType:
    return TensorType(dtype(a.dtype), a.shape)


def check(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def ends_of(rows: int, groups: int) -> Tensor:
    cuts = np.sort(fresh_rng().integers(0, rows + 1, groups - 1))
    return torch.tensor([*cuts, rows], dtype=torch.int32)


FORMS = {  # torch needs rows of a multiple of 16 bytes
    "rows": ((40, 24), (5, 24, 16)),
    "columns": ((5, 16, 24), (24, 40)),
    "depth": ((16, 40), (40, 24)),
    "batch": ((5, 8, 24), (5, 24, 16)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("turned", [False, True])
def test_grouped_mm(form: str, turned: bool) -> None:
    """Groups of rows, of columns, of the depth, and a plain batch; operands as they lie and transposed."""
    left, right = (torch.randn(*shape) for shape in FORMS[form])
    if turned:
        left, right = (v.mT.contiguous().mT for v in (left, right))
    offs = None if form == "batch" else ends_of(40, 5)
    model = lambda a, b, *o: torch.nn.functional.grouped_mm(a, b, offs=o[0] if o else None)
    args = (left, right) if offs is None else (left, right, offs)
    check(tw.compile(model, args)(*args), model(*args))


def test_16_bit_floats() -> None:
    x, w, offs = torch.randn(40, 24).bfloat16(), torch.randn(5, 16, 24).bfloat16(), ends_of(40, 5)
    model = lambda x, o: torch.nn.functional.grouped_mm(x, w.mT, offs=o)
    got, exact = tw.compile(model, (x, offs))(x, offs), moe._grouped_mm_fallback(x.double(), w.mT.double(), offs)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-4)


def test_transformers_own_op() -> None:
    x, w, offs = torch.randn(40, 24), torch.randn(5, 16, 24), ends_of(40, 5)
    model = lambda x, w, o: torch.ops.transformers.grouped_mm_fallback(x, w.mT, o)
    check(tw.compile(model, (x, w, offs))(x, w, offs), moe._grouped_mm_fallback(x, w.mT, offs))


# --- bits and memory -------------------------------------------------------------------------------------------------------------------


def grouped(w: Any, rows: int, *, constant: bool = True, transpose_b: bool = True, threads: int = 1) -> Session:
    g = Graph("grouped")
    depth = w.shape[2 if transpose_b else 1]
    x, ends = g.input(type_of(np.zeros((rows, depth), np.float32)), "x"), g.input(type_of(np.zeros(len(w), np.int64)), "ends")
    stack = g.constant(w, "w") if constant else g.input(type_of(w), "w")
    g.outputs = [GroupedGemm(transpose_b=transpose_b)(x, stack, ends)]
    return tw.compile(g, threads=threads)


@pytest.mark.parametrize("n, k", [(64, 64), (70, 33), (5, 600), (200, 1100)])
@pytest.mark.parametrize("constant, transpose_b", [(True, True), (True, False), (False, True), (False, False)])
def test_an_element_has_the_bits_of_a_plain_product(n: int, k: int, constant: bool, transpose_b: bool) -> None:
    """For one thread or two, constant matrices or not, with groups of no rows, many rows (few have a kernel of their own), and rows of no
    group."""
    rng = fresh_rng()
    w = rng.normal(size=(4, n, k)).astype(np.float32)
    stack = w if transpose_b else np.ascontiguousarray(w.transpose(0, 2, 1))
    x, ends = rng.normal(size=(300, k)).astype(np.float32), np.array([17, 17, 287, 297])
    rest = () if constant else (stack,)
    results = [grouped(stack, 300, constant=constant, transpose_b=transpose_b, threads=t)(x, ends, *rest) for t in (1, 2)]
    want = np.zeros((300, n), np.float32)
    for i, (a, b) in enumerate(zip([0, *ends], ends, strict=False)):
        if b > a:
            g = single(lambda _, v: Matmul(transpose_b=True)(*v), type_of(x[a:b]), type_of(w[i]))
            want[a:b] = tw.compile(g)(x[a:b].copy(), w[i].copy())
    for got in results:
        np.testing.assert_array_equal(got, want)


def test_no_matrix_is_copied() -> None:
    """What lies between launches: the rows in order, the list of blocks. (A copy of a matrix for each row would be 64 MB.)"""
    rng = fresh_rng()
    w = rng.normal(size=(8, 256, 256)).astype(np.float32)
    f = tw.jit(lambda x, ids: tw.grouped_matmul(x, w, ids))
    x, ids = rng.normal(size=(256, 256)).astype(np.float32), rng.integers(0, 8, 256)
    np.testing.assert_allclose(f(x, ids), np.einsum("mk,mkn->mn", x.astype(np.float64), w[ids]), rtol=1e-4, atol=1e-4)
    assert f.lower(x, ids).report().data["arena"]["bytes"] < 1 << 20


def test_an_index_out_of_range_is_reported() -> None:
    x, w = np.ones((3, 4), np.float32), np.ones((2, 4, 5), np.float32)
    for bad in (-1, 2):
        with pytest.raises(ExecutionError, match=f"grouped_matmul: index out of range, got {bad} at position 1; must be in 0..1"):
            tw.grouped_matmul(x, w, np.array([0, bad, 1]))


def test_counts_are_whole_where_floats_are_small() -> None:
    """300 of each of 130 numbers: bf16 holds neither the counts nor the places of the numbers among the bins."""
    count = lambda ids: torch.histc(ids.float(), bins=130, min=0, max=129).to(torch.int32).cumsum(0)
    ids = torch.arange(130).repeat(301)[:-1]
    assert torch.equal(tw.compile(count, (ids,), dtype="bf16")(ids), count(ids))


def test_ends_that_make_no_sense_touch_no_memory_outside() -> None:
    """torch leaves it undefined; here a group never begins before its predecessor's end, nor ends beyond the rows."""
    w = fresh_rng().normal(size=(4, 8, 8)).astype(np.float32)
    x = fresh_rng().normal(size=(10, 8)).astype(np.float32)
    session = grouped(w, 10)
    np.testing.assert_array_equal(session(x, np.array([4, 2, 1 << 40, 5])), session(x, np.array([4, 4, 10, 10])))
    np.testing.assert_array_equal(session(x, np.array([-3, -1, -7, 3])), session(x, np.array([0, 0, 0, 3])))


def test_derivatives_are_pytorchs() -> None:
    x, w = torch.randn(30, 12, requires_grad=True), torch.randn(4, 12, 20, requires_grad=True)
    ends = ends_of(30, 4)
    loss = (torch.cat([x[a:b] @ w[i] for i, (a, b) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))]) ** 2).sum()
    loss.backward()

    def ours(x: Any, w: Any) -> Any:
        ids = np.searchsorted(ends.numpy(), np.arange(30), side="right")
        return tw.sum(tw.grouped_matmul(x, w, ids) ** 2)

    dx, dw = tw.jit(tw.grad(ours, argnums=(0, 1)))(x.detach().numpy(), w.detach().numpy())
    assert x.grad is not None and w.grad is not None
    check(torch.from_numpy(dx), x.grad)
    check(torch.from_numpy(dw), w.grad)


# --- models ----------------------------------------------------------------------------------------------------------------------------


class Logits(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.model(ids, use_cache=False).logits
        return out


def small(way: str) -> Logits:
    config = T.Qwen3MoeConfig(hidden_size=64, intermediate_size=48, moe_intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                              num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2, vocab_size=100, use_cache=False)
    model = T.Qwen3MoeForCausalLM(config).eval()
    model.set_experts_implementation(way)
    return Logits(model)


@pytest.mark.parametrize("way", ["eager", "batched_mm", "grouped_mm"])
def test_every_way_of_transformers_is_a_grouped_product(way: str) -> None:
    model, ids = small(way), torch.randint(0, 100, (2, 9))
    session = tw.compile(model, (ids,))
    with torch.no_grad():
        check(session(ids), model(ids))
    assert sum(isinstance(n.op, GroupedGemm) for b in bodies(session.model.graph) for n in b.nodes) == 4
    assert model.model.config._experts_implementation == way and moe.ExpertsInterface.get_interface.__name__ == "get_interface"


def bodies(graph: Graph) -> list[Graph]:
    return [graph, *(n.op.body for n in graph.nodes if n.op.name == "fused")]  # type: ignore[attr-defined]


def test_training_of_experts() -> None:
    """Gradients of all parameters, those of experts and router among them."""
    model, ids = small("grouped_mm"), torch.randint(0, 100, (2, 9))
    apply, params = tw.from_torch(model, (ids,))
    grads = tw.grad(lambda p: tw.sum(apply(p, ids.numpy()) ** 2))(params)
    model.model.set_experts_implementation("eager")
    (model(ids) ** 2).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        scale = float(p.grad.abs().max()) + 1e-6
        np.testing.assert_allclose(grads[name] / scale, p.grad.numpy() / scale, atol=2e-4, err_msg=name)


def test_products_that_are_no_lookups_stay_what_they_are() -> None:
    """Several rows a matrix, indices of two axes, another scale: batched products."""
    cases = [lambda x, w, i: x @ w[i], lambda x, w, i: x[:, :1] @ w[i] * 1.0]
    x, w, ids = torch.randn(6, 3, 8), torch.randn(4, 8, 5), torch.randint(0, 4, (6,))
    for number, fn in enumerate(cases):
        session = tw.compile(fn, (x, w, ids))
        check(session(x, w, ids), fn(x, w, ids))
        found = any(isinstance(n.op, GroupedGemm) for b in bodies(session.model.graph) for n in b.nodes)
        assert found == (number == 1)


def test_a_lookup_and_a_product_become_one_op() -> None:
    def build(_: Graph, v: Any) -> Any:
        from tilewright.ops import functions as F

        return F.matmul(F.gather(v[0], v[1], 0), v[2])

    types = [type_of(np.zeros(s, np.float32)) for s in ((4, 5, 8), (6, 8, 1))]
    g = single(build, types[0], type_of(np.zeros(6, np.int64)), types[1])
    names = [n.op.name for n in run_pipeline(g).nodes]
    assert "grouped_gemm" in names and "matmul" not in names
    assert GroupedMatmul.name == "grouped_matmul"
