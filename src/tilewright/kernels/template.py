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


class Foreign(Reason):
    """The region has nothing that the template is for."""


class Unserved(Exception):
    """A node that no template serves."""


def anchored(region: Region, *ops: type) -> Reason | None:
    """None when the region's anchor is an op of these classes."""
    node = region.anchor
    if node is None or not isinstance(node.op, ops):
        return Foreign(f"not {' or '.join(o.__name__ for o in ops)}")
    return None


def alone(region: Region, *ops: type) -> Reason | None:
    """None when the region is one op of these classes and nothing else."""
    why, node = anchored(region, *ops), region.anchor
    if why is not None or node is None:
        return why
    whole = list(region.body.outputs) == list(node.values) and all(n is node or n.op.traits.source for n in region.body.nodes)
    return None if whole else Reason(f"{node.op.name} takes no fused neighbours here")


def from_memory(region: Region) -> Reason | None:
    """None when every operand of the anchor comes from memory, rather than from an op of the region."""
    missing = next((v for v in region.node.operands if region.operand(v) is None), None)
    return None if missing is None else Reason(f"operands of {region.node.op.name} must come from memory, got {missing.node.op.name}")


def shaped_as_result(region: Region) -> Reason | None:
    """None when every output of the region has the shape of the anchor's first result."""
    shape = region.node.values[0].shape
    bad = next((r for r in region.results if r.type.shape != shape), None)
    return None if bad is None else Reason(f"outputs must have the shape of {region.node.op.name}, got {bad.type}")


class Template:
    """Turns a region into launches. Subclasses say in their docstring what happens at tails and zero sizes."""

    key: ClassVar[str] = ""
    serves: ClassVar[tuple[type, ...]] = ()  # ops that a region has as its anchor
    fuses: ClassVar[bool] = False  # whether other ops may stand around the anchor

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        """None when this template serves the region, else why not."""
        return (anchored if self.fuses else alone)(region, *self.serves) or self.refuses(region, target)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        """Why it does not serve a region whose anchor it serves, or None."""
        return None

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
