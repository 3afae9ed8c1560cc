"""Runs the SIMT part of PTX in NumPy: the oracle for the emitter where there is no GPU.

All threads of a block step together; of those that are at different places, the ones furthest behind go first, so threads join again
after a branch. A barrier releases when every thread that has not left (or as many as it names) waits at it. Every access is checked against
the buffers given, and accesses to shared memory against those of other threads since the last barrier. Blocks follow one another, unless
they wait for one another: a block that reads the same word by acquire again lets the others go on first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from tests.cuda import emulator_clusters as clusters
from tests.cuda import emulator_mma as matrices
from tests.cuda.emulator_arithmetic import COMPARE, arithmetic, small_float
from tests.cuda.emulator_clusters import Fault as Fault
from tests.cuda.emulator_copies import copy
from tests.cuda.emulator_races import Races
from tilewright.target.cuda.ptx.flow import Function, Op, parse

Array = Any  # arrays of every dtype
_TYPES: dict[str, Any] = {
    "u8": np.uint8, "s8": np.int8, "b8": np.uint8, "u16": np.uint16, "s16": np.int16, "b16": np.uint16, "u32": np.uint32, "s32": np.int32,
    "b32": np.uint32, "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
_CLASSES = {"%f": np.float32, "%fd": np.float64, "%r": np.uint32, "%rd": np.uint64, "%h": np.uint16, "%p": np.bool_}
_LOCAL = 1 << 16  # bytes of thread-private memory
_STEPS = 2_000_000
_ROUNDS = 50  # rounds of all blocks in which nothing was written: they wait for something that does not come

_ENDED: Any = object()


class Heap:
    """Global memory: buffers at made-up addresses, far apart."""

    def __init__(self) -> None:
        self.buffers: list[tuple[int, Array]] = []
        self.written = 0  # how often

    def add(self, array: Array) -> int:
        address = (len(self.buffers) + 1) << 32
        self.buffers.append((address, array.reshape(-1).view(np.uint8)))
        return address

    def find(self, address: int, nbytes: int) -> tuple[Array, int]:
        for start, data in self.buffers:
            if start <= address and address + nbytes <= start + len(data):
                return data, address - start
        raise Fault(f"access of {nbytes} bytes at {address:#x} is outside every buffer")


def run(text: str, heap: Heap, words: list[int], grid: int, block: int, dynamic: int = 0) -> None:
    """Launch the (only) kernel of a module. `dynamic` bytes of shared memory (`ring`) lie behind its own."""
    (function,) = parse(text)
    static = max([int(n) for n in re.findall(r"\.shared[^;]*?scratch\[(\d+)\]", text)] or [0])
    if static > 48 << 10:
        raise Fault(f"{static} bytes of static shared memory; a module with more than {48 << 10} does not load")
    ring = -(-static // 128) * 128
    shared = ring + dynamic if dynamic else static
    local = dict(_locals(text))
    tables = {m[1]: heap.add(_table(m[2])) for m in re.finditer(r"\.global[^;]*?(\w+)\[\d+\] = \{(.*?)\}", text)}
    symbols = {**local, **tables, "scratch": 0, "ring": ring, "words": 0}
    blocks = [_Block(function, heap, words, b, grid, block, shared, symbols) for b in range(grid)]
    clusters.gather(blocks, int((re.findall(r"\.reqnctapercluster (\d+)", text) or [1])[0]))
    with np.errstate(all="ignore"):
        together(heap, [b.steps() for b in blocks])


def together(heap: Heap, blocks: list[Iterator[None]]) -> None:
    """Blocks until they end; of those that wait for others, one after the other and then the other way round."""
    idle = 0
    while blocks:
        before = heap.written
        blocks = [b for b in blocks if next(b, _ENDED) is not _ENDED][::-1]
        idle = idle + 1 if heap.written == before else 0
        if blocks and idle > _ROUNDS:
            raise Fault(f"{len(blocks)} blocks wait for one another")


def _locals(text: str) -> list[tuple[str, int]]:
    at, found = 0, []
    for name, size in re.findall(r"\.local[^;]*?(\w+)\[(\d+)\]", text):
        found.append((name, at))
        at += -(-int(size) // 16) * 16
    return found


def _table(values: str) -> Array:
    return np.array([int(v, 16) for v in values.split(",")], np.uint64)


@cache
def _class(name: str) -> Any:
    """The dtype of a register, by its name."""
    return next(_CLASSES[c] for c in sorted(_CLASSES, key=len, reverse=True) if re.fullmatch(c + r"\d+", name))


@cache
def _split(operands: str) -> list[str]:
    """Operands at commas outside braces and brackets."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(operands):
        depth += (c in "{[") - (c in "}]")
        if c == "," and depth == 0:
            out.append(operands[start:i].strip())
            start = i + 1
    return [*out, operands[start:].strip()] if operands.strip() else []


class _Block:
    member: clusters.Member

    def __init__(
        self, f: Function, heap: Heap, words: list[int], index: int, grid: int, threads: int, shared: int, symbols: dict[str, int]
    ) -> None:
        self.f, self.heap, self.words, self.n, self.symbols = f, heap, words, threads, symbols
        self.regs: dict[str, Array] = {}
        tid = np.arange(threads, dtype=np.uint32)
        self.special = {"%tid.x": tid, "%laneid": tid % np.uint32(32), "%ctaid.x": np.full(threads, index, np.uint32),
                        "%nctaid.x": np.full(threads, grid, np.uint32)}  # fmt: skip
        self.shared = np.full(shared + 16, 0xA5, np.uint8)
        self.races = Races(shared + 16)
        self.local = np.full((threads, _LOCAL), 0xA5, np.uint8)
        self.flying: list[tuple[Array, Array, Array, Array]] = []  # copies (threads, their groups, where, bytes) that have not landed
        self.groups = np.zeros(threads, np.int64)  # that each thread has closed
        self.pc = np.zeros(threads, np.int64)
        self.alive = np.ones(threads, bool)
        self.waiting = np.zeros(threads, bool)
        self.polled = -1  # the acquire that was the last access

    def steps(self) -> Iterator[None]:
        for _ in range(_STEPS):
            ready = self.alive & ~self.waiting
            if not ready.any():
                if not self.alive.any():
                    return
                met = self._met()
                self.waiting[met] = False
                self.races.barrier()
                self.pc[met] += 1
                continue
            at = int(self.pc[ready].min())
            if at >= self.f.end:
                self.alive[ready & (self.pc == at)] = False
                continue
            op = self.f.ops[at]
            self.step(op, ready & (self.pc == at))
            if self.member.held:
                self.member.held = False
                yield
            elif op.opcode.startswith("ld.acquire"):
                if self.polled == at:
                    yield
                self.polled = at
            elif op.stem in ("ld", "st", "red", "bar"):
                self.polled = -1
        raise Fault("the kernel does not end")

    def _met(self) -> Array:
        """The threads of a barrier, all of whom are there: all that are left, or as many as it says under one number."""
        places = set(self.pc[self.alive].tolist())
        for at in places:
            number, *count = _split(self.f.ops[at].operands)
            here = self.alive & (self.pc == at)
            if not count and len(places) == 1:
                return here
            numbers = self.read(number, np.uint32)
            for n in np.unique(numbers[here]) if count else ():
                part = here & (numbers == n)
                if part.sum() == int(count[0]):
                    return part
        raise Fault(f"threads wait at different barriers: {sorted(places)}")

    def step(self, op: Op, here: Array) -> None:
        active = here.copy()
        if op.guard:
            value = self.regs[op.guard]
            active &= ~value if op.text.startswith("@!") else value
        self.pc[here] += 1
        if op.stem == "bra":
            self.pc[active] = self.f.labels[op.operands]
        elif op.leaves:
            self.alive[active] = False
        elif op.opcode == "bar.warp.sync":
            self.races.barrier()  # all threads step together; of other warps' accesses we know less from here on
        elif op.opcode == "bar.sync":
            self.pc[active] -= 1
            self.waiting |= active
        elif active.any():
            self.execute(op, _split(op.operands), active)

    # --- operands -----------------------------------------------------------------------------------------------------
    def read(self, text: str, dtype: Any) -> Array:
        """An operand's bits as `dtype`."""
        if text in self.special:
            return self.special[text].astype(dtype)
        if text.startswith("%"):
            if text not in self.regs:
                raise Fault(f"{text} is read before it is written")
            raw = self.regs[text]
            if raw.dtype == np.bool_ or raw.dtype == dtype:
                return raw
            size = np.dtype(dtype).itemsize
            bits = raw.view(f"u{raw.itemsize}")
            return bits.astype(f"u{size}").view(dtype) if size != raw.itemsize else bits.view(dtype)
        if text.startswith(("0f", "0d")):
            whole: Any = np.full(self.n, int(text[2:], 16), np.uint32 if text[1] == "f" else np.uint64)
            if whole.itemsize == np.dtype(dtype).itemsize:  # `mov.b32` moves the bits, whatever they mean
                return whole.view(dtype)
            value: Any = whole.view(np.float32 if text[1] == "f" else np.float64)[0]
        elif text in self.symbols:
            value = np.uint64(self.symbols[text])
        else:
            number = int(text.rstrip("U"), 0)
            return np.full(self.n, number & ((1 << (8 * np.dtype(dtype).itemsize)) - 1), f"u{np.dtype(dtype).itemsize}").view(dtype)
        return np.full(self.n, value, dtype)

    def write(self, name: str, value: Array, active: Array) -> None:
        if name not in self.regs:
            self.regs[name] = np.zeros(self.n, _class(name))
        target = self.regs[name]
        value = np.asarray(value)
        if value.dtype != target.dtype:
            if value.dtype == np.bool_ or target.dtype == np.bool_:
                raise Fault(f"{name} gets a value of another class")
            signed = value.dtype.kind == "i" and value.itemsize < target.itemsize
            wide = value.astype(f"i{target.itemsize}") if signed else value.view(f"u{value.itemsize}").astype(f"u{target.itemsize}")
            value = wide.view(target.dtype)
        target[active] = value[active]

    # --- instructions -------------------------------------------------------------------------------------------------
    def execute(self, op: Op, xs: list[str], active: Array) -> None:
        parts = op.opcode.split(".")
        stem, kinds = parts[0], [p for p in parts if p in _TYPES or p == "pred"]
        dtype: Any = np.bool_ if kinds[-1:] == ["pred"] else _TYPES[kinds[-1]] if kinds else np.uint32
        if stem == "griddepcontrol" or clusters.execute(self, op, xs, active):
            return  # launches follow one another here
        if op.opcode.startswith("cvt.rna.tf32"):
            bits = self.read(xs[1], np.uint32).astype(np.uint64)
            self.write(xs[0], ((bits + np.uint64(0x1000)) & np.uint64(0xFFFFE000)).astype(np.uint32), active)
            return
        if stem == "mma":
            matrices.multiply(self, op.opcode, xs, active)
        elif stem == "ldmatrix":
            matrices.load(self, op.opcode, xs, active)
        elif op.opcode.startswith("cp.async"):
            copy(self, op, xs, active)
        elif stem in ("atom", "red"):
            self.atomic(parts, xs if stem == "atom" else ["", *xs], active, dtype)
        elif stem in ("ld", "st"):
            self.memory(op, parts, xs, active, dtype)
        elif stem == "mov":
            self.move(xs, active, dtype)
        elif stem == "shfl":
            lanes = np.arange(self.n)
            if parts[2] == "up":
                lanes = np.where(lanes % 32 >= int(xs[2]), lanes - int(xs[2]), lanes)
            else:
                lanes = lanes ^ int(xs[2]) if parts[2] == "bfly" else lanes & -(32 - (int(xs[3]) >> 8)) | int(xs[2])
            self.write(xs[0], self.read(xs[1], np.uint32)[lanes], active)
        elif stem == "vote":
            votes = (self.read(xs[1], np.bool_) & active).reshape(-1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)
            self.write(xs[0], np.repeat(votes.sum(1, dtype=np.uint64).astype(np.uint32), 32), active)
        elif stem == "cvt":
            self.convert(parts, kinds, xs, active)
        elif stem == "setp":
            a, b = (self.read(x, dtype) for x in xs[1:])
            self.write(xs[0], COMPARE[parts[1]](a, b), active)
        elif stem == "selp":
            self.write(xs[0], np.where(self.regs[xs[3]], self.read(xs[1], dtype), self.read(xs[2], dtype)), active)
        elif stem == "cvta":
            self.write(xs[0], self.read(xs[1], np.uint64), active)
        else:
            kinds_ = [dtype] * (len(xs) - 1)
            if parts[:2] == ["mad", "wide"]:
                kinds_[2] = np.dtype(f"{np.dtype(dtype).kind}{2 * np.dtype(dtype).itemsize}")
            self.write(xs[0], arithmetic(parts, dtype, [self.read(x, t) for x, t in zip(xs[1:], kinds_, strict=True)]), active)

    def move(self, xs: list[str], active: Array, dtype: Any) -> None:
        if xs[0].startswith("{"):
            names = xs[0].strip("{}").split(",")
            whole = self.read(xs[1], dtype).view(f"u{np.dtype(dtype).itemsize}")
            bits = 8 * np.dtype(dtype).itemsize // len(names)
            for i, name in enumerate(names):
                self.write(name.strip(), (whole >> np.uint64(i * bits)).astype(f"u{bits // 8}"), active)
        elif xs[1].startswith("{"):
            names = [n.strip() for n in xs[1].strip("{}").split(",")]
            bits = 8 * np.dtype(dtype).itemsize // len(names)
            total = np.zeros(self.n, np.uint64)
            for i, name in enumerate(names):
                total |= self.read(name, f"u{bits // 8}").astype(np.uint64) << np.uint64(i * bits)
            self.write(xs[0], total.astype(f"u{np.dtype(dtype).itemsize}").view(dtype), active)
        else:
            self.write(xs[0], self.read(xs[1], dtype), active)

    def atomic(self, parts: list[str], xs: list[str], active: Array, dtype: Any) -> None:
        """One thread after the other."""
        if parts[1] not in ("relaxed", "acquire", "release", "acq_rel") or parts[2] not in ("cta", "cluster", "gpu", "sys"):
            raise Fault(f"an atomic needs an ordering and a scope, got {'.'.join(parts)}")
        base, _, offset = xs[1].strip("[]").partition("+")
        at, new = self.read(base, np.uint64).astype(np.int64) + int(offset or 0), self.read(xs[2], dtype)
        item, old = np.dtype(dtype).itemsize, np.zeros(self.n, dtype)
        combine: Any = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
                        "xor": np.bitwise_xor, "exch": lambda a, b: b}[parts[4]]  # fmt: skip
        for t in np.flatnonzero(active):
            data, where = self.space(parts[3], int(t), int(at[t]), item)
            old[t] = data[where : where + item].view(dtype)[0]
            data[where : where + item] = np.asarray(combine(old[t : t + 1], new[t : t + 1]), dtype).view(np.uint8)
        self.heap.written += 1
        if xs[0]:
            self.write(xs[0], old, active)

    def memory(self, op: Op, parts: list[str], xs: list[str], active: Array, dtype: Any) -> None:
        load = parts[0] == "ld"
        regs, place = (xs[0], xs[1]) if load else (xs[1], xs[0])
        names = [n.strip() for n in regs.strip("{}").split(",")]
        base, _, offset = place.strip("[]").partition("+")
        item = np.dtype(dtype).itemsize
        space = next(p for p in parts if p in ("global", "shared", "local", "param"))
        if space == "param":
            if base.startswith("%"):  # words of several launches
                self.write(regs, np.array(self.words, np.int64)[(self.read(base, np.int64) + int(offset)) // 8], active)
            else:
                self.write(regs, np.full(self.n, self.words[int(base[1:])], np.int64), active)
            return
        start = self.read(base, np.uint64) if base.startswith("%") else np.full(self.n, self.symbols[base], np.uint64)
        at = start.astype(np.int64) + int(offset or 0)
        if (at[active] % (item * len(names))).any():
            raise Fault(f"`{op.text}` is not aligned to {item * len(names)} bytes")
        who = np.flatnonzero(active)
        self.heap.written += space == "global" and not load
        found = self.together(space, at[who], item * len(names))
        if space == "shared":
            self.races.access(at[who][:, None] + np.arange(item * len(names)), who, not load, op.text)
        for i, name in enumerate(names):
            value = np.zeros(self.n, dtype) if load else self.read(name, dtype)
            if found is not None:
                data, first = found
                places = (at[who] - first + i * item)[:, None] + np.arange(item)
                if load:
                    value[who] = data[places].view(dtype)[:, 0]
                else:  # in order: of several threads that write one place, the last one wins
                    data[places] = np.ascontiguousarray(value[who]).view(np.uint8).reshape(-1, item)
            for t in who if found is None else ():
                data, where = self.space(space, int(t), int(at[t]) + i * item, item)
                if load:
                    value[t] = data[where : where + item].copy().view(dtype)[0]
                else:
                    data[where : where + item] = value[t : t + 1].view(np.uint8)
            if load:
                self.write(name, value, active)

    def together(self, name: str, at: Array, nbytes: int) -> tuple[Array, int] | None:
        """The one piece of memory that all these addresses lie in, and where it begins."""
        low, high = int(at.min()), int(at.max()) + nbytes
        if name == "shared" and low >= 0 and high <= len(self.shared):
            return self.shared, 0
        if name != "global":
            return None
        return next(((data, start) for start, data in self.heap.buffers if start <= low and high <= start + len(data)), None)

    def space(self, name: str, thread: int, address: int, nbytes: int) -> tuple[Array, int]:
        if name == "global":
            return self.heap.find(address, nbytes)
        data = self.shared if name == "shared" else self.local[thread]
        if not 0 <= address <= len(data) - nbytes:
            raise Fault(f"{name} access at {address} of {len(data)} bytes")
        return data, address

    def convert(self, parts: list[str], kinds: list[str], xs: list[str], active: Array) -> None:
        if "bf16" in parts or "bf16x2" in parts or "f16" in parts or "f16x2" in parts:
            self.write(xs[0], small_float(parts, [self.read(x, np.uint16 if parts[1] == "f32" else np.float32) for x in xs[1:]]), active)
            return
        target, source = _TYPES[kinds[0]], _TYPES[kinds[1]]
        x = self.read(xs[1], source)
        rounding = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
        for name, fn in rounding.items():
            if name in parts:
                x = fn(x)
        if np.dtype(source).kind == "f" and np.dtype(target).kind in "iu":
            info = np.iinfo(target)
            wide = np.nan_to_num(x.astype(np.longdouble), nan=0.0)
            x = np.clip(wide, np.longdouble(info.min), np.longdouble(info.max)).astype(target)
        self.write(xs[0], x.astype(target), active)
