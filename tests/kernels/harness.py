"""Runs a program launch by launch, without planner, pool or session: every buffer is its own array, poisoned first."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tilewright.build.packing import pack_taps, packed_shape
from tilewright.core.dims import Dim, evaluate
from tilewright.core.natives import address as native_address
from tilewright.core.target_spec import TargetSpec
from tilewright.ir.graph import Graph
from tilewright.kernels.launch import Buffer, ErrorWord, Native, Pointer, Program
from tilewright.kernels.quant.panels import pack_panels
from tilewright.kernels.select import select
from tilewright.runtime.executable import bounds
from tilewright.runtime.native.layout import OUT_OF_BOUNDS
from tilewright.target.cpu.emit import emit_kernel
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.jit import Library, compile_ir
from tilewright.tile.verify import verify

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
GUARD = 256  # bytes of poison around every buffer


@cache
def target(level: str) -> TargetSpec:
    return host_target(level=level)  # type: ignore[arg-type]


_LIBRARIES: dict[tuple[str, str], tuple[Library, int]] = {}


def address(kernel: Any, spec: TargetSpec) -> int:
    key = (kernel.name, f"{spec.feature_string} {spec.checks}")
    if key not in _LIBRARIES:
        verify(kernel)
        library = Library([compile_ir(emit_kernel(kernel, spec), spec)], [kernel.name])
        _LIBRARIES[key] = (library, library.address(kernel.name))
    return _LIBRARIES[key][1]


def bind(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    from tilewright.ir.interp import bind_symbols

    return bind_symbols(graph, inputs)


class Memory:
    """A poisoned buffer with guard bytes on both sides."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.raw = np.full(nbytes + 2 * GUARD + 64, 0xA5, np.uint8)
        self.start = GUARD + (-(self.raw.ctypes.data + GUARD)) % 64
        self.raw[self.start : self.start + nbytes] = 0xFF  # NaN in every float format

    @property
    def address(self) -> int:
        return int(self.raw.ctypes.data) + self.start

    def view(self) -> Any:
        return self.raw[self.start : self.start + self.nbytes]

    def check_guards(self, name: str) -> None:
        assert (self.raw[: self.start] == 0xA5).all(), f"{name}: written before its start"
        assert (self.raw[self.start + self.nbytes :] == 0xA5).all(), f"{name}: written past its end"


def pack(array: Any, packed: Any) -> Any:
    if packed.form == "plain":
        return np.ascontiguousarray(array)
    if packed.form == "quantized panels":
        made = np.empty(packed_shape(array.shape, packed), np.uint8)
        pack_panels(array, packed.format, made, 0, len(made))
        return made
    if packed.form in ("filters", "taps"):
        filters = np.empty(packed_shape(array.shape, packed), array.dtype)
        pack_taps(array, packed, filters)
        return filters
    rows = array.T if packed.transposed else array
    if packed.form == "words":
        panels, words, width, per = packed_shape(array.shape, packed)
        whole = np.zeros((panels * width, words * per), array.dtype)
        whole[: rows.shape[0], : rows.shape[1]] = rows
        return np.ascontiguousarray(whole.reshape(panels, width, words, per).swapaxes(1, 2))
    panels, k, width = packed_shape(array.shape, packed)
    out = np.zeros((panels, k, width), array.dtype)
    for p in range(panels):
        part = rows[p * width : (p + 1) * width]
        out[p, :, : len(part)] = part.T
    return out


def run_graph(
    graph: Graph, inputs: Sequence[Any], level: str = "avx512", parts: int = 1, program: Program | None = None
) -> tuple[list[Any], Any]:
    """Outputs of a graph (one array each) and the error words. `parts` > 1 runs every grid in that many pieces, last first."""
    spec = target(level)
    program = program or select(graph, spec)
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
        words = []
        for a in (*launch.arguments, *(bounds(launch.arguments) if spec.checks else ())):
            if isinstance(a, Native):
                words.append(native_address(a.name))
            elif isinstance(a, ErrorWord):
                words.append(error.ctypes.data)
            elif isinstance(a, Pointer):
                offset, extent = value(a.offset), value(a.extent)
                if value(launch.grid) and extent > 0:
                    assert 0 <= offset and offset + extent <= memory[a.buffer].nbytes, f"{launch.name}: {a} leaves its buffer"
                words.append(memory[a.buffer].address + offset)
            else:
                words.append(value(a.value))
        block, scratch = np.array(words, np.int64), Memory(value(launch.scratch))
        fn, grid = KERNEL(address(launch.kernel, spec)), value(launch.grid)
        edges = [grid * i // parts for i in range(parts + 1)]
        for lo, hi in reversed(list(zip(edges[:-1], edges[1:], strict=True))):
            fn(block.ctypes.data, lo, hi, scratch.address)
        scratch.check_guards(f"{launch.name} scratch")
        assert error[0] != OUT_OF_BOUNDS, f"{launch.name}: view {error[1]} leaves its buffer at byte {error[2]}, program {error[3]}"
    for b, m in memory.items():
        m.check_guards(str(b))
    outs = []
    for b, v in zip(program.outputs, graph.outputs, strict=True):
        shape = tuple(value(d) for d in v.shape)
        outs.append(memory[b].view().view(v.dtype.np).reshape(shape).copy())
    return outs, error
