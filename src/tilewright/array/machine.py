"""The native side of eager functions: kernels by function and dtypes, made once ever and kept on disk, and the code that runs them.

A kernel works on any number of contiguous elements; it is what the compiler makes of the traced function of one symbolic size. The host
code of `runtime/eager_host.py` gathers strided and broadcast operands in chunks, so that one kernel serves every shape, rank and layout.
"""
from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dims import sym
from ..core.hashing import blake2b
from ..runtime import eager_calls, eager_device, eager_loops, eager_reductions, eager_views
from ..runtime import eager_host as H
from ..runtime.native.layout import WORK_BITS
from ..runtime.outputs import new_array
from ..runtime.pool import default_threads
from ..target.cpu.cache import CodeCache, object_key
from ..target.cpu.host import host_target
from ..target.cpu.jit import Library

Header = np.ndarray[Any, Any]
THREADED = 1 << 20  # bytes of a result from which threads share the work
SHARES = 64  # pieces of a large run that threads take from one another
STREAMED = 8 << 20  # bytes that no cache holds
SPREAD_ROWS, SPREAD_COLUMNS = 1024, 256  # rows and columns of a matrix whose columns are made of parts in memory
NONE = b"none"
_FOLDERS = ("core", "ir", "ops", "transform", "passes", "tile", "kernels", "target/cpu")
_OTHERS = frozenset({"__pycache__", "cuda", "attention", "control", "conv", "fft", "fourier", "index", "linalg", "matmul", "packed",
                     "quant", "random", "sort", "splat"})  # folders of ops that no function here is made of
# Traced functions that report errors: of integers NumPy's loops serve them.
WITHOUT = frozenset({"floor_divide", "remainder", "pow", "fmod", "float_power", "gcd", "lcm"})
# Functions of floats as expressions of traced ones.
MADE_OF = {
    "sinc": f"where(equal(i0,0.0),1.0,div(sin(mul(i0,{math.pi!r})),mul(i0,{math.pi!r})))",
    "pow": "pow(i0,i1)",
    "fmod": "copysign(remainder(abs(i0),abs(i1)),i0)",
    "remainder": "remainder(i0,i1)",
    "floor_divide": "floor_divide(i0,i1)",
}
_local = threading.local()
_keep: list[Any] = []  # linked code and tables, for as long as the process lives


@functools.cache
def _stamp(folders: tuple[str, ...] = _FOLDERS, others: frozenset[str] = _OTHERS) -> str:
    """Changes with any source that shapes kernels: names, sizes and times of the files. (Half of the first call of a process.)"""
    root, own = os.path.dirname(os.path.dirname(__file__)), os.stat(__file__)
    seen, left = [("", own.st_size, own.st_mtime_ns)], [os.path.join(root, folder) for folder in folders]
    while left:
        with os.scandir(left.pop()) as entries:
            for e in entries:
                if e.name.endswith(".py"):
                    info = e.stat()
                    seen.append((e.name, info.st_size, info.st_mtime_ns))
                elif "." not in e.name and e.name not in others:
                    left.append(e.path)
    return blake2b(repr(sorted(seen)).encode(), digest_size=10).hexdigest()


def _registered_outside() -> str:
    """The same of files outside the package that register ops."""
    base = sys.modules.get("tilewright.ops.base")  # without it nobody has registered any
    modules = {op.__module__ for op in base.REGISTRY.values() if not op.__module__.startswith("tilewright.")} if base else set()
    infos = [(name, os.stat(file)) for name in sorted(modules) if (file := getattr(sys.modules.get(name), "__file__", None))]
    return " ".join(f"{name} {info.st_size} {info.st_mtime_ns}" for name, info in infos)


@functools.cache
def _cache_in(folder: str | None) -> CodeCache:
    return CodeCache()


def _cache() -> CodeCache:
    return _cache_in(os.environ.get("TILEWRIGHT_CACHE_DIR"))


def kept(text: str, make: Callable[[], bytes], *, cuda: bool = False) -> bytes:
    """What `make` gives for this text, from the cache on disk after the first time ever, as long as no source that shapes it changes."""
    stamp = _stamp((*_FOLDERS, "target/cuda", "array/cuda"), _OTHERS - {"cuda"}) if cuda else _stamp()
    key = blake2b(f"{text} {stamp} {_registered_outside()}".encode(), digest_size=20).hexdigest()
    found = _cache().get(key)
    if found is None:
        found = make()
        _cache().put(key, found)
    return found


# ---- kernels

def kernel(name: str, ins: tuple[dt.DType, ...], out: dt.DType) -> int:
    """The address of a kernel of contiguous elements: words of the operands' addresses, the result's, and the number of elements. 0 where
    the function has none for these dtypes."""
    return kernel_of("elements", name, ins, out)


@functools.cache
def kernel_of(form: str, name: str, ins: tuple[dt.DType, ...], out: dt.DType) -> int:
    if name in WITHOUT:
        return 0
    target = host_target()
    text = f"eager {form} {name} {' '.join(map(str, ins))} -> {out} {H.ROW} {_stamp()} {_registered_outside()}"
    symbol = "tw_e_" + blake2b(text.encode(), digest_size=10).hexdigest()
    key = object_key(text, target)
    code = _cache().get(key)
    if code is None:
        code = _compiled(form, name, ins, out, symbol) or NONE
        _cache().put(key, code)
    if code == NONE:
        return 0
    library = Library([code], [symbol])
    _keep.append(library)
    return library.address(symbol)


# form -> (shape of the operands, axis, shape of the result, argument words): "i" an operand's address, "o" the result's or that of parts,
# else a size. "spread" is the first of two kernels; the second one is that of "columns".
FORMS: dict[str, tuple[str, int | None, str, str]] = {
    "elements": ("N", None, "N", "i o N"),
    "rows": ("A R", 1, "A", "i R o A R"),
    "arg_rows": ("A L", 1, "A", "i L o L A"),
    "columns": ("A R B", 1, "A B", "i B*R B o B R A B"),
    "spread": ("S C", 0, "C", "i C S C o P*C C"),
}


def _compiled(form: str, name: str, ins: tuple[dt.DType, ...], out: dt.DType, symbol: str) -> bytes | None:
    """The object code of a traced function of symbolic sizes, where it is one kernel whose arguments are those of the form."""
    import dataclasses

    from ..core.errors import TilewrightError
    from ..core.pytree import flatten
    from ..ir.types import TensorType
    from ..kernels.launch import Argument, Pointer, Word
    from ..kernels.select import select
    from ..passes.base import Log
    from ..passes.pipeline import run_pipeline
    from ..target.cpu.bounds import checked_entry
    from ..target.cpu.emit import emit_kernel
    from ..target.cpu.jit import compile_ir
    from ..transform.lib import function
    from ..transform.trace import Leaf, trace

    target = host_target()
    size = {n: sym(n, 0 if n == "N" else 1, H.ROW if n == "R" else 1 << 40) for n in "NARLB"}
    size |= {"S": sym("S", SPREAD_ROWS, H.ROW), "C": sym("C", SPREAD_COLUMNS, 1 << 40)}
    shape, axis, result, words = FORMS[form]
    library = _expression(name) if "(" in name else function(name)
    if library is None:
        return None
    found = library if axis is None else lambda x: library(x, axis=axis)
    if name == "astype":
        found = lambda x: library(x, out)
    leaves = [Leaf(TensorType(d, tuple(size[n] for n in shape.split()))) for d in ins]
    wanted = TensorType(out, tuple(size[n] for n in result.split()))
    try:
        graph = trace(found, flatten((tuple(leaves), {}))[1], leaves, name).graph
        if [v.type for v in graph.outputs] != [wanted]:
            return None
        program = select(run_pipeline(graph, target, (), Log(), verify=False), target)
    except TilewrightError:
        return None
    spread = form == "spread"
    if len(program.launches) != 1 + spread or program.constants or program.block:
        return None
    launch = program.launches[0]

    def shown(a: Argument) -> str:
        if isinstance(a, Pointer) and a.offset == 0:
            return f"i{a.buffer.index}" if a.buffer.kind == "input" else "o"
        return str(a.value) if isinstance(a, Word) else "?"

    if spread:
        words = words.replace("P", str(_spread_sizes(out.itemsize)[0]))
    expected, given = words.replace("i", " ".join(f"i{k}" for k in range(len(ins))), 1).split(), list(map(shown, launch.arguments))
    order, params = list(range(len(given))), launch.kernel.params
    if given != expected and len(params) == len(given) and sorted(given) == sorted(expected):
        order = [given.index(w) if w in given and expected.count(w) == 1 else k for k, w in enumerate(expected)]
    if [given[k] for k in order] != expected or launch.variants or (form == "elements" and launch.scratch != 0):
        return None
    if order != sorted(order):  # operands in the order of the call, not in that of their first use
        launch.kernel = dataclasses.replace(launch.kernel, params=[params[k] for k in order])
    if not target.checks:
        return compile_ir(emit_kernel(dataclasses.replace(launch.kernel, name=symbol), target), target)
    axes, at = shape.split(), {w: k for k, w in enumerate(expected)}.__getitem__  # sizes stand behind strides of the same value
    strides = list(range(len(ins), len(ins) + len(axes) - 1))  # behind the operands' addresses stand the strides of all axes but the last
    Axes = list[tuple[int | None, int]]
    given_axes: Axes = [*((s, at(n)) for s, n in zip(strides, axes, strict=False)), (None, at(axes[-1]))]
    *outer, last = [expected[-2]] if spread else result.split()
    made_axes: Axes = [*((at(last), at(n)) for n in outer), (None, at(last))]
    views = [(at(f"i{k}"), given_axes, d.itemsize) for k, d in enumerate(ins)] + [(at("o"), made_axes, out.itemsize)]
    inner = emit_kernel(dataclasses.replace(launch.kernel, name=f"{symbol}_checked"), target)
    return compile_ir(inner + checked_entry(symbol, f"{symbol}_checked", len(expected), views), target)


def _spread_sizes(itemsize: int) -> tuple[int, int]:
    from ..kernels.rows.reduce import spread_sizes

    return spread_sizes(host_target(), itemsize)


def _expression(text: str) -> Callable[..., Any]:
    """The function of i0, i1, ... that an expression of functions names."""
    import ast

    from ..core.syntax import parse_python
    from ..transform.lib import function

    tree = parse_python(re.sub(r"\)(\w+)", r", '\1')", text).replace("(, ", "("), mode="eval").body

    def value(node: ast.expr, given: tuple[Any, ...]) -> Any:
        if isinstance(node, ast.Name):
            return given[int(node.id[1:])]
        if isinstance(node, ast.Constant):
            return node.value
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        named = function(node.func.id)
        assert named is not None
        return named(*(value(a, given) for a in node.args))

    return lambda *given: value(tree, given)


# ---- the host code

class Machine:
    """The linked host code and what Python calls of it."""

    def __init__(self) -> None:
        from ..target.cpu.host_code import compile_host

        target = host_target()
        modules = (H, eager_loops, eager_calls, eager_views, eager_reductions, eager_device)
        sources = [*(Path(str(m.__file__)) for m in modules), Path(__file__).parents[1] / "target/cpu/host_code.py"]
        given = f"{sorted(H.CONSTANTS.items())} {sorted(H.BLOCKS.items())}".encode()  # some are made of what other modules say
        text = "host code " + blake2b(b"".join([given, *(p.read_bytes() for p in sources)]), digest_size=20).hexdigest()
        externals = ("PyErr_Clear", "PyType_GenericAlloc", "Py_DecRef", "PyObject_GetAttr", "PyLong_AsLongAndOverflow",
                     "PyObject_Vectorcall", "PyObject_VectorcallMethod", "PyObject_GetItem", "PyObject_GetBuffer",
                     "PyNumber_MatrixMultiply", "Py_IncRef", "PyLong_FromLong", "PyList_Append", "PyEval_SaveThread",
                     "PyEval_RestoreThread", "PyObject_GC_UnTrack", "PyObject_GC_Del", "PyObject_ClearWeakRefs")

        def write() -> str:
            made, used = compile_host(H.source(), H.CONSTANTS, H.BLOCKS, H.EXPORTS, eager_loops.GIVEN, H.FIELDS)
            assert set(used) <= set(externals), used
            lines = (made + eager_loops.vector_ir()).splitlines()
            return "".join(f"{line[:-2]} {target.attributes} {{\n" if line.startswith("define ") else f"{line}\n" for line in lines)

        (code,), _ = _cache().build([(text, write)], target)
        symbols = {name: _address(getattr(ctypes.pythonapi, name)) for name in externals}
        self.library = Library([code], H.EXPORTS, symbols)
        self.run_address = self.library.address("tw_eager_run")
        word: Any = ctypes.c_void_p
        entry: Any = ctypes.PYFUNCTYPE
        free_entry: Any = ctypes.CFUNCTYPE
        self.prepare_many = entry(ctypes.c_ssize_t, *[word] * 5)(self.library.address("tw_eager_prepare_many"))
        self.prepare_reduce = entry(ctypes.c_ssize_t, *[word] * 8)(self.library.address("tw_reduce_prepare"))
        self.transpose_address = self.library.address("tw_transpose_run")
        self.transpose = free_entry(None, *[word] * 4)(self.transpose_address)
        self.reduce_address = self.library.address("tw_reduce_run")
        self.run_reduce = free_entry(None, *[word] * 4)(self.reduce_address)
        self.run = free_entry(None, *[word] * 4)(self.run_address)
        self.state = (ctypes.c_int64 * 64).from_address(self.library.address("state"))
        self.slots = (ctypes.c_int64 * 64).from_address(self.library.address("slots"))
        self.free: list[Any] = []
        self.shared: Any = None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def is_supported() -> bool:
    """Whether Python's and NumPy's structures lie as the host code reads them."""
    if platform.python_implementation() != "CPython" or ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        return False
    if getattr(sys, "_is_gil_enabled", lambda: True)() is False or object.__basicsize__ != 16:
        return False
    a = np.arange(12, dtype=np.float32).reshape(3, 4)[::-1, ::2]
    word: Callable[[int], int] = lambda at: ctypes.c_int64.from_address(at).value
    at = id(a)
    fits = word(at + 16) == a.__array_interface__["data"][0] and ctypes.c_int32.from_address(at + 24).value == 2
    fits = fits and (word(word(at + 32)), word(word(at + 40)), word(at + 56)) == (3, -16, id(a.dtype))
    fits = fits and ctypes.c_int32.from_address(id(a.dtype) + 28).value == a.dtype.num and word(id(a.dtype) + 40) == 4
    return fits and ctypes.c_int32.from_address(at + 64).value & 0x103 == 0x100


@functools.cache
def machine() -> Machine | None:
    return Machine() if is_supported() else None


# ---- runs from Python: large operands, and whatever the operators do not do themselves

class _Run:
    """Memory of one run: its description and, once one is large, the job that threads share it by."""

    def __init__(self) -> None:
        self.words = np.zeros(H.RUN // 8 + 1, np.int64)
        self.address = self.words.ctypes.data
        self.job: Any = None

    def make(self) -> None:
        from ..runtime.native.job import Job, patches, thunks
        from ..runtime.native.layout import THUNK_ARGS, THUNK_FN, THUNK_GRID, THUNK_SHARE

        self.table, self.fn, self.grid, self.share = thunks(1), THUNK_FN, THUNK_GRID, THUNK_SHARE
        self.table[0, THUNK_ARGS], self.table[0, THUNK_SHARE] = self.address, 4  # threads take programs from one another
        self.job = Job(self.table, patches([]), threads=default_threads(), io_count=1, scratch=1 << 16, light=True)

    def start(self, function: int, grid: int, nbytes: int) -> None:
        if self.job is None:
            self.make()
        self.job.light[0] = nbytes < H.HEAVY
        self.table[0, self.fn], self.table[0, self.grid] = function, grid
        self.table[0, self.share] = max(1, grid // SHARES) if grid < 1 << WORK_BITS else 0
        self.job.run()


def elementwise(name: str, operands: list[Header], dtype: np.dtype[Any], out: Header | None = None,
                shape: tuple[int, ...] | None = None) -> Header | None:
    """A function of operands that broadcast (to `shape`), into a new header or a contiguous `out`; None where there is no kernel.
    The name may be an expression of functions: `tanh(add(i0,i1))`."""
    native = machine()
    if native is None:
        return None
    operands = [np.asarray(a) for a in operands]  # native code takes no scalar of NumPy for a header
    types = tuple(dt.dtype(a.dtype) for a in operands)
    fn = kernel(MADE_OF.get(name, name) if types[0].kind == "f" else name, types, dt.dtype(dtype))
    if not fn:
        return None
    from .native import learn, learn_cast

    if name == "astype":
        learn_cast(operands[0].dtype, dtype, fn)
    elif "(" not in name:
        learn(name, operands[-1].dtype, dtype, fn)
    first = operands[0]
    if any(a.ndim > H.AXES for a in operands):
        return None
    if any(not a.flags.aligned for a in operands):
        operands = [a.copy() for a in operands]
    if shape is None:
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
        if len(operands) > 1 and any(map(is_transposed, operands)):
            operands = [tight(a) if is_transposed(a) else a for a in operands]
        execute(native, fn, operands, out, max(out.nbytes, *(a.itemsize * out.size for a in operands)))
    return out if back is None else out.transpose(back)


def _data(a: Header) -> int:
    """The address; NumPy's own way to it takes longer than a small copy."""
    return ctypes.c_int64.from_address(id(a) + 16).value


def is_transposed(a: Header, step: int = 1) -> bool:
    """Whether a matrix lies transposed, its columns' elements `step` apart, and is large enough for a copy in blocks to pay."""
    return (a.ndim == 2 and a.strides[0] == step * a.itemsize and a.strides[1] > a.strides[0] and min(a.shape) >= 16 and a.size >= 4096
            and a.flags.aligned)


def tight(a: Header) -> Header:
    """A contiguous copy; of a transposed matrix in blocks, by all threads."""
    native = machine()
    every_second = is_transposed(a, 2) and a.itemsize in (4, 8)
    if native is not None and a.ndim == 2 and not every_second and a.size >= 4096 and \
            a.itemsize < abs(a.strides[0]) <= 4 * a.itemsize < abs(a.strides[1]):
        return tight(tight(a.T).T)  # rows with steps between their elements: first without these
    made = new_array(a.shape, a.dtype)
    if native is None or not (every_second or is_transposed(a)):
        steps = [abs(s) for s, n in zip(a.strides, a.shape, strict=True) if n > 1]
        if native is None or a.size < 1024 or not a.flags.aligned or a.ndim > H.AXES or steps[-1] > min(*steps, 4 * a.itemsize) or \
                steps[-1] in (0, a.itemsize):
            made[...] = a
        else:
            execute(native, 0, [a], made, made.nbytes)
        return made
    rows, columns = a.shape
    try:
        run = native.free.pop()
    except IndexError:
        run = _Run()
    run.words[:8] = _data(made), _data(a), rows, columns, made.strides[0], a.strides[1], a.itemsize, a.strides[0]
    grid = -(-rows // H.BAND)
    if a.nbytes < H.SHARED_BYTES:
        native.transpose(run.address, 0, grid, 0)
    else:
        run.start(native.transpose_address, grid, a.nbytes)
    native.free.append(run)
    return made


def _order(operands: list[Header], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes by descending strides where operands lie so and not in their own order; None where that is no better."""
    full = [a for a in operands if a.shape == shape]
    if len(shape) < 2 or not full or any(a.flags.c_contiguous for a in full) or any(a.ndim not in (0, len(shape)) for a in operands):
        return None
    order = tuple(sorted(range(len(shape)), key=lambda i: -abs(full[0].strides[i])))
    if order == tuple(range(len(shape))) or any(not a.transpose(order).flags.c_contiguous for a in full):
        return None
    return order


def execute(native: Machine, fn: int, operands: list[Header], out: Header, nbytes: int) -> None:
    try:
        run = native.free.pop()
    except IndexError:
        run = _Run()
    ids = (ctypes.c_int64 * len(operands))(*map(id, operands))
    grid = native.prepare_many(run.address, fn, len(operands), ctypes.addressof(ids), id(out))
    if nbytes >= H.SHARED_BYTES and not native.state[H.JOB]:
        _share(native)
    if nbytes < THREADED:
        native.run(run.address, 0, grid, 0)
    else:
        run.start(native.run_address, grid, nbytes)
    native.free.append(run)


def _share(native: Machine) -> None:
    """Give the host code a job of its own: operators on operands of middle size are shared by threads, with the GIL held."""
    run = _Run()
    run.make()
    native.shared = run
    native.state[H.TW_RUN] = _address(run.job.pool.run)
    run.table[0, run.fn] = native.run_address
    native.state[H.JOB_RUN], native.state[H.JOB_GRID] = run.address, run.table.ctypes.data + 8 * run.grid
    native.state[H.JOB] = run.job.address


def converted(a: Header, dtype: np.dtype[Any]) -> Header:
    """a in another dtype."""
    small = dt.dtype(a.dtype).kind == "c" or dtype.kind == "c"
    made = None if small else elementwise("astype", [a], dtype)
    return a.astype(dtype) if made is None else made


COMBINED = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "any": "any", "all": "all", "argmax": "", "argmin": ""}
TRUTHS = ("any", "all")


def reduction(name: str, a: Header, axes: tuple[int, ...], keepdims: bool) -> Header | None:
    """A reduction over axes; None where no kernel serves it."""
    native, a = machine(), np.asarray(a)  # native code takes no scalar of NumPy for a header
    if native is None or name not in COMBINED or not a.size or a.ndim > H.AXES or not a.flags.aligned:
        return None
    arg = name.startswith("arg")
    own = dt.dtype(a.dtype)
    out = dt.bool_ if name in TRUTHS else dt.i64 if arg else own
    fn = kernel_of("arg_rows" if arg else "rows", name, (own,), out)
    again = 0 if arg else kernel_of("rows", name, (out,), out)
    if not fn or not (again or arg):
        return None
    from .native import learn

    learn(name, a.dtype, out.np, fn, swap=arg)
    if again and again != fn:
        learn(name, out.np, out.np, again)
    if name == "sum" and own.kind == "f" and own not in dt.SMALL:
        mean = kernel_of("rows", "mean", (own,), own)
        if mean:
            learn("mean", a.dtype, a.dtype, mean, whole=True)
    if a.nbytes >= H.REDUCE_SHARED and not native.state[H.JOB]:
        _share(native)
    kept = [i for i in range(a.ndim) if i not in axes]
    made = _reduced(native, name, a, kept, axes, fn, again, out)
    if made is None:
        return None
    return made.reshape([1 if i in axes else n for i, n in enumerate(a.shape)]) if keepdims else made


def _reduced(native: Machine, name: str, a: Header, kept: list[int], axes: tuple[int, ...], fn: int, again: int,
             out: dt.DType) -> Header | None:
    shape = tuple(a.shape[i] for i in kept)
    row = 1
    for i in axes:
        row *= a.shape[i]
    made = new_array(shape, out.np)
    if not kept and not (name.startswith("arg") and not a.flags.c_contiguous):
        moved = a if a.flags.c_contiguous else a.transpose(sorted(range(a.ndim), key=lambda i: -abs(a.strides[i])))
        if a.size > H.ROW and again:  # rows of a part each, which threads share; then the parts
            parts = np.empty((a.size + H.ROW - 1) // H.ROW, out.np)
            _reduce(native, fn, again, H.ROW, moved, parts, 0)
            return _reduced(native, name, parts, [], (0,), again, again, out)
    else:
        moved = a.transpose(*kept, *axes)
    if name.startswith("arg"):
        if row > H.ARG_ROW:
            return None
    elif kept and _walks_badly(moved, len(kept)):
        if a.nbytes > STREAMED and made.nbytes > 4096 and default_threads() == 1:  # NumPy adds whole rows up, which streams better
            return None
        found = _columns(native, name, moved, len(kept), made, out)
        if found is not None:
            return found
    if row > H.ROW << 9:
        return None
    _reduce(native, fn, again, row, moved, made, int(name.startswith("arg")))
    return made


def _walks_badly(a: Header, kept: int) -> bool:
    """Whether the last axis that is reduced has the longer strides."""
    return abs(a.strides[-1]) > min(abs(s) for s, n in zip(a.strides[:kept], a.shape, strict=False))


def _columns(native: Machine, name: str, a: Header, kept: int, made: Header, out: dt.DType) -> Header | None:
    """a[kept..., reduced...] where a kept axis is contiguous: rows are added up side by side."""
    fn = kernel_of("columns", name, (dt.dtype(a.dtype),), out)
    if not fn:
        return None
    from .native import learn_columns

    learn_columns(name, a.dtype, fn)
    if name == "sum" and dt.dtype(a.dtype).kind == "f":
        learn_columns("mean", a.dtype, kernel_of("columns", "mean", (dt.dtype(a.dtype),), out))
    source, width = a.reshape(*a.shape[:kept], -1) if a.ndim - kept > 1 else a, a.itemsize
    if a.ndim - kept > 1 and not np.shares_memory(source, a):
        return None
    if kept and source.shape[kept - 1] > 1 and abs(source.strides[kept - 1]) != width:  # rows with gaps
        source = np.moveaxis(tight(np.moveaxis(source, -1, 0)), 0, -1)
    order = sorted(range(kept), key=lambda i: -abs(source.strides[i]))
    if order != list(range(kept)):
        return None
    step, count, size = source.strides[-1], source.shape[-1], 1
    i = kept
    while i > 0 and source.strides[i - 1] == size * width:  # axes that lie side by side without a gap
        i -= 1
        size *= source.shape[i]
    if size == 1 or i > 1 or step % width or count > H.ROW:
        return None
    many, apart = (source.shape[0], source.strides[0]) if i == 1 else (1, 0)
    data, rows, own, first = source.ctypes.data, step // width, dt.dtype(a.dtype), 0
    if many == 1 and count >= SPREAD_ROWS and size >= SPREAD_COLUMNS and own is out is dt.compute_dtype(own):
        first = kernel_of("spread", name, (own,), out)
    try:
        run = native.free.pop()
    except IndexError:
        run = _Run()
    if first:  # a large matrix: parts of each column, by programs that read long pieces of rows
        count, columns = _spread_sizes(made.itemsize)
        parts = new_array((count, size), made.dtype)
        run.words[:7] = data, rows, source.shape[-1], size, parts.ctypes.data, parts.size, size
        run.start(first, (size + columns - 1) // columns * count, a.nbytes)
        data, apart, rows = parts.ctypes.data, 0, size
    run.words[:8] = data, apart // width, rows, made.ctypes.data, size, count, many, size
    grid = (size + 63) // 64 * many
    if a.nbytes < THREADED:
        entry: Any = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)
        entry(fn)(run.address, 0, grid, _work())
    else:
        run.start(fn, grid, made.nbytes * count)
    native.free.append(run)
    return made


def _work() -> int:
    """Scratch memory of a kernel that runs on this thread: of the thread's own."""
    found = getattr(_local, "work", None)
    if found is None:
        found = _local.work = np.empty(1 << 13, np.int64)
    return int(found.ctypes.data)


def _reduce(native: Machine, fn: int, again: int, row: int, a: Header, made: Header, swap: int) -> None:
    try:
        run = native.free.pop()
    except IndexError:
        run = _Run()
    grid = native.prepare_reduce(run.address, fn, again, row, a.size, id(made), swap, id(a))
    if a.nbytes < THREADED:
        native.run_reduce(run.address, 0, grid, 0)
    else:
        run.start(native.reduce_address, grid, a.nbytes)
    native.free.append(run)
