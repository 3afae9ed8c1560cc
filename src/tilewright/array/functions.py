"""What `tw.` offers over arrays. Inside a traced function these append to the trace; Arrays run native kernels of eager functions; NumPy
arrays and tensors are compiled for and give NumPy arrays."""
from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.errors import ArgumentError, AxisError, ExecutionError, InputError, ParseError, RangeError, TilewrightError, TraceError
from ..core.tensors import is_tensor
from ..runtime.memory import OutOfMemory
from ..transform import control, custom, derive
from ..transform import vmap as batching
from ..transform.lib import ALIASES, FUNCTIONS, function
from ..transform.lib.elementwise import ON_FLOATS, answer
from ..transform.trace import Tracer, as_array, install, tracing, user_place
from . import anywhere, arguments, lazy, native, operators, polynomials
from .api import contractions, creation, elementwise, info, more, protocols, reductions, searching, shapes
from .api.base import known, written
from .arrays import Array, OnDevice, plain, shown
from .jit import Jit
from .programs import Programs
from .trees import check_devices, rewrapped, unwrapped

__all__ = ["written"]
Fn = Callable[..., Any]
REPORTED = (ArgumentError, ParseError, IndexError, ValueError, MemoryError, OverflowError, RecursionError)
_EAGER = Programs()  # the programs of all library functions together
API: dict[str, Fn] = {}
for _module in (creation, elementwise, shapes, reductions, searching, contractions, info, protocols, more, anywhere, polynomials):
    API |= _module.FUNCTIONS
API |= {"concatenate": API["concat"], **{_name: API[_other] for _name, _other in elementwise.ALIASES.items()}}


def staged(fn: Fn) -> Fn:
    """fn, which works inside a trace, for plain arrays too."""
    compiled = Jit(fn)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs) if tracing() else compiled(*args, **kwargs)

    return call


def eager(fn: Fn) -> Fn:
    """A library function for plain arrays too. It is compiled once for all lines that call it, so errors take the line of this call."""
    compiled = Jit(fn, numbers="static", programs=_EAGER)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if tracing():
            return fn(*args, **kwargs)
        try:
            return compiled(*args, **kwargs)
        except OutOfMemory as e:
            raise OutOfMemory(f"{str(e).removeprefix('jit: ')} ({user_place()})") from None
        except ExecutionError as e:
            raise ExecutionError(f"{str(e).rpartition(' (')[0]} ({user_place()})") from None

    call.jit = compiled  # type: ignore[attr-defined]
    return call


def _has(kinds: Any, tree: Any) -> bool:
    """Whether one of these classes is among the leaves."""
    for x in tree:
        kind = type(x)
        if issubclass(kind, kinds) or (kind in (list, tuple) and _has(kinds, x)):
            return True
    return False


def foreign(tree: Any) -> bool:
    return any(isinstance(x, (np.ndarray, np.generic)) or is_tensor(x) or (type(x) in (list, tuple) and foreign(x)) for x in tree)


def numpy_in(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether there are NumPy arrays or tensors among the arguments, and no Array."""
    return not (_has(Array, args) or _has(Array, kwargs.values())) and (foreign(args) or foreign(kwargs.values()))


def in_place(name: str, x: Any, y: Any, target: Array) -> Any:
    """A binary function whose result takes the memory of `target`, one of its operands that nobody else holds, where it fits."""
    made = elementwise.compute_into(name, x, y, target) if name in elementwise.BINARY and not lazy.is_on() else None
    return operators.placed(API[name], x, y) if made is None else made


def told(name: str, e: Exception) -> Exception:
    """What a user is told of an error inside a function of Arrays: NumPy's own errors are named by the function."""
    if isinstance(e, TilewrightError):
        return at_line(e) if isinstance(e, (ArgumentError, ParseError)) else e
    text = str(e) if str(e).startswith(f"{name}: ") else f"{name}: {e}"
    kinds = {MemoryError: OutOfMemory, IndexError: AxisError, OverflowError: RangeError}
    return at_line(next((ours for theirs, ours in kinds.items() if isinstance(e, theirs)), ArgumentError)(text))


def at_line(e: Exception) -> Exception:
    """The error with the user's line, where there is one."""
    place = user_place()
    return e if ".py:" in str(e) or not place else type(e)(f"{e} ({place})")


_LIMITS = {**dict.fromkeys(reductions.JOINED, ("where", "initial")), **dict.fromkeys(("any", "all", "mean"), ("where",)),
           **dict.fromkeys(("var", "std"), ("where", "mean", "dtype"))}  # what `limited` serves
_PLAIN_REDUCTION = frozenset({"axis", "keepdims"})
ELEMENTS = dict.fromkeys(
    ("argwhere", "extract", "flatnonzero", "intersect1d", "nonzero", "setdiff1d", "setxor1d", "union1d", "unique", "unique_all",
     "unique_counts", "unique_inverse", "unique_values"),
    ", as the size of its result depends on their elements (tw.where and masks keep sizes)")


def limited(name: str, x: Any, axis: Any = None, *, where: Any = None, initial: Any = None, mean: Any = None, dtype: Any = None,
            **options: Any) -> Any:
    """A reduction of the elements where a mask holds, and of `initial`; a deviation from a `mean` that is given, in a `dtype`."""
    x = x if hasattr(x, "dtype") else OFFERED["asarray"](x)
    if name in ("var", "std"):
        return _spread(name, x if dtype is None else x.astype(known(dtype, name)), axis, where, mean, **options)
    shape = tuple(x.shape)
    if dtype is not None:
        options["dtype"] = dtype
    if where is not None:
        where = OFFERED["broadcast_to"](where, shape)
        if name == "mean":
            options.pop("dtype", None)
            counts = OFFERED["sum"](where, axis=axis, **options)
            return OFFERED["divide"](limited("sum", x, axis, where=where, **options), counts)
        start = reductions.START.get(name, initial)
        if start is None:
            raise ArgumentError(f"{name}: a mask needs `initial`, the {name} of nothing ({user_place()})")
        x = OFFERED["where"](where, x, start)
    if initial is None:
        return OFFERED[name](x, axis=axis, **options)
    if 0 in shape and name not in reductions.START:
        return OFFERED["full_like"](OFFERED["any"](x, axis=axis, **options), initial, x.dtype)
    return OFFERED[reductions.JOINED[name]](OFFERED[name](x, axis=axis, **options), initial)


def _spread(name: str, x: Any, axis: Any, where: Any, mean: Any, *, ddof: float | None = None, correction: float = 0.0,
            keepdims: bool = False) -> Any:
    correction = correction if ddof is None else ddof
    if where is None and mean is None:
        return OFFERED[name](x, axis=axis, correction=correction, keepdims=keepdims)
    own = dt.dtype(x.dtype)
    x = x.astype(np.float32) if own.kind in "biu" or own in dt.SMALL else x
    where = OFFERED["broadcast_to"](True if where is None else where, tuple(x.shape))
    apart = abs(x - (limited("mean", x, axis, where=where, keepdims=True) if mean is None else mean))
    counts = OFFERED["sum"](where, axis=axis, keepdims=keepdims) - correction
    made = limited("sum", apart * apart, axis, where=where, keepdims=keepdims) / OFFERED["maximum"](counts, 0)
    made = OFFERED["sqrt"](made) if name == "std" else made
    return made.astype(own.np) if own in dt.SMALL else made


def offered(name: str, on_arrays: Fn, traced: Fn | None, space: Any = np) -> Fn:
    """A function of Arrays that also works in traces, and on NumPy arrays and tensors, for which it gives NumPy arrays. Arguments may have
    the names and the order that they have in NumPy's function of that name."""
    compiled: Fn | None = None
    pointwise, plain_name = name in elementwise.UNARY or name in elementwise.BINARY, {"amax": "max", "amin": "min"}.get(name, name)
    limits = _LIMITS.get(plain_name, ())
    numpys = None if name in arguments.OTHERS else getattr(space, name, None)

    def direct(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is Array and not kwargs and not (limits and len(args) > 2) and not tracing():
            return on_arrays(*args)
        if pointwise and "dtype" in kwargs:
            return call(*_cast(name, args, kwargs.pop("dtype")), **kwargs)
        if "out" in kwargs and not tracing():
            out = kwargs.pop("out")
            mask = kwargs.pop("where", None) if pointwise else None
            made = call(*args, **kwargs)
            return written(out, made if mask is None else OFFERED["where"](mask, made, out[0] if type(out) is tuple else out))
        if limits and (len(args) > 2 or not kwargs.keys() <= _PLAIN_REDUCTION):
            if arguments.fit(on_arrays, args, kwargs):
                x, kwargs = arguments.named(on_arrays, args, kwargs)
                if not kwargs.keys().isdisjoint(limits) or (kwargs.get("out") is not None and not tracing()):
                    return limited(plain_name, x, **kwargs)
                args = (x,)
            elif traced is None or not arguments.fit(traced, args, kwargs):
                return on_arrays(*args, **kwargs)  # which says what is wrong
            elif not tracing():  # what only the traced form has, as `compensated`
                return eager(traced)(*args, **kwargs)
        if tracing() and (traced is not None or _has(Tracer, args) or _has(Tracer, kwargs.values())):
            inside = traced
            if inside is None:
                from . import composed
                from . import traced as inside_traces

                inside = inside_traces.FUNCTIONS.get(name) or composed.FUNCTIONS.get(name)
            if inside is None:
                raise TraceError(f"trace: tw.{name} does not work on traced arrays{ELEMENTS.get(name, ' yet')}; call it outside of the "
                                 f"traced function ({user_place()})")
            return arguments.inside(name, on_arrays, inside, numpys, args, kwargs)
        if not numpy_in(args, kwargs):
            return on_arrays(*args, **kwargs)
        if traced is not None:
            made = None if kwargs else elementwise.on_numpy(name, args)
            if made is not None:
                return made
            nonlocal compiled
            if compiled is None:
                compiled = eager(traced)
            given: Any = (args, kwargs)
            if len(args) > 2 or not arguments.fit(traced, args, kwargs):
                given = arguments.translated(on_arrays, traced, args, kwargs)
            if given is not None:
                return compiled(*given[0], **given[1])
        return unwrapped(on_arrays(*args, **kwargs))

    @functools.wraps(on_arrays)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return direct(*args, **kwargs)
        except TypeError:
            if numpys is None or arguments.fit(on_arrays, args, kwargs) or not arguments.fit(numpys, args, kwargs):
                raise
        except REPORTED as e:
            raise told(name, e) from None
        given = arguments.translated(numpys, on_arrays, args, kwargs, ("out", "dtype") if pointwise else ("out",))
        try:
            if given is not None:
                return call(*given[0], **given[1])
            made = arguments.by_numpy(name, numpys, args, kwargs)
        except REPORTED as e:
            raise told(name, e) from None
        return unwrapped(made) if numpy_in(args, kwargs) else made

    call.__module__ = "tilewright"
    return call


def _cast(name: str, args: Any, dtype: Any) -> Any:
    """Operands of an elementwise function that computes in a dtype."""
    rule = (elementwise.UNARY if name in elementwise.UNARY else elementwise.BINARY)[name][2]
    if dtype is None or rule == "b":
        return args
    wanted = known(dtype, name)
    for x in args:
        if hasattr(x, "dtype") and not np.can_cast(dt.dtype(x.dtype).np, wanted, "same_kind"):
            raise ArgumentError(f"{name}: an operand does not fit the dtype, got {shown(x)} for dtype={wanted}")
    return [OFFERED["astype"](x, wanted) if hasattr(x, "dtype") else x for x in args]


def on_any_device(name: str, on_arrays: Fn, traced: Fn | None) -> Fn:
    """A function of Arrays of the host, and of those on a GPU by its traced form or one of their own."""
    often = name == "where" or name in {*elementwise.UNARY, *elementwise.BINARY, *elementwise.ACTIVATIONS, *reductions.NATIVE}

    quick: Any = None

    @functools.wraps(on_arrays)
    def call(*args: Any, **kwargs: Any) -> Any:
        if often:
            for x in args:
                if type(x) is Array and (node := getattr(x, "_node", None)) is not None and node.device != "cpu":
                    nonlocal quick
                    if quick is None:
                        from .cuda.calls import quick
                    return quick(name, on_arrays, traced, args, kwargs)
        try:
            return on_arrays(*args, **kwargs)
        except OnDevice:
            from .cuda.calls import run

        return run(name, on_arrays, traced, args, kwargs)

    return call


def of_any_integer(name: str, fn: Fn) -> Fn:
    """A comparison or a function of floats, beside a Python integer that the dtype of an Array of integers does not hold, too."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except OverflowError:
            if elementwise.BINARY[name][2] != "b":
                return fn(*(float(x) if type(x) is int else x for x in args), **kwargs)
            same = answer(name, *args)
            if same is None:
                raise
            return written(kwargs.get("out"), API["full_like"](args[0] if type(args[1]) is int else args[1], same, np.bool_))

    return call


def compiled_only(traced: Fn) -> Fn:
    """A function that is compiled for its arguments' shapes; given Arrays it gives Arrays."""
    compiled = eager(traced)

    @functools.wraps(traced)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not tracing() and (_has(Array, args) or _has(Array, kwargs.values())):
            check_devices((args, kwargs), traced.__name__)
            made = rewrapped(compiled(*plain(args), **plain(kwargs)))
            if type(made) is Array and made.device != "cpu":
                from .cuda.direct import note_session

                note_session(traced.__name__, args, kwargs, args, lambda: compiled.jit.lower(*plain(args), **plain(kwargs)))  # type: ignore[attr-defined]
            return made
        return compiled(*args, **kwargs)

    return call


def offer(api: dict[str, Fn], traced: Mapping[str, Fn], aliases: Mapping[str, str], space: Any = np) -> dict[str, Fn]:
    """The functions of a namespace by name, NumPy's of which is `space`. Those of `api` become functions of Arrays on any device."""
    for name, fn in (*api.items(), *traced.items()):
        if getattr(fn, "__name__", "") in (f"{name}_", name) and hasattr(fn, "__globals__"):
            fn.__name__ = fn.__qualname__ = name  # Python's own messages about arguments say it
    forms = {**traced, **{name: traced[other] for name, other in aliases.items()}}
    for name, other in elementwise.ALIASES.items():
        if other in forms:
            forms.setdefault(name, forms[other])
        elif name in forms:
            forms.setdefault(other, forms[name])
    api.update({name: on_any_device(name, fn, forms.get(name)) for name, fn in api.items()})
    api.update({name: of_any_integer(name, api[name]) for name, (_, floats, rule) in elementwise.BINARY.items()
                if name in api and (floats or rule == "b")})
    found = {name: offered(name, fn, forms.get(name), space) for name, fn in api.items()}
    return found | {name: compiled_only(fn) for name, fn in forms.items() if name not in found}


def on_floats(name: str, compiled: Fn) -> Fn:
    """A function of one float Array with a kernel of its own."""
    python = on_any_device(name, elementwise.activation(name, compiled), function(name))
    return native.function(name, 1, python, native.signature(compiled))


def _transform(make: Fn) -> Fn:
    """A transform of functions whose result runs on plain arrays."""

    @functools.wraps(make)
    def transform(fn: Fn, *args: Any, **kwargs: Any) -> Any:
        if not callable(fn):
            raise InputError(f"{make.__name__}: needs a function, got a {type(fn).__name__} ({user_place()})")
        return staged(make(fn, *args, **kwargs))

    return transform


grad = _transform(derive.grad)
value_and_grad = _transform(derive.value_and_grad)
checkpoint = _transform(derive.checkpoint)
vmap = _transform(batching.vmap)
jacobian = _transform(batching.jacobian)
hessian = _transform(batching.hessian)


@functools.wraps(derive.jvp)
def jvp(fn: Fn, primals: Any, tangents: Any) -> Any:
    if tracing():
        return derive.jvp(fn, primals, tangents)
    return Jit(lambda p, t: derive.jvp(fn, p, t))(tuple(primals), tuple(tangents))


@functools.wraps(derive.vjp)
def vjp(fn: Fn, *primals: Any) -> Any:
    if tracing():
        return derive.vjp(fn, *primals)
    result = Jit(fn)(*primals)
    pulled = Jit(lambda p, g: derive.vjp(fn, *p)[1](g))
    return result, lambda cotangents: pulled(primals, cotangents)


@functools.wraps(control.scan)
def scan(step: Fn, init: Any, xs: Any = None, length: int | None = None, checkpoints: int | str | None = None, *,
         reverse: bool = False) -> Any:
    run = functools.partial(control.scan, step, length=length, checkpoints=checkpoints, reverse=reverse)
    return run(init, xs) if tracing() else Jit(lambda init, xs: run(init, xs))(init, xs)


@functools.wraps(control.cond)
def cond(predicate: Any, then: Fn, other: Fn, *operands: Any) -> Any:
    if tracing():
        return control.cond(predicate, then, other, *operands)
    return Jit(lambda p, xs: control.cond(p, then, other, *xs))(
        predicate if type(predicate) is Array else as_array(predicate), operands)


@functools.wraps(control.while_loop)
def while_loop(test: Fn, body: Fn, init: Any, max_iterations: int | None = None) -> Any:
    if tracing():
        return control.while_loop(test, body, init, max_iterations)
    return Jit(lambda x: control.while_loop(test, body, x, max_iterations))(init)


@functools.wraps(control.fori_loop)
def fori_loop(lower: Any, upper: Any, body: Fn, init: Any) -> Any:
    if tracing():
        return control.fori_loop(lower, upper, body, init)
    return Jit(lambda x: control.fori_loop(lower, upper, body, x))(init)


class custom_vjp(custom.custom_vjp):
    __doc__ = custom.custom_vjp.__doc__

    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args) if tracing() else _compiled(self)(*args)


class custom_jvp(custom.custom_jvp):
    __doc__ = custom.custom_jvp.__doc__

    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args) if tracing() else _compiled(self)(*args)


def _compiled(fn: Any) -> Jit[...]:
    """The jitted form of a custom function, made on its first call outside a trace."""
    if "_jit" not in vars(fn):
        fn._jit = Jit(fn)
    found: Jit[...] = fn._jit
    return found


@functools.wraps(custom.custom_op)
def custom_op(*args: Any, **kwargs: Any) -> Fn:
    return staged(custom.custom_op(*args, **kwargs))


OFFERED = offer(API, FUNCTIONS, ALIASES)
_PLAIN = ("asarray", "array", "from_dlpack", "frombuffer", "load_arrays", "save", "to_numpy",  # give Arrays of anything
          "result_type", "can_cast", "finfo", "iinfo", "isdtype", "promote_types", "__array_namespace_info__", "broadcast_shapes")
OFFERED |= {_name: API[_name] for _name in _PLAIN}
for _operands, _names in ((1, elementwise.UNARY), (2, elementwise.BINARY)):
    for _name in _names:
        if _name != "round":  # which has a second argument
            OFFERED[_name] = native.function(_name, _operands, OFFERED[_name], elementwise.SIGNATURES[_operands])
for _name in elementwise.ACTIVATIONS:
    OFFERED[_name] = on_floats(_name, OFFERED[_name])
for _name, (_entry, _told) in native.FUNCTIONS.items():
    OFFERED[_name] = native.function(_name, _entry, OFFERED[_name], native.signature(OFFERED[_name]), _told)
OFFERED["where"] = native.function("where", 3, OFFERED["where"], "condition, x1=None, x2=None, /")
for _name in reductions.NATIVE:
    OFFERED[_name] = native.function(_name, "_reduce", OFFERED[_name], reductions.NATIVE[_name])
for _name in ("empty", "zeros", "ones", "full"):  # native on a GPU alone
    OFFERED[_name] = native.function(_name, "_create", OFFERED[_name], native.signature(OFFERED[_name]))
for _name in ("matmul", "softmax", "log_softmax", "var", "std", "cumsum"):  # native for Arrays on a GPU alone
    OFFERED[_name] = native.function(_name, "_other", OFFERED[_name], native.signature(OFFERED[_name]))
OFFERED |= {_name: OFFERED[_other] for _name, _other in elementwise.ALIASES.items()}
OFFERED |= {"around": OFFERED["round"], "asanyarray": OFFERED["asarray"]}
OFFERED["astype"] = native.function("astype", "_astype", OFFERED["astype"], "x, dtype, /, *, copy=True, device=None")
native.install()
for _name in (*operators.METHODS, "astype"):
    if not isinstance(Array.__dict__[_name], property):
        native.method(_name, OFFERED[_name])


OFFERED |= {_fn.__name__: _fn for _fn in (grad, value_and_grad, checkpoint, vmap, jacobian, hessian, jvp, vjp, scan, cond, while_loop,
                                          fori_loop, custom_vjp, custom_jvp, custom_op)}


def public(name: str) -> Fn:
    """A function of `tw.`, also of an op that was registered after this module was read."""
    if name not in OFFERED and (made := function(name)) is not None:
        found = compiled_only(made)
        OFFERED[name] = on_floats(name, found) if name in ON_FLOATS else found
    try:
        return OFFERED[name]
    except KeyError:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}", name=name, obj=sys.modules["tilewright"]) from None


def _method(name: str) -> Fn:
    return lambda self, *args, **options: OFFERED[name](self, *args, **options)


def _expanded(x: Any, *shape: Any) -> Any:
    return OFFERED["broadcast_to"](x, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)


def _named(self: Tracer, name: str) -> Fn | None:
    """A function of `tw.` or one of its modules by NumPy's name."""
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(f"..{module}", __name__) if module else sys.modules[__name__], name, None)


install(_named=_named, **{_name: _method(_name) for _name in ("round", "repeat", "take", "diagonal", "unfold")}, expand=_expanded,
        copy=lambda self: self, view=lambda self: self)
__getattr__ = public  # not as globals: `any` and `abs` are Python's in this module


def names() -> set[str]:
    """The names of all functions of `tw.`."""
    function("")  # enters ops that were registered since
    return {name for name in (*OFFERED, *FUNCTIONS, *ALIASES) if not name.startswith("_")}
