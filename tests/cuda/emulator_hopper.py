"""Runs kernels of Hopper's asynchronous units in NumPy: copies through tensor maps, `wgmma`, mbarriers, named barriers, votes.

Copies and products happen where they are started, in the order of their meaning: that waits are strong enough is the work of
`async_safety`, what is computed is checked here. A thread that waits for an mbarrier stands still until one changes; blocks (clusters of
them) run one after the other in the order of their numbers, so who takes turns comes in the order of the turns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.cuda import emulator_clusters as clusters
from tests.cuda.emulator import _STEPS, Array, Heap, _Block, _locals, _split, _table, together
from tests.cuda.emulator_clusters import Barrier, Fault
from tests.cuda.emulator_mma import KINDS, _names, _whole_warps
from tests.cuda.emulator_races import Races
from tests.cuda.tensor_cores import tensor
from tilewright.kernels.cuda.kernel import TensorMap
from tilewright.target.cuda.ptx.flow import Op, parse

_RING = 1024  # where the stages begin; barriers lie before
_MAPS = 1 << 60  # made-up addresses of tensor maps
_QUIET = ("nanosleep", "setmaxnreg", "prefetch", "fence", "griddepcontrol")


def run(
    text: str, heap: Heap, words: list[int], grid: int, block: int, dynamic: int, maps: Sequence[TensorMap], env: dict[str, int]
) -> None:
    """Launch the (only) kernel of a module."""
    (function,) = parse(text)
    tensors = [(m, *tensor(heap, m, words, env)) for m in maps]
    tables = {m[1]: heap.add(_table(m[2])) for m in re.finditer(r"\.global[^;]*?(\w+)\[\d+\] = \{(.*?)\}", text)}
    symbols = {**dict(_locals(text)), **tables, "bars": 0, "ring": _RING, **{f"map{i}": _MAPS + i for i in range(len(maps))}}
    assert not re.search(r"\bscratch\b", text), "static memory has no place here"
    size = int((re.findall(r"\.reqnctapercluster (\d+)", text) or [1])[0])
    with np.errstate(all="ignore"):
        for first in range(0, grid, size):
            near = [_Async(function, heap, words, b, grid, block, _RING + dynamic, symbols, tensors) for b in range(first, first + size)]
            clusters.gather(near, size)
            together(heap, [b.steps() for b in near])


def swizzled(at: Array, pitch: int = 128) -> Array:
    """Where byte `at` of rows of 128, 64 or 32 bytes lies: pieces of 16 bytes change places within 1024, 512 or 256."""
    return at ^ (at >> 3 & pitch - 16)


class _Unwatched(Races):
    """Who comes after whom is not followed here."""

    def access(self, places: Array, threads: Array, write: bool, text: str) -> None:
        pass


class _Async(_Block):
    def __init__(self, *args: Any) -> None:
        *rest, self.tensors = args
        super().__init__(*rest)
        self.races = _Unwatched(0)
        self.mbarriers: dict[int, Barrier] = {}
        self.arrived: dict[int, int] = {}  # threads at a named barrier
        self.sleeping = np.full(self.n, -1, np.int64)  # at which named barrier
        self.stalled = np.zeros(self.n, bool)

    def steps(self) -> Iterator[None]:
        for _ in range(_STEPS):
            ready = self.alive & (self.sleeping < 0) & ~self.stalled
            if not ready.any():
                if not self.alive.any():
                    return
                where = sorted({self.f.ops[p].text for p in self.pc[self.alive].tolist()})
                raise Fault(f"nobody goes on: threads wait at {where}")
            at = int(self.pc[ready].min())
            if at >= self.f.end:
                self.alive[ready & (self.pc == at)] = False
                continue
            self.step(self.f.ops[at], ready & (self.pc == at))
            if self.member.held:
                self.member.held = False
                yield
        raise Fault("the kernel does not end")

    def step(self, op: Op, here: Array) -> None:
        if op.stem == "bar" and op.opcode != "bar.warp.sync":
            active = here & (self.regs[op.guard] != op.text.startswith("@!")) if op.guard else here
            self.pc[here] += 1
            self.meet(op, active)
        elif op.stem == "bar":
            self.pc[here] += 1  # a warp's threads step together
        else:
            super().step(op, here)

    def meet(self, op: Op, active: Array) -> None:
        """`bar.sync` and `bar.arrive`, on a barrier of its own number."""
        which, *count = _split(op.operands)
        for number in np.unique(self.read(which, np.uint32)[active]).tolist():
            mine = active & (self.read(which, np.uint32) == number)
            need = int(count[0]) if count else self.n
            self.arrived[number] = self.arrived.get(number, 0) + int(mine.sum())
            if op.opcode == "bar.sync":
                self.sleeping[mine] = number
            if self.arrived[number] > need:
                raise Fault(f"`{op.text}`: {self.arrived[number]} threads at a barrier of {need}")
            if self.arrived[number] == need:
                self.arrived[number] = 0
                self.sleeping[self.sleeping == number] = -1

    def execute(self, op: Op, xs: list[str], active: Array) -> None:
        stem = op.stem
        if stem == "wgmma":
            groups = active.reshape(-1, 128)
            if not groups.all(1)[groups.any(1)].all():
                raise Fault(f"`{op.opcode}` needs whole warpgroups")
        if stem in _QUIET or op.opcode.startswith(("wgmma.fence", "wgmma.commit", "wgmma.wait")) or "bulk.commit" in op.opcode:
            return
        if "bulk.wait_group" in op.opcode:
            return
        if stem == "mbarrier":
            self.mbarrier(op, xs, active)
        elif op.opcode.startswith("cp.async.mbarrier"):
            self.land(active)
            for t in np.flatnonzero(active):
                self.changed(int(self.at(xs[0])[t]), 1, 0)
        elif stem == "wgmma":
            self.product(op, xs, active)
        elif op.opcode.startswith(("cp.async.bulk", "cp.reduce")):
            for t in np.flatnonzero(active):
                self.bulk(op, xs, int(t))
        elif stem == "vote":
            _whole_warps(op.opcode, active)
            votes = self.read(xs[1], np.bool_).reshape(-1, 32)
            self.write(xs[0], np.repeat(votes.all(1) if ".all" in op.opcode else votes.any(1), 32), active)
        elif stem == "stmatrix":
            self.store_matrices(op, xs, active)
        elif stem == "red" or (stem == "atom" and "acq_rel" not in op.opcode and ".relaxed" not in op.opcode):
            self.count(op, xs, active)
        else:
            super().execute(op, xs, active)

    # --- operands -----------------------------------------------------------------------------------------------------
    def at(self, text: str) -> Array:
        base, _, offset = text.strip("[]").partition("+")
        return self.read(base, np.uint64).astype(np.int64) + int(offset or 0)

    def changed(self, address: int, arrivals: int, nbytes: int) -> None:
        if address not in self.mbarriers:
            raise Fault(f"there is no mbarrier at {address}")
        self.mbarriers[address].change(arrivals, nbytes)
        self.stalled[:] = False

    def mbarrier(self, op: Op, xs: list[str], active: Array) -> None:
        threads = np.flatnonzero(active)
        if ".init" in op.opcode:
            for t in threads:
                self.mbarriers[int(self.at(xs[0])[t])] = Barrier(int(xs[1]), int(xs[1]))
        elif ".try_wait" in op.opcode:
            at, parity = self.at(xs[1]), self.read(xs[2], np.uint32)
            done = np.zeros(self.n, bool)
            for t in threads:
                done[t] = self.mbarriers[int(at[t])].phase & 1 != int(parity[t])
            self.write(xs[0], done, active)
            late = active & ~done
            self.stalled |= late
            self.pc[late] -= 1
        else:
            nbytes = self.read(xs[2], np.int32) if "expect_tx" in op.opcode else np.zeros(self.n, np.int32)
            for t in threads:
                self.changed(int(self.at(xs[1])[t]), 1, int(nbytes[t]))

    # --- memory -------------------------------------------------------------------------------------------------------
    def land(self, active: Array) -> None:
        """All copies of these threads have arrived."""
        late = []
        for threads, groups, where, data in self.flying:
            mine = active[threads]
            self.shared[where[mine][:, None] + np.arange(data.shape[1])] = data[mine]
            late.append((threads[~mine], groups[~mine], where[~mine], data[~mine]))
        self.flying = [x for x in late if len(x[0])]

    def bulk(self, op: Op, xs: list[str], t: int) -> None:
        """TMA: a box of a tensor into swizzled rows, or bytes as they lie."""
        if "tensor" in op.opcode:
            leaves = ".global.shared::cta" in op.opcode
            name, corner = xs[0 if leaves else 1].strip("[]").split(",", 1)
            m, data, index = self.tensors[int(self.read(name.strip(), np.uint64)[t]) - _MAPS]
            first = [int(self.read(c, np.int32)[t]) for c in _names(corner.strip().strip("{}"))]
            box = np.zeros(m.box[::-1], data.dtype)
            if leaves:
                at = int(self.at(xs[1])[t])
                box = self.shared[swizzled(at + np.arange(box.nbytes), m.swizzle)].view(data.dtype).reshape(box.shape)
            inside = [slice(max(-f, 0), max(min(n, size - f), 0)) for f, n, size in zip(first, m.box, index.shape[::-1], strict=True)]
            cut = [slice(f + i.start, f + i.stop) for f, i in zip(first, inside, strict=True)]
            some = all(i.stop > i.start for i in inside)
            if leaves:
                if some:
                    data[index[tuple(cut[::-1])]] = box[tuple(inside[::-1])]
                return
            if some:
                box[tuple(inside[::-1])] = data[index[tuple(cut[::-1])]]
            if m.rounded:
                box = ((np.ascontiguousarray(box).view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)
            raw, to = np.ascontiguousarray(box).reshape(-1).view(np.uint8), int(self.at(xs[0])[t])
            if to % 128 or m.swizzle not in (32, 64, 128) or m.box[0] * m.dtype.itemsize != m.swizzle:
                raise Fault(f"`{op.text}` copies to {to}, rows of {m.box[0] * m.dtype.itemsize} bytes")
            self.shared[swizzled(to + np.arange(len(raw)), m.swizzle)] = raw
            self.changed(int(self.at(xs[2])[t]), 0, -len(raw))
            return
        n, to, source = int(self.read(xs[2], np.int32)[t]), int(self.at(xs[0])[t]), int(self.at(xs[1])[t])
        if n % 16 or to % 16 or source % 16:
            raise Fault(f"`{op.text}` copies {n} bytes from {source:#x} to {to:#x}")
        if ".shared::cluster.global" in op.opcode:
            data, where = self.heap.find(source, n)
            self.shared[to : to + n] = data[where : where + n]
            self.changed(int(self.at(xs[3])[t]), 0, -n)
            return
        data, where = self.heap.find(to, n)
        new = self.shared[source : source + n]
        if op.opcode.startswith("cp.reduce"):
            new = (data[where : where + n].view(np.float32) + new.view(np.float32)).view(np.uint8)
        data[where : where + n] = new

    def store_matrices(self, op: Op, xs: list[str], active: Array) -> None:
        """`stmatrix.x4`: lane l names line l%8 of matrix l/8; it has word l%4 of line l/4."""
        _whole_warps(op.opcode, active)
        at, warps = self.at(xs[0]).reshape(-1, 4, 8), active.reshape(-1, 32)[:, 0]
        for i, name in enumerate(_names(xs[1])):
            words = self.read(name, np.uint32).reshape(-1, 8, 4)
            lines = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8, 16)
            self.shared[at[warps, i][..., None] + np.arange(16)] = lines[warps]

    def count(self, op: Op, xs: list[str], active: Array) -> None:
        """Counters in global memory."""
        assert ".add.u32" in op.opcode and ".global" in op.opcode, op.text
        to, place, value = (xs[0], xs[1], xs[2]) if op.stem == "atom" else ("", xs[0], xs[1])
        old = np.zeros(self.n, np.uint32)
        for t in np.flatnonzero(active):
            data, where = self.heap.find(int(self.at(place)[t]), 4)
            old[t] = data[where : where + 4].view(np.uint32)[0]
            data[where : where + 4] = (old[t : t + 1] + self.read(value, np.uint32)[t : t + 1]).view(np.uint8)
        if to:
            self.write(to, old, active)

    # --- the tensor core ----------------------------------------------------------------------------------------------
    def matrix(self, descriptor: int, rows: int, turned: bool, kind: Any) -> Array:
        """[rows, 16] behind a descriptor: rows of 128 swizzled bytes along K, or (`turned`) along the other side."""
        start, leading, stride = ((descriptor >> s & 0x3FFF) << 4 for s in (0, 16, 32))
        pitch = {1: 128, 2: 64, 3: 32}.get(descriptor >> 62)
        if pitch is None or (turned and pitch != 128) or (stride != 8 * pitch and (turned or stride % pitch or stride < 8 * pitch)):
            raise Fault(f"a matrix of swizzle {descriptor >> 62} with rows {stride} bytes apart")
        item = np.dtype(kind).itemsize
        r, c = np.arange(rows)[:, None], np.arange(32 // item)[None]
        at = r // 64 * leading + c // 8 * stride + c % 8 * 128 + r % 64 * 2 if turned else r // 8 * stride + r % 8 * pitch + item * c
        at = swizzled(start + at, pitch)
        if at.max() + 2 > len(self.shared):
            raise Fault(f"a matrix past the end of shared memory, at {at.max()}")
        found = np.ascontiguousarray(self.shared[at[..., None] + np.arange(item)]).view(kind)[..., 0]
        return (found.view(np.uint32) & 0xFFFFE000).view(np.float32) if kind is np.float32 else found.astype(np.float32)

    def product(self, op: Op, xs: list[str], active: Array) -> None:
        groups = active.reshape(-1, 128)
        parts = op.opcode.split(".")
        narrow = parts[-1] == "tf32"
        kind, n = np.float32 if narrow else KINDS[parts[-1]], int(parts[4].partition("n")[2].partition("k")[0])
        assert parts[4].endswith("k8" if narrow else "k16") and parts[-1] in ("bf16", "f16", "tf32"), op.opcode
        sums, left = _names(xs[0]), _names(xs[1])
        turned = [f == "1" for f in xs[6:]]
        t = np.arange(128)
        row, column = 16 * (t // 32) + t % 32 // 4, 2 * (t % 4)
        old = [self.read(name, np.float32) for name in sums] if bool(self.regs[xs[3]][active].any()) else []
        new = np.zeros((len(sums), self.n), np.float32)
        for g in np.flatnonzero(groups.all(1)):
            mine = slice(128 * g, 128 * g + 128)
            b = self.matrix(int(self.read(xs[2], np.uint64)[128 * g]), n, bool(turned) and turned[-1], kind)
            if len(left) == 1:
                a = self.matrix(int(self.read(xs[1], np.uint64)[128 * g]), 64, turned[0], kind)
            elif narrow:
                a = np.zeros((64, 8), np.float32)
                for i, name in enumerate(left):
                    bits = self.read(name, np.uint32)[mine] & np.uint32(0xFFFFE000)
                    a[row + 8 * (i % 2), column // 2 + 4 * (i // 2)] = bits.view(np.float32)
            else:
                a = np.zeros((64, 16), np.float32)
                for i, name in enumerate(left):
                    pair = self.read(name, np.uint32)[mine].copy().view(kind).reshape(-1, 2).astype(np.float32)
                    for h in range(2):
                        a[row + 8 * (i % 2), column + 8 * (i // 2) + h] = pair[:, h]
            c = a @ b.T
            for i in range(len(sums)):
                new[i, mine] = c[row + 8 * (i % 4 // 2), 8 * (i // 4) + column + i % 2] + (old[i][mine] if old else 0)
        for i, name in enumerate(sums):
            self.write(name, new[i], active)
