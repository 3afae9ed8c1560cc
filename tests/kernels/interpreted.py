"""Runs a program with the tile interpreter instead of machine code: every access is checked, and programs run last first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.core.dims import Dim, evaluate
from tilewright.core.natives import address as native_address
from tilewright.core.target_spec import TargetSpec
from tilewright.ir.graph import Graph
from tilewright.kernels.launch import Argument, Buffer, ErrorWord, Launch, Native, Pointer, Program, Variant, Word
from tilewright.kernels.select import select
from tilewright.tile import interp
from tilewright.tile.ir import INDEX, Kernel, ViewType
from tilewright.tile.verify import verify

from .harness import Memory, bind, pack, target

Change = Callable[[Kernel], Kernel]
Value = Callable[[Dim], int]


def interpret_graph(graph: Graph, inputs: Sequence[Any], level: str | TargetSpec = "avx512",
                    change: Change | None = None) -> tuple[list[Any], Any]:
    """Outputs and error words. `change` is applied to every kernel first, for tests that break one."""
    program: Program = select(graph, target(level) if isinstance(level, str) else level)
    env = bind(graph, inputs)

    def value(d: Dim) -> int:
        return evaluate(d, env)

    memory: dict[Buffer, Memory] = {}
    for b in [*program.inputs, *program.outputs, *program.temps, *(c.buffer for c in program.constants)]:
        memory[b] = Memory(value(b.nbytes))
    for b, x in zip(program.inputs, inputs, strict=True):
        memory[b].view()[:] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    for c in program.constants:
        memory[c.buffer].view()[:] = pack(c.data.array, c.packed).reshape(-1).view(np.uint8)
    error = np.zeros(4, np.int64)
    for launch in program.launches:
        way = _way(launch, value)
        kernel = way.kernel if change is None else change(way.kernel)
        verify(kernel)
        grid = value(way.grid)
        interp.run(kernel, list(_arguments(kernel, way.arguments, memory, error, value)), grid, order=range(grid - 1, -1, -1))
    for b, m in memory.items():
        m.check_guards(str(b))
    outs = []
    for b, v in zip(program.outputs, graph.outputs, strict=True):
        outs.append(memory[b].view().view(v.dtype.np).reshape(tuple(value(d) for d in v.shape)).copy())
    return outs, error


def _way(launch: Launch, value: Value) -> Launch | Variant:
    """As the runtime chooses: the first variant whose guard holds."""
    return next((v for v in launch.variants if v.lo <= value(v.value) <= v.hi), launch)


def _arguments(kernel: Kernel, words: Sequence[Argument], memory: dict[Buffer, Memory], error: Any, value: Value) -> Iterator[Any]:
    """The words of a launch as the interpreter takes them: a view is a pointer and one word for every stride it does not know."""
    left = iter(words)

    def number() -> int:
        word = next(left)
        if isinstance(word, Native):
            return native_address(word.name)
        assert isinstance(word, Word)
        return value(word.value)

    for p in kernel.params:
        if p.type == INDEX:
            yield number()
            continue
        assert isinstance(p.type, ViewType)
        start, item = next(left), p.type.dtype.itemsize
        strides = tuple(number() if s is None else s for s in p.type.strides)
        if isinstance(start, ErrorWord):
            yield interp.Buffer(error, 0, strides)
            continue
        assert isinstance(start, Pointer)
        raw, offset = memory[start.buffer].view(), value(start.offset)
        raw = raw[offset % item :]
        yield interp.Buffer(raw[: len(raw) // item * item].view(p.type.dtype.np), offset // item, strides)
    assert next(left, None) is None, f"{kernel.name}: more words than parameters take"
