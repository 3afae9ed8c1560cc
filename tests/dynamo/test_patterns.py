"""Small functions of every kind that people compile: in-place writes, views, aliases, trees, sizes, dtypes."""
from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tilewright.dynamo.backend import SplitWarning

from .check import assert_same, check

r = torch.randn
INFERENCE: dict[str, tuple[Any, Any]] = {
    "add": (lambda x, y: x + y, lambda: (r(3, 4), r(4))),
    "constant result": (lambda x: torch.ones(3) * 2, lambda: (r(2),)),
    "no arguments": (lambda: torch.arange(5).float() / 2, lambda: ()),
    "identity": (lambda x: x, lambda: (r(3),)),
    "identity and more": (lambda x: (x, x + 1), lambda: (r(3),)),
    "twice the same": (lambda x: (y := x * 2, y), lambda: (r(3),)),
    "clone": (lambda x: (x.clone(), x.clone()), lambda: (r(3),)),
    "tuple, list, dict": (lambda x: {"a": (x + 1, [x * 2]), "b": None, "c": 3, "d": "word"}, lambda: (r(3),)),
    "none": (lambda x, y: (None, x * 2), lambda: (r(3), None)),
    "dict argument": (lambda d: {k: v * 2 for k, v in d.items()}, lambda: ({"a": r(3), "b": r(2, 2)},)),
    "int argument": (lambda x, n: x * n, lambda: (r(3), 5)),
    "float argument": (lambda x, n: x * n + n, lambda: (r(3), 0.3)),
    "bool argument": (lambda x, b: x * 2 if b else x - 1, lambda: (r(3), True)),
    "string argument": (lambda x, s: getattr(torch, s)(x), lambda: (r(3), "exp")),
    "shape as result": (lambda x: (x + 1, x.shape[0], x.numel() * 2), lambda: (r(3, 4),)),
    "in place": (lambda x: x.add_(1), lambda: (r(3, 4),)),
    "in place, later read": (lambda x: (x.mul_(2), x + 1), lambda: (r(3, 4),)),
    "in place on a slice": (lambda x: x[:, 1].zero_(), lambda: (r(3, 4),)),
    "in place on a copy": (lambda x: x.clone().add_(1).mul_(x), lambda: (r(3, 4),)),
    "setitem": (lambda x, y: x.__setitem__((slice(1, 3),), y), lambda: (r(4, 4), r(2, 4))),
    "setitem with a mask": (lambda x: x.__setitem__(x > 0, 0.0), lambda: (r(4, 4),)),
    "setitem with indices": (lambda x, i: x.__setitem__(i, 7.0), lambda: (r(6, 4), torch.tensor([0, 3]))),
    "copy_": (lambda x, y: x.copy_(y), lambda: (r(4, 4), r(4))),
    "two arguments change": (lambda x, y: (x.add_(y), y.mul_(2)), lambda: (r(4), r(4))),
    "swapped": (lambda x, y: (lambda t: (x.copy_(y), y.copy_(t)))(x.clone()), lambda: (r(4), r(4))),
    "argument becomes another": (lambda x, y: (x.copy_(y), None)[1], lambda: (r(4), r(4))),
    "an int tensor changes": (lambda x: x.add_(1), lambda: (torch.arange(6),)),
    "strided argument changes": (lambda x: x.mul_(3), lambda: (r(4, 6)[:, ::2],)),
    "transposed argument changes": (lambda x: x.mul_(3).add_(x.sum()), lambda: (r(4, 6).t(),)),
    "expanded view changes": (lambda x: x[0].add_(x[1]), lambda: (r(2, 6),)),
    "unsqueeze_": (lambda x: x.clone().unsqueeze_(0), lambda: (r(2, 6),)),
    "out=": (lambda x, y: torch.add(x, 1, out=y), lambda: (r(3), torch.empty(3))),
    "view of an argument": (lambda x: x.t(), lambda: (r(3, 4),)),
    "views of an argument": (lambda x: (x.t(), x[1], x.view(-1)[::2]), lambda: (r(3, 4),)),
    "view of a result": (lambda x: (y := x * 2, y.t()), lambda: (r(3, 4),)),
    "views of what is not returned": (lambda x: (x * 2).view(2, 6).unbind(0), lambda: (r(3, 4),)),
    "split": (lambda x: (x + 1).split([1, 3], 1), lambda: (r(3, 4),)),
    "chunk of an argument": (lambda x: x.chunk(2), lambda: (r(4, 4),)),
    "expand": (lambda x: (x * 2).expand(5, 3), lambda: (r(1, 3),)),
    "transposed result": (lambda x: (x @ x.t()).t(), lambda: (r(3, 4),)),
    "slice of a result": (lambda x: (x * 2)[1:3, ::2], lambda: (r(5, 6),)),
    "diagonal": (lambda x: x.diagonal() * 2, lambda: (r(4, 4),)),
    "as_strided": (lambda x: torch.as_strided(x, (2, 2), (1, 2), 1) + 1, lambda: (r(8),)),
    "detach": (lambda x: (x * 2).detach(), lambda: (r(3),)),
    "permuted argument": (lambda x: x.permute(2, 0, 1) * 2, lambda: (r(3, 4, 5),)),
    "strided argument": (lambda x: x + 1, lambda: (r(6, 8)[::2, 1::3],)),
    "transposed argument": (lambda x: x * 2, lambda: (r(6, 8).t(),)),
    "broadcast argument": (lambda x: x * 2 + 1, lambda: (r(1, 8).expand(5, 8),)),
    "overlapping argument": (lambda x: x + 1, lambda: (r(10).unfold(0, 4, 2),)),
    "channels last": (lambda x, w: F.relu(F.conv2d(x, w)), lambda: (r(2, 3, 8, 8).to(memory_format=torch.channels_last), r(4, 3, 3, 3))),
    "offset": (lambda x: x * 2, lambda: (r(10)[3:],)),
    "empty": (lambda x: (x * 2, x.sum(), x.sum(0)), lambda: (r(0, 4),)),
    "rank 0": (lambda x: x * 2 + 1, lambda: (r(()),)),
    "f64": (lambda x: x.softmax(-1) @ x.t(), lambda: (r(5, 6, dtype=torch.float64),)),
    "f16": (lambda x: (x * 2).relu(), lambda: (r(5, 6).half(),)),
    "bf16": (lambda x: x.exp() + 1, lambda: (r(5, 6).bfloat16(),)),
    "integers": (lambda x: (x * 3 // 2, x % 5, x << 1, x & 7), lambda: (torch.arange(-6, 6),)),
    "i32 and i64": (lambda x: x.sum() + x.to(torch.int64), lambda: (torch.arange(5, dtype=torch.int32),)),
    "u8": (lambda x: x + 200, lambda: (torch.arange(100, dtype=torch.uint8),)),
    "booleans": (lambda x, y: (x & y, x | ~y, x ^ y, (x > y).any()), lambda: (r(9) > 0, r(9) > 0)),
    "mask": (lambda x, m: x.masked_fill(m, -1e9).softmax(-1), lambda: (r(4, 5), r(4, 5) > 1)),
    "where": (lambda x: torch.where(x > 0, x, x.exp()), lambda: (r(4, 5),)),
    "complex": (lambda x, y: (x * y, x.abs(), x.conj() + 1, x.real), lambda: (r(4, dtype=torch.complex64), r(4, dtype=torch.complex64))),
    "complex norms": (lambda x: [torch.linalg.vector_norm(x, p, 0) for p in (0, 1, 2, 0.5, 3)], lambda: (r(4, 5, dtype=torch.complex64),)),
    "complex product": (lambda x, y: (x @ y, torch.vdot(x[0], y[:, 0]), torch.addmm(x @ y, x, y, beta=0.2, alpha=0.6 - 2j)),
        lambda: (r(4, 5, dtype=torch.complex64), r(5, 3, dtype=torch.complex64))),
    "promotion": (lambda x, y: (x + y, x * 2.5, y / 2), lambda: (torch.arange(4), r(4).double())),
    "nan and infinities": (lambda x: (x / 0, (x - x).log(), x.nan_to_num()), lambda: (torch.tensor([1.0, -1.0, float("nan"), 0.0]),)),
    "reductions": (lambda x: (x.sum(), x.mean(0), x.max(1), x.argmin(), x.std(), x.prod(-1), x.logsumexp(0)), lambda: (r(5, 6),)),
    "sort and topk": (lambda x: (x.sort(-1), x.topk(3), x.argsort()), lambda: (r(4, 9),)),
    "cumsum": (lambda x: (x.cumsum(0), x.cumprod(1)), lambda: (r(4, 9),)),
    "gather and scatter": (lambda x, i: (x.gather(1, i), x.scatter(1, i, 0.0), x.index_select(0, i[0])),
        lambda: (r(4, 4), torch.randint(4, (4, 3)))),
    "index": (lambda x, i, j: (x[i], x[i, j], x[:, j], x[None, i]), lambda: (r(5, 6), torch.tensor([1, 4]), torch.tensor([0, 5]))),
    "index_put": (lambda x, i, v: x.index_put((i,), v, accumulate=True), lambda: (r(5), torch.tensor([1, 1, 3]), r(3))),
    "cat and stack": (lambda x, y: (torch.cat([x, y]), torch.stack([x, x * 2], 1)), lambda: (r(2, 3), r(4, 3))),
    "pad, roll, flip": (lambda x: (F.pad(x, (1, 2)), x.roll(1, 0), x.flip(1), x.tril()), lambda: (r(4, 4),)),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), lambda: (r(2, 3, 4), r(2, 5, 4))),
    "baddbmm": (lambda x, y, z: torch.baddbmm(x, y, z, beta=0.5, alpha=2), lambda: (r(2, 3, 5), r(2, 3, 4), r(2, 4, 5))),
    "linear algebra": (lambda x: (torch.linalg.inv(x @ x.t() + 6 * torch.eye(4)), torch.linalg.det(x)), lambda: (r(4, 4),)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: (r(1, 2, 5, 8), r(1, 2, 5, 8), r(1, 2, 5, 8))),
    "attention with a mask": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        lambda: (r(1, 2, 5, 8), r(1, 2, 7, 8), r(1, 2, 7, 8), r(5, 7))),
    "pools": (lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 3)), lambda: (r(2, 3, 9, 9),)),
    "resize": (lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, (7, 5), mode="bilinear")), lambda: (r(1, 2, 4, 4),)),
    "norms": (lambda x: (F.layer_norm(x, (6,)), F.normalize(x), x.norm(), F.group_norm(x, 2), F.rms_norm(x, (6,))), lambda: (r(4, 6),)),
    "losses": (lambda x, t: (F.cross_entropy(x, t), F.nll_loss(x.log_softmax(1), t, reduction="none"), F.mse_loss(x, x * 2)),
        lambda: (r(4, 6), torch.randint(6, (4,)))),
    "embedding": (lambda i, w: F.embedding(i, w), lambda: (torch.randint(6, (2, 3)), r(6, 5))),
    "control on sizes": (lambda x: x * 2 if x.shape[0] > 2 else x - 1, lambda: (r(3, 4),)),
    "loop": (lambda x: [x := x * 1.5 for _ in range(4)][-1], lambda: (r(3, 4),)),
    "no_grad inside": (lambda x: (x * torch.no_grad()(lambda y: y.sum())(x)), lambda: (r(3),)),
    "one_hot": (lambda i: F.one_hot(i, 7), lambda: (torch.randint(7, (4,)),)),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), lambda: (r(6),)),
    "full_like, zeros_like": (lambda x: (torch.full_like(x, 3), torch.zeros_like(x), x.new_ones(2)), lambda: (r(3, 4),)),
    "triu_indices": (lambda x: x[torch.triu_indices(4, 4)[0]], lambda: (r(4, 4),)),
    "float to int": (lambda x: (x.int(), x.long(), x.bool(), (x > 0).float()), lambda: (r(5) * 9,)),
    "fft": (lambda x: torch.fft.rfft(x).abs(), lambda: (r(4, 16),)),
}


@pytest.mark.parametrize("name", INFERENCE)
def test_inference(name: str) -> None:
    fn, make = INFERENCE[name]
    with torch.no_grad():
        args = make()
        if name in ("identity", "chunk of an argument", "view of an argument", "views of an argument"):
            compiled = torch.compile(fn, backend="tilewright")
            got, want = compiled(*args), fn(*args)
            assert_same(got, want)
            return
        if name in SPLIT:
            with pytest.warns(SplitWarning, match=SPLIT[name]):
                check(fn, *args, splits=None)
        else:
            check(fn, *args, strides=name not in OTHER_STRIDES)


SPLIT = {"linear algebra": "with_effects x1 .first at test_patterns.py"}
OTHER_STRIDES = ("slice of a result",)  # the part alone is computed, and is contiguous
