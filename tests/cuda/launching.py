"""Runs a CUDA program without a GPU: every launch through the PTX emulator (products by `wgmma` through a model of them), every buffer its
own poisoned array."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import tilewright as tw
from tests.cuda import emulator_hopper
from tests.cuda.emulator import Array, Heap
from tests.cuda.emulator import run as emulate
from tests.cuda.tensor_cores import run_product
from tests.fresh import fresh_rng
from tilewright.build.cuda_beside import run_beside
from tilewright.build.packing import pack_constants
from tilewright.core.dims import evaluate
from tilewright.core.dtypes import DType
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import bind_symbols
from tilewright.ir.types import TensorType
from tilewright.kernels.attention.cuda.flash_kernels import FlashGradKernel, FlashStatsKernel, MmaGradKernel
from tilewright.kernels.conv.cuda.kernels import HaloKernel, PatchKernel
from tilewright.kernels.cuda.host import HostKernel
from tilewright.kernels.cuda.kernel import (
    BlockKernel,
    DecodeKernel,
    FlashKernel,
    GemmKernel,
    QDotKernel,
    QFewKernel,
    QGemmKernel,
    ThinKernel,
    TransposeKernel,
)
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.kernels.cuda.whole import WholeKernel
from tilewright.kernels.launch import Alternating, Branch, Buffer, ErrorWord, Launch, Loop, Pointer, Program, Sliding
from tilewright.kernels.select import select
from tilewright.kernels.sort.cuda.radix import RadixKernel
from tilewright.kernels.sort.cuda.sampling import SampleKernel
from tilewright.passes.pipeline import run_pipeline
from tilewright.target.cuda.code import emit_cuda, shared_bytes
from tilewright.target.cuda.device import cuda_target

SIMT = (
    BlockKernel, DecodeKernel, FlashGradKernel, HaloKernel, MmaGradKernel, QDotKernel, QFewKernel, QGemmKernel,
    RadixKernel, SampleKernel, ThinKernel, TiledKernel, TransposeKernel, WholeKernel,
)  # fmt: skip


def graph(fn: Callable[..., Any], *types: tuple[DType, tuple[Any, ...]], name: str = "g") -> Graph:
    """The graph of `fn` over inputs of these types."""
    g = Graph(name)
    out = fn(*(g.input(TensorType(d, s), f"x{i}") for i, (d, s) in enumerate(types)))
    g.outputs = [out] if isinstance(out, Value) else list(out)
    return g


def program(g: Graph, arch: str = "sm_90a") -> Program:
    target = cuda_target(arch)
    return select(run_pipeline(g, target), target)


class Emulated:
    """A program over emulated memory."""

    def __init__(self, g: Graph, arch: str = "sm_90a", features: Sequence[str] = (), cores: int = 0) -> None:
        target = cuda_target(arch)
        self.graph, self.target = g, replace(target, features=frozenset(features), cores=cores or target.cores)
        self.program = select(run_pipeline(g, self.target), self.target)
        run_beside(self.program, {s.name for s in g.call_symbols})
        self.heap = Heap()
        self.texts: dict[str, str] = {}  # PTX by kernel

    def __call__(self, *inputs: Array, env: dict[str, int] | None = None) -> list[Array]:
        env = bind_symbols(self.graph, inputs, env)
        memory: dict[Buffer, int] = {}
        outputs = [np.full([evaluate(d, env) for d in v.shape], 255, np.uint8).astype(v.dtype.np) for v in self.graph.outputs]
        for raw in outputs:
            raw.reshape(-1).view(np.uint8)[:] = 0xFF
        for buffer, array in zip(self.program.inputs, inputs, strict=True):
            memory[buffer] = self.heap.add(np.ascontiguousarray(array))
        for buffer, array in zip(self.program.outputs, outputs, strict=True):
            if buffer in self.program.inputs:  # a state: its memory holds the old value
                array[...] = inputs[self.program.inputs.index(buffer)]
            memory[buffer] = self.heap.add(array)
        for const, packed in zip(self.program.constants, pack_constants(self.program.constants), strict=True):
            memory[const.buffer] = self.heap.add(np.ascontiguousarray(packed))
        for buffer in self.program.temps:
            memory[buffer] = self.heap.add(np.full(evaluate(buffer.nbytes, env), 0xFF, np.uint8))
        self.errors = np.zeros(4, np.int64)
        error = self.heap.add(self.errors)
        self.launched = 0
        self._block(self.program.block or self.program.launches, memory, env, error, {})
        return outputs

    def _block(self, block: Sequence[Any], memory: dict[Buffer, int], env: dict[str, int], error: int, turns: dict[Loop, int]) -> None:
        """Loops and branches as they read; `turns` has the step of every loop."""
        for item in block:
            if isinstance(item, Launch):
                self._launch(item, {**memory, **seen(item, memory, env, turns)}, env, error)
                self.launched += 1
                continue
            if isinstance(item, Branch):
                self._block(item.then if self._true(item.predicate, memory, env, turns) else item.other, memory, env, error, turns)
                continue
            limit, turns[item] = None if item.count is None else evaluate(item.count, env), 0
            while limit is None or turns[item] < limit:
                self._block(item.test, memory, env, error, turns)
                if item.predicate is not None and not self._true(item.predicate, memory, env, turns):
                    break
                self._block(item.body, memory, env, error, turns)
                turns[item] += 1

    def _true(self, p: Pointer, memory: dict[Buffer, int], env: dict[str, int], turns: dict[Loop, int]) -> bool:
        block, offset = self.heap.find(address(p.buffer, memory, env, turns) + evaluate(p.offset, env), 1)
        return bool(block[offset])

    def _launch(self, launch: Launch, memory: dict[Buffer, int], env: dict[str, int], error: int) -> None:
        way: Any = next((v for v in launch.variants if v.lo <= evaluate(v.value, env) <= v.hi), launch)
        kernel = way.kernel
        if evaluate(way.grid, env) == 0:
            return
        if isinstance(kernel, HostKernel):
            places = [_word(a, memory, env, error) + low for a, (low, _) in zip(way.arguments, kernel.spans(env), strict=True)]
            found = [self.heap.find(at, size) if size else None for at, (_, size) in zip(places, kernel.spans(env), strict=True)]
            raws = [np.zeros(0, np.uint8) if f is None else f[0][f[1] : f[1] + size]
                    for f, (_, size) in zip(found, kernel.spans(env), strict=True)]
            kernel.compute(raws, env)
            return
        if isinstance(kernel, GemmKernel) and not isinstance(kernel, PatchKernel):
            run_product(kernel, self.heap, [_word(a, memory, env, error) for a in way.arguments], env)
            return
        if kernel.name not in self.texts:
            self.texts[kernel.name] = emit_cuda(kernel, self.target)
        hopper = isinstance(kernel, (FlashKernel, FlashStatsKernel)) or (isinstance(kernel, FlashGradKernel) and kernel.mode == "grad")
        units = isinstance(kernel, TiledKernel) and re.search(r"wgmma\.|mbarrier\.", self.texts[kernel.name])
        if hopper or units or isinstance(kernel, PatchKernel) or (isinstance(kernel, QGemmKernel) and kernel.wgmma):
            words, maps = [_word(a, memory, env, error) for a in way.arguments], getattr(kernel, "maps", ())
            text = self.texts[kernel.name]
            emulator_hopper.run(text, self.heap, words, evaluate(way.grid, env), kernel.block, shared_bytes(kernel), maps, env)
            return
        assert isinstance(kernel, SIMT), f"{launch.name} is no SIMT kernel"
        grid, programs = evaluate(way.grid, env), kernel.programs if isinstance(kernel, BlockKernel) else 1
        beside = getattr(kernel, "beside", 1)
        words = [_word(a, memory, env, error) for a in way.arguments] + ([grid] if programs > 1 and beside == 1 else [])
        late = getattr(kernel, "indirect", ())
        words = [self.heap.add(np.array([w])) if i in late else w for i, w in enumerate(words)]
        emulate(self.texts[kernel.name], self.heap, words, -(-grid // programs) * beside, kernel.block, shared_bytes(kernel))


def address(buffer: Buffer, memory: dict[Buffer, int], env: dict[str, int], turns: dict[Loop, int]) -> int:
    """The address of a buffer, or of a window in a step of its loop."""
    if isinstance(buffer, Sliding):
        moved = evaluate(buffer.offset, env) + evaluate(buffer.step, env) * turns[buffer.loop]
        return address(buffer.base, memory, env, turns) + moved
    if isinstance(buffer, Alternating):
        return address(buffer.odd if turns[buffer.loop] % 2 else buffer.even, memory, env, turns)
    return memory[buffer]


def seen(launch: Launch, memory: dict[Buffer, int], env: dict[str, int], turns: dict[Loop, int]) -> dict[Buffer, int]:
    """Where the windows of a launch lie."""
    pointers = [a for way in launch.ways for a in way.arguments if isinstance(a, Pointer) and a.buffer.kind == "window"]
    return {a.buffer: address(a.buffer, memory, env, turns) for a in pointers}


def _word(a: Any, memory: dict[Buffer, int], env: dict[str, int], error: int) -> int:
    if isinstance(a, ErrorWord):
        return error
    if isinstance(a, Pointer):
        return memory[a.buffer] + evaluate(a.offset, env)
    return evaluate(a.value, env)


def reference(g: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The graph in NumPy."""
    from tilewright.ir.interp import run

    return run(g, list(inputs))


def put(a: Any) -> Any:
    return tw.asarray(a, device="cuda")


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    rng = fresh_rng()
    return rng.uniform(-2, 2, shape).astype(dtype) if np.dtype(dtype).kind == "f" else rng.integers(1, 7, shape).astype(dtype)
