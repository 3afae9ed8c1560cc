"""The template of ops that make their own launches: kernels of users, functions of the host. What happens at tails is up to them."""
from __future__ import annotations

from ...core.target_spec import TargetSpec
from ...ops.kernels import OwnKernel
from ..launch import Launch
from ..region import Region
from ..template import Reason, Template, alone


class Own(Template):
    key = "own"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        reason = alone(region, OwnKernel)
        if reason is not None:
            return reason
        assert region.anchor is not None and isinstance(region.anchor.op, OwnKernel)
        why = region.anchor.op.unserved(target)
        return None if why is None else Reason(why)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None and isinstance(region.anchor.op, OwnKernel)
        return region.anchor.op.launches(region, target)
