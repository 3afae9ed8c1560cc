"""Every op of the registry on the CUDA target: its PTX, emulated, against the reference; what has no kernel is named by the error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.device_ops import grown, trials
from tests.cuda.launching import Emulated, program
from tests.ops.checks import Case, assert_close, cases
from tilewright.core.errors import CompileError
from tilewright.ir.interp import run
from tilewright.ops import REGISTRY
from tilewright.target.cuda.safety.barrier_safety import check

# Products with packed integers want constants that only `lower_quantized` makes; docs/internals/cuda.md names all of these.
NO_KERNEL = {"qdot", "qexperts_dot"}
NEEDS_UNITS = {"int_matmul"}  # `wgmma` is not emulated: the kernel of the other chips
SUMS = {"splat_rasterize_backward"}  # sums of terms that cancel: errors are relative to the largest result


def first_cases() -> list[Any]:
    """The first sample of every op."""
    seen: set[str] = set()
    out = []
    for p in cases():
        (case,) = p.values
        if case.op.name not in seen:
            seen.add(case.op.name)
            out.append(pytest.param(case, id=case.op.name))
    return out


@pytest.mark.parametrize("case", first_cases())
def test_an_op_gives_its_reference(case: Case, rng: np.random.Generator) -> None:
    if case.op.name in NO_KERNEL:
        with pytest.raises(CompileError, match=f"no kernel on this target for\n  {case.op.name} "):
            program(case.graph())
        return
    arrays = case.arrays(rng)
    with np.errstate(all="ignore"):
        want = run(case.graph(), arrays, case.env)
    emulated = Emulated(case.graph(), "sm_80" if case.op.name in NEEDS_UNITS else "sm_90a")
    for got, w, v in zip(emulated(*arrays, env=case.env), want, case.graph().outputs, strict=True):
        if case.op.name in SUMS:
            size = max(1, np.abs(w).max(initial=0))
            got, w = got / size, w / size
        assert_close(got, np.asarray(w), v.dtype.name, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_no_kernel_of_any_op_can_miss_a_barrier(arch: str) -> None:
    """All samples, and the same multiplied beyond every tile: 2,500 kernels a chip."""
    texts: dict[str, str] = {}
    for name, op in REGISTRY.items():
        for trial in (*trials(op), *grown(op)) if name not in NO_KERNEL else ():
            session: Any = tw.compile(trial.graph(), target=arch)
            texts |= session.ptx()
    assert len(texts) > 2000
    assert not [(name, str(found[0])) for name, text in texts.items() if (found := check(text))]
