"""What a template is, and the list of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.dims import Dim
from ..core.target_spec import TargetSpec
from .launch import Launch, Packed
from .region import Region


@dataclass(frozen=True)
class Reason:
    """Why a template does not serve a region."""

    text: str


class Unserved(Exception):
    """A node that no template serves."""


def alone(region: Region, *ops: type) -> Reason | None:
    """None when the region is one op of these classes and nothing else."""
    node = region.anchor
    if node is None or not isinstance(node.op, ops):
        return Reason(f"not {' or '.join(o.__name__ for o in ops)}")
    whole = list(region.body.outputs) == list(node.values) and all(n is node or n.op.traits.source for n in region.body.nodes)
    return None if whole else Reason(f"{node.op.name} takes no fused neighbours here")


class Template:
    """Turns a region into launches. Subclasses say in their docstring what happens at tails and zero sizes."""

    key: ClassVar[str] = ""
    serves: ClassVar[tuple[type, ...]] = ()  # ops that it serves alone

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        """None when this template serves the region, else why not."""
        return alone(region, *self.serves)

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        """Constant operands (by index) this template would like re-laid out."""
        return {}

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        raise NotImplementedError


def region_flops(region: Region) -> Dim:
    total: Dim = 0
    for n in region.body.nodes:
        if not (n.op.traits.view or n.op.traits.source):
            total = total + n.op.flops(*(v.type for v in n.operands))
    return total


def region_bytes(region: Region) -> Dim:
    total: Dim = 0
    for o in [*region.operands, *region.results]:
        total = total + o.type.nbytes
    return total
