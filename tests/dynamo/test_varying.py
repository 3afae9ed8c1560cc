"""Training over sizes that vary stays one program; and three classes whose numbers were wrong once."""
from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tilewright.dynamo.backend import SplitWarning, watching

from .check import assert_same, check

r = torch.randn
VARYING: dict[str, tuple[Any, Any]] = {
    "pictures, stride 2": (lambda x, w: F.conv2d(x, w, padding=1, stride=2).relu(), lambda i: (r(2, 3, 8 + i, 9 + i), r(4, 3, 3, 3))),
    "transposed, groups": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=2),
                           lambda i: (r(2 + i, 4, 5 + i, 5), r(4, 3, 4, 4))),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                  lambda i: [r(2 + i, 2, 4 + i, 8) for _ in "qkv"]),
    "pixels": (lambda x: F.pixel_shuffle(x, 2) * 2, lambda i: (r(3 + i, 8, 4 + i, 5),)),
    "floats from sizes": (lambda x: (x / math.sqrt(x.shape[1]) + x.shape[0] / 3 + x.shape[0] ** 0.5).var(0) + torch.eye(x.shape[1]).sum(),
                          lambda i: (r(3 + i, 8 + i, 4),)),
    "pads, average pools": (lambda x: F.avg_pool2d(F.pad(x, (1, x.shape[0], 2, x.shape[0])), 3, 2).sin(), lambda i: (r(3 + i, 8 + i, 9),)),
    "pads to a multiple": (lambda x: F.pad(x, (0, 0, -x.shape[1] % 4, -x.shape[1] % 3)).sin(), lambda i: (r(2, 2 + i, 3),)),
    "pads and cuts": (lambda x: F.pad(x, (7 - x.shape[2], x.shape[2] - 5, 0, 6 - x.shape[1])).sin(), lambda i: (r(2, 5 + i, 6 - i),)),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b).sin(), lambda i: (r(3 + i, 8, 4 + i, 5), r(8), r(8))),
}


@pytest.mark.parametrize(("name", "dynamic"), [("pictures, stride 2", None), ("transposed, groups", True), ("attention", None),
                                               ("attention", True), ("pixels", True), ("group norm", True),
                                               ("floats from sizes", True), ("pads, average pools", True),
                                               ("pads to a multiple", True), ("pads and cuts", True)])
def test_training(name: str, dynamic: bool | None) -> None:
    fn, make = VARYING[name]
    call = torch.compile(fn, backend="tilewright", dynamic=dynamic)
    with watching() as found:
        for i in range(3):
            ours = [t.requires_grad_() for t in make(i)]
            theirs = [t.detach().clone().requires_grad_() for t in ours]
            got, want = call(*ours), fn(*theirs)
            seed = torch.randn_like(want)
            got.backward(seed)
            want.backward(seed)
            assert_same(got, want)
            assert_same([t.grad for t in ours], [t.grad for t in theirs], "gradient")
    assert len(found) <= 4 and not any(c.splits for c in found), [c.refusals for c in found]


class Counts(nn.Module):
    """A buffer scales the result, and is changed behind that."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(4))
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.seen.clone() * self.weight
        self.seen.add_(1)
        return y


def test_gradients_read_buffers_as_they_were() -> None:
    """`aot_eager` computes the old value again from the new one."""
    ours, theirs = Counts(), Counts()
    call = torch.compile(ours, backend="tilewright")
    for _ in range(3):
        x = torch.randn(3, 4)
        for model in (call, theirs):
            model(x).square().sum().backward()
        assert_same(dict(ours.state_dict()), dict(theirs.state_dict()))
        assert_same(ours.weight.grad, theirs.weight.grad, "gradient")


def test_gradients_of_results_that_overlap() -> None:
    """AOTAutograd would lay the gradient as the result lies: windows that share elements."""
    ours, theirs = (torch.arange(9.0, requires_grad=True) for _ in range(2))
    seed = torch.randn(4, 3)
    torch.compile(lambda x: (x * 2).unfold(0, 3, 2), backend="tilewright")(ours).backward(seed)
    (theirs * 2).unfold(0, 3, 2).backward(seed)
    assert_same(ours.grad, theirs.grad)


def test_floats_beyond_small_integers() -> None:
    x = torch.tensor([-1.0, -1.5, 200.0, 300.0, 70000.0, -70000.0, 127.9])
    check(lambda x: [x.to(d).to(t) for d in (torch.float32, torch.float64, torch.bfloat16) for t in (torch.uint8, torch.int8, torch.int16)],
          x, calls=1)


def test_numbers_of_a_call_may_be_negative() -> None:
    """An integer argument is a symbol like a size, and may be an index that counts from the end."""

    def f(x: torch.Tensor, a: int, b: int) -> Any:
        i = torch.stack([torch.scalar_tensor(n, dtype=torch.int64) for n in (a, b)])
        return i, i < 0, i % 3, i // 2, i.abs(), x[i], x * a

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright", dynamic=True)
    x = torch.randn(5)
    with watching() as found:
        for a, b in ((2, 3), (-2, -3), (-4, 4)):
            assert_same(compiled(x, a, b), f(x, a, b))
    assert len(found) == 1 and not found[0].splits


def test_numbers_of_a_call_cut_tensors() -> None:
    """Slices from and up to an integer argument, read and written; the larger it is, the less is left."""

    def f(x: torch.Tensor, a: int, b: int) -> Any:
        rest = x[a:].cumsum(0).flip(0).cumsum(0)
        x.narrow(0, a, b - a).mul_(2)
        x[b:] -= 1
        return rest, x + 1

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright", dynamic=True)
    with watching() as found:
        for n, a, b in ((1000, 300, 600), (1000, 5, 6), (33, 2, 33), (700, 650, 690), (1000, 9, 999), (66, 40, 60)):
            x = torch.randint(-3, 4, (2 * n,)).float()[::2]
            y = x.clone()
            assert_same(compiled(x, a, b), f(y, a, b))
            assert torch.equal(x, y)
    assert found and not any(c.splits for c in found)


def test_parts_behind_a_split_know_the_sizes_of_which_their_operands_are_made() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = torch.poisson(torch.cat([x, y], 1) * 0)  # PyTorch's; an operand behind it shows the sum of two sizes
        return F.pad(z, (1, 2)).flip(1) + 1, z[:, : y.shape[1]].sum(0)

    with pytest.warns(SplitWarning, match="poisson.default x1"):
        (made,) = check(fn, r(3, 4), r(3, 5), dynamic=True, splits=1)
    assert len(made.refusals) == 1, made.refusals
