"""Clusters of blocks in the emulator: ranks, the cluster's barrier, another block's shared memory, stores that an mbarrier counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.cuda.emulator import _Block
    from tilewright.target.cuda.ptx.flow import Op

Array = Any
_RANK = 24  # bits of an address in a block's own shared memory


class Fault(AssertionError):
    """The kernel did something that a GPU would not forgive."""


@dataclass
class Barrier:
    """An mbarrier: arrivals of a phase, how many are missing, bytes that are to come, phases completed."""

    count: int
    missing: int
    bytes: int = 0
    phase: int = 0

    def change(self, arrivals: int, nbytes: int) -> None:
        self.missing -= arrivals
        self.bytes += nbytes
        if self.missing < 0:
            raise Fault("an mbarrier has more arrivals than it was made for")
        if self.missing == 0 and self.bytes == 0:
            self.phase, self.missing = self.phase + 1, self.count


class Member:
    """A block's part in its cluster."""

    def __init__(self, block: _Block, rank: int, peers: list[Member]) -> None:
        self.block, self.peers = block, peers
        self.arrivals = np.zeros(block.n, np.int64)  # arrivals of every thread at the cluster's barrier
        self.mbarriers: dict[int, Barrier] = {}
        self.held = False  # what the last instruction waits for has not come
        block.special["%cluster_ctarank"] = np.full(block.n, rank, np.uint32)


def gather(blocks: Sequence[_Block], size: int) -> None:
    """Neighbouring blocks as clusters."""
    for start in range(0, len(blocks), size):
        peers: list[Member] = []
        for rank, b in enumerate(blocks[start : start + size]):
            b.member = Member(b, rank, peers)
            peers.append(b.member)


def execute(b: _Block, op: Op, xs: list[str], active: Array) -> bool:
    """An instruction of clusters and mbarriers; whether it is one."""
    name, me = op.opcode, b.member
    if name.startswith("fence.mbarrier_init"):
        return True
    if name.startswith("barrier.cluster.arrive"):
        me.arrivals[active] += 1
        b.heap.written += 1
    elif name.startswith("barrier.cluster.wait"):
        behind = [((p.arrivals < me.arrivals[active].max()) & p.block.alive).any() for p in me.peers]
        if any(behind):
            b.pc[active] -= 1
            me.held = True
    elif name.startswith("mapa.shared::cluster"):
        b.write(xs[0], b.read(xs[1], np.uint32) | (b.read(xs[2], np.uint32) + np.uint32(1)) << np.uint32(_RANK), active)
    elif name.startswith("st.async.shared::cluster.mbarrier::complete_tx::bytes"):
        _store(b, op, xs, active)
    elif name.startswith("ld.shared::cluster"):
        _load(b, op, xs, active)
    elif op.stem == "mbarrier":
        _mbarrier(b, op, xs, active)
    else:
        return False
    return True


def _places(b: _Block, text: str) -> Array:
    base, _, offset = text.strip("[]").partition("+")
    return b.read(base, np.uint64).astype(np.int64) + int(offset or 0)


def _mbarrier(b: _Block, op: Op, xs: list[str], active: Array) -> None:
    me = b.member
    at = _places(b, next(x for x in xs if x.startswith("[")))
    if ".try_wait" in op.opcode:
        done = np.array([t in me.mbarriers and me.mbarriers[t].phase & 1 != int(xs[2]) for t in at.tolist()])
        b.write(xs[0], done, active)
        me.held = not done[active].all()
        return
    for t in np.flatnonzero(active):
        if ".init" in op.opcode:
            me.mbarriers[int(at[t])] = Barrier(int(xs[1]), int(xs[1]))
        else:
            me.mbarriers[int(at[t])].change(1, int(xs[2]) if "expect_tx" in op.opcode else 0)


def _load(b: _Block, op: Op, xs: list[str], active: Array) -> None:
    """Words from the shared memory of a block that has not left."""
    names = [n.strip() for n in xs[0].strip("{}").split(",")]
    at, found = _places(b, xs[1]), np.zeros((b.n, len(names)), np.float32)
    for t in np.flatnonzero(active):
        peer, place, nbytes = b.member.peers[(int(at[t]) >> _RANK) - 1], int(at[t]) & ((1 << _RANK) - 1), 4 * len(names)
        if not peer.block.alive.any() or place % nbytes:
            raise Fault(f"`{op.text}` reads byte {place} of a block that has {'words elsewhere' if place % nbytes else 'ended'}")
        found[t] = peer.block.shared[place : place + nbytes].view(np.float32)
    for i, name in enumerate(names):
        b.write(name, found[:, i], active)


def _store(b: _Block, op: Op, xs: list[str], active: Array) -> None:
    """`st.async`: registers into the shared memory of a block that has not left, whose mbarrier counts the bytes."""
    names = [n.strip() for n in xs[1].strip("{}").split(",")]
    at, bar = _places(b, xs[0]), _places(b, xs[2])
    values = np.stack([b.read(n, np.uint32) for n in names], 1)
    for t in np.flatnonzero(active):
        peer = b.member.peers[(int(at[t]) >> _RANK) - 1]
        to, nbytes = int(at[t]) & ((1 << _RANK) - 1), 4 * len(names)
        if not peer.block.alive.any() or to % nbytes or int(bar[t]) >> _RANK != int(at[t]) >> _RANK:
            raise Fault(f"`{op.text}` stores to byte {to} of a block that has {'ended' if not peer.block.alive.any() else 'it elsewhere'}")
        peer.block.shared[to : to + nbytes] = np.ascontiguousarray(values[t]).view(np.uint8)
        peer.mbarriers[int(bar[t]) & ((1 << _RANK) - 1)].change(0, -nbytes)
    b.heap.written += 1
