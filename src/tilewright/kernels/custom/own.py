"""The template of ops that make their own launches: kernels of users, functions of the host. What happens at tails is up to them."""
from __future__ import annotations

from ...core.target_spec import TargetSpec
from ...ops.kernels import OwnKernel
from ..launch import Launch
from ..region import Region
from ..template import Reason, Template


class Own(Template):
    key = "own"
    serves = (OwnKernel,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        why = region.op(OwnKernel).unserved(target)
        return None if why is None else Reason(why)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return region.op(OwnKernel).launches(region, target)
