"""Gradients through the backend: forward and backward graphs of AOTAutograd, both ours."""
from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tilewright.dynamo.backend import SplitWarning

from .check import assert_same, check


def r(*shape: int, dtype: Any = None) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


ACTIVATIONS = (F.relu, F.silu, F.elu, F.leaky_relu, F.softplus, F.hardswish, F.hardsigmoid, F.mish, torch.tanh, torch.sigmoid, F.gelu,
               F.selu, F.hardtanh, F.logsigmoid, F.relu6, F.softshrink)
FUNCTIONS = (torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.sin, torch.cos, torch.tan, torch.atan, torch.erf, torch.sinh, torch.cosh,
             torch.log1p, torch.expm1, torch.reciprocal, torch.square, torch.lgamma, torch.digamma)
i = torch.tensor([[1], [0], [2], [2]])
GRADIENTS: dict[str, tuple[Any, Any]] = {
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: (r(2, 3, 8), r(5, 8), r(5))),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), lambda: (r(2, 3, 8), r(8), r(8))),
    "layer norm, no bias": (lambda x, w: F.layer_norm(x, (3, 8), w), lambda: (r(2, 3, 8), r(3, 8))),
    "layer norm alone": (lambda x: F.layer_norm(x, (8,)), lambda: (r(2, 3, 8),)),
    "layer norm, fixed weight": (lambda x, w, b: F.layer_norm(x, (8,), w.detach(), b.detach()), lambda: (r(2, 3, 8), r(8), r(8))),
    "rms norm": (lambda x, w: F.rms_norm(x, (8,), w), lambda: (r(2, 3, 8), r(8))),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), lambda: (r(2, 4, 8), r(4), r(4))),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), lambda: (r(6, 4, 8), r(4), r(4))),
    "batch norm, fixed": (lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, False),
                          lambda: (r(6, 4, 8), r(4), r(4), torch.randn(4), torch.rand(4) + 0.5)),
    "batch norm that counts": (lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True),
                               lambda: (r(6, 4, 8), r(4), r(4), torch.randn(4), torch.rand(4) + 0.5)),
    "instance norm": (lambda x: F.instance_norm(x), lambda: (r(2, 4, 8),)),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1, stride=2), lambda: (r(2, 4, 9), r(6, 4, 3), r(6))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1, stride=2), lambda: (r(2, 4, 9, 9), r(6, 4, 3, 3), r(6))),
    "conv2d, tiles": (lambda x, w: F.conv2d(x, w, padding=1), lambda: (r(2, 20, 14, 15), r(18, 20, 3, 3))),
    "conv2d, tiles without padding": (lambda x, w: F.conv2d(x, w, padding=(0, 2)), lambda: (r(3, 17, 16, 14), r(16, 17, 3, 3))),
    "transposed, tiles": (lambda x, w: F.conv_transpose2d(x, w, padding=1), lambda: (r(2, 16, 14, 14), r(16, 18, 3, 3))),
    "conv3d, tiles": (lambda x, w: F.conv3d(x, w, padding=1), lambda: (r(1, 16, 3, 9, 8), r(17, 16, 3, 3, 3))),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b, padding=1), lambda: (r(1, 2, 5, 5, 5), r(3, 2, 3, 3, 3), r(3))),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), lambda: (r(2, 4, 9, 9), r(4, 1, 3, 3))),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=2), lambda: (r(2, 4, 7, 7), r(6, 2, 3, 3))),
    "dilated": (lambda x, w: F.conv2d(x, w, padding=2, dilation=2), lambda: (r(2, 4, 9, 9), r(5, 4, 3, 3))),
    "conv, fixed input": (lambda x, w: F.conv2d(x.detach(), w), lambda: (r(2, 4, 9, 9), r(5, 4, 3, 3))),
    "transposed": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1), lambda: (r(2, 4, 5, 5), r(4, 3, 4, 4), r(3))),
    "transposed 1d": (lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, padding=1), lambda: (r(2, 4, 5), r(4, 3, 4), r(3))),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (r(2, 4, 9, 9),)),
    "max pool, channels": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (r(2, 19, 9, 8),)),
    "max pool, overlapping": (lambda x: F.max_pool2d(x, (3, 2), 1, (1, 0), (2, 1)), lambda: (r(2, 16, 9, 8),)),
    "max pool, ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), lambda: (r(1, 8, 8, 8),)),
    "max pool 3d, channels": (lambda x: F.max_pool3d(x, 2, 1), lambda: (r(1, 9, 4, 4, 4),)),
    "max pool behind a convolution": (lambda x, w: F.max_pool2d(F.conv2d(x, w), 2), lambda: (r(2, 3, 9, 9), r(20, 3, 2, 2))),
    "max pool, unbatched": (lambda x: F.max_pool2d(x, 2), lambda: (r(4, 9, 9),)),
    "max pool 1d": (lambda x: F.max_pool1d(x, 2), lambda: (r(1, 2, 8),)),
    "max pool 3d": (lambda x: F.max_pool3d(x, 2), lambda: (r(1, 2, 4, 4, 4),)),
    "mean pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda: (r(2, 4, 9, 9),)),
    "mean pool, ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), lambda: (r(2, 4, 8, 8),)),
    "mean pool, divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), lambda: (r(2, 4, 8, 8),)),
    "mean pool 3d": (lambda x: F.avg_pool3d(x, 2), lambda: (r(1, 2, 4, 4, 4),)),
    "adaptive": (lambda x: (F.adaptive_avg_pool2d(x, 3), F.adaptive_avg_pool2d(x, 1)), lambda: (r(2, 4, 9, 9),)),
    "adaptive 3d": (lambda x: (F.adaptive_avg_pool3d(x, 1), F.adaptive_avg_pool3d(x, 2)), lambda: (r(2, 4, 4, 4, 4),)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, 3), lambda: (r(2, 4, 9, 9),)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), lambda: (r(1, 2, 4, 4),)),
    "bilinear": (lambda x: F.interpolate(x, (7, 5), mode="bilinear"), lambda: (r(1, 2, 4, 4),)),
    "bicubic": (lambda x: F.interpolate(x, (7, 5), mode="bicubic"), lambda: (r(1, 2, 4, 4),)),
    "causal attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                         lambda: (r(1, 2, 5, 8), r(1, 2, 5, 8), r(1, 2, 5, 8))),
    "masked attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.arange(35).reshape(5, 7) % 3 > 0),
                         lambda: (r(1, 2, 5, 8), r(1, 2, 7, 8), r(1, 2, 7, 8))),
    "attention with a bias": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
                              lambda: (r(1, 2, 5, 8), r(1, 2, 7, 8), r(1, 2, 7, 8), r(5, 7))),
    "grouped queries": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                        lambda: (r(1, 4, 5, 8), r(1, 2, 5, 8), r(1, 2, 5, 8))),
    "multi-head attention": (lambda x, w, b, ow, ob: F.multi_head_attention_forward(
        x, x, x, 8, 2, w, b, None, None, False, 0.0, ow, ob, need_weights=False)[0], lambda: (r(5, 2, 8), r(24, 8), r(24), r(8, 8), r(8))),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 2], [1, 0]]), w, padding_idx=0), lambda: (r(6, 5),)),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 0, -100, 2]), label_smoothing=0.1), lambda: (r(4, 5),)),
    "binary cross entropy": (lambda x: (F.binary_cross_entropy_with_logits(x, torch.ones(4, 5)),
                                        F.binary_cross_entropy(x.sigmoid(), torch.ones(4, 5))), lambda: (r(4, 5),)),
    "other losses": (lambda x: (F.kl_div(x.log_softmax(-1), torch.ones(4, 5), reduction="batchmean"), F.smooth_l1_loss(x, torch.ones(4, 5)),
                                F.huber_loss(x, torch.zeros(4, 5)), F.l1_loss(x, torch.zeros(4, 5))), lambda: (r(4, 5),)),
    "ctc": (lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor([[1, 2], [2, 1]]), torch.tensor([5, 5]), torch.tensor([2, 2])),
            lambda: (r(5, 2, 4),)),
    "activations": (lambda x: [f(x) for f in ACTIVATIONS], lambda: (r(4, 5),)),
    "prelu and glu": (lambda x, w: (F.prelu(x, w), F.glu(x)), lambda: (r(4, 6), r(6))),
    "functions": (lambda x: [f(x.abs() + 0.5) for f in FUNCTIONS], lambda: (r(4, 6),)),
    "reductions": (lambda x: (x.sum(0), x.mean(), x.amax(1), x.max(1)[0], x.std(), x.var(0), x.prod(), x.norm(), x.logsumexp(1),
                              x.median()),
                   lambda: (r(4, 6),)),
    "running": (lambda x: (x.cumsum(0), x.cumprod(1), x.cummax(0)[0], x.logcumsumexp(1)), lambda: (r(4, 6),)),
    "indices": (lambda x: (x[torch.tensor([0, 0, 2])], x[:, [1, 2]], x.gather(1, i), x.index_select(0, torch.tensor([1, 1])), x[1:3, ::2],
                           x.take_along_dim(x.argsort(), 1)), lambda: (r(4, 6),)),
    "masks": (lambda x: x.masked_fill(x > 0, 0.0) + x.clamp(-1, 1) + torch.where(x > 0, x, x * 2), lambda: (r(4, 6),)),
    "sorted": (lambda x: (x.sort()[0], x.topk(2)[0], x.kthvalue(2)[0]), lambda: (r(4, 6),)),
    "moved": (lambda x, y: (torch.cat([x, y]), torch.stack([x, x]), x.repeat(2, 1), x.roll(1), x.flip(0), F.pad(x, (1, 1)), x.tril(),
                            F.pad(x[None], (1, 1), mode="reflect"), x.unfold(1, 2, 1)), lambda: (r(4, 6), r(2, 6))),
    "scattered": (lambda x, y: (x.scatter(1, i, y[:, :1]), x.scatter_add(1, i, y[:, :1]), x.index_add(0, torch.tensor([1, 1]), y[:2]),
                                x.index_put((torch.tensor([1, 2]),), y[:2])), lambda: (r(4, 6), r(4, 6))),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), lambda: (r(2, 3, 4), r(2, 5, 4))),
    "products": (lambda x, y: (x @ y, (x @ y).softmax(-1), (x @ y).log_softmax(0)), lambda: (r(3, 4), r(4, 5))),
    "complex numbers": (lambda x: torch.view_as_real(torch.view_as_complex(x) * 2j).sum(-1) + torch.fft.rfft(x[..., 0]).abs().sum(),
                        lambda: (r(3, 4, 2),)),
    "grid": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), lambda: (r(1, 2, 4, 4), r(1, 3, 3, 2))),
    "fold": (lambda x: F.fold(F.unfold(x, 2), (4, 4), 2), lambda: (r(1, 2, 4, 4),)),
    "distances": (lambda x, y: (torch.cdist(x, y), F.cosine_similarity(x, x * 2 + 1), F.pairwise_distance(x, x + 1)),
                  lambda: (r(3, 4), r(5, 4))),
    "in place": (lambda x: (x * 2).add_(1).mul_(x), lambda: (r(3, 3),)),
    "views": (lambda x: ((y := x * 2), y.t(), y.view(-1)), lambda: (r(3, 3),)),
    "view of an argument": (lambda x: (x.t(), x * 2), lambda: (r(3, 3),)),
    "f64": (lambda x: F.layer_norm(x @ x.t(), (3,)), lambda: (r(3, 3, dtype=torch.float64),)),
    "bf16": (lambda x: F.silu(x @ x.t()), lambda: (r(3, 3, dtype=torch.bfloat16),)),
    "some need none": (lambda x, y: x * y.detach() + y.detach().sum(), lambda: (r(3), r(3))),
    "determinants": (lambda x: (torch.linalg.det(x), torch.linalg.slogdet(x)[1], torch.linalg.det(x.mT)), lambda: (r(2, 3, 3),)),
    "systems": (lambda x: torch.linalg.solve_ex(x + 5 * torch.eye(3), x + 1)[0], lambda: (r(2, 3, 3),)),
    "replicated edges": (lambda x: (F.pad(x, (1, 2, 0, 3), "replicate"), F.pad(x[0], (2, 1), "replicate")), lambda: (r(1, 2, 4, 4),)),
    "antialiased": (lambda x: (F.interpolate(x, (3, 7), mode="bilinear", antialias=True),
                               F.interpolate(x, (9, 3), mode="bicubic", antialias=True)), lambda: (r(1, 2, 6, 5),)),
    "masked scatter": (lambda x, s: x.masked_scatter(x > 0, s), lambda: (r(3, 4), r(12))),
    "deviation of one number": (lambda x: (x.std(unbiased=False), x.var(unbiased=False)), lambda: (r(()),)),  # type: ignore[arg-type]
    "integers beside": (lambda x, n: (x * n, n + 1), lambda: (r(3), torch.arange(3))),
}
SPLIT = {
    "embedding bag": (lambda w: F.embedding_bag(torch.tensor([[1, 2], [1, 0]]), w, scale_grad_by_freq=True), lambda: (r(6, 5),),
                      "_embedding_bag"),
    "complex systems": (lambda z: torch.linalg.solve_ex(z + 5 * torch.eye(3), z[:, :2] + 1)[0], lambda: (r(3, 3, dtype=torch.complex64),),
                        "_linalg_solve_ex"),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.t() + 3 * torch.eye(3)), lambda: (r(3, 3),), "with_effects"),
    "solve": (lambda x: torch.linalg.solve(x @ x.t() + 3 * torch.eye(3), x), lambda: (r(3, 3),), "with_effects"),
}


RARE = ("layer norm, no bias", "layer norm, fixed weight", "instance norm", "conv1d", "conv3d", "grouped", "dilated", "conv, fixed input",
        "transposed 1d", "max pool, unbatched", "max pool 1d", "max pool 3d", "mean pool, ceil", "mean pool, divisor", "mean pool 3d",
        "adaptive 3d", "adaptive max", "nearest", "bicubic", "grouped queries", "multi-head attention", "other losses", "ctc", "functions",
        "running", "sorted", "moved", "scattered", "grid", "fold", "distances", "prelu and glu", "reductions", "complex numbers",
        "replicated edges", "antialiased", "masked scatter", "systems")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in GRADIENTS])
def test_gradients(name: str) -> None:
    fn, make = GRADIENTS[name]
    found = check(fn, *make(), grad=True, strides=False, calls=1)
    assert {c.kind for c in found} == {"forward", "backward"}


@pytest.mark.parametrize("name", SPLIT)
def test_splits(name: str) -> None:
    fn, make, op = SPLIT[name]
    with pytest.warns(SplitWarning, match=op):
        check(fn, *make(), grad=True, strides=False, splits=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("eps", [None, 1e-3])
def test_statistics_of_rms_norms(dtype: torch.dtype, eps: float | None) -> None:
    """On a GPU the op stays whole, and the backward pass reads what it gives beside its result."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tilewright.dynamo.backend import Compiler
    from tilewright.dynamo.options import Options

    op = torch.ops.aten._fused_rms_norm.default
    args = torch.randn(3, 4, 5).to(dtype), [4, 5], torch.randn(4, 5).to(dtype), eps
    graph, mode = torch.fx.Graph(), FakeTensorMode(allow_non_fake_inputs=True)
    x, w = graph.placeholder("x"), graph.placeholder("w")
    both = graph.call_function(op, (x, args[1], w, eps))
    results = [graph.call_function(operator.getitem, (both, i)) for i in range(2)]
    graph.output(tuple(results))
    want = op(*args)
    for node, value in zip((x, w, both, *results), (args[0], args[2], want, *want), strict=True):
        node.meta["val"] = torch.utils._pytree.tree_map(mode.from_tensor, value)
    made = Compiler(Options.of(None, None)).graph(torch.fx.GraphModule(torch.nn.Module(), graph), "inference")
    assert not made.splits
    assert_same(tuple(made.call([args[0], args[2]])), want)
