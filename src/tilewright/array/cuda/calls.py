"""Functions, indexing and updates of Arrays on a GPU. Views are headers; elementwise functions run kernels that serve every shape
(`elementwise.py`); the others are compiled for their shapes, as `jit` does it. Operands lie on one device: only numbers, and arrays without
axes, come from the host by themselves.
"""
from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError, UnsupportedError
from ...core.tensors import is_tensor
from ...runtime.cuda.array import SMALL, DeviceArray
from .. import arguments, lazy
from ..api import elementwise as E
from ..api.base import common, weak_dtype
from ..arrays import Array, plain, shown
from ..gpu import is_on_gpu
from ..machine import MADE_OF
from ..operators import check_dtype
from ..trees import rewrapped
from ..updates import At, fitting
from . import composed, direct, reductions, statistics
from . import elementwise as kernels
from . import lazy as later
from . import placed as P
from .indexing import Index
from .placed import Placed

Fn = Callable[..., Any]
NUMBERS = (bool, int, float, complex)
VIEWS = frozenset({"permute_dims", "transpose", "matrix_transpose", "swapaxes", "moveaxis", "rollaxis", "expand_dims", "squeeze",
                   "broadcast_to", "flip", "fliplr", "flipud", "rot90", "unstack", "split", "array_split", "diagonal", "unfold",
                   "broadcast_arrays"})
OPERANDS = {"where": 3, **dict.fromkeys(E.BINARY, 2), **dict.fromkeys((*E.UNARY, *E.ACTIVATIONS), 1)}
ELEMENTWISE = frozenset({*OPERANDS, "clip"})
SUMS = frozenset({"sum", "prod", "mean", "cumsum", "cumprod", "cumulative_sum", "cumulative_prod"})  # functions of a `dtype` to add in


# ---- operands

def leaf(x: Any, what: str) -> Any:
    """An argument for the device: what lies on the GPU as an Array, numbers and everything that is no array as it is."""
    if type(x) in (list, tuple):
        return type(x)(leaf(y, what) for y in x)
    if type(x) is Array:
        if x.device != "cpu" or not x.ndim:
            return x
    elif isinstance(x, np.ndarray):
        if not x.ndim:
            return x
    elif not is_tensor(x) or x.device.type == "cuda":
        return P.wrap(P.foreign(x, what)) if not isinstance(x, (*NUMBERS, str, np.generic, type(None))) and is_on_gpu(x) else x
    raise ArgumentError(f"{what}: the operands lie on different devices, got {shown(x)} on cpu beside an Array on cuda; move one of them, "
                        "x.to('cuda') or x.to('cpu')")


def place(x: Any, dtype: np.dtype[Any] | None = None) -> Placed:
    """An operand on the device: an Array there, or something without axes of the host."""
    found = P.of(x)
    if found is not None:
        return found
    made = np.asarray(plain(x), dtype)
    return P.number(made, made.dtype)


def device_array(x: Array, *, own: bool = False) -> DeviceArray:
    """What sessions take of an Array; `own`: they may write it."""
    found = P.of(x)
    assert found is not None
    return P.as_device_array(P.own(x) if own else found)


def of_device_array(d: DeviceArray) -> Array:
    return P.wrap(P.of_device_array(d))


# ---- functions

def quick(name: str, fn: Fn, traced: Fn | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`run`; an elementwise function of arrays that lie as those of an earlier call, and of the same numbers, only starts its kernel."""
    if kwargs or OPERANDS.get(name) != len(args) or lazy.is_on():
        return run(name, fn, traced, args, kwargs)
    key: list[Any] = [name]
    for x in args:
        if type(x) is Array and type(node := getattr(x, "_node", None)) is Placed:
            key.append(node.key)
        elif type(x) in (int, float):
            key += (type(x), x) if x else (type(x), str(x))  # -0.0 is another number than 0.0
        else:
            return run(name, fn, traced, args, kwargs)
    known, calls = tuple(key), P.state().calls
    found = calls.get(known)
    if found is None:
        made = run(name, fn, traced, args, kwargs)
        found = _planned(name, args)
        if found is not None:
            if len(calls) >= kernels.PLANS:
                calls.clear()
            calls[known] = found
            noted(name, args, kwargs, *found)
        return made
    P.enter()
    plan, constants = found
    noted(name, args, kwargs, plan, constants)
    return P.wrap(kernels.execute(plan, [c if c is not None else x._node for x, c in zip(args, constants, strict=True)]))


def noted(name: str, args: Sequence[Any], kwargs: dict[str, Any], plan: kernels.Plan, constants: Sequence[Placed | None]) -> None:
    """Host code may launch this kernel by itself from now on."""
    n = len(constants)

    def make() -> direct.Plan | None:
        if not plan.result.size or plan.result.nbytes > SMALL:
            return None
        plan.kernel.load(n + 1)
        every = [*constants, *[None] * (len(args) + len(kwargs) - n)]
        return direct.Plan(plan.kernel.kernel.name, every, [plan.result.nbytes], plan.result,
                           [direct.Start.of(plan.kernel, [*((k, 0) for k in range(n)), (len(every), 0)])])

    direct.note(name, args, kwargs, make)


def _planned(name: str, args: Sequence[Any]) -> tuple[kernels.Plan, list[Placed | None]] | None:
    """The kernel that runs a function of these, and its numbers on the device; None where other operands than these are read."""
    strong = [x.dtype for x in args[name == "where" :] if type(x) is Array]
    if not strong or name == "positive" or (name in composed.WHOLE and dt.dtype(strong[0]).kind in "iub"):
        return None
    text, operands = _text(name, strong[0], args)
    if len(operands) != len(args) or any(x is not y for x, y in zip(operands, args, strict=True)):
        return None
    constants = [None if type(x) is Array else P.number(x, weak_dtype(x, common(*strong), name)) for x in args]
    plan = kernels.planned(text, [c if c is not None else place(x) for x, c in zip(args, constants, strict=True)], None, ())
    return None if plan is None else (plan, constants)


def run(name: str, fn: Fn, traced: Fn | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A function of `tw.` with an Array on a GPU among its arguments."""
    name = E.ALIASES.get(name, name)
    out, original = kwargs.get("out"), kwargs
    kwargs = {k: leaf(v, name) for k, v in kwargs.items() if k != "out"}
    given = [leaf(x, name) for x in args]
    if name in VIEWS:
        return P.as_view(fn, given, kwargs)
    if name in ("reshape", "ravel"):
        return given[0].reshape(*given[1:], **kwargs) if name == "reshape" else given[0].reshape(-1)
    if name in ("shape", "ndim", "size") and len(given) == 1:
        return getattr(given[0], name)
    if name in composed.HOSTED:
        return composed.on_host(fn, given, kwargs)
    if name in composed.FUNCTIONS:
        return into(out, composed.FUNCTIONS[name](*given, **kwargs))
    if name == "where" and len(given) == 1:
        return statistics.nonzero(*given)
    given = _prepared(name, given, kwargs)
    if len(given) > 1 and (name in SUMS or name in reductions.NAMES):
        first, kwargs = arguments.named(fn, given, kwargs)
        given = [first]
    if name in SUMS and (wanted := kwargs.pop("dtype", None)) is not None:
        given[0] = given[0].astype(wanted, copy=False)
    if name == "round" and (decimals := kwargs.pop("decimals", None) or next(iter(given[1:]), 0)):
        return (given[0] * 10.0**decimals).round() / 10.0**decimals
    if name == "round":
        del given[1:]
    narrow = name in EXTREMES and type(given[0]) is Array and given[0].dtype == np.bool_
    if narrow:
        given[0] = given[0].astype(np.uint8)
    made = _elementwise(name, given) if name in ELEMENTWISE and not kwargs else None
    if name == "astype":
        made = _astype(args, *given, **kwargs)
    if name in reductions.NAMES and type(given[0]) is Array:
        made = _reduced(name, args, original, *given, **kwargs)
    if made is None:
        if traced is None:
            raise UnsupportedError(f"{name}: has no version for GPUs yet, got an Array on cuda; use x.to('cpu')")
        if len(given) > 2 or kwargs:
            given, kwargs = arguments.translated(fn, traced, given, kwargs) or (given, kwargs)
        made = rewrapped(compiled(traced)(*plain(given), **plain(kwargs)))
        if not narrow and out is None:
            session_noted(name, traced, args, original, given, kwargs)
    return into(out, made.astype(np.bool_) if narrow and not name.startswith("arg") else made)


EXTREMES = frozenset({"max", "min", "amax", "amin", "argmax", "argmin"})
FLOATS = frozenset({"deg2rad", "rad2deg", "cbrt"})  # functions of floats, which integers are cast for


def _prepared(name: str, given: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Arguments as the traced forms take them."""
    if type(given[0]) is Array and name in FLOATS and dt.dtype(given[0].dtype).kind in "iub":
        given[0] = given[0].astype(np.float32)
    if name in ("cumsum", "cumprod") and type(given[0]) is Array and len(given) == 1 and kwargs.get("axis") is None:
        kwargs["axis"], given[0] = 0, given[0].reshape(-1)
    if name == "pad" and len(given) > 1:
        rank, widths = given[0].ndim, given[1]
        widths = ((widths, widths),) * rank if isinstance(widths, int) else tuple(widths)
        if widths and not isinstance(widths[0], (tuple, list)):
            widths = (tuple(widths) if len(widths) == 2 else (widths[0],) * 2,) * rank
        given[1] = widths * rank if len(widths) == 1 else widths
    return given


def into(out: Any, made: Any) -> Any:
    """A result, written into `out` where that was given."""
    if out is None:
        return made
    if type(out) is not Array or out.device == "cpu" or out.shape != made.shape:
        raise ArgumentError(f"out: needs an Array of the result's shape on cuda, got {shown(out)} for {shown(made)}")
    out[...] = made
    return out


def session_noted(name: str, traced: Fn, args: Sequence[Any], kwargs: dict[str, Any], given: Sequence[Any], options: Any) -> None:
    """Host code may launch the kernels of a compiled function by itself from now on."""
    direct.note_session(name, args, kwargs, given, lambda: compiled(traced).jit.lower(*plain(given), **plain(options)))  # type: ignore[attr-defined]


@functools.cache
def compiled(traced: Fn) -> Fn:
    """A library function, compiled for its arguments' shapes."""
    from ..functions import eager

    return eager(traced)


def _text(name: str, dtype: np.dtype[Any], given: Sequence[Any]) -> tuple[str, list[Any]]:
    """The expression that computes a function, and its operands."""
    if name == "clip":
        low, high = [*given, None, None][1:3]
        text = "i0" if low is None else "maximum(i0,i1)"
        text = text if high is None else f"minimum({text},i{1 + (low is not None)})"
        return text, [x for x in (given[0], low, high) if x is not None]
    if name in E.SCALES and dt.dtype(dtype).kind == "f":
        return "multiply(i0,i1)", [given[0], E.SCALES[name]]
    floats = dt.dtype(dtype).kind == "f"
    if floats and name in composed.EXPRESSIONS:
        return composed.EXPRESSIONS[name], list(given)
    if name in ("fmax", "fmin") and not floats:
        return "maximum(i0,i1)" if name == "fmax" else "minimum(i0,i1)", list(given)
    if name in ("subtract", "sub") and dtype == np.bool_:
        return "logical_xor(i0,i1)", list(given)
    if name == "fmod" and not floats:  # the sign is the dividend's
        return "multiply(sign(i0),remainder(abs(i0),abs(i1)))", list(given)
    return MADE_OF.get(name, name) if floats else name, list(given)


def _elementwise(name: str, given: Sequence[Any], out: Placed | None = None) -> Array | None:
    """The function by a kernel of its own; None where it has none."""
    strong = [x.dtype for x in given[name == "where" :] if type(x) not in NUMBERS and x is not None]
    if not strong or any(isinstance(x, (str, list, tuple)) for x in given):
        return None
    dtype = strong[0] if name == "clip" else common(*strong)
    text, operands = _text(name, strong[0], given)
    if name == "positive" or (name == "clip" and text == "i0") or (name in composed.WHOLE and dt.dtype(dtype).kind in "iub"):
        return given[0].copy()  # type: ignore[no-any-return]
    waiting = lazy.is_on() and text == name and out is None
    for k, x in enumerate(operands):
        if type(x) in NUMBERS:
            operands[k] = P.number(x, dtype if name == "clip" else weak_dtype(x, dtype, name))
        else:
            operands[k] = later.operand(x) if waiting and type(x) is Array and x.device != "cpu" else place(x)
    E.check_broadcast(name, *operands)
    if waiting and (made := later.recorded(name, operands)) is not None:
        return made
    found = kernels.run(text, [o.result() if isinstance(o, later.DeviceExpression) else o for o in operands], out)
    return None if found is None else P.wrap(found)


def _reduced(name: str, args: Sequence[Any], kwargs: dict[str, Any], x: Array, axis: Any = None, keepdims: bool = False) -> Array | None:
    """A reduction by kernels of run-time sizes; None where there are none."""
    if type(axis) not in (type(None), int, tuple):
        return None
    count = len(args) + len(kwargs)

    def note(make: Callable[[int], direct.Plan | None]) -> None:
        if args[0] is x and kwargs.get("out") is None:  # not another dtype of it
            direct.note(name, args, kwargs, lambda: make(count))

    made = reductions.run(name, place(x), axis, keepdims, note)
    return None if made is None else P.wrap(made)


def _astype(args: Sequence[Any], x: Array, dtype: Any, copy: bool = True, device: Any = None) -> Array | None:
    wanted = dt.dtype(dtype)
    if device is not None:
        return _astype((), x, dtype, copy).to(device)  # type: ignore[union-attr]
    if x.dtype == wanted.np:
        return x.copy() if copy else x
    if x.dtype.kind == "c" and wanted.kind not in "cb":
        raise ArgumentError(f"astype: complex numbers do not fit {wanted}; use tw.real or tw.abs")
    P.enter()
    plan = kernels.planned("astype", [place(x)], None, (wanted,))
    if plan is None:
        return None
    if len(args) == 2 and copy:
        noted("astype", args, {}, plan, [None])
    return P.wrap(kernels.execute(plan, [place(x)]))


def update(name: str, x: Array, other: Any) -> Array:
    """`x op= other`, in x's memory where nobody else holds it and it is large. The result keeps x's shape and dtype."""
    from ..functions import OFFERED

    leaf(other, name)
    made = None
    p = place(x)
    alike = type(other) in NUMBERS or (type(other) is Array and other.device != "cpu" and place(other).key is p.key)
    large = p.nbytes > SMALL
    del p  # it holds the memory
    if large and alike and P.is_alone(x):
        types = x.dtype if type(other) is Array else weak_dtype(other, x.dtype, name)
        text = _text(name, x.dtype, [x, other])[0]
        if types == x.dtype and kernels.result_dtype(text, (dt.dtype(types),) * 2) is dt.dtype(x.dtype):
            made = _elementwise(name, [x, other], P.of(x))
    if made is None:
        made = OFFERED[name](x, other)  # which host code may know the next time
    if made.shape != x.shape:
        raise ArgumentError(f"{name}: an in-place operator keeps the shape, got {shown(x)} and a result {shown(made)}")
    check_dtype(name, x, made)
    found = P.of(made if made.dtype == x.dtype else made.astype(x.dtype))
    x._node = found
    return x


# ---- shapes and copies

def reshape(x: Array, shape: tuple[int, ...], order: str, copy: bool | None) -> Array:
    p = P.of(x)
    assert p is not None
    if order != "C":
        raise UnsupportedError(f"reshape: on a GPU the order is 'C', got {order!r}; transpose before and after")
    try:
        made = np.reshape(p.header, shape, copy=False)
    except ValueError:
        if p.header.flags.c_contiguous or copy is False:
            raise
        p = kernels.contiguous(p)
        return P.wrap(Placed(np.reshape(p.header, shape, copy=False), p.stream))
    found = Placed(made, p.stream)
    return P.wrap(kernels.contiguous(found, copy=True) if copy else found)


def copied(x: Array) -> Array:
    p = place(x)
    made = P.empty(p.shape, p.dtype)
    kernels.copy_into(made, p)
    if 0 < p.nbytes <= SMALL and p.dtype.itemsize < 16:
        direct.note("Array.copy", (x,), {}, lambda: _copy_plan(made, p))
    return P.wrap(made)


def _copy_plan(made: Placed, p: Placed) -> direct.Plan | None:
    """A copy by host code, which has no memcpy: by a kernel, as of other layouts."""
    ((kernel, _, _),) = kernels.copies(made, p) or kernels._copies(made, p)
    return direct.Plan("copy", [None], [p.nbytes], made.key, [direct.Start.of(kernel, [(0, 0), (1, 0)])])


def summary(x: Array) -> np.ndarray[Any, Any]:
    """The elements that text shows: of a large Array the ends of each axis, with one element between them."""
    p = place(x)
    limit, ends = np.get_printoptions()["threshold"], np.get_printoptions()["edgeitems"]
    if p.header.size <= limit or not p.header.ndim:
        return P.downloaded(p)
    parts = [[(slice(None), slice(None))] if n <= 2 * ends + 1 else
             [(slice(0, ends), slice(0, ends)), (slice(n - ends, n), slice(ends + 1, None))] for n in p.shape]
    made = np.zeros([min(n, 2 * ends + 1) for n in p.shape], p.dtype)
    for each in itertools.product(*parts):
        made[tuple(there for _, there in each)] = P.downloaded(Placed(p.header[tuple(here for here, _ in each)], p.stream))
    return made


# ---- indexing

def _is_basic(key: Any) -> bool:
    """Whether an index makes a view."""
    kind = type(key)
    if kind is tuple:
        return all(map(_is_basic, key))
    if kind is Array:
        return not key.ndim and key.dtype.kind in "iu"
    return kind is int or kind is slice or key is None or key is Ellipsis or isinstance(key, np.integer)


def _whole(key: Any) -> tuple[Any, ...]:
    """A basic index for NumPy's header that never gives an element, which would be read."""
    keys = tuple(int(k) if type(k) is Array else k for k in (key if type(key) is tuple else (key,)))
    return keys if any(k is Ellipsis for k in keys) else (*keys, ...)


def taken(x: Array, key: Any) -> Array:
    """`x[key]`: a view, or the elements that index arrays and masks name."""
    p = place(x)
    if type(key) is int or type(key) is slice:
        return P.wrap(Placed(p.header[key, ...], p.stream))
    return P.wrap(Placed(p.header[_whole(key)], p.stream)) if _is_basic(key) else Index(x, key).result()


def put(x: Array, key: Any, value: Any) -> None:
    """`x[key] = value`."""
    v = _value(x, value)
    if _is_basic(key):
        header = P.own(x).header[_whole(key)]
        target = Placed(header, x._node.stream)
        _assign(target, v)
        x._node.stream = P.current()
        _write_noted(x, key, value, target, v)
    elif _is_mask(x, key) and v.key.size == 1:
        mask = place(leaf(key, "setitem") if type(key) is Array else P.wrap(P.uploaded(key)))
        more = mask.header[(..., *[None] * (x.ndim - mask.header.ndim))]
        x._node = kernels.run("where", [Placed(more, mask.stream), Placed(v.header.reshape(()), v.stream), place(x)])
    else:
        x._node = place(Index(x, key).changed(x, P.wrap(v), "set"))


def _write_noted(x: Array, key: Any, value: Any, target: Placed, v: Placed) -> None:
    """Host code may make this write by itself from now on, into memory that lies as x does."""
    constant = type(value) in NUMBERS
    args = (x, key.start, key.stop, key.step, value) if type(key) is slice else (x, key, value)
    mine = constant or (type(value) is Array and getattr(value, "_node", None) is v)
    if not mine or not target.key.size or v.header.ndim > target.header.ndim:
        return

    def make() -> direct.Plan | None:
        found = kernels.copies(target, v) or kernels._copies(target, v)
        if len(found) > 1:
            return None
        ((kernel, read, write),) = found
        kernel.load(2)
        places = [(len(args) - 1, read), (0, target.address - place(x).address + write)]
        return direct.Plan("setitem", [*[None] * (len(args) - 1), v if constant else None], [], None, [direct.Start.of(kernel, places)])

    direct.note("setitem", args, {}, make)


def _is_mask(x: Array, key: Any) -> bool:
    return isinstance(key, (Array, np.ndarray)) and key.dtype == np.bool_ and key.shape == x.shape[: key.ndim]


def _value(x: Array, value: Any) -> Placed:
    """What is assigned, in x's dtype. Floats do not go into integers by themselves."""
    if type(value) in (int, float) and x.dtype.kind == "f":
        return P.number(value, x.dtype)
    given = leaf(value, "setitem")
    fitting(np.empty(0, given.dtype) if hasattr(given, "dtype") else given, x.dtype)
    if P.of(given) is None:
        return P.uploaded(made) if (made := np.asarray(plain(given), x.dtype)).ndim else P.number(made, x.dtype)
    return place(given if given.dtype == x.dtype else given.astype(x.dtype))


def _assign(target: Placed, v: Placed) -> None:
    while v.shape and v.header.ndim > target.header.ndim and v.shape[0] == 1:
        v = Placed(v.header[0, ...], v.stream)
    if v.shape and v.shape != target.shape:
        try:
            np.broadcast_to(v.header, target.shape)
        except ValueError:
            raise ArgumentError(f"setitem: {shown(v)} does not broadcast to {shown(target)}") from None
    kernels.copy_into(target, v)


MODES = {"add": "add", "subtract": "add", "multiply": "mul", "minimum": "min", "maximum": "max"}  # modes of scatters


class DeviceAt(At):
    """What `x.at` gives of an Array on a GPU."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> DeviceAt:
        return DeviceAt(self._x, key)

    def _changed(self, name: str, value: Any) -> Array:
        from ..functions import API

        if not name:
            made = self._x.view()
            made[self._key] = value
            return made
        if not _is_basic(self._key):
            if name == "divide":
                name, value = "multiply", 1 / value
            given = P.wrap(_value(self._x, -value if name == "subtract" else value))
            return Index(self._x, self._key).changed(self._x, given, MODES[name])
        made = self._x.copy()
        made[self._key] = API[name](made[self._key], value)
        return made


# ---- creation

def create(name: str, fn: Fn, args: Sequence[Any], kwargs: dict[str, Any], device: Any) -> Any:
    """A function that makes Arrays, on a GPU: constants are filled in there, everything else is made by the host and copied."""
    P.check_name(device, name)
    if name not in ("empty", "zeros", "ones", "full"):
        return fn(*args, **kwargs).to(device)
    try:
        known = (name, device, *args, *kwargs.items(), *map(type, args))
        found = P.state().created.get(known)
    except TypeError:  # an argument that is not hashable
        known, found = None, None
    if found is None:
        from ..api.creation import _shape

        shape = kwargs.pop("shape", None) if not args else args[0]
        one = fn((), *args[1:], **kwargs)
        if type(one) is not Array or one.device != "cpu":
            return fn(shape, *args[1:], **kwargs).to(device)
        value = None if name in ("empty", "zeros") else P.number(one.numpy(), one.dtype)
        found = P.empty(_shape(shape, name), one.dtype).key, value
        if known is not None and name != "full":
            if len(P.state().created) >= kernels.PLANS:
                P.state().created.clear()
            P.state().created[known] = found
    key, value = found
    P.enter()
    made = P.made(key, P.current())
    if name == "zeros":
        P.clear(made)
    elif value is not None:
        kernels.copy_into(made, value)
    if args and known is not None and 0 < key.nbytes <= SMALL and key.dtype.itemsize < 16 and not any(type(x) is Array for x in args):
        given = (*(args[0] if type(args[0]) is tuple else args[:1]), *args[1:])
        direct.note(name, given, {**kwargs, "device": device}, lambda: _create_plan(name, made, value, len(given) + len(kwargs) + 1))
    return P.wrap(made)


def _create_plan(name: str, made: Placed, value: Placed | None, count: int) -> direct.Plan:
    """A new array by host code: zeros by a kernel, too."""
    launches: list[direct.Start] = []
    if name != "empty":
        number = P.number(0, made.dtype) if value is None else value
        ((kernel, read, write),) = kernels.copies(made, number) or kernels._copies(made, number)
        kernel.load(2)
        launches.append(direct.Start.of(kernel, [(count - 1, read), (count, write)]))
        return direct.Plan(name, [*[None] * (count - 1), number], [made.nbytes], made.key, launches)
    return direct.Plan(name, [None] * count, [made.nbytes], made.key, launches)


def as_array(obj: Any, dtype: np.dtype[Any] | None, device: Any, copy: bool | None) -> Array:
    """`asarray` to or from a GPU: memory that lies there is shared, other memory is copied."""
    from ..api.creation import asarray, is_on_device

    if device is not None and device != "cpu":
        P.check_name(device, "asarray")
    there = is_on_device(obj)
    if not there or device == "cpu":
        if copy is False:
            raise ValueError(f"asarray: from one device to another needs a copy, and copy=False, got device={device!r}")
        found: Array = asarray(obj, dtype) if not there else as_array(obj, dtype, None, None)
        return found.to(device)
    x = obj if type(obj) is Array else P.wrap(P.foreign(obj, "asarray"))
    if dtype is not None and x.dtype != dtype:
        if copy is False:
            raise ValueError(f"asarray: {shown(x)} as {dtype} needs a copy, and copy=False")
        return x.astype(dtype)
    return x.copy() if copy else x


def like(name: str, x: Array, args: Sequence[Any], kwargs: dict[str, Any]) -> Array:
    """`zeros_like` and its kind of an Array on a GPU: there, unless another device is named."""
    from ..api.creation import FUNCTIONS

    kwargs = {"device": "cuda", "dtype": x.dtype} | {k: v for k, v in kwargs.items() if v is not None}
    made: Array = FUNCTIONS[name.removesuffix("_like")](x.shape, *args, **kwargs)
    return made
