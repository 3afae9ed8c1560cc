"""Predicted times of launches and the lint over them, for every device.

A device's model (`cpu_cost.py`, `cuda/cost.py`) says what one launch costs: the roofline is the time of the same work at the machine's best
rates, the prediction is the time of the kernel as it is, and the reason is what lies between the two. `lint` names the launches that matter
to a call and are far from their roofline, by the prediction or by a measured time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..core.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, u8
from ..tile.ir import Kernel, ViewType

MATTERS = 0.03  # the least share of a call's time that is worth a line
LIMITS = {"cpu": 0.4, "cuda": 0.25}  # a launch whose share of the roofline is lower is a finding


@dataclass(frozen=True)
class Cost:
    us: float  # predicted
    roofline_us: float
    bound: str  # flops, bytes or a level of the memory, math or launch: what the roofline is
    reason: str  # what keeps the prediction from the roofline

    @property
    def share(self) -> float:
        return self.share_of(self.us)

    def share_of(self, us: float) -> float:
        """The part of the roofline that a launch of this time reaches. Ceilings are measurements: what beats one by a little is at it."""
        return min(1.0, self.roofline_us / us) if us > 0 else 1.0

    def times(self, count: int) -> Cost:
        """The cost of that many launches."""
        return Cost(self.us * count, self.roofline_us * count, self.bound, self.reason)

    def columns(self, us: float | None = None) -> dict[str, Any]:
        """What rows of reports and profiles say of it; `roofline` is the share that a launch of `us` reaches, or is predicted to."""
        share = self.share if us is None else self.share_of(us)
        return {"predicted_us": self.us, "roofline": share, "bound": self.bound, "reason": self.reason}


@dataclass(frozen=True)
class Finding:
    """A launch that matters and is slow, with all that are like it; `us` is their measured time, or the predicted one."""

    names: tuple[str, ...]
    us: float
    part: float  # share of the call's time
    share: float  # share of the roofline
    cost: Cost  # the cost of one launch
    measured: bool

    def __str__(self) -> str:
        like = f" and {len(self.names) - 1} like it" if len(self.names) > 1 else ""
        times = f"{self.us:.1f} us{'' if self.measured else ' predicted'}, {100 * self.part:.0f} % of the call"
        predicted, why = self.cost.us * len(self.names), self.cost.reason
        if self.measured and predicted < self.us / 2:
            why = "; ".join(filter(None, (why, f"{predicted:.1f} us were predicted: the model does not see why")))
        return f"{self.names[0]}{like}: {times}, {100 * self.share:.0f} % of the roofline by {self.cost.bound}: {why or 'no reason found'}"


def lint(launches: Iterable[tuple[str, Cost, float | None]], limit: float) -> list[Finding]:
    """(name, cost, measured microseconds or None) of a call's launches: those that matter and are below `limit` of their roofline, the
    ones that waste most time first. Launches of equal cost, as of one layer after another, are one finding."""
    alike: dict[tuple[Cost, bool], list[tuple[str, float]]] = {}
    for name, cost, us in launches:
        alike.setdefault((cost, us is not None), []).append((name, cost.us if us is None else us))
    total = sum(us for rows in alike.values() for _, us in rows)
    found = []
    for (cost, measured), rows in alike.items():
        us = sum(us for _, us in rows)
        finding = Finding(tuple(name for name, _ in rows), us, us / max(total, 1e-9), cost.times(len(rows)).share_of(us), cost, measured)
        if finding.part >= MATTERS and finding.share < limit:
            found.append(finding)
    return sorted(found, key=lambda f: -f.us * (1 - f.share))


def numbers(kernel: Kernel) -> DType:
    """The numbers that a kernel multiplies: the narrowest floats (or bytes) among its views."""
    found = [p.type.dtype for p in kernel.params if isinstance(p.type, ViewType)]
    fits = [d for d in found if d in (f8e4m3, f8e5m2, i8, u8, bf16, f16, f32, f64)]
    return min(fits, key=lambda d: d.itemsize, default=f32)
