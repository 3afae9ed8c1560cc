"""The model families of the end-to-end tests: builder, inputs for a batch size and a length, and the axes that may vary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from tests.models import hugging, plain
from tilewright.core.dims import sym
from tilewright.frontend.torch.importer import Imported, import_torch

B, S = sym("B", 1, 16), sym("S", 1, 64)
Args = tuple[Any, ...]


def ids(b: int, s: int) -> torch.Tensor:
    return torch.randint(0, hugging.VOCAB, (b, s))


def mask(b: int, s: int) -> torch.Tensor:
    """Ones, and in every second row zeros behind the middle."""
    m = torch.ones(b, s, dtype=torch.long)
    m[1::2, (s + 1) // 2 :] = 0
    return m


@dataclass(frozen=True)
class Family:
    """`args(b, s)` makes fresh inputs; `dynamic` names the axes that vary with b and s; `rows` says that the batch axis is first
    in every input and output, so that a row may be computed alone."""

    build: Callable[[], torch.nn.Module]
    args: Callable[[int, int], Args]
    dynamic: dict[str, Any] = field(default_factory=dict)
    varies: bool = True  # the length is dynamic too
    rows: bool = True


def _block(spelling: str = "sdpa", *, causal: bool = False) -> Family:
    build = lambda: plain.randomised(plain.Block(24, 3, spelling, causal=causal))
    return Family(build, lambda b, s: (torch.randn(b, s, 24),), {"x": {0: B, 1: S}})


FAMILIES: dict[str, Family] = {
    "mlp": Family(lambda: plain.randomised(plain.MLP(19)), lambda b, s: (torch.randn(b, 19),), {"x": {0: B}}, varies=False),
    "block": _block(),
    "block-naive": _block("softmax"),
    "block-manual-causal": _block("manual", causal=True),
    "llama-block": Family(lambda: plain.randomised(plain.LlamaBlock()), lambda b, s: (torch.randn(b, s, 32),), {"x": {0: B, 1: S}}),
    "gpt2": Family(hugging.gpt2, lambda b, s: (ids(b, s),), {"x": {0: B, 1: S}}),
    "bert": Family(hugging.bert, lambda b, s: (ids(b, s), mask(b, s)), {"ids": {0: B, 1: S}, "mask": {0: B, 1: S}}),
    "llama": Family(hugging.llama, lambda b, s: (ids(b, s),), {"x": {0: B, 1: S}}),
    "vit": Family(hugging.vit, lambda b, s: (torch.randn(b, 3, 32, 32),), {"x": {0: B}}, varies=False),
    "resnet": Family(hugging.resnet, lambda b, s: (torch.randn(b, 3, 32, 32),), {"x": {0: B}}, varies=False),
    "convnet": Family(lambda: plain.randomised(plain.ConvNet()), lambda b, s: (torch.randn(b, 3, 17, 13),), {"x": {0: B}}, varies=False),
}
EAGER: dict[str, Family] = {
    "gpt2-eager": Family(lambda: hugging.gpt2("eager"), FAMILIES["gpt2"].args, FAMILIES["gpt2"].dynamic),
    "bert-eager": Family(lambda: hugging.bert("eager"), FAMILIES["bert"].args, FAMILIES["bert"].dynamic),
    "llama-eager": Family(lambda: hugging.llama("eager"), FAMILIES["llama"].args, FAMILIES["llama"].dynamic),
    "resnet-basic": Family(lambda: hugging.resnet("basic"), FAMILIES["resnet"].args, FAMILIES["resnet"].dynamic, varies=False),
}
ALL = FAMILIES | EAGER


@cache
def module_of(name: str) -> torch.nn.Module:
    """The module of a family, in f32; shared, so nobody may change it."""
    return ALL[name].build()


@cache
def imported(name: str, *, dynamic: bool = False, b: int = 2, s: int = 7) -> Imported:
    """A family's graph: exported once, compiled in many ways."""
    family = ALL[name]
    return import_torch(module_of(name), family.args(b, s), dynamic=family.dynamic if dynamic else None, name=name)
