"""What this machine can do at most: multiply-adds and bytes a second, and the cost of a launch; measured once, kept beside the code cache.

Rooflines and predicted times divide a launch's work by these. Arithmetic: independent chains of multiply-adds in registers, of f32 and of
the packed numbers that the CPU multiplies faster (bf16 and bytes). Bandwidth: reading and copying blocks that fit in L1, in L2, in L3, and
one that is larger; a launch's ceiling is that of the level its data fits in. A measurement on a busy machine is too low: what a
profile finds to be faster is measured again, and the better of the two stays.
"""
from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ..core.dtypes import f32, i32
from ..core.hashing import blake2b
from ..core.target_spec import TargetSpec
from ..target.cpu.cache import CodeCache
from ..target.cpu.host import host_target
from ..target.cpu.jit import Library
from ..tile.builder import KernelBuilder, Tile
from ..tile.ir import Kernel, local_bytes
from .memory import Allocation
from .native.job import Job, thunks
from .native.layout import BARRIER, THUNK_ARGS, THUNK_FLAGS, THUNK_FN, THUNK_GRID

VERSION = 1  # the version of what is stored
CHAINS = 12
STEPS = 20_000
TILE_WORDS = 512  # along K of a product of matrix tiles
READS = 8  # independent vectors a step
BANDWIDTH_BYTES = 128 << 20
PIECE = 4096
FILL = 0.75  # the share of a cache that a kernel's data may take and still count as held by it
L3_BYTES = 32 << 20  # at most: what a virtual machine reports is often the whole socket's
MOVED = 32 << 20  # bytes that one measurement of a cache moves
LAUNCHES = 64  # empty launches behind barriers


@dataclass(frozen=True)
class Level:
    """A level of the memory: data up to `capacity` bytes (of all threads together) moves at `bytes` a nanosecond."""

    name: str
    capacity: float
    bytes: float


@dataclass(frozen=True)
class Peaks:
    """f32 operations a nanosecond and the levels of the memory, the smallest first, with `threads` threads."""

    threads: int
    flops: float
    levels: tuple[Level, ...]
    packed: Mapping[str, float] = field(default_factory=dict)  # multiply-adds of bf16 or i8 for one of f32, where the CPU has them
    launch: float = 0.0  # nanoseconds of a launch that does nothing, with its barrier

    @property
    def bytes(self) -> float:
        """Bandwidth of the memory itself, bytes a nanosecond."""
        return self.levels[-1].bytes

    def rate(self, numbers: str = "f32") -> float:
        """Operations a nanosecond of products of these numbers; what has no code of its own is widened to f32."""
        return self.flops * (0.5 if numbers == "f64" else self.packed.get(numbers, 1.0))

    def level(self, moved: float) -> Level:
        return next(x for x in self.levels if moved <= x.capacity)

    def moving(self, moved: float, constants: float = 0.0, resident: float = 0.0) -> tuple[float, str]:
        """Nanoseconds to move bytes through the level that holds them, and its name. `constants` of them wait from call to call, among
        `resident` bytes that a whole call touches."""
        own, far = self.level(moved), self.level(max(moved, resident))
        constants = min(constants, moved)
        return (moved - constants) / own.bytes + constants / far.bytes, (far if 2 * constants > moved else own).name

    def least(self, flops: float, moved: float, *, numbers: str = "f32", math: float = 0.0, constants: float = 0.0,
              resident: float = 0.0) -> tuple[float, str]:
        """The least time in nanoseconds that this work can take, and what bounds it: `flops`, `math` (operations in vector functions like
        exp, at the rate of f32), a level of the memory, or the `launch`.

        >>> Peaks(1, 100.0, (Level("L1", 1e4, 50.0), Level("memory", float("inf"), 10.0))).least(1000, 1000)
        (20.0, 'L1')
        """
        products, functions = flops / self.rate(numbers), math / self.flops
        arithmetic = (products + functions, "math" if functions > products else "flops")
        return max(arithmetic, self.moving(moved, constants, resident), (self.launch, "launch"))

    def better(self, other: Peaks) -> Peaks:
        """The higher of two measurements, each by itself."""
        levels = tuple(dataclasses.replace(a, bytes=max(a.bytes, b.bytes)) for a, b in zip(self.levels, other.levels, strict=True))
        packed = {k: max(v, other.packed.get(k, v)) for k, v in self.packed.items()}
        return Peaks(self.threads, max(self.flops, other.flops), levels, packed, min(self.launch, other.launch))


def _chains(name: str, lanes: int, step: Callable[[KernelBuilder, Tile, Tile], Tile], *, integer: bool = False) -> Kernel:
    """Independent chains that stay in registers: each program takes `STEPS` steps of every one."""
    b = KernelBuilder(f"tw_peak_{name}")
    source, out = b.view("source", f32, (1,)), b.view("out", i32 if integer else f32, (1,))
    factor = b.load(source, (0,), (lanes,))
    first = b.bitcast(factor, i32) if integer else factor
    with b.loop(0, STEPS, carried=[first] * CHAINS, nonempty=True) as loop:
        loop.next(*(step(b, factor, x) for x in loop.carried))
    total = loop.results[0]
    for x in loop.results[1:]:
        total = total + x
    b.store(out, (b.pid * lanes,), total)
    return b.build()


def _tiles(name: str, *, integer: bool) -> Kernel:
    """A product of matrix tiles whose operands lie in L1."""
    b = KernelBuilder(f"tw_peak_{name}")
    b.view("source", f32, (1,))
    b.view("out", f32, (1,))
    c, x, y = (b.scratch(d, s) for d, s in ((i32 if integer else f32, (32, 32)), (i32, (32, TILE_WORDS)), (i32, (TILE_WORDS, 32))))
    with b.loop(0, STEPS // TILE_WORDS):
        b.tile_dot(c, x, y, TILE_WORDS, rows=32, cols=32)
    return b.build()


def _move(name: str, lanes: int, *, copy: bool) -> Kernel:
    """Read `span` floats, or copy one half of them to the other, `rounds` times."""
    b = KernelBuilder(f"tw_peak_{name}")
    source, out = b.view("source", f32, (1,)), b.view("out", f32, (1,))
    span, rounds = b.index("span"), b.index("rounds")
    start = b.pid * span
    zeros = [b.full((lanes,), 0.0)] * (0 if copy else READS)

    def steps(sums: list[Tile]) -> list[Tile]:
        with b.loop(0, span // 2 if copy else span, READS * lanes, carried=sums, nonempty=True) as loop:
            loaded = [b.load(source, (start + loop.index + k * lanes,), (lanes,)) for k in range(READS)]
            if copy:
                for k, x in enumerate(loaded):
                    b.store(source, (start + span // 2 + loop.index + k * lanes,), x)
            else:
                loop.next(*(a + x for a, x in zip(loop.carried, loaded, strict=True)))
        return loop.results

    with b.loop(0, rounds, carried=zeros, nonempty=True) as again:
        found = steps(list(again.carried))
        if found:
            again.next(*found)
    for k, x in enumerate(again.results):
        b.store(out, ((b.pid * READS + k) * lanes,), x)
    return b.build()


def _empty(name: str) -> Kernel:
    b = KernelBuilder(f"tw_peak_{name}")
    b.view("source", f32, (1,))
    return b.build()


def _kernels(target: TargetSpec) -> tuple[dict[str, Kernel], dict[str, float]]:
    """The kernels to time, and the operations of one program of those that multiply."""
    lanes = target.lanes(4)
    kernels = {"f32": _chains("f32", lanes, lambda b, m, x: b.fma(x, m, m) if target.has_fma else x * m + m)}
    work = {"f32": 2.0 * CHAINS * STEPS * lanes}
    if target.has_avx512bf16:
        kernels["bf16"] = _chains("bf16", lanes, lambda b, m, x: b.dot2(b.bitcast(m, i32), b.bitcast(m, i32), x))
        work["bf16"] = 2 * work["f32"]
    if target.has_vnni:
        kernels["i8"] = _chains("i8", lanes, lambda b, m, x: b.dot4(b.bitcast(m, i32), b.bitcast(m, i32), x), integer=True)
        work["i8"] = 4 * work["f32"]
    for name, feature, per_word in (("bf16", "amx-bf16", 2), ("i8", "amx-int8", 4)):
        if target.has("amx-tile", feature):
            kernels[f"{name} tiles"] = _tiles(f"{name}_tiles", integer=name == "i8")
            work[f"{name} tiles"] = 2.0 * 32 * 32 * TILE_WORDS * per_word * (STEPS // TILE_WORDS)
    return kernels | {"read": _move("read", lanes, copy=False), "copy": _move("copy", lanes, copy=True), "empty": _empty("empty")}, work


def _measure(target: TargetSpec, threads: int) -> Peaks:
    """Takes about half a second."""
    from ..target.cpu.emit import emit_kernel

    target = dataclasses.replace(target, checks=False)  # the machine is measured, and these kernels have no blocks for errors
    kernels, work = _kernels(target)
    compiled, _ = CodeCache().compile([emit_kernel(k, target) for k in kernels.values()], target)
    library = Library(compiled, [k.name for k in kernels.values()])
    block, out = Allocation(BANDWIDTH_BYTES), Allocation(threads * 4 * CHAINS * 64)
    # Ordinary numbers everywhere: untouched pages would all be one page of zeros, and denormals are slow. 0.5 * 1 + 0.5 stays 1.
    block.array(np.float32, (block.nbytes // 4,))[:] = 0.5
    arguments = np.array([block.address, out.address, 0, 0], np.int64)

    def best(name: str, grid: int, repeat: int, count: int = 1) -> float:
        """Nanoseconds of the fastest of `repeat` runs of `count` launches."""
        table = thunks(count)
        table[:, THUNK_FN], table[:, THUNK_ARGS] = library.address(kernels[name].name), arguments.ctypes.data
        table[:, THUNK_GRID], table[:, THUNK_FLAGS] = grid, BARRIER
        scratch = max(local_bytes(kernels[name]), 64)
        job = Job(table, np.zeros((0, 3), np.int64), threads=threads, io_count=1, scratch=scratch, keep=arguments)
        found = float("inf")
        for _ in range(repeat):
            start = time.perf_counter_ns()
            job.run()
            found = min(found, time.perf_counter_ns() - start)
        return found

    def bandwidth(size: float) -> float:
        """The better of reading and copying `size` bytes, each thread its own part, as often as makes a time worth taking."""
        span = max(int(size / threads) // PIECE * PIECE, PIECE)
        rounds = max(1, MOVED // (span * threads))
        arguments[2:] = span // 4, rounds
        return span * threads * rounds / min(best("read", threads, 5), best("copy", threads, 5))

    rates = {name: 4 * threads * amount / best(name, 4 * threads, 8) for name, amount in work.items()}
    packed = {n: max(rates.get(n, 0.0), rates.get(f"{n} tiles", 0.0)) / rates["f32"] for n in ("bf16", "i8")}
    sizes = {"L1": target.l1d * threads * FILL, "L2": target.l2 * threads * FILL, "L3": min(target.l3 * FILL, L3_BYTES)}
    held = {name: size for name, size in sizes.items() if size * 2 <= BANDWIDTH_BYTES}
    levels = [Level(name, size, bandwidth(size * FILL)) for name, size in held.items()]
    levels.append(Level("memory", float("inf"), bandwidth(BANDWIDTH_BYTES)))
    launch = (best("empty", threads, 20, LAUNCHES) - best("empty", threads, 20)) / (LAUNCHES - 1)
    return Peaks(threads, rates["f32"], tuple(levels), {n: max(1.0, x) for n, x in packed.items() if x}, max(launch, 0.0))


def _key(target: TargetSpec, threads: int) -> str:
    caches = (target.l1d, target.l2, target.l3, target.cores)
    text = "\0".join(map(str, ("peaks", VERSION, target.cpu, target.feature_string, caches, threads)))
    return blake2b(text.encode(), digest_size=20).hexdigest()


@cache
def peaks(threads: int) -> Peaks:
    """From the code cache, or measured and stored there."""
    target, store = host_target(), CodeCache()
    stored = store.get(_key(target, threads))
    if stored is not None:
        found = json.loads(stored)
        return Peaks(**found | {"levels": tuple(Level(**x) for x in found["levels"])})
    return _keep(target, _measure(target, threads), store)


def _keep(target: TargetSpec, found: Peaks, store: CodeCache) -> Peaks:
    store.put(_key(target, found.threads), json.dumps(dataclasses.asdict(found)).encode())
    return found


def remeasure(threads: int) -> Peaks:
    """Measure again, because something ran faster than what is stored; the better of each stays."""
    target, before = host_target(), peaks(threads)
    _keep(target, before.better(_measure(target, threads)), CodeCache())
    peaks.cache_clear()
    return peaks(threads)
