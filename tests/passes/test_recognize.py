"""Composites are found in every spelling, give what PyTorch gives, and near misses are left alone."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tilewright import ops as o
from tilewright.core.dims import sym
from tilewright.frontend.torch.importer import import_torch
from tilewright.frontend.torch.tensors import to_numpy
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.passes.pipeline import run_pipeline

from .graphs import assert_same, names

S = sym("S", 2, 32)


def ops_of(graph: Graph) -> list[Any]:
    """Every computing op, those inside regions too."""
    found: list[Any] = []
    for n in graph.nodes:
        found += [k.op for k in n.op.body.nodes if k.operands] if isinstance(n.op, o.Fused) else [] if n.op.traits.source else [n.op]
    return found


def check(fn: Callable[..., Any], *args: torch.Tensor, dynamic: Any = None) -> list[Any]:
    """Optimise `fn` and compare with PyTorch itself; returns the ops that are left, without views."""
    class Module(torch.nn.Module):
        def forward(self, *x: torch.Tensor) -> Any:
            return fn(*x)

    class Named(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return fn(x)

    imported = import_torch(Named() if len(args) == 1 else Module(), args, dynamic=dynamic)
    graph = run_pipeline(imported.graph, verify=True)
    got = run(graph, [to_numpy(t) for t in imported.signature.flatten(args, {})])
    assert_same(got, [to_numpy(fn(*args))])
    return [op for op in ops_of(graph) if not op.traits.view]


x = torch.randn(3, 5, 8)
GELU: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "new_gelu": lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    "half_last": lambda x: x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x))) * 0.5,
    "fast": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    "half_inside": lambda x: x * (0.5 * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))),
    "torch": lambda x: F.gelu(x, approximate="tanh"),
}
EXACT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "half_first": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2.0))),
    "half_inside": lambda x: x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865476)),
    "half_last": lambda x: (x * (torch.erf(x * math.sqrt(0.5)) + 1)) / 2,
    "of_a_sum": lambda x: (x + 1) * 0.5 * (1.0 + torch.erf((x + 1) / 1.4142135623730951)),
}


@pytest.mark.parametrize("name", GELU)
def test_tanh_gelu(name: str) -> None:
    assert check(GELU[name], x) == [o.Gelu(approximate="tanh")]


@pytest.mark.parametrize("name", EXACT)
def test_exact_gelu(name: str) -> None:
    found = check(EXACT[name], x)
    assert found[-1] == o.Gelu()
    assert len(found) == (2 if name == "of_a_sum" else 1)


def test_not_gelu() -> None:
    assert o.Gelu not in map(type, check(lambda x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * x**3))), x))
    assert o.Gelu not in map(type, check(lambda x: 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.05 * x**3))), x))
    assert o.Gelu not in map(type, check(lambda x: 0.5 * x * (2.0 + torch.erf(x / math.sqrt(2.0))), x))
    assert o.Gelu not in map(type, check(lambda x: 0.5 * (x + 1) * (1 + torch.erf(x / math.sqrt(2.0))), x))


def test_gelu_of_doubles() -> None:
    """The constants are those of the dtype: f32's are another function in f64."""
    y = x.double()
    for name in ("new_gelu", "half_inside", "torch"):
        assert check(GELU[name], y) == [o.Gelu(approximate="tanh")]
    for name in ("half_last", "fast"):  # 0.7978845608 has ten digits
        assert o.Gelu not in map(type, check(GELU[name], y))
    for number in (0.7071, float(torch.tensor(math.sqrt(0.5)))):
        assert o.Gelu not in map(type, check(lambda x, c=number: x * 0.5 * (1.0 + torch.erf(x * c)), y))
    assert o.Gelu not in map(type, check(lambda x: x * 0.5000001 * (1.0 + torch.erf(x * math.sqrt(0.5))), y))
    assert o.Gelu not in map(type, check(lambda x: x * 0.5 * (1.0000001 + torch.erf(x * math.sqrt(0.5))), x))


def test_silu() -> None:
    assert check(lambda x: x * torch.sigmoid(x), x) == [o.Silu()]
    assert check(lambda x: x / (1 + torch.exp(-x)), x) == [o.Silu()]
    assert check(lambda x: x * (1 / (1 + torch.exp(-x))), x) == [o.Silu()]
    assert o.Silu() not in check(lambda x: x * torch.sigmoid(1.702 * x), x)


w, b = torch.rand(8) + 0.5, torch.randn(8)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    c = x - x.mean(-1, keepdim=True)
    return c / torch.sqrt((c**2).mean(-1, keepdim=True) + 1e-5) * w + b


def by_variance(x: torch.Tensor) -> torch.Tensor:
    return w * ((x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)) + b


def not_kept(x: torch.Tensor) -> torch.Tensor:
    c = x - x.mean(-1).unsqueeze(-1)
    return c * torch.rsqrt((c * c).mean(-1).unsqueeze(-1) + 1e-5)


def other_axis(x: torch.Tensor) -> torch.Tensor:
    c = x - x.mean(1, keepdim=True)
    return c * torch.rsqrt((c**2).mean(1, keepdim=True) + 1e-5)


def test_layer_norm() -> None:
    assert check(by_hand, x) == [o.LayerNorm(eps=1e-5, naxes=1, affine="both")]
    assert check(by_variance, x) == [o.LayerNorm(eps=1e-5, naxes=1, affine="both")]
    assert check(not_kept, x) == [o.LayerNorm(eps=1e-5, naxes=1)]
    assert o.LayerNorm not in map(type, check(lambda x: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5), x))
    assert o.LayerNorm not in map(type, check(other_axis, x))


def rms(x: torch.Tensor) -> torch.Tensor:
    y = x.to(torch.float32)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w.to(x.dtype) * y.to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm(dtype: torch.dtype) -> None:
    assert check(rms, x.to(dtype)) == [o.RmsNorm(eps=1e-6, naxes=1, affine="weight")]


def manual(s: torch.Tensor) -> torch.Tensor:
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def crossed(s: torch.Tensor) -> torch.Tensor:
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return e / e.sum(1, keepdim=True)


def test_softmax() -> None:
    assert check(manual, x) == [o.Softmax(axis=2)]
    assert o.Softmax not in map(type, check(lambda s: torch.exp(s - s.amax(-1, keepdim=True)) / torch.exp(s).sum(-1, keepdim=True), x))
    assert o.Softmax not in map(type, check(crossed, x))


q, k, v = (torch.randn(2, 3, 6, 4) for _ in range(3))


def attention(ops: list[Any]) -> Any:
    assert [type(op) for op in ops] == [o.Attention]
    return ops[0]


def test_attention_spellings() -> None:
    assert attention(check(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 2.0, -1) @ v, q, k, v)).scale == 0.5
    assert attention(check(lambda q, k, v: manual((q * 0.5) @ k.transpose(-1, -2)) @ v, q, k, v)).scale == 0.5
    assert attention(check(lambda q, k, v: torch.softmax(q @ (k * 0.25).mT, -1) @ v, q, k, v)).scale == 0.25
    assert attention(check(lambda q, k, v: torch.bmm(torch.softmax(torch.bmm(q, k.mT), -1), v), q[0], k[0], v[0])).scale == 1.0
    assert attention(check(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, q[0, 0], k[0, 0], v[0, 0])).scale == 1.0


def test_attention_with_masks() -> None:
    seen = torch.rand(2, 1, 6, 6) < 0.7
    seen |= torch.eye(6, dtype=torch.bool)
    low = torch.ones(6, 6, dtype=torch.bool).tril()
    masked = attention(check(lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(~seen, float("-inf")), -1) @ v, q, k, v))
    assert (masked.has_mask, masked.has_bias) == (True, False)
    biased = attention(check(lambda q, k, v, z: torch.softmax(q @ k.mT * 0.5 + z, -1) @ v, q, k, v, torch.randn(6, 6)))
    assert (biased.has_mask, biased.has_bias, biased.scale) == (False, True, 0.5)
    for hidden in (float("-inf"), -1e9, -4.0, 0.0, torch.finfo(torch.float32).min):
        causal = attention(check(lambda q, k, v, h=hidden: torch.softmax((q @ k.mT).masked_fill(low == 0, h), -1) @ v, q, k, v))
        far = hidden < -1e30  # no score gets there: nothing is seen of what it hides
        assert (causal.causal, causal.has_mask, causal.has_bias) == (far, not far, False)
        assert causal.hidden == (float("-inf") if far else hidden)


def test_scores_by_relative_places() -> None:
    """Products by places are shifted by reshapes, added to the scores and scaled with them: one attention beside one product."""
    q, k, v, places = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(3, 4, 9)

    def with_zeros(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros(2, 3, 5, 1), x], -1)

    def shifted(x: torch.Tensor, padded: Any = lambda x: F.pad(x, (1, 0))) -> torch.Tensor:
        return padded(x).view(2, 3, 10, 5)[:, :, 1:].view(2, 3, 5, 9)[..., :5]

    both = lambda q, k, v, p: F.softmax((q @ k.mT + shifted(q @ p)) / 3.0, -1) @ v
    after = lambda q, k, v, p: F.softmax(q @ k.mT * 0.5 + shifted(q @ p) * 0.5, -1) @ v
    column = lambda q, k, v, p: F.softmax((q @ k.mT + shifted(q @ p, with_zeros)) * 0.25, -1) @ v
    for fn in (both, after, column):
        kinds = check(fn, q, k, v, places)
        assert [op.name for op in kinds] == ["matmul", "attention"]
        assert kinds[0].alpha == pytest.approx(kinds[1].scale) and kinds[1].scale < 1
    read_twice = lambda q, k, v, p: (F.softmax(q @ k.mT + (b := shifted(q @ p)) * 0.5, -1) @ v, b)[0] + b.sum()
    assert "mul" in [op.name for op in check(read_twice, q, k, v, places)]


def test_windows_share_masks_between_images() -> None:
    """Shifted windows add a mask that the images of a batch share, and a bias of every head: one attention. Adding to other axes is not."""
    q, k, v = (torch.randn(6, 2, 5, 4) for _ in range(3))
    table, mask = torch.randn(2, 5, 5), torch.randn(3, 5, 5)

    def windows(q: Any, k: Any, v: Any, table: Any, mask: Any) -> Any:
        scores = q @ k.transpose(-2, -1) + table.unsqueeze(0)
        scores = scores.view(2, 3, 2, 5, 5) + mask.unsqueeze(1).unsqueeze(0)
        return F.softmax(scores.view(-1, 2, 5, 5), -1) @ v

    assert sorted(op.name for op in check(windows, q, k, v, table, mask)) == ["add", "attention"]  # sums of what windows share
    alone = lambda q, k, v, m: F.softmax(((q @ k.mT).view(2, 3, 2, 5, 5) + m[:, None]).view(6, 2, 5, 5), -1) @ v
    assert [op.name for op in check(alone, q, k, v, mask)] == ["attention"]
    rows = lambda q, k, v, m: F.softmax(((q @ k.mT).view(6, 2, 5, 5, 1) + m).view(6, 2, 5, 5), -1) @ v
    assert "attention" not in [op.name for op in check(rows, q, k, v, torch.randn(6, 2, 5, 5, 1))]


def test_rows_that_see_nothing() -> None:
    """A softmax of -inf is NaN, one of equal numbers a mean; PyTorch's own attention gives zeros."""
    some = torch.ones(6, 6, dtype=torch.bool)
    some[2] = False
    low = torch.finfo(torch.float32).min
    for hidden in (float("-inf"), -1e9, low):
        op = attention(check(lambda q, k, v, h=hidden: torch.softmax((100 * q @ k.mT).masked_fill(~some, h), -1) @ v, q, k, v))
        assert (op.has_mask, op.hidden, op.empty) == (True, hidden, "nan")
        bias = torch.zeros(6, 6).masked_fill(~some, hidden)
        op = attention(check(lambda q, k, v, b=bias: torch.softmax(q @ k.mT + b, -1) @ v, q, k, v))
        assert (op.empty, op.hidden) == ("nan", float("-inf"))
    op = attention(check(lambda q, k, v: torch.softmax(torch.where(some, q @ k.mT, low) + some.mT.float(), -1) @ v, q, k, v))
    assert (op.has_mask, op.has_bias) == (False, True)
    for mask in (some, torch.zeros(6, 6).masked_fill(~some, float("-inf"))):
        assert attention(check(lambda q, k, v, m=mask: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v)).empty == "zeros"


def test_masks_under_biases() -> None:
    """-inf plus a bias is -inf, unless the bias may be NaN or infinite; a number plus a bias is another number."""
    some = torch.rand(6, 6) < 0.5
    some[:, 0] = True
    op = attention(check(lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(~some, float("-inf")) + q.new_ones(6), -1) @ v, q, k, v))
    assert (op.has_mask, op.has_bias) == (True, True)
    given = check(lambda q, k, v, b: torch.softmax((q @ k.mT).masked_fill(~some, float("-inf")) + b, -1) @ v, q, k, v, torch.randn(6, 6))
    assert o.Attention not in map(type, given)
    other = check(lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(~some, -9.0) + q.new_ones(6), -1) @ v, q, k, v)
    assert o.Attention not in map(type, other)


def test_casts_of_scores() -> None:
    """Wider scores are what attention computes in anyway; narrower ones, and biases with more digits, are another result."""
    small = [t.half() for t in (q, k, v)]
    wide = attention(check(lambda q, k, v: torch.softmax((q @ k.mT).float() * 0.5, -1).half() @ v, *small))
    assert (wide.scale, wide.empty) == (0.5, "nan")
    assert o.Attention not in map(type, check(lambda q, k, v: torch.softmax((q @ k.mT).half(), -1).float() @ v, q, k, v))
    bias = torch.randn(6, 6)
    assert o.Attention not in map(type, check(lambda q, k, v: torch.softmax((q @ k.mT).float() + bias, -1).half() @ v, *small))
    same = attention(check(lambda q, k, v, b: torch.softmax((q @ k.mT).float() + b.float(), -1).half() @ v, *small, bias.half()))
    assert same.has_bias


def test_soft_cap() -> None:
    capped = attention(check(lambda q, k, v: torch.softmax(torch.tanh(q @ k.mT * 0.5 / 3.0) * 3.0, -1) @ v, q, k, v))
    assert capped.softcap == pytest.approx(3.0)
    assert capped.scale == pytest.approx(0.5)
    turned = attention(check(lambda q, k, v: torch.softmax(-3.0 * torch.tanh(q @ k.mT / -3.0), -1) @ v, q, k, v))
    assert (turned.softcap, turned.scale) == (3.0, pytest.approx(1.0))
    down = attention(check(lambda q, k, v: torch.softmax(-3.0 * torch.tanh(q @ k.mT * 0.25), -1) @ v, q, k, v))
    assert (down.softcap, down.scale) == (3.0, pytest.approx(-0.75))
    huge = check(lambda q, k, v: torch.softmax(torch.tanh(q @ k.mT * 1e-30) * 1e30, -1) @ v, q, k, v)
    assert o.Attention not in map(type, huge)  # 1e-30 * 1e30 * s would lose what tanh keeps


def test_grouped_heads() -> None:
    def repeated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (t[:, :, None].expand(2, 3, 2, 6, 4).reshape(2, 6, 6, 4) for t in (k, v))
        return torch.softmax(q @ k.mT, -1) @ v

    assert check(repeated, torch.randn(2, 6, 6, 4), k, v) == [o.Attention(scale=1.0, empty="nan")]

    def other_order(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (t[:, None].expand(2, 2, 3, 6, 4).reshape(2, 6, 6, 4) for t in (k, v))
        return torch.softmax(q @ k.mT, -1) @ v

    check(other_order, torch.randn(2, 6, 6, 4), k, v)  # heads 0 1 2 0 1 2: right, but not grouped


def test_attention_of_images_with_channels_first() -> None:
    """As the autoencoders of latent diffusion and GANs write it: queries, keys and values are [channels, places]."""
    q, k, v = torch.randn(2, 8, 30), torch.randn(2, 8, 30), torch.randn(2, 5, 30)
    found = check(lambda q, k, v: v @ torch.softmax(q.mT @ k * 0.25, 2).mT, q, k, v)
    assert found == [o.Attention(scale=0.25, empty="nan")]
    assert o.Attention not in map(type, check(lambda q, k, v: v @ torch.softmax(q.mT @ k, 2), q, k, torch.randn(2, 5, 30)))


def test_not_attention() -> None:
    for fn in (lambda q, k, v: torch.softmax(q @ k.mT, 1) @ v, lambda q, k, v: torch.softmax(torch.relu(q @ k.mT), -1) @ v,
               lambda q, k, v: torch.softmax((q @ k.mT + 1.0) * 2.0 + (q @ v.mT), -1) @ v):
        assert o.Attention not in map(type, check(fn, q, k, v))

    def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(q @ k.mT, -1)
        return p @ v + p.sum()  # the probabilities are needed anyway

    assert o.Attention not in map(type, check(twice, q, k, v))


angle = torch.outer(torch.arange(32).float(), torch.tensor([1.0, 0.1, 0.01]))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    h = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., h:], x[..., :h]], -1) * sin


@pytest.mark.parametrize("dynamic", [None, {"x": {1: S}}], ids=["static", "S"])
def test_rope(dynamic: Any) -> None:
    y = torch.randn(2, 5, 6)
    both = torch.cat([angle, angle], -1)
    stored = check(lambda x: rotate(x, both.cos()[: x.shape[1]], both.sin()[: x.shape[1]]), y, dynamic=dynamic)
    assert stored == [o.Rope()]

    def computed(x: torch.Tensor) -> torch.Tensor:
        f = torch.arange(x.shape[1]).float()[:, None] * torch.tensor([1.0, 0.1, 0.01])
        f = torch.cat([f, f], -1)
        return rotate(x, f.cos() * 1.5, f.sin() * 1.5)

    assert check(computed, y, dynamic=dynamic) == [o.Rope()]

    def chunked(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * both.cos()[: x.shape[1]] + torch.cat((-b, a), dim=-1) * both.sin()[: x.shape[1]]

    assert check(chunked, y, dynamic=dynamic) == [o.Rope()]


def test_partial_rope() -> None:
    both = torch.cat([angle, angle], -1)

    def partial(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([rotate(x[..., :6], both.cos()[:5], both.sin()[:5]), x[..., 6:]], -1)

    assert check(partial, torch.randn(2, 5, 10)) == [o.Rope(n_rot=6)]


def test_not_rope() -> None:
    y = torch.randn(2, 5, 6)
    uneven = torch.randn(5, 6)
    assert o.Rope not in map(type, check(lambda x: rotate(x, uneven.cos(), uneven.sin()), y))
    both = torch.cat([angle, angle], -1)[:5]
    assert o.Rope not in map(type, check(lambda x: x * both.cos() + torch.cat([x[..., 3:], x[..., :3]], -1) * both.sin(), y))


def test_rope_written_out() -> None:
    c, s = angle[:5].cos(), angle[:5].sin()

    def halves(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def steps(x: torch.Tensor) -> torch.Tensor:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)

    def pairs(x: torch.Tensor) -> torch.Tensor:
        a, b = x.reshape(2, 5, 3, 2).unbind(-1)
        return torch.stack([a * c - b * s, b * c + a * s], -1).reshape(x.shape)

    def conjugate(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * c + b * s, b * c - a * s], -1)

    y = torch.randn(2, 5, 6)
    assert check(halves, y) == [o.Rope()]
    assert check(steps, y) == [o.Rope(interleaved=True)]
    assert check(pairs, y) == [o.Rope(interleaved=True)]
    assert o.Rope not in map(type, check(conjugate, y))


def test_wide_copies_are_not_stored() -> None:
    def mixed(x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return (y.mean(-1, keepdim=True) + y).to(x.dtype)

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return mixed(x)

    z = torch.randn(3, 4).to(torch.bfloat16)
    graph = run_pipeline(import_torch(Module(), (z,)).graph, verify=True)
    assert names(graph) == ["cast+mean", "cast+add+cast"]
    assert_same(run(graph, [to_numpy(z)]), [to_numpy(mixed(z))])
