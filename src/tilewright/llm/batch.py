"""One token for each of several sequences in one call: the matrices are read once for all of them.

Every sequence has caches and a length (P0, P1, …) of its own; only the rows of the matrix products stand side by side, and a row's bits do
not depend on its neighbours.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ops as o
from ..core import dtypes as dt
from ..core.dims import Expr, sym
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from ..ops.index.sampling import NUMBERS, SETTINGS
from .decoder import Caches, Decoder
from .recurrent import Rows, mix

if TYPE_CHECKING:
    from .generation import Stream

Array = np.ndarray[Any, Any]


@dataclass
class BatchDecoder(Decoder):
    """The decoder for `lanes` sequences of one new token each."""

    lanes: int = 1
    lengths: list[Expr] = field(default_factory=list, init=False)

    def build(self) -> Graph:
        """Inputs: ids, seen, settings and numbers with one row a lane, then the caches, lane by lane. Outputs: logits f32[lanes, vocab],
        tokens i64[lanes], the caches."""
        c, n = self.config, self.lanes
        self.graph = Graph(f"{c.architecture}_{n}")
        self.new = 1
        self.lengths = [sym(f"P{lane}", 0, max(self.capacity - 1, 1)) for lane in range(n)]
        ids = self.graph.input(TensorType(dt.i64, (n,)), "ids")
        seen = self.graph.input(TensorType(dt.u8, (n, c.vocab)), "seen")
        settings = self.graph.input(TensorType(dt.f32, (n, len(SETTINGS))), "settings")
        numbers = self.graph.input(TensorType(dt.i64, (n, len(NUMBERS))), "numbers")
        first = len(self.graph.inputs)
        lanes = [[self.layer_caches(i, f"_{lane}") for i in range(c.layers)] for lane in range(n)]
        x = self.embed(ids)
        for i in range(c.layers):
            x = self.together(i, x, lanes)
        logits = self.logits(x)
        tokens = o.Sample()(logits, seen, settings, numbers, name="sample")
        after = [part for layers in lanes for caches in layers for cache in caches for part in cache]
        self.graph.outputs = [logits, tokens, *after]
        self.graph.donated = {first + i: 2 + i for i in range(len(after))}
        self.graph.call_symbols = tuple(s for p in self.lengths for s in p.symbols) if self.attends else ()
        return self.graph

    def positions(self) -> Value:
        """The position of each lane's token."""
        parts = [o.iota(self.graph, (1,), 0, dt.i64, start=p) for p in self.lengths]
        return o.concat(parts, 0)

    def together(self, i: int, x: Value, lanes: list[list[Caches]]) -> Value:
        """One layer; updates the caches in `lanes`."""
        c, name, mixer = self.config, f"blk.{i}.", self.config.layer_mixer(i)
        h, before = self.norm(x, name + "attn_norm"), [layers[i] for layers in lanes]
        after: list[Caches] = [() for _ in lanes]
        mixed: list[Value] = []
        if mixer != "recurrent":
            q, k, v, gate = self.qkv(name, h, only_last=False)
            rows = []
            for lane, past in enumerate(self.lengths):
                self.past = past
                own = [o.slice_(part, 2, lane, 1) for part in (q, k, v)]
                y, *caches = self.attend(i, own[0], own[1], own[2], before[lane][0], before[lane][1], past)
                after[lane] = tuple(caches)
                rows.append(o.reshape(o.transpose(y, (0, 2, 1, 3)), (1, c.heads * c.head_dim)))
            mixed.append(self.attended(name, o.concat(rows, 0), gate))
        if mixer != "attention":
            each = Rows(1, [(caches[-2][0], caches[-1][0]) for caches in before])
            mixed.append(mix(self, i, h, each, last=False))
            after = [(*own, *((part,) for part in state)) for own, state in zip(after, each.states, strict=True)]
        for layers, renewed in zip(lanes, after, strict=True):
            layers[i] = renewed
        return self.after_mixing(i, x, mixed)

    def logits_shape(self) -> tuple[int, ...]:
        return self.lanes, self.config.vocab


class Room:
    """The arrays that one call of a batch program fills, and a state for lanes without a sequence."""

    def __init__(self, lanes: int, vocab: int, idle: Any) -> None:
        self.idle = idle
        self.ids = np.zeros(lanes, np.int64)
        self.seen = np.zeros((lanes, vocab), np.uint8)
        self.settings = np.zeros((lanes, len(SETTINGS)), np.float32)
        self.numbers = np.zeros((lanes, len(NUMBERS)), np.int64)
        self.logits = np.empty((lanes, vocab), np.float32)
        self.tokens = np.empty(lanes, np.int64)


class BatchCall:
    """A compiled batch program. Calls from several threads each have a room of their own, kept for the next ones."""

    def __init__(self, call: Any, vocab: int, start: Callable[[], Any]) -> None:
        """`call` is a `StatefulCall`, or on a GPU what does its work; `start` makes an empty state."""
        self.call, self.lanes, self._vocab, self._start = call, call.lanes, vocab, start
        self._free: list[Room] = []

    def __call__(self, streams: Sequence[Stream]) -> list[int]:
        """Feed each stream's last token; the next one of each."""
        try:
            room = self._free.pop()
        except IndexError:
            room = Room(self.lanes, self._vocab, self._start())
        room.settings[:], room.numbers[:], room.ids[:] = 0, 0, 0
        states = [s.state for s in streams] + [room.idle] * (self.lanes - len(streams))
        with ExitStack() as held:
            for state in sorted({id(s): s for s in states}.values(), key=id):  # always in one order: two calls never wait for each other
                held.enter_context(state.lock)
            for lane, s in enumerate(streams):
                s.expect()
                sampler = s.sampler
                room.ids[lane] = s.ids[-1]
                room.seen[lane], room.settings[lane], room.numbers[lane] = sampler.seen, sampler.settings, sampler.numbers
                room.numbers[lane, 2] = s.state.length + 1
            env = {f"P{lane}": state.length for lane, state in enumerate(states)}
            inputs = (room.ids, room.seen, room.settings, room.numbers)
            for s in streams:
                s.state.mark()
            try:
                self.call(states, env, inputs, (room.logits, room.tokens))
            except BaseException:
                for s in streams:
                    s.state.undo()
                raise
            for s in streams:
                s.state.fill(s.state.length + 1)
                s.note()
        tokens = [int(t) for t in room.tokens[: len(streams)]]
        self._free.append(room)
        return tokens
