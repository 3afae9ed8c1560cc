"""The native side of eager functions: kernels by function and dtypes, made once ever and kept on disk, and the code that runs them.

A kernel works on contiguous elements of any number; it is what the compiler makes of the traced function of one symbolic size. The host code
of `runtime/eager_host.py` gathers strided and broadcast operands in chunks, so that one kernel serves every shape, rank and layout.
"""
from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dims import sym
from ..core.hashing import blake2b
from ..runtime import eager_host as H
from ..runtime.outputs import new_array
from ..target.cpu.cache import CodeCache, object_key
from ..target.cpu.host import host_target
from ..target.cpu.jit import Library

Header = np.ndarray[Any, Any]
THREADED = 1 << 18  # bytes of a result from which threads share the work
NONE = b"none"
_FOLDERS = ("core", "ir", "ops", "transform", "passes", "tile", "kernels", "target/cpu")
# Traced functions whose special cases are not those of the array API, or that report errors: NumPy's loops serve them.
WITHOUT = frozenset({"floor_divide", "remainder", "pow", "fmod", "float_power", "bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm"})
_keep: list[Any] = []  # linked code and tables, for as long as the process lives


@functools.cache
def _stamp() -> str:
    """Changes with any source that shapes kernels: names, sizes and times of the files."""
    digest = blake2b(digest_size=10)
    root = Path(__file__).parents[1]
    for folder in _FOLDERS:
        for base, _, names in os.walk(root / folder):
            for name in sorted(names):
                if name.endswith(".py"):
                    info = os.stat(os.path.join(base, name))
                    digest.update(f"{name} {info.st_size} {info.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@functools.cache
def _cache() -> CodeCache:
    return CodeCache()


# ---- kernels

@functools.cache
def kernel(name: str, ins: tuple[dt.DType, ...], out: dt.DType) -> int:
    """The address of a kernel of contiguous elements: words of the operands' addresses, the result's, and the number of elements. 0 where
    the function has none for these dtypes."""
    if name in WITHOUT:
        return 0
    target = host_target()
    text = f"eager {name} {' '.join(map(str, ins))} -> {out} {_stamp()}"
    symbol = "tw_e_" + blake2b(text.encode(), digest_size=10).hexdigest()
    key = object_key(text, target)
    code = _cache().get(key)
    if code is None:
        code = _compiled(name, ins, out, symbol) or NONE
        _cache().put(key, code)
    if code == NONE:
        return 0
    library = Library([code], [symbol])
    _keep.append(library)
    return library.address(symbol)


def _compiled(name: str, ins: tuple[dt.DType, ...], out: dt.DType, symbol: str) -> bytes | None:
    import dataclasses

    from ..core.errors import TilewrightError
    from ..core.pytree import flatten
    from ..ir.types import TensorType
    from ..kernels.launch import Pointer, Word
    from ..kernels.select import select
    from ..passes.base import Log
    from ..passes.pipeline import run_pipeline
    from ..target.cpu.emit import emit_kernel
    from ..target.cpu.jit import compile_ir
    from ..transform.lib import ALIASES, FUNCTIONS
    from ..transform.trace import Leaf, trace

    target, size = host_target(), sym("N", 0, 1 << 40)
    cast = name == "astype"
    found: Callable[..., Any] | None = FUNCTIONS.get(ALIASES.get(name, name))
    if cast and found is not None:
        convert = found
        found = lambda x: convert(x, out)
    if found is None:
        return None
    leaves = [Leaf(TensorType(d, (size,))) for d in ins]
    try:
        graph = trace(found, flatten((tuple(leaves), {}))[1], leaves, name).graph
        if len(graph.outputs) != 1 or graph.outputs[0].type != TensorType(out, (size,)):
            return None
        program = select(run_pipeline(graph, target, (), Log(), verify=False), target)
    except TilewrightError:
        return None
    if len(program.launches) != 1 or program.constants or program.block:
        return None
    launch = program.launches[0]
    *pointers, last = launch.arguments
    wanted = [("input", i) for i in range(len(ins))] + [("output", 0)]
    simple = all(isinstance(p, Pointer) and p.offset == 0 for p in pointers) and isinstance(last, Word) and last.value == size
    if not simple or [(p.buffer.kind, p.buffer.index) for p in pointers if isinstance(p, Pointer)] != wanted:
        return None
    if launch.variants or launch.scratch != 0:
        return None
    return compile_ir(emit_kernel(dataclasses.replace(launch.kernel, name=symbol), target), target)


# ---- the host code

class Machine:
    """The linked host code and what Python calls of it."""

    def __init__(self) -> None:
        from ..target.cpu.host_code import compile_host

        target = host_target()
        folder = Path(H.__file__)
        text = "host code " + blake2b(folder.read_bytes() + folder.parents[1].joinpath("target/cpu/host_code.py").read_bytes(),
                                      digest_size=20).hexdigest()
        externals = ("PyErr_Clear", "PyType_GenericAlloc", "Py_DecRef", "PyObject_GetAttr", "PyLong_AsLongAndOverflow", "PyObject_Vectorcall",
                     "PyObject_GetItem", "PyObject_GetBuffer")

        def write() -> str:
            made, used = compile_host(H.source(), H.CONSTANTS, H.BLOCKS, H.EXPORTS)
            assert set(used) <= set(externals), used
            return made

        (code,), _ = _cache().build([(text, write)], target)
        symbols = {name: _address(getattr(ctypes.pythonapi, name)) for name in externals}
        self.library = Library([code], H.EXPORTS, symbols)
        self.run_address = self.library.address("tw_eager_run")
        word = ctypes.c_void_p
        self.prepare = ctypes.PYFUNCTYPE(ctypes.c_ssize_t, *[word] * 7)(self.library.address("tw_eager_prepare"))
        self.run = ctypes.CFUNCTYPE(None, *[word] * 4)(self.run_address)
        self.state = (ctypes.c_int64 * 32).from_address(self.library.address("state"))
        self.slots = (ctypes.c_int64 * 64).from_address(self.library.address("slots"))
        self.free: list[Any] = []


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _as_expected() -> bool:
    """Whether Python's and NumPy's structures lie as the host code reads them."""
    if platform.python_implementation() != "CPython" or ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        return False
    if getattr(sys, "_is_gil_enabled", lambda: True)() is False or object.__basicsize__ != 16:
        return False
    a = np.arange(12, dtype=np.float32).reshape(3, 4)[::-1, ::2]
    word = lambda at: ctypes.c_int64.from_address(at).value
    at = id(a)
    fits = word(at + 16) == a.__array_interface__["data"][0] and ctypes.c_int32.from_address(at + 24).value == 2
    fits = fits and (word(word(at + 32)), word(word(at + 40)), word(at + 56)) == (3, -16, id(a.dtype))
    fits = fits and ctypes.c_int32.from_address(id(a.dtype) + 28).value == a.dtype.num and word(id(a.dtype) + 40) == 4
    return fits and ctypes.c_int32.from_address(at + 64).value & 0x103 == 0x100


@functools.cache
def machine() -> Machine | None:
    return Machine() if _as_expected() else None


# ---- runs from Python: large operands, and whatever the operators do not do themselves

class _Run:
    """Memory of one run: its description and, once one is large, the job that threads share it by."""

    def __init__(self) -> None:
        self.words = np.zeros(H.RUN // 8 + 1, np.int64)
        self.address = self.words.ctypes.data
        self.job: Any = None

    def start(self, native: Machine, grid: int) -> None:
        if self.job is None:
            from ..runtime.job import Job, patches, thunks
            from ..runtime.layout import THUNK_ARGS, THUNK_FN, THUNK_GRID
            from ..runtime.pool import default_threads

            self.table = thunks(1)
            self.table[0, THUNK_FN], self.table[0, THUNK_ARGS], self.grid = native.run_address, self.address, THUNK_GRID
            self.job = Job(self.table, patches([]), threads=default_threads(), io_count=1, light=True)
        self.table[0, self.grid] = grid
        self.job.run()


def elementwise(name: str, operands: list[Header], dtype: np.dtype[Any], out: Header | None = None) -> Header | None:
    """A function of operands that broadcast, into a new header or a contiguous `out`; None where there is no kernel."""
    native = machine()
    if native is None:
        return None
    types = tuple(dt.dtype(a.dtype) for a in operands)
    fn = kernel(name, types, dt.dtype(dtype))
    if not fn:
        return None
    if len(types) < 3:
        from .native import learn

        learn(name, operands[0].dtype, dtype, fn)
    first = operands[0]
    if any(not a.flags.aligned or a.ndim > H.AXES for a in operands):
        operands = [a.copy() for a in operands]
    shape = first.shape if len(operands) == 1 or all(a.shape == first.shape for a in operands[1:]) else \
        np.broadcast_shapes(*(a.shape for a in operands))
    if len(shape) > H.AXES:
        return None
    back = None
    if out is None:
        order = _order(operands, shape)
        if order is not None:  # the operands lie in this order of their axes, and so will the result
            operands = [a.transpose(order) if a.ndim else a for a in operands]
            back, shape = np.argsort(order), tuple(shape[i] for i in order)
        out = new_array(shape, dtype)
    if out.size:
        ids = [id(a) for a in operands] + [0] * (3 - len(operands))
        execute(native, fn, len(operands), ids, out, max(out.nbytes, *(a.itemsize * out.size for a in operands)))
    return out if back is None else out.transpose(back)


def _order(operands: list[Header], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes by descending strides where operands lie so and not in their own order; None where that is no better."""
    full = [a for a in operands if a.shape == shape]
    if len(shape) < 2 or not full or any(a.flags.c_contiguous for a in full) or any(a.ndim not in (0, len(shape)) for a in operands):
        return None
    order = tuple(sorted(range(len(shape)), key=lambda i: -abs(full[0].strides[i])))
    if order == tuple(range(len(shape))) or any(not a.transpose(order).flags.c_contiguous for a in full):
        return None
    return order


def execute(native: Machine, fn: int, count: int, ids: list[int], out: Header, nbytes: int) -> None:
    try:
        run = native.free.pop()
    except IndexError:
        run = _Run()
    grid = native.prepare(run.address, fn, count, *ids, id(out))
    if nbytes < THREADED:
        native.run(run.address, 0, grid, 0)
    else:
        run.start(native, grid)
    native.free.append(run)


def converted(a: Header, dtype: np.dtype[Any]) -> Header:
    """a in another dtype."""
    small = dt.dtype(a.dtype).kind == "c" or dtype.kind == "c"
    made = None if small else elementwise("astype", [a], dtype)
    return a.astype(dtype) if made is None else made


def reduction(name: str, a: Header, axes: tuple[int, ...], keepdims: bool) -> Header | None:
    return None


def matrix_product(a: Header, b: Header) -> Header | None:
    return None
