"""What `tw.` offers over arrays. Inside a traced function these append to the trace; on plain arrays they compile and run."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..core.errors import ExecutionError, InputError
from ..runtime.memory import OutOfMemory
from ..transform import control, custom, derive
from ..transform import vmap as batching
from ..transform.lib import ALIASES, FUNCTIONS
from ..transform.trace import as_array, tracing, user_place
from .jit import Jit
from .programs import Programs

Fn = Callable[..., Any]
_EAGER = Programs()  # of all library functions together


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

    return call


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
    return Jit(lambda p, xs: control.cond(p, then, other, *xs))(as_array(predicate), operands)


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


def _compiled(fn: Any) -> Jit:
    """The jitted form of a custom function, made on its first call outside a trace."""
    if "_jit" not in vars(fn):
        fn._jit = Jit(fn)
    found: Jit = fn._jit
    return found


@functools.wraps(custom.custom_op)
def custom_op(*args: Any, **kwargs: Any) -> Fn:
    return staged(custom.custom_op(*args, **kwargs))


for _name, _fn in FUNCTIONS.items():
    globals()[_name] = eager(_fn)
for _name, _other in ALIASES.items():
    globals()[_name] = globals()[_other]
