"""Kernels of elementwise functions on a GPU: one for a function, its operands' dtypes, their rank and how they lie.

Sizes and strides are words of the launch, so that a new shape compiles nothing. Part of a kernel are the number of axes that are left when
neighbours without gaps are merged, strides of 0, those of 1 and -1 along the last axis, a short last axis, and whether every row begins at
a multiple of 16 elements, which lets a thread move 16 bytes at a time. Complex numbers are copied here; their functions are compiled for
their shapes.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, sym
from ...core.dtypes import DType
from ...core.errors import CompileError
from ...core.pytree import flatten
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph
from ...ir.layout import Layout, row_major
from ...ir.types import TensorType
from ...kernels.cuda.kernel import BlockKernel
from ...kernels.launch import Buffer, ErrorWord, Launch, Pointer, Word
from ...kernels.pointwise.cuda.pointwise import CudaPointwise
from ...kernels.region import Operand, Region, collapse
from ...kernels.sites import name_sites
from ...ops.fused import Fused
from ...ops.structure import Input
from ...passes.base import Log
from ...passes.pipeline import run_pipeline
from ...plan.values import dim_source
from ...runtime.cuda import driver as gpu
from ...runtime.cuda import launch as cuda_launch
from ...runtime.cuda.executable import ERROR_WORDS, MOST_BLOCKS
from ...runtime.cuda.memory import ALIGNMENT
from ...runtime.cuda.modules import load_function
from ...runtime.faults import fault
from ...target.cuda.code import emit_all
from ...transform.lib import function
from ...transform.trace import Leaf, trace
from ..machine import _expression, _order, kept
from . import placed as P
from .placed import Placed

STEP = 1 << 40  # bound on sizes and strides
WIDE = 16  # elements that rows are multiples of where a thread moves several at a time
SHORT = 64  # elements up to which a last axis is part of the kernel
PLANS = 4096  # launches that are remembered by the layouts of their operands
COPY = "copy"
BITS = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}
Class = tuple[int | None, ...]  # strides of an array that are part of the kernel; None: a word of the launch


@dataclass(frozen=True, eq=False)
class Form:
    """What a kernel's arrays are: the number of axes, and the last one: 0 any size, -1 a multiple of WIDE, else so many elements."""

    rank: int
    last: int

    @property
    def shape(self) -> tuple[Dim, ...]:
        n = sym(f"n{self.rank - 1}", 1, STEP)
        return *(sym(f"n{i}", 1, STEP) for i in range(self.rank - 1)), n if not self.last else WIDE * n if self.last < 0 else self.last

    def layout(self, k: int, known: Class) -> Layout:
        """The layout of array k. Rows of a wide form begin at multiples of WIDE."""
        unit = WIDE if self.last < 0 and known[-1] == 1 else 1
        return Layout(self.shape, tuple(unit * sym(f"s{k}_{i}", 0, STEP) if s is None else s for i, s in enumerate(known)))


class DeviceKernel:
    """One compiled kernel; `Bound` runs it on arrays of its class. `call` is the text of two functions: one gives its grid and words, one
    the bytes of memory between this kernel and the next, whose address is the last."""

    def __init__(self, name: str, entry: str, ptx: str, block: int, shared: int, call: str, launch: Launch | None = None) -> None:
        self.name, self.entry, self.ptx, self.block, self.shared, self.call = name, entry, ptx, block, shared, call
        self.launch = launch  # the launch of a kernel that may fail: where it names its errors
        scope: dict[str, Any] = {}
        exec(call, scope)
        self.words: Callable[..., tuple[int, list[int]]] = scope["call"]
        self.scratch: Callable[[Sequence[int]], int] = scope["scratch"]

    @staticmethod
    def of(name: str, launch: Launch, symbols: Sequence[str], target: TargetSpec) -> DeviceKernel:
        kernel = launch.kernel
        programs = kernel.programs if isinstance(kernel, BlockKernel) else 1
        ((ptx, block, shared),) = emit_all([kernel], target).values()
        names = {s: f"v[{i}]" for i, s in enumerate(symbols)}
        words, scratch = [], "0"
        for a in launch.arguments:
            if isinstance(a, Pointer):
                if a.buffer.kind == "temp":
                    scratch = dim_source(a.buffer.nbytes, names)
                words.append(f"a[{a.buffer.index}] + {dim_source(a.offset, names)}")
            else:
                words.append(dim_source(a.value, names) if isinstance(a, Word) else "error")
        words += ["grid"] * (programs > 1)
        text = (f"def call(a, v, error):\n    grid = {dim_source(launch.grid, names)}\n"
                f"    return -(-grid // {programs}), [{', '.join(words)}]\ndef scratch(v):\n    return {scratch}\n")
        fails = any(isinstance(a, ErrorWord) for a in launch.arguments)
        return DeviceKernel(name.partition("(")[0], kernel.name, ptx, block, shared, text, launch if fails else None)

    def loaded(self, state: Any) -> Any:
        """The module, the function and the error words (or None) that a driver has of this kernel."""
        found = state.functions.get(self.entry)
        if found is None:
            errors = gpu.HostWords(ERROR_WORDS) if self.launch is not None else None
            found = state.functions[self.entry] = *load_function(self.ptx, self.entry, self.shared), errors
            if errors is not None:
                state.failing[id(self)] = partial(self.raise_error, errors)
        return found

    def raise_error(self, errors: gpu.HostWords) -> None:
        """What an earlier run of the kernel found."""
        if errors.words[0] and self.launch is not None:
            block = errors.words[:ERROR_WORDS]
            errors.clear()
            raise fault(self.launch, block, {}, "", "found by an earlier call")


class Bound:
    """A kernel at given sizes and strides: a launch writes addresses into arguments that are there already."""

    def __init__(self, kernel: DeviceKernel, values: Sequence[int]) -> None:
        self.kernel, self.values = kernel, values
        self.state: Any = None  # the state of the driver that the rest belongs to

    def _load(self, state: Any, count: int) -> None:
        _, self.function, self.errors = self.kernel.loaded(state)
        error = 0 if self.errors is None else self.errors.device
        self.grid, self.words = self.kernel.words([0] * count, self.values, error)
        if self.grid > MOST_BLOCKS:
            raise CompileError(f"cuda: {self.kernel.name} needs {self.grid} blocks, a grid has at most {MOST_BLOCKS}")
        ones = (self.kernel.words([int(j == k) for j in range(count)], self.values, error)[1] for k in range(count))
        self.places = [(i, k, w) for k, found in enumerate(ones) for i, (w, x) in enumerate(zip(self.words, found, strict=True)) if w != x]
        self.packets: list[cuda_launch.Packet] = []
        self.state = state

    def load(self, count: int) -> None:
        """Everything of a launch but the addresses, of which there are `count`, for the driver that is here."""
        state = P.state()
        if self.state is not state:
            self._load(state, count)

    def start(self, addresses: Sequence[int], stream: int) -> None:
        state = P.state()
        self.load(len(addresses))
        if self.errors is not None:
            self.kernel.raise_error(self.errors)
        try:
            packet = self.packets.pop()
        except IndexError:  # other threads have all
            packet = cuda_launch.Packet(self.function, self.grid, self.kernel.block, self.words, self.kernel.shared)
        arguments = packet.values
        for i, k, base in self.places:
            arguments[i] = base + addresses[k]
        packet.launch(stream, self.kernel.name)
        self.packets.append(packet)
        state.started.append(self.kernel.name)
        state.streams.add(stream)
        if state.strict:
            P.wait(stream)


Made = tuple[list[DeviceKernel], DType]  # the kernels of a function, and the dtype of its result


def stored(what: tuple[Any, ...], target: TargetSpec, make: Callable[[], Made | None]) -> Made | None:
    """The kernels of a function, from the cache on disk after the first time ever; those that may fail are made in each process."""
    made: list[Any] = []

    def write() -> bytes:
        made.append(make())
        if made[0] is None:
            return b"none"
        kernels, dtype = made[0]
        parts = [[k.name, k.entry, k.ptx, k.block, k.shared, k.call] for k in kernels]
        return b"" if any(k.launch is not None for k in kernels) else json.dumps([parts, dtype.name]).encode()

    data = kept(f"eager cuda {target.cpu} {target.feature_string} {target.checks} {what}", write, cuda=True)
    if made or not data:
        return made[0] if made else make()
    if data == b"none":
        return None
    parts, name = json.loads(data)
    return [DeviceKernel(*each) for each in parts], dt.dtype(name)


# ---- kernels

@cache
def _body(name: str, types: tuple[DType, ...], static: tuple[Any, ...], rank: int, last: int,
          target: TargetSpec) -> tuple[Graph, list[int]] | None:
    """A function of arrays of one shape as the body of one region, and which argument each input of the body is; None where it is not
    elementwise."""
    shape = Form(rank, last).shape
    body = Graph("copy")
    if name == COPY:
        body.outputs = [body.input(TensorType(types[0], shape), "x")]
        return body, [0]
    found = _expression(name) if "(" in name else function(name)
    if found is None or any(t.kind == "c" for t in types):
        return None
    made = single(lambda *xs: found(*xs, *static), [Leaf(TensorType(t, shape)) for t in types], name, target)
    if made is None or any(v.type.shape != shape for v in (*made[0].inputs, *made[0].outputs)):
        return None
    return None if any(n.op.traits.anchor for n in made[0].nodes) else made


def single(fn: Callable[..., Any], leaves: Sequence[Leaf], name: str, target: TargetSpec) -> tuple[Graph, list[int]] | None:
    """A function that the compiler makes one region of: its body, and which argument each input of the body is."""
    called = trace(fn, flatten((tuple(leaves), {}))[1], leaves, name.partition("(")[0])
    graph = run_pipeline(called.graph, target, (), Log(), verify=False)
    rest = [n for n in graph.nodes if not isinstance(n.op, Input)]
    if len(graph.outputs) != 1 or len(rest) > 1:
        return None
    body = Graph("copy")
    if not rest:  # the operand as it is
        body.outputs = [body.input(graph.outputs[0].type, "x")]
        return body, [graph.inputs.index(graph.outputs[0])]
    node = rest[0]
    if isinstance(node.op, Fused):
        body = node.op.body
    else:
        ins = [body.input(v.type, f"x{i}") for i, v in enumerate(node.operands)]
        body.outputs = list(body.add(node.op, *ins, name=node.name).values)
        if not node.op.traits.elementwise and not node.op.traits.anchor:
            return None
    return body, [graph.inputs.index(v) for v in node.operands]


def result_dtype(name: str, types: tuple[DType, ...], static: tuple[Any, ...] = ()) -> DType | None:
    """The dtype of an elementwise function of these; None where it has no kernel of its own."""
    return _result_dtype(name, types, static, P.state().target)


@cache
def _result_dtype(name: str, types: tuple[DType, ...], static: tuple[Any, ...], target: TargetSpec) -> DType | None:
    def write() -> bytes:
        found = _body(name, types, static, 1, 0, target)
        return b"none" if found is None else found[0].outputs[0].dtype.name.encode()

    data = kept(f"eager cuda dtype {target.cpu} {target.checks} {(name, types, static)}", write, cuda=True)
    return None if data == b"none" else dt.dtype(data.decode())


@cache
def _kernel(name: str, types: tuple[DType, ...], static: tuple[Any, ...], rank: int, last: int, classes: tuple[Class, ...],
            target: TargetSpec) -> DeviceKernel:
    """`classes` are those of the operands and the result."""

    def make() -> Made:
        form, found = Form(rank, last), _body(name, types, static, rank, last, target)
        assert found is not None
        body, order = found
        n = len(types)
        ins = [Operand(v.type, Buffer(f"x{k}", "input", v.type.nbytes, k), form.layout(k, classes[k]))
               for v, k in zip(body.inputs, order, strict=True)]
        out = body.outputs[0].type
        result = Operand(out, Buffer("y", "output", out.nbytes, n), form.layout(n, classes[n]))
        region = Region(name.partition("(")[0], body, ins, [result])
        (launch,) = name_sites(CudaPointwise().build(region, target), region)
        symbols = [f"n{i}" for i in range(rank)] + [f"s{k}_{i}" for k in range(n + 1) for i in range(rank)]
        return [DeviceKernel.of(name, launch, symbols, target)], out.dtype

    found = stored(("elements", name, types, static, rank, last, classes), target, make)
    assert found is not None
    return found[0][0]


# ---- runs

@dataclass(frozen=True, eq=False)
class Plan:
    """A kernel at given sizes and strides, and the result that it makes."""

    kernel: Bound
    result: P.Key


def run(name: str, operands: Sequence[Placed], out: Placed | None = None, static: tuple[Any, ...] = ()) -> Placed | None:
    """An elementwise function of operands that broadcast, into new memory or `out`; None where it has no kernel of its own. The name may
    be an expression of functions: `tanh(add(i0,i1))`."""
    P.enter()
    plan = planned(name, operands, out, static)
    return None if plan is None else execute(plan, operands, out)


def planned(name: str, operands: Sequence[Placed], out: Placed | None, static: tuple[Any, ...]) -> Plan | None:
    plans = P.state().plans
    key = (name, static, out is not None and out.key, *(p.key for p in operands))
    if key in plans:
        return plans[key]  # type: ignore[no-any-return]
    headers, addresses = [p.header for p in operands], [p.address for p in operands]
    plan = _plan(name, headers, addresses, None if out is None else out.header, 0 if out is None else out.address, static)
    if len(plans) >= PLANS:
        plans.clear()
    plans[key] = plan
    return plan


def execute(plan: Plan, operands: Sequence[Placed], out: Placed | None = None) -> Placed:
    stream = P.current()
    if out is None:
        out = P.made(plan.result, stream)
    if plan.result.size:
        every = (*operands, out)
        P.before_use(every, stream)
        plan.kernel.start([p.address for p in every], stream)
        P.after_use(every, stream)
        out.stream = stream
    return out


def _plan(name: str, headers: Sequence[P.Header], addresses: Sequence[int], out: P.Header | None, there: int,
          static: tuple[Any, ...]) -> Plan | None:
    """What runs on operands of these layouts, and on `out`, or on new memory where there is none."""
    types = tuple(dt.dtype(h.dtype) for h in headers)
    dtype = types[0] if name == COPY else result_dtype(name, types, static)
    if dtype is None:
        return None
    shape = np.broadcast_shapes(*(h.shape for h in headers)) if out is None else out.shape
    order = _order(list(headers), shape) if out is None else None  # the operands lie in this order of their axes, and so will the result
    size = shape if order is None else tuple(shape[i] for i in order)
    back = None if order is None else np.argsort(order)
    steps = [int(n) for n in row_major(size)] if out is None else [s // out.itemsize for s in out.strides]
    strides = steps if back is None else [steps[i] for i in back]
    wide = [h if h.shape == shape else np.broadcast_to(h, shape) for h in headers]
    layouts = [Layout(shape, tuple(x)) for x in (*([s // h.itemsize for s in h.strides] for h in wide), strides)]
    found: Any = collapse(shape, layouts)
    sizes, each = found if found[0] else ([1], [[1] for _ in layouts])
    last, rank = sizes[-1], len(sizes)
    rows = [(at, s) for at, s in zip([*addresses, there], each, strict=True) if s[-1] == 1]
    aligned = last % WIDE == 0 and all(at % ALIGNMENT == 0 and not any(x % WIDE for x in s[:-1]) for at, s in rows)
    form = last if rank > 1 and last <= SHORT else -1 if aligned else 0
    classes = tuple((*(0 if x == 0 else None for x in s[:-1]), s[-1] if s[-1] in (0, 1, -1) else None) for s in each)
    kernel = _kernel(name, types, static, rank, form, classes, P.state().target)
    if form < 0:
        sizes[-1] //= WIDE
        each = [[x // WIDE for x in s] if s[-1] == 1 else s for s in each]
    result = P.key_of(dtype.np, tuple(shape), tuple(int(n) * dtype.itemsize for n in strides))
    return Plan(Bound(kernel, [*sizes, *(x for s in each for x in s)]), result)


# ---- copies

def _parts(header: P.Header) -> list[P.Header]:
    """The same memory as integers of the same size; complex numbers of 16 bytes as their two parts."""
    if header.itemsize == 16:
        return [part.view(BITS[8]) for part in (header.real, header.imag)]
    return [header.view(BITS[header.itemsize])]


def copies(target: Placed, source: Placed) -> list[tuple[Bound, int, int]] | None:
    """The kernels that copy what lies as the source to what lies as the target, with the bytes from which they read and write; None where
    both are contiguous."""
    known = P.state().copies
    key = target.key, source.key
    if key not in known:
        if len(known) >= PLANS:
            known.clear()
        known[key] = None if target.key.contiguous and source.key.contiguous and target.shape == source.shape else _copies(target, source)
    found: list[tuple[Bound, int, int]] | None = known[key]
    return found


def _copies(target: Placed, source: Placed) -> list[tuple[Bound, int, int]]:
    made = []
    for into, of in zip(_parts(target.header), _parts(source.header), strict=True) if target.key.size else ():
        a, b = Placed(of, 0), Placed(into, 0)
        plan = planned(COPY, [a], b, ())
        assert plan is not None
        plan.kernel.load(2)
        made.append((plan.kernel, a.address - source.address, b.address - target.address))
    return made


def copy_into(target: Placed, source: Placed) -> None:
    """Elements of one dtype to memory of any layout; the source broadcasts."""
    assert source.dtype == target.dtype
    P.enter()
    stream = P.current()
    both = source, target
    P.before_use(both, stream)
    found = copies(target, source)
    if found is None:
        nbytes = target.nbytes
        status = cuda_launch.library().cuMemcpyDtoDAsync_v2(target.address, source.address, nbytes, stream) if nbytes else 0
        if status:
            cuda_launch.check(status, "cuMemcpyDtoDAsync", f"{nbytes} bytes")
        P.started(COPY, stream)
    else:
        for kernel, read, written in found:
            kernel.start([source.address + read, target.address + written], stream)
    P.after_use(both, stream)
    target.stream = stream


def contiguous(p: Placed, *, copy: bool = False, aligned: bool = False) -> Placed:
    """The same elements without gaps: itself where it is so, unless a copy is asked for."""
    if p.key.contiguous and not copy and not (aligned and p.key.shift):
        return p
    made = P.empty(p.shape, p.dtype)
    copy_into(made, p)
    return made
