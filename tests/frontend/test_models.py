"""Every model family: the interpreter on the imported graph equals PyTorch, static and with dynamic dims."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.models import hugging, plain
from tilewright.core.dims import sym
from tilewright.frontend.torch import import_torch
from tilewright.ir.parse import parse
from tilewright.ir.text import constants_of, to_text
from tilewright.ops import Attention, Constant, Matmul

from .check import check

S, B = sym("S", 1, 64), sym("B", 1, 16)


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, hugging.VOCAB, shape)


def mask(b: int, s: int) -> torch.Tensor:
    m = torch.ones(b, s, dtype=torch.long)
    if b > 1:
        m[1, (s + 1) // 2 :] = 0
    return m


STATIC: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "mlp": lambda: (plain.randomised(plain.MLP(9)), (torch.randn(3, 9),)),
    "block": lambda: (plain.randomised(plain.Block(16, 2)), (torch.randn(2, 5, 16),)),
    "block-softmax": lambda: (plain.randomised(plain.Block(16, 2, "softmax")), (torch.randn(2, 5, 16),)),
    "block-manual-causal": lambda: (plain.randomised(plain.Block(16, 2, "manual", causal=True)), (torch.randn(2, 5, 16),)),
    "block-sdpa-causal": lambda: (plain.randomised(plain.Block(16, 2, causal=True)), (torch.randn(1, 7, 16),)),
    "llama-block": lambda: (plain.randomised(plain.LlamaBlock()), (torch.randn(2, 7, 32),)),
    "convnet": lambda: (plain.randomised(plain.ConvNet()), (torch.randn(2, 3, 17, 13),)),
    "gpt2": lambda: (hugging.gpt2(), (ids(1, 7),)),
    "gpt2-eager": lambda: (hugging.gpt2("eager"), (ids(2, 5),)),
    "bert": lambda: (hugging.bert(), (ids(2, 6), mask(2, 6))),
    "bert-eager": lambda: (hugging.bert("eager"), (ids(2, 6), mask(2, 6))),
    "llama": lambda: (hugging.llama(), (ids(2, 6),)),
    "llama-eager": lambda: (hugging.llama("eager"), (ids(1, 6),)),
    "vit": lambda: (hugging.vit(), (torch.randn(2, 3, 32, 32),)),
    "resnet": lambda: (hugging.resnet(), (torch.randn(1, 3, 32, 32),)),
    "resnet-basic": lambda: (hugging.resnet("basic"), (torch.randn(2, 3, 32, 32),)),
}


@pytest.mark.parametrize("name", STATIC)
def test_static(name: str) -> None:
    module, args = STATIC[name]()
    check(module, args)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["mlp", "block", "llama-block", "convnet", "gpt2", "bert", "llama", "vit"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    module, args = STATIC[name]()
    module = copy.deepcopy(module).to(dtype)
    args = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    in_f32 = name == "llama" and dtype == torch.float64  # transformers computes its norms and rope in f32 whatever the module's dtype
    check(module, args, tolerance=1e-5 if in_f32 else None)


DYNAMIC: dict[str, tuple[Callable[[], Any], Callable[[int, int], tuple[Any, ...]], dict[str, Any]]] = {
    "mlp": (lambda: plain.randomised(plain.MLP(9)), lambda b, s: (torch.randn(b, 9),), {"x": {0: B}}),
    "block": (lambda: plain.randomised(plain.Block(16, 2)), lambda b, s: (torch.randn(b, s, 16),), {"x": {0: B, 1: S}}),
    "block-causal": (
        lambda: plain.randomised(plain.Block(16, 2, "softmax", causal=True)),
        lambda b, s: (torch.randn(b, s, 16),),
        {"x": {0: B, 1: S}},
    ),
    "llama-block": (lambda: plain.randomised(plain.LlamaBlock()), lambda b, s: (torch.randn(b, s, 32),), {"x": {0: B, 1: S}}),
    "gpt2": (hugging.gpt2, lambda b, s: (ids(1, s),), {"x": {1: S}}),
    "gpt2-batch": (hugging.gpt2, lambda b, s: (ids(b, s),), {"x": {0: B, 1: S}}),
    "bert": (hugging.bert, lambda b, s: (ids(b, s), mask(b, s)), {"ids": {0: B, 1: S}, "mask": {0: B, 1: S}}),
    "llama": (hugging.llama, lambda b, s: (ids(b, s),), {"x": {0: B, 1: S}}),
    "vit": (hugging.vit, lambda b, s: (torch.randn(b, 3, 32, 32),), {"x": {0: B}}),
    "resnet": (hugging.resnet, lambda b, s: (torch.randn(b, 3, 32, 32),), {"x": {0: B}}),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic(name: str) -> None:
    build, args, dynamic = DYNAMIC[name]
    imported = check(build(), args(2, 7), dynamic=dynamic, more=[args(1, 1), args(1, 2), args(3, 9), args(1, 64), args(2, 33)])
    assert {s.name for s in imported.graph.symbols()} <= {"S", "B"}
    assert all(s in {next(iter(S.symbols)), next(iter(B.symbols))} for s in imported.graph.symbols())


@pytest.mark.parametrize("name", ["gpt2", "llama", "resnet"])
def test_imported_graphs_survive_text(name: str) -> None:
    build, args, dynamic = DYNAMIC[name]
    graph = import_torch(build(), args(2, 7), dynamic=dynamic).graph
    text = to_text(graph)
    assert to_text(parse(text, constants_of(graph))) == text


def test_composites_are_kept() -> None:
    names = [n.op.name for n in check(hugging.gpt2(), (ids(1, 7),)).graph]
    assert names.count("layer_norm") == 5
    assert names.count("attention") == 2
    bert = [n.op.name for n in check(hugging.bert(), (ids(2, 6), mask(2, 6))).graph]
    assert bert.count("gelu") == 2
    block = [n.op.name for n in check(plain.randomised(plain.LlamaBlock()), (torch.randn(1, 3, 32),)).graph]
    assert (block.count("rms_norm"), block.count("silu"), block.count("attention")) == (2, 1, 1)
    attention = [n.op for n in check(plain.randomised(plain.LlamaBlock()), (torch.randn(1, 3, 32),)).graph if isinstance(n.op, Attention)]
    assert attention[0].causal


def test_tied_weight_is_one_constant() -> None:
    module: Any = hugging.gpt2()
    imported = check(module, (ids(1, 7),))
    table = module.model.transformer.wte.weight
    found = [n for n in imported.graph if isinstance(n.op, Constant) and n.op.data.array.shape == tuple(table.shape)]
    assert len(found) == 1
    users = imported.graph.users()[found[0].value]
    assert {n.op.name for n in users} == {"gather", "matmul"}


def test_large_weights_are_shared_not_copied() -> None:
    module = plain.randomised(plain.MLP(257))
    imported = check(module, (torch.randn(2, 257),))
    arrays = {n.op.data.name: n.op.data.array for n in imported.graph if isinstance(n.op, Constant)}
    assert set(arrays) == {f"{layer}.{part}" for layer in "abc" for part in ("weight", "bias")}
    for name, p in module.named_parameters():
        assert (arrays[name].ctypes.data == p.data_ptr()) == name.endswith("weight")
    assert sum(isinstance(n.op, Matmul) and n.op.transpose_b for n in imported.graph) == 3


def test_strided_and_bf16_weights() -> None:
    module = torch.nn.Linear(6, 4).to(torch.bfloat16)
    module.weight = torch.nn.Parameter(torch.randn(6, 4).to(torch.bfloat16).t())
    imported = check(module, (torch.randn(2, 6).to(torch.bfloat16),))
    weight = next(n.op.data.array for n in imported.graph if isinstance(n.op, Constant) and n.op.data.name == "weight")
    assert weight.strides == (2, 8)
