"""Random whole-number programs, with loops and branches, on the CUDA target: every kernel's PTX goes through the emulator, the results are
NumPy's, and no barrier can be missed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.cuda.launching import Emulated
from tilewright.core.errors import CompileError
from tilewright.target.cuda.safety.barrier_safety import check as missed

from . import exact, loops
from .engine.campaign import Campaign, Invalid
from .programs.program import DYNAMIC, KEEP, STATIC, Input, Program
from .programs.run import traced

CHIPS = ("sm_80", "sm_90a", "sm_120")
LARGEST = 4096  # elements that the emulator copes with
SMALL = (0, 1, 2, 3, 5, 8)


def draw(rng: np.random.Generator) -> Program:
    """`threads` says which chip."""
    program = exact.draw(rng) if rng.random() < 0.7 else loops.draw(rng)
    shrunk = tuple(Input(i.dtype, tuple(d if isinstance(d, str) else int(rng.choice(SMALL)) if d > 9 else d for d in i.shape))
                   for i in program.inputs)  # fmt: skip
    return replace(program, inputs=shrunk, steps=program.steps[:5], way=DYNAMIC if program.way == DYNAMIC else STATIC,
                   threads=int(rng.integers(len(CHIPS))), off=())  # fmt: skip


def check(program: Program) -> None:
    if program.off:
        raise Invalid
    builder, outputs = loops.prepared(program)
    if any(np.size(v.known) > LARGEST for v in builder.values.values()):
        raise Invalid
    want = loops.meaning(program, builder, outputs)
    graph = traced(builder, outputs, symbols=program.way == DYNAMIC).graph
    try:
        emulated = Emulated(graph, CHIPS[program.threads % len(CHIPS)])
    except CompileError as e:
        if "no kernel on this target" in str(e):  # docs/internals/cuda.md names these
            raise Invalid from None
        raise
    try:
        got = emulated(*exact.arguments(program, builder.env), env=builder.env)
    except NotImplementedError:  # the emulator lacks products by wgmma in some layouts
        raise Invalid from None
    for name, text in emulated.texts.items():
        assert not missed(text), f"{name}: a barrier can be missed"
    failed = bool(emulated.errors[0])
    if want is None:
        want, other = (loops.meaning(program, builder, outputs, lenient) for lenient in (1, 2))
        assert want is not None and other is not None
        assert failed or all(np.array_equal(a, b) for a, b in zip(want, other, strict=True)), "bad data, and no error"
        return
    assert not failed, f"error word {emulated.errors}"
    exact.compare(got, want, builder.env)


CAMPAIGN = Campaign(draw=draw, check=check, show=loops.show, keep=KEEP, quick=8, seconds=60.0)
