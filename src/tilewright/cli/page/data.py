"""What the inspect page shows, as plain data: nothing here knows how a session is built or how HTML is written."""

from __future__ import annotations

from dataclasses import dataclass, field

KINDS = ("matmul", "attention", "norm", "softmax", "reduction", "gather", "pointwise", "copy", "conv", "other")


@dataclass(frozen=True)
class Box:
    """One node of the final graph as drawn: constants are listed in the box of their reader."""

    name: str
    kind: str  # one of KINDS, or "input" / "output"
    title: str
    type: str
    detail: str = ""  # shown on hover: the region's body, the weights it reads
    sources: tuple[str, ...] = ()  # names of the boxes it reads
    place: str = ""  # `file.py:12` of the model's source
    module: str = ""  # `layers.0.mlp`, the module whose forward it comes from


@dataclass(frozen=True)
class Step:
    """One launch of the schedule: what it costs and how long it took."""

    index: int
    name: str
    kind: str
    kernel: str  # key into Inspection.kernels
    box: str = ""  # the box of the graph that it computes
    grid: int = 1
    flops: int = 0
    bytes: int = 0
    seconds: float | None = None  # None: not measured
    roofline: float | None = None  # share of the machine's ceiling, 0 … 1
    barrier: bool = False
    serial: bool = False
    note: str = ""
    bound: str = ""  # the ceiling that the share is of: flops, math, a level of the memory or the launch itself
    predicted: float | None = None  # seconds


@dataclass(frozen=True)
class KernelText:
    """One kernel in the three languages it passes through."""

    name: str
    tile: str
    llvm: str
    assembly: str


@dataclass(frozen=True)
class Block:
    """A buffer in the arena: bytes `offset … offset + size` from step `first` to step `last`."""

    name: str
    offset: int
    size: int
    first: int
    last: int
    kind: str = "other"


@dataclass(frozen=True)
class Stage:
    """The graph after one pass."""

    name: str
    text: str
    nodes: int
    seconds: float = 0.0
    rules: tuple[tuple[str, int], ...] = ()


@dataclass
class Inspection:
    """Everything about one compiled model."""

    title: str
    machine: str
    facts: list[tuple[str, str]] = field(default_factory=list)  # the cards on top: label, value
    boxes: list[Box] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    kernels: dict[str, KernelText] = field(default_factory=dict)
    arena_bytes: int = 0
    arena_bound: int = 0
    arena_note: str = ""
    blocks: list[Block] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    compile_stages: list[tuple[str, float]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)  # launches that matter and are far from their roofline
    lines: dict[str, str] = field(default_factory=dict)  # the source text of places that were found
    peak_flops: float | None = None  # the machine's flops per second
    peak_bandwidth: float | None = None  # the memory's bytes per second
    caches: list[tuple[str, float]] = field(default_factory=list)  # name and bytes per second of the levels before the memory
