"""The rows of `programs.py`: a program with its functions compiled gives what it gives in PyTorch alone."""
from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils import _pytree

from tilewright.dynamo.backend import watching

from . import programs_more
from .check import TOLERANCE
from .programs import PROGRAMS, SPLITS

assert programs_more  # enters its rows
LIMITS = TOLERANCE | {torch.float16: 4e-3, torch.bfloat16: 3e-2}


def same(got: Any, want: Any) -> None:
    mine, my_spec = _pytree.tree_flatten(got)
    leaves, spec = _pytree.tree_flatten(want)
    assert my_spec == spec, f"{my_spec} != {spec}"
    for i, (a, b) in enumerate(zip(mine, leaves, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b) and a == b, (i, a, b)
            continue
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device), (i, a.dtype, a.shape, b.dtype, b.shape)
        assert a.requires_grad == b.requires_grad, (i, a.requires_grad)
        limit = LIMITS.get(b.dtype, 0.0)
        finite = b.detach()[torch.isfinite(b)]
        scale = max(1.0, float(finite.abs().max())) if finite.numel() and limit else 1.0
        torch.testing.assert_close(a, b, rtol=limit, atol=limit * scale, equal_nan=True, msg=lambda m, i=i: f"leaf {i}: {m}")


def run(name: str, device: str = "cpu") -> int:
    """How many parts PyTorch ran."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with watching() as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # splits, and what torch says about the programs
        want = PROGRAMS[name](lambda f, **_: f, device)
        torch.manual_seed(0)
        got = PROGRAMS[name](lambda f, **options: torch.compile(f, backend="tilewright", **options), device)
    same(got, want)
    return sum(c.splits for c in found)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    assert run(name) == SPLITS.get(name, 0)
