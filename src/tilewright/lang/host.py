"""Opaque ops: a Python function, or a native function at an address, as an op of graphs.

A compiled program calls them on the caller's thread, with pointers to the arrays. Python functions take the interpreter's lock for as long
as they run; an exception becomes an ExecutionError of the call. Both are taken to be pure: equal calls may be merged, unused ones dropped.
"""
from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..array.arrays import Array as OurArray
from ..array.arrays import plain
from ..array.jit import Jit
from ..array.trees import rewrapped
from ..core.dims import Dim, product
from ..core.dtypes import ALL
from ..core.dtypes import dtype as dtype_of
from ..core.errors import InputError, TilewrightError
from ..core.target_spec import TargetSpec
from ..core.tensors import is_tensor, numpy_to_tensor
from ..ir.layout import Layout
from ..ir.types import TensorType
from ..kernels.call import Call
from ..kernels.launch import CLAIMED, Buffer, Launch, Site
from ..kernels.pointwise.copies import copy_launch
from ..kernels.region import Operand, Region
from ..ops.kernels import OwnKernel
from ..runtime.faults import RAISED
from ..runtime.native.layout import RAISED as CODE
from ..transform.promote import as_tracer
from ..transform.trace import apply, tracing
from .kernel import _array
from .signature import Signature

Array = np.ndarray[Any, Any]
_numbers = itertools.count(1)
_DTYPES = {d.name for d in ALL}
_C = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "i32": ctypes.c_int32, "f32": ctypes.c_float, "f64": ctypes.c_double}


@dataclass(frozen=True, eq=False)
class Opaque:
    """What an opaque op calls."""

    name: str
    signature: Signature
    address: int
    arguments: tuple[str, ...]  # in the order of the call: in0, out0, sizes by name (or name:i32), error
    ref: Callable[..., Any]
    keep: Any = None  # what the address needs

    @property
    def names(self) -> tuple[str, ...]:
        return (*(f"in{i}" for i in range(len(self.signature.inputs))), *(f"out{i}" for i in range(len(self.signature.outputs))))

    def kind(self, argument: str) -> str:
        """How an argument is passed."""
        name, _, suffix = argument.partition(":")
        if name == "error":
            return "ptr"
        if name in self.names:
            k = self.names.index(name)
            every = (*self.signature.inputs, *self.signature.outputs)
            return "ptr" if every[k].dims is not None else {"f32": "f32", "f64": "f64"}.get(every[k].dtype, "i64")
        return suffix or "i64"


@dataclass(frozen=True, repr=False, eq=False)
class OpaqueOp(OwnKernel):
    """A call of a function of the host."""

    opaque = None

    @property
    def o(self) -> Opaque:
        assert isinstance(self.opaque, Opaque)
        return self.opaque

    def infer(self, *types: TensorType) -> Any:
        out = self.o.signature.bind(types, self.o.names, self.o.name).outputs
        return out[0] if len(out) == 1 else out

    def ref(self, *arrays: Any) -> Any:
        return self.o.ref(*(np.ascontiguousarray(a).reshape(np.shape(a)) for a in arrays))

    def unserved(self, target: TargetSpec) -> str | None:
        return f"{self.o.name} is a function of the host, which runs on CPUs only" if target.kind == "cuda" else None

    def launches(self, region: Region, target: TargetSpec) -> list[Launch]:
        o, before = self.o, list[Launch]()
        assert region.anchor is not None
        operands = []
        for k, v in enumerate(region.anchor.operands):
            found = region.operand(v)
            assert found is not None
            if not found.layout.is_contiguous:
                plain = Operand(found.type, Buffer(f"{region.name}.in{k}", "temp", found.type.nbytes), Layout.contiguous(found.type.shape))
                before.append(copy_launch(f"{region.name}.copy{k}", found, plain, target, f"copy: {o.name} needs contiguous elements"))
                found = plain
            operands.append(found)
        bound = o.signature.bind([v.type for v in region.anchor.operands], o.names, o.name)
        call = Call("host", region.name)
        b = call.b
        views = {}
        for name, place in zip(o.names, (*operands, *region.results), strict=True):
            views[name] = call.view(name, place.type.dtype, place.buffer, place.layout, write=name.startswith("out"))
        address = call.word("address", o.address)
        values: list[Any] = []
        for argument in o.arguments:
            name = argument.partition(":")[0]
            if name == "error":
                values.append(call.error())
            elif name in views:
                number = o.kind(name) != "ptr"
                loaded = b.load(views[name], (), ()) if number else None
                values.append(views[name] if loaded is None else b.to_index(loaded) if loaded.dtype.is_int else loaded)
            else:
                size = bound.dims[name]
                values.append(size if isinstance(size, int) else call.word(name, size))
        b.call(address, *values, kinds=[o.kind(a) for a in o.arguments])
        moved: Dim = 0
        for place in (*operands, *region.results):
            moved = moved + product(place.type.shape) * place.type.dtype.itemsize
        launch = call.finish(1, bytes_=moved, note="a function of the host", serial=True)
        if "error" in o.arguments:
            launch.sites = (Site(o.name, region.place),)
        return [*before, launch]


class OpaqueFunction:
    """An opaque op as a function of arrays."""

    def __init__(self, opaque: Opaque) -> None:
        self.opaque = opaque
        self.__name__ = self.__qualname__ = opaque.name
        self.__doc__ = opaque.ref.__doc__
        members = {"name": f"host_{opaque.name}", "opaque": opaque, "arity": (len(opaque.signature.inputs),) * 2, "__doc__": self.__doc__}
        self.op_class: Any = type(f"Host_{opaque.name}_{next(_numbers)}", (OpaqueOp,), members)
        self._compiled = Jit(self._traced)

    def __repr__(self) -> str:
        return f"<host op {self.opaque.name}: {self.opaque.signature.text}>"

    def _traced(self, *args: Any) -> Any:
        return apply(self.op_class(), *map(as_tracer, args))

    def __call__(self, *args: Any) -> Any:
        o = self.opaque
        if len(args) != len(o.signature.inputs):
            raise InputError(f"{o.name}: takes {len(o.signature.inputs)} arguments ({o.signature.text}), got {len(args)}")
        given = [np.array(x, dtype_of(a.dtype).np) if a.dims is None and isinstance(x, (bool, int, float)) else x
                 for x, a in zip(args, o.signature.inputs, strict=True)]
        if tracing():
            return self._traced(*given)
        if any(type(x) is OurArray for x in given):
            return rewrapped(self(*map(plain, given)))
        arrays = [_array(x, f"{o.name}: argument {i}", None) for i, x in enumerate(given)]
        found = self._compiled(*arrays)
        if not any(map(is_tensor, args)):
            return found
        return tuple(map(numpy_to_tensor, found)) if isinstance(found, tuple) else numpy_to_tensor(found)


def _checked(name: str, made: Any, types: Sequence[TensorType]) -> list[Array]:
    """What a Python function returned, as the arrays that its signature names."""
    given = made if isinstance(made, tuple) else (made,)
    if len(given) != len(types):
        raise InputError(f"{name}: the function must return {len(types)} arrays, got {len(given)}")
    out = []
    for x, t in zip(given, types, strict=True):
        a = np.asarray(x)
        if a.shape != t.shape or a.dtype != t.dtype.np:
            raise InputError(f"{name}: the function must return {t}, got {a.dtype}{list(a.shape)}")
        out.append(a)
    return out


def host_op(signature: str, *, name: str | None = None) -> Callable[[Callable[..., Any]], OpaqueFunction]:
    """A Python function as an op: `@tw.host_op("T[N] -> T[N]")`. It takes NumPy arrays (read-only, and valid for this call only) and
    returns new ones of the types that the signature says."""

    def decorate(fn: Callable[..., Any]) -> OpaqueFunction:
        if not callable(fn):
            raise InputError(f"host_op: decorates a function, got a {type(fn).__name__}")
        called = str(name or getattr(fn, "__name__", "function"))
        sig = Signature.parse(signature, called)
        sizes = list(dict.fromkeys(d for a in sig.inputs for d in a.dims or () if d.isidentifier()))
        dtypes: dict[tuple[Any, ...], Any] = {}

        def run(arrays: Sequence[Array]) -> list[Array]:
            types = [TensorType(dtype_of(a.dtype), a.shape) for a in arrays]
            names = (*(f"in{i}" for i in range(len(sig.inputs))), *(f"out{i}" for i in range(len(sig.outputs))))
            return _checked(called, fn(*arrays), sig.bind(types, names, called).outputs)

        @functools.wraps(fn)
        def ref(*arrays: Array) -> Any:
            made = run(arrays)
            return made[0] if len(made) == 1 else tuple(made)

        return _HostFunction(called, sig, ref, run, sizes, dtypes)

    return decorate


class _HostFunction(OpaqueFunction):
    """A Python function. Its dtypes may be variables, so each set of them has a callback of its own."""

    def __init__(self, called: str, sig: Signature, ref: Callable[..., Any], run: Callable[[Sequence[Array]], list[Array]],
                 sizes: list[str], made: dict[tuple[Any, ...], Any]) -> None:
        self.sig, self.ref_fn, self.run, self.sizes, self.made = sig, ref, run, sizes, made
        super().__init__(Opaque(called, sig, 0, (), ref))

    def _traced(self, *args: Any) -> Any:
        tracers = [as_tracer(x) for x in args]
        key = tuple(dtype_of(t.dtype) for t in tracers)
        if key not in self.made:
            self.made[key] = self._specialised(key)
        return apply(self.made[key](), *tracers)

    def _specialised(self, dtypes: tuple[Any, ...]) -> Any:
        """The op for arguments of these dtypes, with a callback that knows them."""
        o, sig, sizes, run = self.opaque, self.sig, self.sizes, self.run
        n, m = len(sig.inputs), len(sig.outputs)

        def call(*words: Any) -> None:
            pointers, numbers, error = words[: n + m], words[n + m : -1], words[-1]
            try:
                dims: dict[str, Dim] = dict(zip(sizes, numbers, strict=True))
                shapes = [tuple(int(Signature._size(d, dims, o.name, o.name)) for d in a.dims or ())
                          for a in (*sig.inputs, *sig.outputs)]
                given = [_seen(p, s, d.np) for p, s, d in zip(pointers[:n], shapes[:n], dtypes, strict=True)]
                for a in given:
                    a.flags.writeable = False
                for p, s, a in zip(pointers[n:], shapes[n:], run(given), strict=True):
                    _seen(p, s, a.dtype)[...] = a
            except BaseException as problem:  # nothing may leave a callback
                number = next(_numbers)
                ours = isinstance(problem, TilewrightError)
                RAISED[number] = str(problem).removeprefix(f"{o.name}: ") if ours else f"raised {type(problem).__name__}: {problem}"
                block = (ctypes.c_int64 * 4).from_address(error)
                if not block[0] & CLAIMED:
                    block[0], block[1], block[3] = CODE | CLAIMED, 0, number

        kinds = ("ptr",) * (n + m) + ("i64",) * len(sizes) + ("ptr",)
        callback = ctypes.CFUNCTYPE(None, *(_C[k] for k in kinds))(call)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        arguments = (*o.names, *sizes, "error")
        made = _AllPointers(o.name, sig, address, arguments, o.ref, callback)
        return type(self.op_class.__name__, (self.op_class,), {"opaque": made})


@dataclass(frozen=True, eq=False)
class _AllPointers(Opaque):
    """Numbers go as pointers, too."""

    def kind(self, argument: str) -> str:
        return "ptr" if argument == "error" or argument in self.names else "i64"


def _seen(address: int | None, shape: tuple[int, ...], dtype: Any) -> Array:
    """The array at an address."""
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0 or not address:
        return np.empty(shape, dtype)
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype, count).reshape(shape)


def native_op(signature: str, function: Any, *, args: Sequence[str], name: str = "native") -> OpaqueFunction:
    """A native function as an op: `tw.native_op("f32[N], f32 -> f32[N]", lib.scale, args=("in0", "in1", "N", "out0"))`.

    `function` is an address or a function of ctypes, `void f(...)`, that neither keeps the pointers nor throws. `args` says what it is
    called with: contiguous arrays as pointers and numbers by value (in0, in1, …, out0, …), sizes by name as int64 (`"N:i32"`: as int32).
    """
    sig = Signature.parse(signature, name)
    address = function if isinstance(function, int) else ctypes.cast(function, ctypes.c_void_p).value
    if not address:
        raise InputError(f"native_op: {name}: needs the address of a function, got {function!r}")
    if any(a.dtype not in _DTYPES for a in (*sig.inputs, *sig.outputs)):
        raise InputError(f"native_op: {name}: a native function has fixed dtypes, got {signature!r}")
    o = Opaque(name, sig, address, tuple(args), lambda *a: None, function)
    sizes = {d for a in sig.inputs for d in a.dims or ()}
    for a in args:
        base, _, suffix = a.partition(":")
        if (base not in o.names and base not in sizes) or suffix not in ("", "i32", "i64"):
            known = f"arrays ({', '.join(o.names)}) and sizes ({', '.join(sorted(sizes))})"
            raise InputError(f"native_op: {name}: args name {known}, got {a!r}")
    prototype = ctypes.CFUNCTYPE(None, *(_C[o.kind(a)] for a in args))

    def ref(*arrays: Array) -> Any:
        bound = sig.bind([TensorType(dtype_of(a.dtype), a.shape) for a in arrays], o.names, name)
        outs = [np.empty(tuple(int(d) for d in t.shape), t.dtype.np) for t in bound.outputs]
        held = dict(zip(o.names, (*(np.ascontiguousarray(a).reshape(a.shape) for a in arrays), *outs), strict=True))
        words = []
        for a in args:
            base = a.partition(":")[0]
            words.append(bound.dims[base] if base not in held else held[base].ctypes.data if o.kind(a) == "ptr" else held[base].item())
        prototype(address)(*words)
        return outs[0] if len(outs) == 1 else tuple(outs)

    ref.__doc__ = f"The native function {name}."
    return OpaqueFunction(Opaque(name, sig, address, tuple(args), ref, function))
