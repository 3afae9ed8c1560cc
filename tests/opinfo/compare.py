"""Comparing a result of ours with torch's, and saying in one line what is wrong.

Equal in shape and dtype, and close as `torch.testing.assert_close` defines it (or as OpInfo does for this op, if that is wider). Where f32
results differ by more, the f64 result decides: ours may be at most twice as far from it as torch's own f32 result is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

ATOL = {torch.float32: 1e-5, torch.float64: 1e-7}
RTOL = {torch.float32: 1.3e-6, torch.float64: 1e-7, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}  # assert_close's own
WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128, torch.float16: torch.float64, torch.bfloat16: torch.float64}
LINE = 150


Tolerance = tuple[float, float]  # absolute, relative


def tolerance_of(op: Any) -> Tolerance:
    """The widest tolerance that OpInfo itself gives the op in f32; (0, 0) where it gives none."""
    from torch.testing._internal.common_device_type import toleranceOverride

    found: list[Tolerance] = [(0.0, 0.0)]
    for info in op.decorators or ():
        for decorator in getattr(info, "decorators", (info,)):
            if isinstance(decorator, toleranceOverride) and torch.float32 in decorator.d:
                given = decorator.d[torch.float32]
                found.append((float(given.atol), float(given.rtol)))
    return max(a for a, _ in found), max(r for _, r in found)


def difference(got: Any, want: torch.Tensor, exact: Callable[[], Any], wider: Tolerance = (0.0, 0.0)) -> str | None:
    """What is wrong with `got`, or None. `exact` gives torch's result for f64 inputs."""
    if not isinstance(got, torch.Tensor):
        return f"a tensor expected, got {type(got).__name__}"
    if got.dtype != want.dtype:
        return f"dtype {short(want.dtype)} expected, got {short(got.dtype)}"
    if got.shape != want.shape:
        return f"shape {tuple(want.shape)} expected, got {tuple(got.shape)}"
    want = want.detach().resolve_neg().resolve_conj()
    if not (want.is_floating_point() or want.is_complex()):
        wrong = got != want
        return f"{int(wrong.sum())} of {want.numel()} integers differ" if bool(wrong.any()) else None
    absolute, relative = max(wider[0], ATOL.get(want.dtype, 1e-5)), max(wider[1], RTOL.get(want.dtype, 1.3e-6))
    finite = torch.isfinite(want)
    if want.dtype in (torch.float16, torch.bfloat16) and bool(finite.any()):  # sums of rounded terms cancel: the largest value says how far
        absolute = max(absolute, relative * float(want[finite].abs().max()))
    odd = ~finite & ~((got == want) | (torch.isnan(got) & torch.isnan(want))) | (finite & ~torch.isfinite(got))
    if bool(odd.any()):
        return f"{int(odd.sum())} of {want.numel()} values differ in being NaN or infinite"
    far = _far(got, want.to(WIDE.get(want.dtype, want.dtype)), finite, relative, absolute)
    if far <= 1:
        return None
    if want.dtype in WIDE:
        try:
            best = exact()
        except Exception:
            best = None
        if isinstance(best, torch.Tensor) and best.shape == want.shape and best.dtype == WIDE[want.dtype]:
            best = best.detach()
            ours, theirs = (_far(x, best, finite & torch.isfinite(best), relative, absolute) for x in (got, want))
            if ours <= max(1.0, 2.0 * theirs):
                return None
            return f"values differ: {ours:.3g} tolerances from the f64 result, torch {theirs:.3g}"
    return f"values differ by {far:.3g} tolerances"


def _far(x: torch.Tensor, best: torch.Tensor, where: torch.Tensor, rtol: float, atol: float) -> float:
    """The largest error, in tolerances."""
    error = ((x.to(best.dtype) - best).abs() / (atol + rtol * best.abs()))[where]
    return float(error.max()) if error.numel() else 0.0


def short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def describe(sample: Any) -> str:
    """A sample in one line: tensors by dtype and shape."""
    parts = [_leaf(x) for x in (sample.input, *sample.args)] + [f"{k}={_leaf(v)}" for k, v in sample.kwargs.items()]
    text = ", ".join(parts)
    return f"on ({text if len(text) <= LINE else text[: LINE - 1] + '…'})"


def _leaf(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{short(x.dtype)}[{','.join(map(str, x.shape))}]"
    if isinstance(x, (tuple, list)):
        inner = ", ".join(_leaf(v) for v in x)
        return f"({inner})" if isinstance(x, tuple) else f"[{inner}]"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(x))


def reason(error: BaseException) -> str:
    """One line for an exception: the ops that cannot be imported, or its first line. Places are left out."""
    text = str(error)
    listed = re.findall(r"^  (.+?) x\d+(?: \(first at .*\))?$", text, re.M)
    if listed and "cannot be imported" in text:
        line = "not imported: " + ", ".join(dict.fromkeys(listed))
    else:
        line = f"{type(error).__name__}: {next(iter(text.splitlines()), '')}"
    line = re.sub(r" \((?:[\w./-]+/)?[\w-]+\.py:\d+\)", "", line)
    line = re.sub(r"0x[0-9a-f]+", "0x…", line)
    line = re.sub(r"(?:/[\w.+-]+)+/([\w.+-]+)", r"\1", line)
    return line if len(line) <= 2 * LINE else line[: 2 * LINE - 1] + "…"
