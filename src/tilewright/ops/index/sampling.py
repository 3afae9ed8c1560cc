"""Choosing the next token of each row of logits, inside the compiled program.

The order is that of transformers: repetition penalty, temperature, top-k, top-p, min-p, then one draw. Each filter keeps the tokens whose
probability is at least a threshold, so tokens of equal probability stay or go together. The draw takes the first token, in order of ids,
at which the running sum of what was kept exceeds u times the total; u comes from a counter-based generator (Philox 4x32-10), so that it
depends on seed and counter alone.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import ExecutionError, require
from ...ir.types import TensorType
from ..base import E, S, register
from ..families import General, N, f16, f32, i32, i64, u8
from ..random.philox import words

SETTINGS = ("temperature", "top_p", "min_p", "penalty")  # f32[4]
NUMBERS = ("top_k", "seed", "counter")  # i64[3]


def uniform(seed: int, counter: int) -> float:
    """A number in [0, 1) with 24 random bits."""
    key, at = (np.uint64(n & 0xFFFFFFFFFFFFFFFF) for n in (seed, counter))
    return float(words(key, at)[0] >> np.uint64(8)) * 2.0**-24


@register
class Sample(General):
    """The next token id of each row, i64[*rows]. Operands: logits f32[*rows, V], seen u8[*rows, V] (1: the penalty applies), settings
    f32[*rows, 4] (temperature, top_p, min_p, penalty), numbers i64[*rows, 3] (top_k, seed, counter). Temperature 0 takes the largest logit
    (the first of several); top_k <= 0, top_p >= 1, min_p <= 0 and penalty <= 0 or 1 change nothing. A row whose largest logit is NaN or
    infinite is an ExecutionError."""

    faults = True
    cases = True
    samples = [S(f32(7), u8(7), f32(4), i64(3), low=(-3, 0, 0.2, 0), high=(3, 1, 1, 5)),
               S(f32(150), u8(150), f32(4), i64(3), low=(-6, 0, 0.5, 1), high=(6, 1, 1.5, 40)),
               S(f32(64), u8(64), f32(4), i64(3), low=(-2, 0, 0.1, -3), high=(2, 1, 1, 0)),
               S(f32(1), u8(1), f32(4), i64(3), low=(-2, 0, 0.1, 0), high=(2, 1, 1, 3)),
               S(f32(300), u8(300), f32(4), i64(3), low=(-9, 0, 0, 0), high=(9, 1, 0, 9)),
               S(f32(N, 70), u8(N, 70), f32(N, 4), i64(N, 3), low=(-3, 0, 0.2, 0), high=(3, 1, 1, 9)),
               S(f32(2, 3, 65), u8(2, 3, 65), f32(2, 3, 4), i64(2, 3, 3), low=(-3, 0, 0.2, 0), high=(3, 1, 1, 9))]
    errors = [E(f32(7), u8(6), f32(4), i64(3), match="seen must be u8 of the logits' shape"),
              E(f16(7), u8(7), f32(4), i64(3), match="logits must be f32"), E(f32(2, N), u8(2, N), f32(2, 4), i64(2, 3), match="one known"),
              E(f32(7), u8(7), f32(3), i64(3), match="settings must be f32 with 4 numbers a row"),
              E(f32(2, 7), u8(2, 7), f32(4), i64(2, 3), match="settings must be f32 with 4 numbers a row"),
              E(f32(7), u8(7), f32(4), i32(3), match="numbers must be i64 with 3 numbers a row"),
              E(f32(0), u8(0), f32(4), i64(3), match="at least one logit")]

    def infer(self, logits: TensorType, seen: TensorType, settings: TensorType, numbers: TensorType) -> TensorType:
        size = logits.shape[-1] if logits.ndim else None
        require(logits.dtype is dt.f32 and isinstance(size, int), "logits must be f32 with rows of one known length", logits=logits)
        require(size != 0, "needs at least one logit")
        rows = logits.shape[:-1]
        require(seen == TensorType(dt.u8, logits.shape), "seen must be u8 of the logits' shape", seen=seen)
        require(settings == TensorType(dt.f32, (*rows, len(SETTINGS))), "settings must be f32 with 4 numbers a row", settings=settings)
        require(numbers == TensorType(dt.i64, (*rows, len(NUMBERS))), "numbers must be i64 with 3 numbers a row", numbers=numbers)
        return TensorType(dt.i64, rows)

    def flops(self, *types: TensorType) -> Dim:
        return 100 * types[0].numel

    def ref(self, logits: Any, seen: Any, settings: Any, numbers: Any) -> Any:
        out = np.empty(logits.shape[:-1], np.int64)
        for row in np.ndindex(out.shape):
            out[row] = self._row(logits[row], seen[row], settings[row], numbers[row])
        return out

    def _row(self, logits: Any, seen: Any, settings: Any, numbers: Any) -> int:
        temperature, top_p, min_p, penalty = (np.float32(v) for v in settings)
        top_k, seed, counter = (int(v) for v in numbers)
        penalty = penalty if penalty > 0 else np.float32(1)
        x = np.where(seen != 0, np.where(logits > 0, logits / penalty, logits * penalty), logits).astype(np.float32)
        top = np.max(x)
        if not np.isfinite(top):
            raise ExecutionError(f"sample: the largest logit is {top}")
        if temperature <= 0:
            return int(np.argmax(x))
        p = np.exp(((x - top) / temperature).astype(np.float64)).astype(np.float32)
        least = np.float32(0)
        if 0 < top_k < len(p):
            least = np.sort(p)[-top_k]
        if top_p < 1:
            kept = np.sort(p[p >= least])[::-1].astype(np.float64)
            larger = np.cumsum(kept) - kept
            least = np.float32(kept[larger < max(float(top_p), 1e-30) * kept.sum()][-1])
        least = max(least, min(min_p, np.float32(1)))
        p = np.where(p >= least, p, 0).astype(np.float64)
        running = np.cumsum(p)
        token = int(np.searchsorted(running, uniform(seed, counter) * running[-1], side="right"))
        return min(token, int(np.flatnonzero(p)[-1]))
