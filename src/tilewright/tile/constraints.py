"""Tile constraints: does a kernel fit a target's limits? Messages say which limit, and what would fit.

CPU: vector registers (spilling is slow, so a warning), whole vectors on the last side (a warning), scratch bytes of a thread.
GPU: sides are powers of two, shared-memory bytes of a block, registers of a thread. Kernels that are emitted are held to the memory; that
they will spill is in their report (`TileLimits.of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.errors import CompileError
from ..core.target_spec import TargetSpec
from .ir import Block, Instr, Kernel, Operand, TileType, Var, ViewType, alloc_bytes

LOCAL_BYTES = 512 << 10  # local memory of a GPU's thread


@dataclass(frozen=True)
class TileLimits:
    """What one program may use."""

    kind: Literal["cpu", "gpu"]
    vector_bytes: int = 16  # cpu
    vector_registers: int = 16
    local_bytes: int = 256 << 10
    threads: int = 128  # gpu: threads of a block
    thread_registers: int = 255  # registers of 4 bytes
    shared_bytes: int = 227 << 10
    strict: bool = True  # gpu: False: sides of any size, and registers that spill are a warning

    @staticmethod
    def of(target: TargetSpec, threads: int = 1) -> TileLimits:
        """On a GPU those of a program on this many threads."""
        if target.kind == "cuda":
            return TileLimits("gpu", local_bytes=LOCAL_BYTES, threads=threads, shared_bytes=target.l1d, strict=False)
        return TileLimits("cpu", target.vector_bits // 8, target.registers)


@dataclass(frozen=True)
class Finding:
    """A limit that a kernel breaks (`error`) or only reaches at a cost (`warning`)."""

    severity: Literal["error", "warning"]
    message: str


def findings(kernel: Kernel, limits: TileLimits) -> list[Finding]:
    """Everything about a kernel that does not fit."""
    out = _memory(kernel, limits)
    return out + (_gpu(kernel, limits) if limits.kind == "gpu" else _cpu(kernel, limits))


def check(kernel: Kernel, limits: TileLimits) -> list[Finding]:
    """The warnings; raise CompileError when there are errors."""
    found = findings(kernel, limits)
    errors = [f.message for f in found if f.severity == "error"]
    if errors:
        raise CompileError("\n".join(errors))
    return found


def vector_registers(type_: TileType, limits: TileLimits, maker: str = "") -> int:
    """Vector registers that hold a tile. A constant takes one; so does a loaded column: its elements are broadcast one after the other."""
    last = type_.shape[-1] if type_.shape else 1
    if maker == "full" or (maker == "load" and last == 1) or not type_.shape:
        return 1
    return type_.numel // max(last, 1) * -(-last * type_.dtype.itemsize // limits.vector_bytes)


def peak(kernel: Kernel, weight: dict[Var, int]) -> tuple[int, list[Var]]:
    """The largest sum of weights of values live at once, and those values. What a loop reads from outside lives until the loop ends."""
    ends: dict[Var, int] = {}
    starts: dict[Var, int] = {}
    depth: dict[Var, int] = {}
    uses: list[tuple[Var, int, list[tuple[int, int]]]] = []  # value, position, open blocks as (depth, number)
    closes: dict[int, int] = {}
    clock = numbers = 0

    def visit(block: Block, open_: list[tuple[int, int]]) -> None:
        nonlocal clock, numbers
        for i in block.body:
            clock += 1
            uses.extend((o, clock, open_) for o in i.operands if isinstance(o, Var))
            for b in i.blocks:
                numbers += 1
                number = numbers
                inner = [*open_, (len(open_) + 1, number)]
                for p in b.params:
                    starts[p], depth[p] = clock, len(inner)
                visit(b, inner)
                clock += 1
                uses.extend((o, clock, inner) for o in b.yields if isinstance(o, Var))
                closes[number] = clock
            for r in i.results:
                starts[r], depth[r] = clock, len(open_)

    visit(kernel.body, [])
    for v, at, open_ in uses:
        deeper = next((number for d, number in open_ if d > depth.get(v, 0)), None)
        ends[v] = max(ends.get(v, 0), closes[deeper] if deeper is not None else at)
    events = sorted(
        [(starts[v], 1, n) for n, v in enumerate(weight) if v in ends] + [(ends[v], 0, n) for n, v in enumerate(weight) if v in ends]
    )
    values = list(weight)
    live: set[int] = set()
    total = best = 0
    held: list[Var] = []
    for _, begins, n in events:  # at one position ends come before starts: a result may take an operand's register
        if begins:
            live.add(n)
            total += weight[values[n]]
            if total > best:
                best, held = total, [values[m] for m in sorted(live)]
        elif n in live:
            live.remove(n)
            total -= weight[values[n]]
    return best, held


def _tiles(kernel: Kernel) -> dict[Var, str]:
    """Tile values and the operation that makes them."""
    out: dict[Var, str] = {}
    for i in kernel.walk():
        out.update((r, i.op) for r in i.results if isinstance(r.type, TileType))
        for b in i.blocks:
            out.update((p, "") for p in b.params if isinstance(p.type, TileType))
    return out


def _type(v: Var) -> TileType:
    assert isinstance(v.type, TileType)
    return v.type


def _cpu(kernel: Kernel, limits: TileLimits) -> list[Finding]:
    out: list[Finding] = []
    weight = {v: vector_registers(_type(v), limits, op) for v, op in _tiles(kernel).items()}
    need, held = peak(kernel, weight)
    if need > limits.vector_registers:
        big = max(held, key=lambda v: weight[v])
        shape = _type(big).shape
        rows = _type(big).numel // max(shape[-1], 1) if shape else 1
        rest = need - weight[big]
        if fit := (limits.vector_registers - rest) * rows // weight[big] if rest < limits.vector_registers else 0:
            fits = f"{fit} of its {rows} rows fit"
        else:  # what else is live is as wide as it: narrower rows leave room for both
            row = weight[big] // rows
            lanes = row * limits.vector_registers // (rest + row) * (limits.vector_bytes // _type(big).dtype.itemsize)
            fits = f"rows of {lanes} elements fit" if lanes else "even rows of one vector do not fit"
        out.append(
            Finding(
                "warning",
                f"cpu: kernel {kernel.name}: at most {limits.vector_registers} vector registers, got about {need};"
                f" {big.type} takes {weight[big]}, {fits}",
            )
        )
    seen: set[TileType] = set()
    for i in kernel.walk():
        t = _accessed(i)
        if t is None or t in seen or not t.shape:
            continue
        seen.add(t)
        lanes, last = limits.vector_bytes // t.dtype.itemsize, t.shape[-1]
        if last > lanes and last % lanes:
            out.append(
                Finding(
                    "warning",
                    f"cpu: kernel {kernel.name}: the last side of a tile in memory should fill vectors of {lanes}, got {t};"
                    f" {last // lanes * lanes} or {-(-last // lanes) * lanes} fits",
                )
            )
    return out


def _accessed(i: Instr) -> TileType | None:
    value: Operand | None = i.results[0] if i.op == "load" else i.operands[-1] if i.op == "store" else None
    return _type(value) if isinstance(value, Var) else None


def _gpu(kernel: Kernel, limits: TileLimits) -> list[Finding]:
    out: list[Finding] = []
    tiles = _tiles(kernel)
    for t in dict.fromkeys(_type(v) for v in tiles):
        for d in t.shape if limits.strict else ():
            if d & (d - 1):
                low = 1 << (d.bit_length() - 1)
                out.append(
                    Finding(
                        "error",
                        f"gpu: kernel {kernel.name}: tile sides must be powers of two, got {t}; {low} or {2 * low} fits instead of {d}",
                    )
                )
    weight = {v: max(1, -(-_type(v).numel * max(_type(v).dtype.itemsize, 4) // (4 * limits.threads))) for v in tiles}
    need, held = peak(kernel, weight)
    if need > limits.thread_registers:
        big = max(held, key=lambda v: weight[v])
        threads = -(-need // limits.thread_registers) * limits.threads
        out.append(
            Finding(
                "error" if limits.strict else "warning",
                f"gpu: kernel {kernel.name}: at most {limits.thread_registers} registers a thread, got about {need} with {limits.threads}"
                f" threads; the largest tile is {big.type}; {threads} threads fit",
            )
        )
    return out


def _memory(kernel: Kernel, limits: TileLimits) -> list[Finding]:
    out: list[Finding] = []
    for space, limit in (("shared", limits.shared_bytes), ("local", limits.local_bytes)):
        allocs = [i for i in kernel.walk() if i.op == "alloc" and _space(i) == space]
        total = sum(alloc_bytes(i) for i in allocs)
        if total > limit:
            big = max(allocs, key=alloc_bytes)
            left = limit - (total - alloc_bytes(big))
            out.append(
                Finding(
                    "error",
                    f"{limits.kind}: kernel {kernel.name}: at most {limit} bytes of {space} memory, got {total};"
                    f" the largest allocation {big.attrs['shape']} takes {alloc_bytes(big)}, {max(left, 0)} fit",
                )
            )
    return out


def _space(i: Instr) -> str:
    t = i.results[0].type
    assert isinstance(t, ViewType)
    return t.space
