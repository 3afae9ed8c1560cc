"""Runs a program with loops or branches on a GPU: graphs where launches are the same every time, single launches where arguments move
with a loop of the host, predicates that are read back."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...core.dims import evaluate
from ...kernels.cuda.host import HostKernel
from ...kernels.launch import Buffer, Loop, Pointer
from . import driver as gpu
from . import launch as cuda_launch
from .executable import ERROR_WORDS, CudaExecutable, Schedule, Step, ended
from .flow import Hosted, Moved, Part, Repeat, Straight, Turns, Until, follows, parts_of, settled


def make_flow(executable: CudaExecutable, env: Mapping[str, int], arena: gpu.Memory, offsets: Mapping[Buffer, int]) -> Schedule | Flow:
    """One graph where the host decides nothing, else a walk."""
    parts = parts_of(executable.program.block, env)
    flow = Flow(executable, env, arena, offsets, parts)
    if not parts:
        return Schedule(dict(env), arena, [], flow.slots)
    if len(parts) == 1 and isinstance(parts[0], Straight):
        return Schedule(dict(env), arena, flow.steps_of(parts[0], {}), flow.slots)
    return flow


class Walked:
    """Launches by themselves: their arguments are written before each."""

    def __init__(self, steps: Sequence[Step], executable: CudaExecutable, env: Mapping[str, int]) -> None:
        slots = executable.slots
        self.steps: list[tuple[Step, list[tuple[int, int, int, list[tuple[Loop, int]]]]]] = []
        for s in steps:
            moves = []
            for w, a in enumerate(s.arguments):
                if not isinstance(a, Pointer):
                    continue
                slides = [(loop, evaluate(step, env)) for loop, step in a.slides] if isinstance(a, Moved) else []
                slot = slots.get(a.buffer, -1)
                if slides or slot >= 0:
                    moves.append((w, slot, int(s.words[w]) if slot < 0 else evaluate(a.offset, env), slides))
            self.steps.append((s, moves))

    def run(self, addresses: Sequence[int], live: Turns, stream: int, *, wait: bool) -> None:
        for step, moves in self.steps:
            for w, slot, base, slides in moves:
                step.words[w] = base + (addresses[slot] if slot >= 0 else 0) + sum(n * live[loop] for loop, n in slides)
            if moves and step.maps:
                step.write_maps()
            step.start(stream)
            if wait:
                ended(stream, step)


class Flow:
    """What a `Schedule` is for a program whose way the host decides. `bind` and `run` are the same."""

    def __init__(
        self, executable: CudaExecutable, env: Mapping[str, int], arena: gpu.Memory, offsets: Mapping[Buffer, int], parts: list[Part]
    ) -> None:
        self.executable, self.env, self.arena, self.offsets, self.parts = executable, dict(env), arena, offsets, parts
        self.slots = len(executable.program.inputs) + len(executable.program.outputs)
        self.addresses = [0] * self.slots
        self.reads = 0  # predicates that were read back, in all runs
        self._number = {x: i for i, x in enumerate(executable.program.launches)}
        self._chains: dict[tuple[Straight, tuple[int, ...]], Schedule | Walked] = {}
        self._followed: dict[Straight, tuple[list[Loop], list[Loop]]] = {}
        self._seen: gpu.HostWords | None = None

    @property
    def steps(self) -> list[Step]:
        """The steps that runs have needed until now."""
        found: list[Step] = []
        for chain in self._chains.values():
            found += chain.steps if isinstance(chain, Schedule) else [s for s, _ in chain.steps]
        return found

    def steps_of(self, part: Straight, live: Turns) -> list[Step]:
        return [
            step
            for launch, turns in part.launches
            for step in self.executable.steps(
                self._number[launch], launch, self.env, self.arena.address, self.offsets, settle=partial(settled, turns=turns, live=live)
            )
        ]

    def bind(self, addresses: Sequence[int]) -> None:
        self.addresses = list(addresses)  # every part takes them when it runs

    def follow(self, env: Mapping[str, int], addresses: Sequence[int], stream: int) -> None:
        """Nothing: a walk belongs to one value of the call's symbols."""

    def run(self, stream: int) -> None:
        self._run(self.parts, {}, stream, False)

    def run_singly(self, stream: int, *, wait: bool = False) -> None:
        """Kernel by kernel. `wait` for the end of each, so that an error names the kernel that made it."""
        self._run(self.parts, {}, stream, wait)

    def _run(self, parts: Sequence[Part], live: dict[Loop, int], stream: int, wait: bool) -> None:
        """`live` has the steps of the loops on the host, those that have ended included."""
        for part in parts:
            if isinstance(part, Straight):
                self._straight(part, live, stream, wait)
            elif isinstance(part, Repeat):
                for i in range(part.count):
                    live[part.loop] = i
                    self._run(part.body, live, stream, wait)
                live[part.loop] = part.count
            elif isinstance(part, Until):
                live[part.loop] = 0
                while part.limit is None or live[part.loop] < part.limit:
                    self._run(part.test, live, stream, wait)
                    if not self._true(part.predicate, part.turns, live, stream, part.loop.name) or self._failed():
                        break
                    self._run(part.body, live, stream, wait)
                    live[part.loop] += 1
            elif isinstance(part, Hosted):
                self._host(part, live, stream)
            else:
                going = self._true(part.branch.predicate, part.turns, live, stream, part.branch.name)
                self._run(part.then if going else part.other, live, stream, wait)

    def _failed(self) -> bool:
        """A kernel has found bad data: a loop ends, for its predicate may hang on what was not computed."""
        errors = self.executable.errors
        return errors is not None and any(errors.words[i] for i in range(0, errors.count, ERROR_WORDS))

    def _straight(self, part: Straight, live: Turns, stream: int, wait: bool) -> None:
        if part not in self._followed:
            self._followed[part] = follows(part.launches)
        odd, slid = self._followed[part]
        key = (part, tuple(live[loop] % 2 for loop in odd))
        chain = self._chains.get(key)
        if chain is None:
            steps = self.steps_of(part, live)
            chain = Walked(steps, self.executable, self.env) if slid else Schedule(self.env, self.arena, steps, self.slots)
            self._chains[key] = chain
        if isinstance(chain, Walked):
            chain.run(self.addresses, live, stream, wait=wait)
            return
        chain.bind(self.addresses)
        if wait:
            chain.run_singly(stream, wait=True)
        else:
            chain.run(stream)

    def _address(self, pointer: Any, turns: Turns, live: Turns) -> int:
        """Where a pointer goes in this step of the loops around it."""
        p: Any = settled(pointer, turns, live)
        address = self.executable.word(p, 0, self.env, self.arena.address, self.offsets)
        address += self.addresses[slot] if (slot := self.executable.slots.get(p.buffer, -1)) >= 0 else 0
        return address + sum(evaluate(step, self.env) * live[loop] for loop, step in getattr(p, "slides", ()))

    def _host(self, part: Hosted, live: Turns, stream: int) -> None:
        """Compute a launch on the host, which waits for the device before and after: the copies come from memory of its own."""
        kernel, lib, what = part.launch.kernel, cuda_launch.library(), part.launch.name
        assert isinstance(kernel, HostKernel)
        spans = kernel.spans(self.env)
        places = [self._address(a, part.turns, live) + low for a, (low, _) in zip(part.launch.arguments, spans, strict=True)]
        memory = [np.zeros(size, np.uint8) for _, size in spans]
        for address, raw in zip(places, memory, strict=True):
            if raw.size:  # results too: what lies between their elements stays
                cuda_launch.check(lib.cuMemcpyDtoHAsync_v2(raw.ctypes.data, address, raw.size, stream), "cuMemcpyDtoHAsync", what)
        cuda_launch.check(lib.cuStreamSynchronize(stream), "cuStreamSynchronize", what)
        kernel.compute(memory, self.env)
        count = len(kernel.operands)
        for address, raw in zip(places[count:], memory[count:], strict=True):
            if raw.size:
                cuda_launch.check(lib.cuMemcpyHtoDAsync_v2(address, raw.ctypes.data, raw.size, stream), "cuMemcpyHtoDAsync", what)
        cuda_launch.check(lib.cuStreamSynchronize(stream), "cuStreamSynchronize", what)

    def _true(self, predicate: Pointer, turns: Turns, live: Turns, stream: int, name: str) -> bool:
        """Read a predicate: the host waits for the device here."""
        address = self._address(predicate, turns, live)
        if self._seen is None:
            self._seen = gpu.HostWords(1)
        lib, what = cuda_launch.library(), f"the predicate of {name}"
        cuda_launch.check(lib.cuMemcpyDtoHAsync_v2(self._seen.host, address, 1, stream), "cuMemcpyDtoHAsync", what)
        cuda_launch.check(lib.cuStreamSynchronize(stream), "cuStreamSynchronize", what)
        self.reads += 1
        return bool(ctypes.string_at(self._seen.host, 1)[0])
