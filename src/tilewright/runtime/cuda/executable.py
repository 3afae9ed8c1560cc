"""A program on the GPU: modules, constants in device memory, and for each shape a chain of kernels that runs as one CUDA graph.

The argument words of every kernel are made once per shape; a call rewrites only those that point into inputs and outputs that moved.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...build.cuda_late import LateWords, follows
from ...build.packing import packed_bytes
from ...core.dims import Dim, evaluate
from ...core.errors import CompileError
from ...core.workers import Workers
from ...kernels.cuda.kernel import BlockKernel, SimtKernel, TensorMap, reads_late
from ...kernels.launch import Argument, ErrorWord, Launch, Pointer, Program, Variant, Word
from ..executable import Executable, Interface
from . import driver as gpu
from . import launch as cuda_launch
from .constants import device_constants
from .modules import load_function

if TYPE_CHECKING:
    from .walk import Flow

ERROR_WORDS = 4
MOST_BLOCKS = (1 << 31) - 1
JIT_THREADS = 8


@dataclass(frozen=True)
class KernelCode:
    """The PTX of a kernel and how it is launched."""

    name: str
    ptx: str
    block: int
    dynamic_shared: int = 0

    @cached_property
    def waits(self) -> bool:
        """Whether it waits by itself for what the previous kernel wrote. Code for older chips does not, on whatever chip it runs."""
        return "griddepcontrol.wait" in self.ptx


@dataclass(eq=False)
class Step:
    """One kernel of a schedule: parameters in memory, and which of them follow inputs and outputs."""

    launch: Launch
    function: Any
    grid: int
    block: int
    shared: int
    params: np.ndarray[Any, Any]  # bytes: words, then tensor maps
    pointers: Any  # void*[] into params
    words: np.ndarray[Any, Any]
    cells: memoryview  # the same words, which take single numbers faster
    base: int  # the address of `params`
    arguments: tuple[Argument, ...] = ()  # the arguments of which the words were made
    waits: bool = False  # by itself for the previous kernel: it may start while that one ends
    moving: list[tuple[int, int, int]] = field(default_factory=list)  # (word, number of the input or output, byte offset)
    maps: list[tuple[int, int, tuple[Any, ...]]] = field(default_factory=list)  # (byte offset, word, arguments of the map)
    drawn: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # byte offset of a map -> the arguments it was made of
    following: list[tuple[int, int, int, Dim]] = field(default_factory=list)  # (word, address, input or output or -1, dim): see `follow`
    map_dims: tuple[TensorMap, ...] = ()  # the maps as dims, where they follow the call's symbols
    seen: tuple[Any, ...] = ()  # what `follow` last wrote
    node: Any = None
    launched: Any = None  # what an update of the graph's node takes
    config: Any = None  # what a launch without a graph takes, on the stream `on`
    on: int | None = None
    alone: tuple[Any, ...] = ()  # that launch: the driver's function, and its arguments

    def write_maps(self) -> None:
        if not self.seen and any(slot >= 0 for _, _, slot, _ in self.following):
            return  # their addresses come with the first call's `follow`
        for offset, word, shape in self.maps:
            address = self.cells[word]
            if self.drawn.get(offset) != shape:
                self.params[offset : offset + 128] = np.frombuffer(gpu.tensor_map(shape[0], address, *shape[1:]), np.uint8)
                self.drawn[offset] = shape
            else:  # the rest of it stays, which takes a tenth of the time
                status = cuda_launch.library().cuTensorMapReplaceAddress(self.base + offset, address)
                cuda_launch.check(status, "cuTensorMapReplaceAddress", self.launch.name)

    def follow(self, env: Mapping[str, int], addresses: Sequence[int]) -> bool:
        """Words and maps for other values of the call's symbols; whether anything changed."""
        values = [base + evaluate(d, env) + (addresses[slot] if slot >= 0 else 0) for _, base, slot, d in self.following]
        shapes = [map_shape(m, env) for m in self.map_dims]
        if (values, shapes) == self.seen:
            return False
        for (w, *_), value in zip(self.following, values, strict=True):
            self.words[w] = value
        if shapes:
            self.maps = [(offset, word, shape) for (offset, word, _), shape in zip(self.maps, shapes, strict=True)]
        self.seen = values, shapes
        self.write_maps()
        return True

    def start(self, stream: int) -> None:
        """Launch the kernel by itself."""
        if stream != self.on:
            self.move(stream)
        launch, *args = self.alone
        if status := launch(*args):
            self.fail(status)

    def move(self, stream: int) -> None:
        """Later launches by itself go to this stream."""
        if self.config is None:
            grid, block = (ctypes.c_uint * 3)(self.grid, 1, 1), (ctypes.c_uint * 3)(self.block, 1, 1)
            self.config = cuda_launch.LaunchConfig(grid, block, self.shared, stream, None, 0)
            at = ctypes.addressof(self.config), int(self.function), ctypes.addressof(self.pointers), None
            self.alone = (cuda_launch.library().cuLaunchKernelEx, *at)
        self.config.stream, self.on = stream, stream

    def fail(self, status: int) -> None:
        cuda_launch.check(status, "cuLaunchKernelEx", self.launch.name)

    def node_update(self) -> tuple[int, int]:
        """The node of the graph, and where its parameters are described."""
        if self.launched is None:
            grid, block = (ctypes.c_uint * 3)(self.grid, 1, 1), (ctypes.c_uint * 3)(self.block, 1, 1)
            at = ctypes.addressof(self.pointers)
            params = cuda_launch.KernelNode(int(self.function), grid, block, self.shared, at, None, None, None)
            self.launched = (int(self.node), ctypes.addressof(params)), params
        found: tuple[int, int] = self.launched[0]
        return found

    def update(self, graph: int) -> None:
        """Give the node of an instantiated graph the parameters as they are now."""
        if status := cuda_launch.library().cuGraphExecKernelNodeSetParams_v2(graph, *self.node_update()):
            cuda_launch.check(status, "cuGraphExecKernelNodeSetParams", self.launch.name)

    def node_params(self) -> Any:
        p = gpu.driver().CUDA_KERNEL_NODE_PARAMS()
        p.func, p.gridDimX, p.gridDimY, p.gridDimZ = self.function, self.grid, 1, 1
        p.blockDimX, p.blockDimY, p.blockDimZ, p.sharedMemBytes = self.block, 1, 1, self.shared
        p.kernelParams = ctypes.addressof(self.pointers)
        return p


def map_shape(m: TensorMap, env: Mapping[str, int]) -> tuple[Any, ...]:
    """What `cuda_driver.tensor_map` takes beside the address: the dtype, then the rest."""
    sizes, strides = ([evaluate(d, env) for d in dims] for dims in (m.sizes, m.strides))
    return "tf32" if m.rounded else m.dtype.name, sizes, strides, m.box, m.swizzle, m.windows


class CudaExecutable(Executable):
    """Immutable but for the schedules it keeps; loaded onto the device on first use."""

    def __init__(
        self, program: Program, interface: Interface, code: Mapping[str, KernelCode], constants: Sequence[np.ndarray[Any, Any] | None],
        *, late: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(program, interface, [packed_bytes(c.data.type, c.packed) for c in program.constants])
        self.code, self.constants, self.rebinds = code, list(constants), late
        self.slots = {b: i for i, b in enumerate([*program.inputs, *program.outputs])}
        self.error_launches = [i for i, x in enumerate(program.launches) for _ in range(x.error_blocks)]
        self._functions: dict[str, tuple[Any, Any]] = {}
        self._weights: list[gpu.Memory] = []
        self.errors: gpu.HostWords | None = None

    def load(self) -> None:
        """Modules and constants onto the device: all of it or, where memory is short, nothing, so that a later call can try again."""
        if self._functions or self.errors is not None:
            return
        gpu.enter()

        def one(c: KernelCode) -> tuple[str, tuple[Any, Any]]:
            gpu.enter()
            return c.name, load_function(c.ptx, c.name, c.dynamic_shared)

        with Workers(JIT_THREADS) as pool:
            functions = dict(pool.map(one, self.code.values()))
        weights = device_constants(self.program.constants, self.constants)
        errors = gpu.HostWords(ERROR_WORDS * len(self.error_launches))
        self._functions, self._weights, self.errors = functions, weights, errors

    def instantiate(self, env: Mapping[str, int]) -> Schedule | Flow:
        self.load()
        placement = self.place(env)
        arena = gpu.Memory(placement.size)
        if self.program.block:
            from .walk import make_flow

            return make_flow(self, env, arena, placement.offsets)
        late = LateWords(sum(len(getattr(k, "indirect", ())) for x in self.launches for k in x.kernels))
        steps = [s for k, x in enumerate(self.launches) for s in self.steps(k, x, env, arena.address, placement.offsets, late)]
        return Schedule(dict(env), arena, steps, len(self.program.inputs) + len(self.program.outputs), late)

    def steps(
        self, number: int, launch: Launch, env: Mapping[str, int], arena: int, offsets: Mapping[Any, int], late: LateWords | None = None,
        settle: Callable[[Argument], Argument] = lambda a: a,
    ) -> list[Step]:  # fmt: skip
        """Launch `number` as a step, or nothing where there is nothing to do. `settle` takes the windows of loops out of an argument."""
        way: Launch | Variant = next((v for v in launch.variants if v.lo <= evaluate(v.value, env) <= v.hi), launch)
        grid = evaluate(way.grid, env)
        if grid == 0:
            return []
        kernel = way.kernel
        code = self.code[kernel.name]
        slots, arguments = self.slots, tuple(settle(a) for a in way.arguments)
        indirect = kernel.indirect if isinstance(kernel, SimtKernel) and late is not None else frozenset()
        values = [
            self._late(a, number, arena, offsets, slots, late) if late is not None and i in indirect
            else self.word(a, number, env, arena, offsets)
            for i, a in enumerate(arguments)
        ]  # fmt: skip
        beside = getattr(kernel, "beside", 1)
        if isinstance(kernel, BlockKernel):
            if kernel.programs > 1 and beside == 1:
                values.append(grid)
            grid = -(-grid // kernel.programs)
        grid *= beside
        if grid > MOST_BLOCKS:
            raise CompileError(f"cuda: launch {launch.name} needs {grid} blocks, a grid has at most {MOST_BLOCKS}")
        maps: tuple[TensorMap, ...] = getattr(kernel, "maps", ())
        start = -(-8 * len(values) // 64) * 64
        raw = np.zeros(start + 128 * len(maps) + 64, np.uint8)
        skip = -raw.ctypes.data % 64
        params = raw[skip : skip + start + 128 * len(maps)]
        words = params[: 8 * len(values)].view(np.int64)
        words[:] = values
        at = [params.ctypes.data + 8 * i for i in range(len(values))] + [params.ctypes.data + start + 128 * i for i in range(len(maps))]
        pointers = (ctypes.c_void_p * len(at))(*at)
        function, base = self._functions[kernel.name][1], int(params.ctypes.data)
        step = Step(launch, function, grid, code.block, code.dynamic_shared, params, pointers, words, words.data, base, arguments)
        step.waits = code.waits
        step.moving = [
            (i, slots[a.buffer], evaluate(a.offset, env))
            for i, a in enumerate(arguments)
            if isinstance(a, Pointer) and a.buffer in slots and i not in indirect
        ]
        step.maps = [(start + 128 * i, m.argument, map_shape(m, env)) for i, m in enumerate(maps)]
        if late is not None and self.rebinds and not reads_late(kernel):
            self._let_follow(step, maps, env)
        if not any(m.argument == w for m in maps for w, _, _ in step.moving):
            step.write_maps()
        return [step]

    def _let_follow(self, step: Step, maps: tuple[TensorMap, ...], env: Mapping[str, int]) -> None:
        """Mark what the host rewrites in a step whose kernel reads nothing late from memory."""
        called = set(self.interface.called)
        for i, a in enumerate(step.arguments):
            d: Dim = a.offset if isinstance(a, Pointer) else a.value if isinstance(a, Word) else 0
            if follows(d, called):
                base = int(step.words[i]) - evaluate(d, env)  # inputs and outputs have only the offset there
                step.following.append((i, base, self.slots.get(a.buffer, -1) if isinstance(a, Pointer) else -1, d))
        late = {w for w, *_ in step.following}
        step.moving = [m for m in step.moving if m[0] not in late]
        if any(follows(d, called) for m in maps for d in (*m.sizes, *m.strides)):
            step.map_dims = maps

    def word(self, a: Any, number: int, env: Mapping[str, int], arena: int, offsets: Mapping[Any, int]) -> int:
        """An argument's word; of inputs and outputs only the offset."""
        if isinstance(a, ErrorWord):
            assert self.errors is not None
            return self.errors.device + 8 * ERROR_WORDS * (self.error_launches.index(number) + a.turn)
        if not isinstance(a, Pointer):
            return evaluate(a.value, env)
        offset = evaluate(a.offset, env)
        if a.buffer.kind == "temp":
            return arena + offsets[a.buffer] + offset
        return offset + (self._weights[a.buffer.index].address if a.buffer.kind == "const" else 0)

    def _late(self, a: Any, number: int, arena: int, offsets: Mapping[Any, int], slots: Mapping[Any, int], late: LateWords) -> int:
        """The address of a word that follows the call's symbols."""
        if isinstance(a, ErrorWord):
            return late.add(self.word(a, number, {}, arena, offsets), -1, 0)
        if not isinstance(a, Pointer):
            return late.add(0, -1, a.value)
        if a.buffer in slots:
            return late.add(0, slots[a.buffer], a.offset)
        return late.add(self._weights[a.buffer.index].address if a.buffer.kind == "const" else arena + offsets[a.buffer], -1, a.offset)


def ended(stream: int, step: Step) -> None:
    """Wait for a kernel that was started alone: an error is its own."""
    status = cuda_launch.library().cuStreamSynchronize(stream)
    cuda_launch.check(status, "cuStreamSynchronize", f"after {step.launch.name}, kernel {step.launch.kernel.name}", found=True)


class Schedule:
    """The kernels of one shape over one arena, as a graph, which takes less time to launch than a kernel. `bind` points it at inputs and
    outputs, `run` starts it on a stream."""

    def __init__(self, env: dict[str, int], arena: gpu.Memory, steps: list[Step], slots: int, late: LateWords | None = None) -> None:
        self.env, self.arena, self.steps, self.late = env, arena, steps, late
        self.bound = (ctypes.c_int64 * slots)(*[-1] * slots)  # the addresses; machine code has this memory
        self._users: list[dict[int, list[tuple[int, int]]]] = [{} for _ in range(slots)]  # slot -> step -> (word, byte offset)
        for k, step in enumerate(steps):
            for w, slot, offset in step.moving:
                self._users[slot].setdefault(k, []).append((w, offset))
        self._following = [s for s in steps if s.following or s.map_dims]
        self.early = gpu.compute_capability() >= (9, 0)
        self._graph: gpu.Graph | None = None
        self.handle = 0  # the handle of the instantiated graph
        self._launch = cuda_launch.library().cuGraphLaunch

    @property
    def follows_calls(self) -> bool:
        """Whether a call has more to write than addresses."""
        return bool(self._following) or (self.late is not None and self.late.count > 0)

    @property
    def addresses(self) -> list[int]:
        """Addresses of inputs and outputs, as they are bound."""
        return self.bound[:]

    def bind(self, addresses: Sequence[int]) -> None:
        """Rewrite what follows the inputs and outputs that are elsewhere now."""
        before = self.bound[:]
        if addresses == before and (self.handle or not self.steps):
            return
        self.bound[:] = [-1] * len(before)  # until all of it is done
        touched: dict[int, None] = {}
        for a, b, users in zip(addresses, before, self._users, strict=True):
            if a != b:
                for k, places in users.items():
                    cells = self.steps[k].cells
                    for w, offset in places:
                        cells[w] = a + offset
                touched.update(dict.fromkeys(users))
        for k in touched:
            step = self.steps[k]
            if step.maps:
                step.write_maps()
            if self.handle:
                step.update(self.handle)
        if not self.handle and self.steps:
            self._build()
        self.bound[:] = [*addresses]

    def following_inputs(self) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, int, int]], list[tuple[int, int]]]:
        """What `bind` does, as addresses on the host: (word, slot, byte offset, number of the node), (tensor map, its word, number of the
        node), (node, its parameters)."""
        steps = [s for s in self.steps if s.moving]
        moving = [(s.base + 8 * w, slot, offset, k) for k, s in enumerate(steps) for w, slot, offset in s.moving]
        words = {word for word, *_ in moving}
        maps = [(s.base + at, s.base + 8 * w, k) for k, s in enumerate(steps) for at, w, _ in s.maps if s.base + 8 * w in words]
        return moving, maps, [s.node_update() for s in steps]

    def follow(self, env: Mapping[str, int], addresses: Sequence[int], stream: int) -> None:
        """Values of the call's symbols, after `bind`: words in memory, and the parameters of the kernels that have none there."""
        if self.late is not None:
            self.late.write(env, addresses, stream)
        for step in self._following:
            try:
                if step.follow(env, addresses) and self.handle:
                    step.update(self.handle)
            except BaseException:
                step.seen = ()  # the graph may not know of it: the next call writes it again
                raise

    def _build(self) -> None:
        """A chain: every kernel after the one before, whose kernels say themselves when the next may take its places."""
        self._graph = gpu.Graph()
        for step in self.steps:
            step.node = self._graph.add(step.node_params(), step.launch.name)
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            gpu.after(self._graph.graph, before.node, after.node, early=self.early and after.waits)
        self.handle = self._graph.instantiate()

    def run(self, stream: int) -> None:
        if self.steps and (status := self._launch(self.handle, stream)):
            cuda_launch.check(status, "cuGraphLaunch", f"{len(self.steps)} kernels, {self.steps[0].launch.name} first")

    def run_singly(self, stream: int, *, wait: bool = False) -> None:
        """Kernel by kernel. `wait` for the end of each, so that an error names the kernel that made it."""
        for s in self.steps:
            s.start(stream)
            if wait:
                ended(stream, s)
