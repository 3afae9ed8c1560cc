"""Every model family keeps its results through the pipeline, with each optional pass off in turn, and ends in the intended shape."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.frontend.test_models import DYNAMIC, STATIC
from tests.models import hugging
from tilewright import ops as o
from tilewright.core.dims import sym
from tilewright.frontend.torch.importer import import_torch
from tilewright.frontend.torch.tensors import to_numpy
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.passes.pipeline import optional_passes, run_pipeline

from .graphs import assert_same, names


def flat(imported: Any, args: tuple[Any, ...]) -> list[Any]:
    return [to_numpy(t) for t in imported.signature.flatten(args, {})]


@pytest.mark.parametrize("name", STATIC)
def test_static_with_each_pass_off(name: str) -> None:
    module, args = STATIC[name]()
    imported = import_torch(module, args)
    inputs = flat(imported, args)
    want = run(imported.graph, inputs)
    for disabled in ["", *optional_passes()]:
        graph = run_pipeline(imported.graph, disable=[disabled] if disabled else [], verify=True)
        assert_same(run(graph, inputs), want)


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_with_each_pass_off(name: str) -> None:
    build, args, dynamic = DYNAMIC[name]
    imported = import_torch(build(), args(2, 7), dynamic=dynamic)
    calls = [flat(imported, args(b, s)) for b, s in ((1, 1), (3, 9), (2, 64))]
    wants = [run(imported.graph, c) for c in calls]
    for disabled in ["", *optional_passes()]:
        graph = run_pipeline(imported.graph, disable=[disabled] if disabled else [], verify=True)
        for inputs, want in zip(calls, wants, strict=True):
            assert_same(run(graph, inputs), want)


CONTRACTIONS = (o.Matmul, o.Conv, o.Attention)


def assert_fused(graph: Graph) -> None:
    """No elementwise op of the same shape reads a contraction outside a region."""
    for n in graph.nodes:
        body = n.op.body.nodes if isinstance(n.op, o.Fused) else [n]
        if n.op.traits.elementwise or (isinstance(n.op, o.Fused) and all(k.op.traits.elementwise or k.op.traits.source for k in body)):
            for v in n.operands:
                inner = v.op.body.nodes if isinstance(v.op, o.Fused) else [v.node]
                touching = any(isinstance(k.op, CONTRACTIONS) for k in inner) and v.shape == n.types[0].shape
                assert not touching, f"{n} is not fused into {v.node}"


def attentions(graph: Graph) -> list[o.Attention]:
    return [n.op for n in graph.nodes if isinstance(n.op, o.Attention)]


S, B = sym("S", 1, 64), sym("B", 1, 16)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, hugging.VOCAB, shape)


DECODERS: dict[str, Callable[[str], Any]] = {"gpt2": hugging.gpt2, "llama": hugging.llama}


@pytest.mark.parametrize("dynamic", [None, {"x": {1: S}}, {"x": {0: B, 1: S}}], ids=["static", "S", "B,S"])
@pytest.mark.parametrize("spelling", ["sdpa", "eager"])
@pytest.mark.parametrize("family", DECODERS)
def test_decoders(family: str, spelling: str, dynamic: Any) -> None:
    graph = run_pipeline(import_torch(DECODERS[family](spelling), (tokens(2, 7),), dynamic=dynamic).graph, verify=True)
    found = attentions(graph)
    assert len(found) == 2
    for op in found:
        assert (op.causal, op.offset, op.window, op.has_mask, op.has_bias) == (True, 0, None, False, False)
    assert_fused(graph)
    layer = {"gpt2": ["layer_norm", "matmul+add", "attention", "matmul+add+add", "layer_norm", "matmul+add+gelu", "matmul+add+add"],
             "llama": ["rms_norm", "matmul", "rope", "rope", "attention", "matmul+add", "rms_norm", "matmul", "matmul+silu+mul",
                       "matmul+add"]}[family]
    first = {"gpt2": ["gather+add"], "llama": ["gather"]}[family]
    last = {"gpt2": ["layer_norm", "matmul"], "llama": ["rms_norm", "matmul"]}[family]
    assert names(graph) == [*first, *layer, *layer, *last]  # nothing left of masks, tables and position ids


def test_sliding_window() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    from tests.models.plain import Logits, randomised

    config = MistralConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
                           sliding_window=4, vocab_size=hugging.VOCAB, max_position_embeddings=64, use_cache=False,
                           bos_token_id=0, eos_token_id=0)
    module = randomised(Logits(MistralForCausalLM(config)))
    for dynamic in (None, {"x": {1: S}}):
        imported = import_torch(module, (tokens(1, 9),), dynamic=dynamic)
        graph = run_pipeline(imported.graph, verify=True)
        assert [(a.causal, a.window, a.has_mask) for a in attentions(graph)] == [(True, 4, False)] * 2
        inputs = [tokens(1, 9).numpy()]
        assert_same(run(graph, inputs), run(imported.graph, inputs))


@pytest.mark.parametrize("dynamic", [None, {"ids": {0: B, 1: S}, "mask": {0: B, 1: S}}], ids=["static", "B,S"])
@pytest.mark.parametrize("spelling", ["sdpa", "eager"])
def test_bert_keeps_the_mask_it_is_given(spelling: str, dynamic: Any) -> None:
    args = (tokens(2, 6), torch.ones(2, 6, dtype=torch.long))
    graph = run_pipeline(import_torch(hugging.bert(spelling), args, dynamic=dynamic).graph, verify=True)
    mask = "not_equal" if spelling == "sdpa" else "not_equal+where"  # finfo.min instead of -inf: a bias
    found = attentions(graph)
    assert len(found) == 2
    for op in found:
        assert (op.causal, op.has_mask, op.has_bias) == (False, spelling == "sdpa", spelling == "eager")
    layer = ["matmul+add", "attention", "matmul+add+add", "layer_norm", "matmul+add+gelu", "matmul+add+add", "layer_norm"]
    got = names(graph)
    assert got.count(mask) == 1
    got.remove(mask)
    assert got == ["gather+add+add", "layer_norm", *layer, *layer]
    assert_fused(graph)
    of_mask = [n for n in graph.nodes if isinstance(n.op, o.Attention)]
    assert all(n.operands[3].shape[1:3] == (1, 1) for n in of_mask)  # [B,1,1,S], never [B,1,S,S]


def test_bert_without_mask() -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner: Any = hugging.bert().model

        def forward(self, ids: torch.Tensor) -> Any:
            return self.inner(ids).last_hidden_state

    for dynamic in (None, {"ids": {0: B, 1: S}}):
        graph = run_pipeline(import_torch(Plain().eval(), (tokens(2, 6),), dynamic=dynamic).graph, verify=True)
        assert [(a.causal, a.has_mask, a.has_bias) for a in attentions(graph)] == [(False, False, False)] * 2


@pytest.mark.parametrize("name", ["block", "block-softmax", "block-manual-causal", "vit", "resnet", "convnet", "mlp"])
def test_shapes_of_other_families(name: str) -> None:
    module, args = STATIC[name]()
    graph = run_pipeline(import_torch(module, args).graph, verify=True)
    assert_fused(graph)
    got = names(graph)
    assert not any(n in got for n in ("batch_norm", "softmax", "add", "mul", "relu"))
    if "block" in name:
        assert got == ["layer_norm", "matmul+add", "attention", "matmul+add+add", "layer_norm", "matmul+add+relu", "matmul+add+add"]
        assert attentions(graph)[0].causal == ("causal" in name)
    if name == "convnet":
        assert got == ["conv+add+relu", "max_pool", "conv+add+add+relu", "mean", "matmul+add"]
