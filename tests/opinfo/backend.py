"""OpInfo samples through `torch.compile(backend="tilewright")`: values, strides, gradients and what in-place forms write, beside eager.

A bundle of samples is one function, as in `calls.py`; parts that run in PyTorch are counted, not refused. Random results and uninitialised
memory are left out. `score.py --backend f64,bf16,...` runs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from tests.opinfo import calls
from tests.opinfo.calls import ANY_OF_EQUALS, IN_ANY_ORDER, UP_TO_SIGN, Call, Calls
from tests.opinfo.compare import describe, tolerance_of
from tests.opinfo.excluded import CUDA_ONLY, EXCLUDED, RANDOM, UNINITIALISED
from tilewright.dynamo import tilewright
from tilewright.dynamo.backend import SplitWarning, watching

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64, "i32": torch.int32,
          "i16": torch.int16, "u8": torch.uint8, "bool": torch.bool, "c64": torch.complex64, "c128": torch.complex128}
STAGES = ("values", "grad", "written")


def runs(name: str) -> bool:
    return EXCLUDED.get(name) not in (RANDOM, UNINITIALISED, CUDA_ONLY)


def _fresh(call: Call, grad: bool) -> list[Any]:
    return [t.requires_grad_(grad and t.requires_grad) for t in call.copies()]


def _stepped(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n != 1) if t.numel() > 1 else ()


def values(op: Any, part: Sequence[Call]) -> list[str | None]:
    """Results and their strides; with gradients where the samples want them."""
    grad = any(t.requires_grad for c in part for t in c.tensors)
    fns = [calls._processed(op, c) if grad or op.name in (*UP_TO_SIGN, *IN_ANY_ORDER) else op.op for c in part]
    theirs, mine = [_fresh(c, grad) for c in part], [_fresh(c, grad) for c in part]
    want = [c(fn, ts) for fn, c, ts in zip(fns, part, theirs, strict=True)]
    module = torch.compile(Calls(fns, part), backend=tilewright, dynamic=False)
    got = [list(r) for r in module(*(t for ts in mine for t in ts))]
    told: list[str | None] = []
    absolute, relative = tolerance_of(op)
    wider = absolute, max(relative, 1e-5) if grad else relative
    for k, (fn, call, a, b) in enumerate(zip(fns, part, got, want, strict=True)):
        x, y = (calls._at_index(call, op.name, v) if op.name in ANY_OF_EQUALS else v for v in (a, b))
        problem = calls._first(call, x, y, partial(call.exact, fn), wider)
        if problem is None and grad:
            problem = _gradients(op, call, fn, (a, mine[k]), (b, theirs[k]), wider)
        if problem is None:
            pairs = [(_stepped(x), _stepped(y)) for x, y in zip(a, b, strict=True)
                     if isinstance(y, torch.Tensor) and y.layout == torch.strided]
            odd = [p for p in pairs if p[0] != p[1]]
            problem = f"strides {odd[0][1]} expected, got {odd[0][0]}; {describe(call.sample)}" if odd else None
        told.append(problem)
    return told


def _gradients(op: Any, call: Call, fn: Any, ours: Any, theirs: Any, wider: Any) -> str | None:
    found, seeds = list[list[torch.Tensor]](), dict[int, torch.Tensor]()
    for outputs, tensors in (theirs, ours):
        moved = [i for i, x in enumerate(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
        if not found:
            calls._seeded(op.full_name, call.number)
            seeds = {i: torch.randn_like(outputs[i]) for i in moved}
        elif set(moved) != set(seeds):
            return f"outputs {sorted(seeds)} want gradients, ours {moved}; {describe(call.sample)}"
        wanted = [t for t in tensors if t.requires_grad]
        if not moved or not wanted:
            return None
        made = torch.autograd.grad([outputs[i] for i in moved], wanted, [seeds[i] for i in moved], allow_unused=True)
        found.append([torch.zeros_like(t) if g is None else g for t, g in zip(wanted, made, strict=True)])
    problem = calls._first(call, found[1], found[0], partial(calls._exact_gradients, fn, call, seeds), wider)
    return None if problem is None else f"gradient: {problem}"


def written(op: Any, part: Sequence[Call]) -> list[str | None]:
    """The op's in-place form on a copy of its first tensor: what lies there afterwards."""
    part = [c for c in part if not c.sample.broadcasts_input and isinstance(c.sample.input, torch.Tensor)]
    told: list[str | None] = []
    fn = op.inplace_variant
    for call in part:
        want, got = _fresh(call, False), _fresh(call, False)
        try:
            call(fn, want)
        except Exception:  # not every sample can be written into its first tensor
            continue
        returned = torch.compile(Calls([fn], [call]), backend=tilewright, dynamic=False)(*got)
        told.append(calls._first(call, got, want, partial(_after, call, fn), tolerance_of(op)))
        if returned[0][0] is not got[0] and isinstance(returned[0][0], torch.Tensor):
            told.append(f"the first argument itself expected; {describe(call.sample)}")
    return told


def _after(call: Call, fn: Any) -> list[Any]:
    tensors = call.copies(torch.float64)
    call(fn, [t.detach() for t in tensors])
    return [t.detach() for t in tensors]


def score(op: Any, kinds: Sequence[str], seed: int, most: int) -> dict[str, Any]:
    """Scores of one op by dtype and stage, with the splits that were met."""
    import random

    found: dict[str, Any] = {}
    splits: dict[str, int] = {}
    for kind in kinds:
        dtype = DTYPES[kind]
        if not op.supports_dtype(dtype, "cpu"):
            continue
        grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        for stage in STAGES:
            if (stage == "grad" and not grad) or (stage == "values" and grad) or (stage == "written" and op.inplace_variant is None):
                continue
            samples = calls.samples_of(op, dtype, stage == "grad", seed)
            if len(samples) > most:
                samples = sorted(random.Random(seed).sample(samples, most), key=lambda c: c.number)
            if not samples:
                continue
            torch._dynamo.reset()
            with watching() as graphs, warnings.catch_warnings():
                warnings.simplefilter("ignore", SplitWarning)
                scored = calls.run(written if stage == "written" else values, op, samples, seed, most)
            for c in graphs:
                for node, refusal in c.refusals.items():
                    if isinstance(node.target, str):
                        continue
                    text = f"{node.target}: {refusal.reason[:160]}"
                    splits[text] = splits.get(text, 0) + 1
            found[f"{kind} {stage}"] = vars(scored)
    if splits:
        found["splits"] = splits
    return found
