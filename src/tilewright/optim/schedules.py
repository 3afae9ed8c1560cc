"""Learning rates that change: functions of the number of updates so far, which is traced."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log, pi
from typing import Any

from .base import tw

Schedule = Callable[[Any], Any]


def _part(step: Any, steps: int) -> Any:
    """How much of `steps` is over, 0 to 1."""
    return tw.minimum(tw.astype(step, "f32") / max(steps, 1), 1.0)


def constant(rate: float) -> Schedule:
    """Always the same."""
    return lambda step: rate


def linear(start: float, end: float, steps: int) -> Schedule:
    """From start to end in equal steps, then end."""
    return lambda step: start + (end - start) * _part(step, steps)


def cosine(start: float, steps: int, end: float = 0.0) -> Schedule:
    """Half a cosine from start to end, then end."""
    return lambda step: end + (start - end) * 0.5 * (1 + tw.cos(_part(step, steps) * pi))


def exponential(start: float, factor: float, steps: int) -> Schedule:
    """start * factor ** (step / steps)."""
    return lambda step: start * tw.exp(tw.astype(step, "f32") * (log(factor) / steps))


def piecewise(start: float, factors: Mapping[int, float]) -> Schedule:
    """start, multiplied by each factor from its step on."""

    def rate(step: Any) -> Any:
        out: Any = start
        for at, factor in sorted(factors.items()):
            out = out * tw.where(tw.greater_equal(step, at), factor, 1.0)
        return out

    return rate


def warmup(schedule: Schedule | float, steps: int) -> Schedule:
    """Another schedule after `steps` updates that rise to its first rate."""
    after = schedule if callable(schedule) else constant(schedule)

    def rate(step: Any) -> Any:
        first = after(tw.zeros_like(step))
        rising = first * ((tw.astype(step, "f32") + 1) / (steps + 1))
        return tw.where(tw.less(step, steps), rising, after(tw.maximum(step - steps, 0)))

    return rate


def one_cycle(peak: float, steps: int, *, start: float = 0.3, divide: float = 25.0, final: float = 1e4) -> Schedule:
    """Up to the peak during the first `start` of the steps, then down, both along half a cosine."""
    up = max(int(steps * start), 1)

    def rate(step: Any) -> Any:
        rise = cosine(peak / divide, up, peak)(step)
        fall = cosine(peak, steps - up, peak / final)(tw.maximum(step - up, 0))
        return tw.where(tw.less(step, up), rise, fall)

    return rate
