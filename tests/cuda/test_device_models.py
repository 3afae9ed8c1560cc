"""Whole modules on a GPU, as a newcomer would bring them: against their values in float64, static and dynamic, in f32 and 16 bits."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree

import tilewright as tw
from tests.e2e.compare import TOLERANCE, distance, exact
from tests.e2e.families import ALL
from tests.e2e.test_modules import MODULES, drawn
from tests.models.plain import randomised
from tilewright.core.errors import CompileError
from tilewright.runtime.cuda import driver as cuda_driver

pytestmark = pytest.mark.skipif(bool(cuda_driver.available()), reason=f"no GPU: {cuda_driver.available()}")
HUGGING = {"gpt2", "bert", "llama", "vit", "resnet", "gpt2-eager", "bert-eager", "llama-eager", "resnet-basic"}


class Residual(nn.Module):
    """Two stages of a small ResNet, batch norms folded or not as the compiler likes."""

    def __init__(self, c: int = 24) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 7, 2, 3, bias=False), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.a = nn.Sequential(nn.Conv2d(c, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c, 3, 1, 1))
        self.b = nn.Sequential(nn.Conv2d(c, 2 * c, 3, 2, 1, bias=False), nn.BatchNorm2d(2 * c), nn.ReLU(), nn.Conv2d(2 * c, 2 * c, 3, 1, 1))
        self.short, self.head = nn.Conv2d(c, 2 * c, 1, 2), nn.Linear(2 * c, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = F.relu(x + self.a(x))
        x = F.relu(self.short(x) + self.b(x))
        return self.head(x.mean((2, 3)))


class Cached(nn.Module):
    """One layer of a GPT that takes its keys and values so far and gives them with the new ones."""

    def __init__(self, d: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.h, self.qkv, self.out, self.norm = heads, nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        x = x + self.out(F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(x), approximate="tanh")), keys, values


class Recurrent(nn.Module):
    """torch's own LSTM and GRU."""

    def __init__(self, d: int = 33) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(d, 40, 2, batch_first=True, bidirectional=True), nn.GRU(80, 17, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.gru(self.lstm(x)[0])


class Diffusion(nn.Module):
    """A block of a diffusion model: group norms, a time embedding, attention over pixels, down and up again with a skip."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.c = c
        self.norms = nn.ModuleList(nn.GroupNorm(8, n) for n in (c, c, c, 2 * c))
        self.first, self.second, self.time = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1), nn.Linear(c, c)
        self.attend = nn.MultiheadAttention(c, 4, batch_first=True)
        self.down, self.up, self.last = nn.Conv2d(c, c, 3, 2, 1), nn.ConvTranspose2d(c, c, 4, 2, 1), nn.Conv2d(2 * c, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        angle = t[:, None].to(x.dtype) * torch.exp(torch.arange(self.c // 2, dtype=x.dtype, device=x.device) * -0.3)
        emb = self.time(torch.cat([angle.sin(), angle.cos()], -1))[:, :, None, None]
        h = self.second(F.silu(self.norms[1](self.first(F.silu(self.norms[0](x))) + emb))) + x
        low = self.down(h)
        rows = self.norms[2](low).flatten(2).transpose(1, 2)
        low = low + self.attend(rows, rows, rows, need_weights=False)[0].transpose(1, 2).reshape(low.shape)
        return self.last(F.silu(self.norms[3](torch.cat([h, self.up(low)], 1))))


B, S, P = tw.Dim("B", 1, 9), tw.Dim("S", 1, 40), tw.Dim("P", 0, 300)
OWN: dict[str, tuple[Any, Any, Any, list[tuple[int, ...]]]] = {
    "residual": (Residual, lambda b: (torch.randn(b, 3, 45, 37),), {"x": {0: B}}, [(2,), (1,), (9,)]),
    "cached": (Cached, lambda s, p: (torch.randn(2, s, 64), torch.randn(2, 4, p, 16), torch.randn(2, 4, p, 16)),
               {"x": {1: S}, "keys": {2: P}, "values": {2: P}}, [(3, 5), (1, 0), (1, 299), (17, 64)]),
    "recurrent": (Recurrent, lambda b: (torch.randn(b, 11, 33),), None, [(3,)]),
    "diffusion": (Diffusion, lambda b: (torch.randn(b, 32, 18, 14), torch.rand(b)), {"x": {0: B}, "t": {0: B}}, [(2,), (1,), (5,)]),
}  # fmt: skip


def moved(tree: Any, where: str, dtype: torch.dtype | None = None) -> Any:
    def move(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        return t.to(where, dtype if dtype is not None and t.is_floating_point() else t.dtype)

    return _pytree.tree_map(move, tree)


def check(session: Any, module: Any, args: Any, limit: float) -> None:
    got = session(*moved(args, "cuda"))
    session.synchronize()
    assert all(t.is_cuda for t in _pytree.tree_leaves(got) if isinstance(t, torch.Tensor))
    found = distance(moved(got, "cpu"), exact(module, args))
    assert found <= limit, f"error {found:.2e} of the largest value, allowed {limit:.0e}"


def named(name: str) -> tuple[Any, Any, Any, list[tuple[int, ...]]]:
    """Module, arguments of sizes, dynamic axes, sizes."""
    if name in OWN:
        build, make, dynamic, sizes = OWN[name]
        return randomised(build()).eval(), make, dynamic, sizes
    if name in MODULES:
        module = randomised(MODULES[name][0]())
        return module, lambda b, s: drawn(name, module, b, s), MODULES[name][2], [(3, 10), (1, 2), (16, 40), (2, 7)]
    if name in HUGGING and not find_spec("transformers"):
        pytest.skip("transformers is not installed")
    family = ALL[name]
    return family.build(), family.args, family.dynamic, [(3, 17), (1, 1), (16, 5), (2, 33)]


@pytest.mark.parametrize("name", [*OWN, *MODULES, *ALL])
def test_modules(name: str) -> None:
    module, make, dynamic, sizes = named(name)
    args = make(*sizes[0])
    own = (randomised(module).cuda(), moved(args, "cuda")) if name in OWN else (module, args)
    on_gpu = tw.compile(*own, target="cuda", precision="exact")
    module.cpu()
    check(on_gpu, module, args, 5e-6)
    if dynamic:
        try:
            session = tw.compile(module, args, dynamic=dynamic, target="cuda", precision="exact")
        except CompileError as e:
            if not str(e).startswith("torch.export: "):
                raise
            pytest.skip(f"this version of PyTorch does not export it: {e}")
        for size in sizes:
            check(session, module, make(*size), 5e-6)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", [*OWN, "encoder", "relative", "unet", *ALL])
def test_sixteen_bits(name: str, dtype: str) -> None:
    module, make, _, sizes = named(name)
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    args = moved(make(*sizes[0]), "cpu", kind)
    narrow = module.to(kind)
    check(tw.compile(narrow, args, target="cuda", precision="exact"), narrow, args, TOLERANCE[kind])  # a module in 16 bits
    wide = moved(args, "cpu", torch.float32)
    turned = tw.compile(narrow.float(), wide, target="cuda", dtype=dtype, precision="exact")
    check(turned, narrow, wide, TOLERANCE[kind])  # and one that is turned into it
