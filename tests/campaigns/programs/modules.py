"""Random torch modules: layers in random wirings over images [N,C,H,W], sequences [N,L,D] and rows [N,D].

As with programs, a wiring is total: a layer takes its sizes from what it is given, reads the latest value of a rank that it can take, and
is left out where there is none. Only features and channels are fixed; N, L, H and W may vary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .program import Picks, Step, Unfit

Run = Callable[..., Any]
LAYERS: dict[str, tuple[tuple[int, ...], Callable[[Any, Any, Picks], tuple[nn.Module | None, Run]]]] = {}


def layer(*ranks: int) -> Callable[[Any], Any]:
    """A function (x, y, picks) -> (module or None, how it is run on (module, x, y)), for values of these ranks; y is of x's rank."""

    def enter(fn: Any) -> Any:
        LAYERS[fn.__name__.rstrip("_")] = (ranks, fn)
        return fn

    return enter


def first(m: Any, x: Any, y: Any) -> Any:
    return m(x)


ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.ELU, nn.Softplus, nn.Mish, nn.LeakyReLU)


@layer(2, 3, 4)
def activation(x: Any, y: Any, p: Picks) -> Any:
    return p.of(ACTIVATIONS)(), first


@layer(2, 3, 4)
def add(x: Any, y: Any, p: Picks) -> Any:
    y_fits = x.shape == y.shape and x is not y
    if not y_fits:
        scale = p.of((0.5, 2.0, -1.0))
        return None, lambda m, x, y: x * scale + 0.25
    return None, p.of((lambda m, x, y: x + y, lambda m, x, y: x * torch.sigmoid(y), lambda m, x, y: torch.maximum(x, y)))


@layer(2, 3, 4)
def join(x: Any, y: Any, p: Picks) -> Any:
    axis = 1 if x.dim() == 4 else -1
    rest = [i for i in range(x.dim()) if i != axis % x.dim()]
    if [x.shape[i] for i in rest] != [y.shape[i] for i in rest] or x.shape[axis] + y.shape[axis] > 64:
        raise Unfit
    return None, lambda m, x, y: torch.cat([x, y], axis)


@layer(2, 3, 4)
def part(x: Any, y: Any, p: Picks) -> Any:
    """A piece of the features: split, chunk, slice."""
    axis = 1 if x.dim() == 4 else -1
    n = x.shape[axis]
    if n < 2:
        raise Unfit
    size = 1 + p(n - 1)
    index = p(2)
    return None, p.of((
        lambda m, x, y: torch.split(x, [size, n - size], axis)[index], lambda m, x, y: torch.chunk(x, 2, axis)[index],
        lambda m, x, y: torch.narrow(x, axis, n - size, size), lambda m, x, y: torch.flip(x, (axis,)),
        lambda m, x, y: x.roll(size, axis)))  # fmt: skip


@layer(2, 3)
def linear(x: Any, y: Any, p: Picks) -> Any:
    return nn.Linear(x.shape[-1], 1 + p(24), bias=bool(p(2))), first


@layer(2, 3)
def norm(x: Any, y: Any, p: Picks) -> Any:
    if x.shape[-1] < 2:
        raise Unfit
    return p.of((nn.LayerNorm, nn.RMSNorm))(x.shape[-1]), first


@layer(2, 3)
def softmax(x: Any, y: Any, p: Picks) -> Any:
    axis = p.of((-1, x.dim() - 2)) if x.dim() > 2 else -1
    return None, p.of((lambda m, x, y: torch.softmax(x, axis), lambda m, x, y: torch.log_softmax(x, axis)))


@layer(2, 3)
def reduce(x: Any, y: Any, p: Picks) -> Any:
    kinds = (lambda m, x, y: x.mean(-1, keepdim=True), lambda m, x, y: x.amax(-1, keepdim=True), lambda m, x, y: x.cumsum(-1),
             lambda m, x, y: F.normalize(x, dim=-1), lambda m, x, y: x - x.logsumexp(-1, keepdim=True),
             lambda m, x, y: x.std(-1, keepdim=True, correction=0) + 1)  # fmt: skip
    return None, p.of(kinds)


# ---- sequences


@layer(3)
def attention(x: Any, y: Any, p: Picks) -> Any:
    d = x.shape[-1]
    heads = p.of([h for h in (2, 4, 3, 1) if d % h == 0])
    causal = bool(p(2))

    def run(m: Any, x: Any, y: Any) -> Any:
        q, k, v = m(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (heads, d // heads)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)

    return nn.Linear(d, 3 * d), run


@layer(3)
def spelled_attention(x: Any, y: Any, p: Picks) -> Any:
    """Scores and softmax written out; keys and values from another sequence of that width."""
    d = x.shape[-1]
    other = y.shape[-1] == d
    cap = p.of((None, 3.0))

    def run(m: Any, x: Any, y: Any) -> Any:
        k = m(y if other else x)
        scores = x @ k.transpose(1, 2) * d**-0.5
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        return scores.softmax(-1) @ k

    return nn.Linear(d, d), run


@layer(3)
def multihead(x: Any, y: Any, p: Picks) -> Any:
    d = x.shape[-1]
    return nn.MultiheadAttention(d, p.of([h for h in (2, 3, 1) if d % h == 0]), batch_first=True), lambda m, x, y: m(x, x, x)[0]


@layer(3)
def encoder(x: Any, y: Any, p: Picks) -> Any:
    d = x.shape[-1]
    heads = p.of([h for h in (2, 3, 1) if d % h == 0])
    return nn.TransformerEncoderLayer(d, heads, 12, batch_first=True, norm_first=bool(p(2))), first


@layer(3)
def recurrent(x: Any, y: Any, p: Picks) -> Any:
    kind = p.of((nn.LSTM, nn.GRU, nn.RNN))
    return kind(x.shape[-1], 1 + p(9), batch_first=True, bidirectional=bool(p(2)), num_layers=1 + p(2)), lambda m, x, y: m(x)[0]


@layer(3)
def conv1d(x: Any, y: Any, p: Picks) -> Any:
    k = p.of((3, 1, 2))
    m = nn.Conv1d(x.shape[-1], 1 + p(9), k, padding=p.of((k - 1, k // 2)), stride=1 + p(2))
    return m, lambda m, x, y: m(x.transpose(1, 2)).transpose(1, 2)


@layer(3)
def pooled(x: Any, y: Any, p: Picks) -> Any:
    """Rows from sequences."""
    return None, p.of((lambda m, x, y: x.mean(1), lambda m, x, y: x[:, -1], lambda m, x, y: x.amax(1), lambda m, x, y: x[:, 0] * 2,
                       lambda m, x, y: x.sum(1) / x.shape[1]))  # fmt: skip


@layer(2)
def unpooled(x: Any, y: Any, p: Picks) -> Any:
    return None, p.of((lambda m, x, y: x[:, None], lambda m, x, y: x.unsqueeze(1).expand(-1, 3, -1),
                       lambda m, x, y: x[:, None, :] * x[:, :, None]))  # fmt: skip


@layer(3)
def picked(x: Any, y: Any, p: Picks) -> Any:
    """Indexing by constants and masks."""
    return None, p.of((
        lambda m, x, y: x.masked_fill(torch.arange(x.shape[1])[None, :, None] % 2 == 1, 0.5),
        lambda m, x, y: x * torch.ones(x.shape[1], x.shape[1]).tril()[:, :1],
        lambda m, x, y: torch.where(x > 0.1, x, y if y.shape == x.shape else x * 0.25), lambda m, x, y: x.flip(1),
        lambda m, x, y: F.pad(x, (0, 0, 1, 1)), lambda m, x, y: x.index_select(1, torch.arange(x.shape[1]).flip(0))))  # fmt: skip


# ---- images


@layer(4)
def conv2d(x: Any, y: Any, p: Picks) -> Any:
    channels, k = x.shape[1], p.of((3, 1, 2, 5))
    groups = p.of([g for g in (1, channels, 2) if channels % g == 0])
    out = groups * (1 + p(max(1, 16 // groups)))
    dilation = p.of((1, 1, 2))
    padding = p.of((dilation * (k - 1), dilation * (k // 2)))
    m = nn.Conv2d(channels, out, k, stride=p.of((1, 2)), padding=padding, dilation=dilation, groups=groups, bias=bool(p(2)))
    return m, first


@layer(4)
def up(x: Any, y: Any, p: Picks) -> Any:
    if x.shape[2] > 24 or x.shape[3] > 24:
        raise Unfit
    kind = p(5)
    if kind == 0:
        return nn.ConvTranspose2d(x.shape[1], 1 + p(8), p.of((2, 3, 4)), stride=2, padding=p(2)), first
    if kind == 1 and x.shape[1] % 4 == 0:
        return nn.PixelShuffle(2), first
    mode = p.of(("nearest", "bilinear"))
    corners = {"align_corners": bool(p(2))} if mode == "bilinear" else {}
    if kind == 2:
        return None, lambda m, x, y: F.interpolate(x, (7, 5), mode=mode, **corners)
    return None, lambda m, x, y: F.interpolate(x, scale_factor=2, mode=mode, **corners)


@layer(4)
def pool(x: Any, y: Any, p: Picks) -> Any:
    k = p.of((2, 3))
    if min(x.shape[2:]) < k:
        raise Unfit
    return p.of((nn.MaxPool2d(k, 2, k // 2), nn.AvgPool2d(k, 2, k // 2), nn.MaxPool2d(k, 1, 1),
                 nn.AvgPool2d(k, 1, 1, count_include_pad=False), nn.AdaptiveAvgPool2d((3, 2)), nn.AdaptiveMaxPool2d(1))), first  # fmt: skip


@layer(4)
def image_norm(x: Any, y: Any, p: Picks) -> Any:
    c = x.shape[1]
    kind: Any = p.of((nn.BatchNorm2d(c), nn.GroupNorm(2 if c % 2 == 0 else 1, c)))
    if hasattr(kind, "running_mean"):
        with torch.no_grad():
            kind.running_mean.copy_(torch.randn(c) * 0.2)
            kind.running_var.copy_(torch.rand(c) + 0.5)
            kind.weight.copy_(torch.rand(c) + 0.5)
    return kind, first


@layer(4)
def gate(x: Any, y: Any, p: Picks) -> Any:
    """Squeeze and excitation."""
    c = x.shape[1]
    excited = nn.Sequential(nn.Linear(c, 3), nn.ReLU(), nn.Linear(3, c), nn.Sigmoid())
    return excited, lambda m, x, y: x * m(x.mean((2, 3)))[:, :, None, None]


@layer(4)
def flat(x: Any, y: Any, p: Picks) -> Any:
    """Sequences from images, and rows from them."""
    return None, p.of((lambda m, x, y: x.flatten(2).transpose(1, 2), lambda m, x, y: x.mean((2, 3)),
                       lambda m, x, y: x.mean(2).transpose(1, 2), lambda m, x, y: x.permute(0, 2, 3, 1).flatten(1, 2)))  # fmt: skip


@dataclass(frozen=True)
class Net:
    kind: str  # image, sequence, ids, rows
    features: int
    steps: tuple[Step, ...]
    sizes: tuple[int, int, int]  # N and two others, of the example
    dtype: str
    varies: tuple[bool, bool, bool]
    data: int
    threads: int
    off: tuple[str, ...]


def example(net: Net, sizes: tuple[int, int, int], data: int) -> Any:
    g = torch.Generator().manual_seed(data)
    n, a, b = sizes
    if net.kind == "ids":
        return torch.randint(0, 11, (n, a), generator=g)
    shape = {"image": (n, net.features, a, b), "sequence": (n, a, net.features), "rows": (n, net.features)}[net.kind]
    return torch.randn(shape, generator=g).to(getattr(torch, net.dtype))


class Wired(nn.Module):
    """The layers of a net, made while an example goes through them."""

    def __init__(self, net: Net, x: Any) -> None:
        super().__init__()
        torch.manual_seed(net.data)
        self.layers = nn.ModuleList()
        self.embed = nn.Embedding(11, net.features).to(getattr(torch, net.dtype)) if net.kind == "ids" else None
        self.plan: list[tuple[int, int, int, Run]] = []  # which value, which other, which layer (-1: none), how
        values = [(0, x if self.embed is None else self.embed(x))]
        for step in net.steps:
            ranks, make = LAYERS[step.op]
            fit = [i for i, (n, v) in enumerate(values) if v.dim() in ranks and v.numel()]
            chosen = [i for i in fit if values[i][0] <= (step.args or (0,))[0]] or fit
            if not chosen:
                continue
            at = chosen[-1]
            alike = [i for i in fit if values[i][1].dim() == values[at][1].dim()]
            other = ([i for i in alike if values[i][0] <= (step.args or (0,))[-1]] or [at])[-1]
            try:
                module, run = make(values[at][1], values[other][1], Picks(step.picks))
            except Unfit:
                continue
            if module is not None:
                module = module.eval().to(getattr(torch, net.dtype))
                self.layers.append(module)
            made = run(module, values[at][1], values[other][1])
            if made.numel() > 1 << 16 or made.dim() not in (2, 3, 4):
                continue
            self.plan.append((at, other, len(self.layers) - 1 if module is not None else -1, run))
            values.append((step.out, made))
        used = {i for at, other, _, run in self.plan for i in (at, other)}
        self.outs = [i for i in range(len(values)) if i not in used] or [len(values) - 1]

    def forward(self, x: Any) -> Any:
        values = [x if self.embed is None else self.embed(x)]
        for at, other, which, run in self.plan:
            values.append(run(self.layers[which] if which >= 0 else None, values[at], values[other]))
        return tuple(values[i] for i in self.outs)
