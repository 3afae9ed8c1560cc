"""Every op of the registry on a GPU: all samples and sizes beyond every tile, against float64, into poisoned memory, the same bits twice.

What the target has no kernel for is named with the error a user gets, which is checked without a GPU, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.cuda.device_ops import Trial, difference, grown, reference, trials
from tilewright.core.errors import CompileError
from tilewright.ir.types import TensorType
from tilewright.ops import REGISTRY, Op
from tilewright.runtime.arguments import from_dtype
from tilewright.runtime.cuda import driver as cuda_driver

WHY = cuda_driver.available()
on_gpu = pytest.mark.skipif(bool(WHY), reason=f"no GPU: {WHY}")
# Products with packed integers want constants, which `lower_quantized` makes; tests/cuda/test_device_packed.py runs those.
NO_KERNEL = {"qdot": "the packed matrix must be a constant", "qexperts_dot": "no kernel on this target"}
LOOSE = dict.fromkeys(("eig", "eigh", "svd"), 100.0)  # vectors are as exact as the gaps between the values are wide
LOOSE["attention_saved"] = 4.0  # head sizes that the tensor cores do not take: scores are rounded to 16 bits on their way
LEAST = {"gelu": 1.0}  # 1 + erf cancels below zero: as exact as the operand is large, in PyTorch, too
OPS = [op for name, op in REGISTRY.items() if name not in NO_KERNEL]


def named(op: type[Op]) -> str:
    return op.name


def poison(sizes: list[int]) -> None:
    """Memory that results of these bytes will come from is full of ones: NaN in every float."""
    blocks = [torch.full((n,), 255, dtype=torch.uint8, device="cuda") for n in sizes if n for _ in range(2)]
    torch.cuda.synchronize()
    del blocks


def sent(a: Any, t: TensorType) -> torch.Tensor:
    """The same bytes on the GPU; every dtype has a name in torch, not every one a conversion."""
    whole = torch.from_numpy(np.frombuffer(bytearray(np.ascontiguousarray(a).tobytes() or b"\0" * 16), np.uint8)).cuda()
    return whole[: a.nbytes].view(from_dtype()[t.dtype]).reshape(a.shape)


def fetched(x: Any, t: TensorType) -> Any:
    if not isinstance(x, torch.Tensor):  # without a tensor among the inputs results are arrays of our own
        return x.numpy()
    raw = x.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
    return raw.view(t.dtype.np).reshape(tuple(x.shape))


def wrong(trial: Trial, rng: np.random.Generator) -> list[str]:
    """What differs between the session's results and the references."""
    g = trial.graph()
    session: Any = tw.compile(g, target="cuda")
    found, alone = [], {str(d) for t in trial.case.sample.types for d in t.shape}  # the symbols that a dim shows by itself
    for env in trial.envs:
        case = type(trial.case)(trial.case.op, trial.case.sample, env)
        arrays = case.arrays(rng)
        wanted = reference(case, env, arrays)
        given = [sent(a, t) for a, t in zip(arrays, case.sample.types, strict=True)]
        runs = []
        for _ in range(2):
            poison([w.nbytes for w in wanted])
            made = session(*given) if set(env) <= alone else session.run_with(env, *given)
            runs.append([fetched(t, v.type) for t, v in zip(made if isinstance(made, tuple) else (made,), g.outputs, strict=True)])
        session.synchronize()
        for k, (got, again, want, v) in enumerate(zip(*runs, wanted, g.outputs, strict=True)):
            # Tensor cores add fp8 with fewer bits: docs/internals/cuda.md.
            loose = 100.0 if case.sample.types and case.sample.types[0].dtype.name.startswith("f8") else LOOSE.get(case.op.name, 1.0)
            problem = difference(got, want, v.dtype.name, loose, LEAST.get(case.op.name, 0.0))
            if not problem and got.tobytes() != again.tobytes():
                problem = "other bits in the second run"
            if problem:
                found.append(f"{trial.name} {env} result {k} ({v.type}): {problem}")
    return found


@on_gpu
@pytest.mark.parametrize("op", OPS, ids=named)
def test_samples(op: type[Op], rng: np.random.Generator) -> None:
    assert not [line for trial in trials(op) for line in wrong(trial, rng)]


@on_gpu
@pytest.mark.parametrize("op", [op for op in OPS if next(grown(op), None)], ids=named)
def test_larger_than_a_tile(op: type[Op], rng: np.random.Generator) -> None:
    assert not [line for trial in grown(op) for line in wrong(trial, rng)]


@pytest.mark.parametrize("name", NO_KERNEL)
def test_what_has_no_kernel(name: str) -> None:
    for trial in trials(REGISTRY[name]):
        with pytest.raises(CompileError, match=NO_KERNEL[name]):
            tw.compile(trial.graph(), target="sm_90a")
