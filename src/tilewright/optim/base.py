"""What an optimizer is, and the tree helpers that all of them use."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..array import functions
from ..array.functions import staged
from ..array.gpu import gpu_leaf, is_on_gpu
from ..core import dtypes as dt
from ..core.errors import InputError
from ..core.pytree import flatten, unflatten
from ..runtime.arguments import from_dtype, is_tensor
from ..runtime.cuda.array import DeviceArray
from ..transform.trace import Tracer, is_array, leaf_of, tracing, user_place

tw: Any = functions  # its names are made from the registry
Rate = float | Callable[[Any], Any]  # a number, or a schedule: step -> number


def tree_map(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """`fn` on corresponding leaves of trees of one structure."""
    leaves, spec = flatten(tree)
    columns = [leaves]
    for other in others:
        more, theirs = flatten(other)
        if theirs != spec:
            raise InputError(f"optim: trees must have one structure, got {_short(spec)} and {_short(theirs)}")
        columns.append(more)
    return unflatten(spec, [fn(*row) for row in zip(*columns, strict=True)])


def tree_unzip(fn: Callable[..., tuple[Any, ...]], count: int, tree: Any, *others: Any) -> tuple[Any, ...]:
    """Like `tree_map` for a function of several results: one tree each."""
    rows: list[tuple[Any, ...]] = []

    def keep(*row: Any) -> None:
        rows.append(fn(*row))

    tree_map(keep, tree, *others)
    spec = flatten(tree)[1]
    return tuple(unflatten(spec, [row[i] for row in rows]) for i in range(count))


def _short(spec: Any) -> str:
    text = str(spec)
    return text if len(text) < 80 else text[:77] + "..."


def zeros_like(x: Any, dtype: Any = None) -> Any:
    """Zeros of a parameter's type: traced inside a trace, on the GPU where it lies there, else NumPy's."""
    if tracing() or isinstance(x, Tracer):
        return tw.zeros_like(x, dtype)
    if is_on_gpu(x) and not is_tensor(x):
        t = gpu_leaf(x).type
        return DeviceArray.zeros([d for d in t.shape if isinstance(d, int)], t.dtype if dtype is None else dt.dtype(dtype))
    if is_on_gpu(x):
        return x.new_zeros(x.shape, dtype=None if dtype is None else from_dtype()[dt.dtype(dtype)])
    t = leaf_of(x).type
    return np.zeros(t.shape, (t.dtype if dtype is None else dt.dtype(dtype)).np)


def counter() -> Any:
    """The number of updates so far."""
    return tw.zeros((), "i32") if tracing() else np.zeros((), np.int32)


def rate_at(rate: Rate, step: Any) -> Any:
    """The learning rate of update number `step` (from 0)."""
    if callable(rate):
        return rate(step)
    if not isinstance(rate, Tracer) and not (isinstance(rate, (int, float, np.number, np.ndarray)) and rate >= 0):
        raise InputError(f"optim: the rate must be a number of at least 0 or a schedule, got {rate!r}")
    return rate


def power(base: float, step: Any) -> Any:
    """base ** step in f64: the powers of decay rates near 1 lose too much in f32."""
    return tw.pow(np.float64(base) if tracing() else base, tw.astype(step, "f64"))


def as_f32(x: Any) -> Any:
    return tw.astype(x, "f32")


@dataclass(frozen=True)
class Optimizer:
    """`init(params) -> state` and `update(params, grads, state) -> (params, state)`: pure functions over trees.

    Threads: one optimizer may serve any number. A state is a tree of arrays that `update` reads and never writes; where a jitted step
    donates it, it is for one call at a time.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]


def make(init: Callable[[Any], Any], update: Callable[[Any, Any, Any], tuple[Any, Any]], name: str) -> Optimizer:
    def checked(params: Any, grads: Any, state: Any) -> tuple[Any, Any]:
        tree_map(lambda p, g: _check_gradient(name, p, g), params, grads)
        _check_state(name, init(params), state)
        new, after = update(params, grads, state)
        return tree_map(_like, new, params), tree_map(_like, after, state)

    checked.__name__ = f"{name}_update"
    return Optimizer(init, staged(checked))


def by_parameter(name: str, rate: Rate, slots: Mapping[str, Callable[[Any], Any]],
                 rule: Callable[[Any, Any], Callable[..., tuple[Any, ...]]]) -> Optimizer:
    """An optimizer that goes through the parameters one by one. `slots`: what it keeps of a parameter, by name, and what that is at first.
    `rule(rate, step)` is asked once an update (the first is step 1) for the function (parameter, gradient, *kept) -> (parameter, *kept)."""

    def init(params: Any) -> Any:
        return {"step": counter(), **{key: tree_map(start, params) for key, start in slots.items()}}

    def update(params: Any, grads: Any, state: Any) -> tuple[Any, Any]:
        step, lr = state["step"] + 1, rate_at(rate, state["step"])
        new, *kept = tree_unzip(rule(lr, step), 1 + len(slots), params, grads, *(state[key] for key in slots))
        return new, {"step": step, **dict(zip(slots, kept, strict=True))}

    return make(init, update, name)


def _like(new: Any, old: Any) -> Any:
    """An updated array in the dtype it had: a wider gradient or rate must not change what a jitted step takes next time."""
    dtype = leaf_of(old).type.dtype
    return new if leaf_of(new).type.dtype == dtype else tw.astype(new, dtype)


def _check_state(name: str, wanted: Any, state: Any) -> None:
    (want, spec), (have, theirs) = flatten(wanted), flatten(state)
    if theirs != spec:
        raise InputError(f"{name}: the state must be one that {name}'s init gave for these parameters, {_short(spec)}, "
                         f"got {_short(theirs)} ({user_place()})")
    for a, b in zip(want, have, strict=True):
        if not is_array(b) or leaf_of(a).type.shape != leaf_of(b).type.shape:
            got = leaf_of(b).type if is_array(b) else f"a {type(b).__name__}"
            raise InputError(f"{name}: the state must be one of these parameters, got {got} for {leaf_of(a).type} ({user_place()})")


def _check_gradient(name: str, parameter: Any, gradient: Any) -> None:
    for what, x in (("parameter", parameter), ("gradient", gradient)):
        if not is_array(x):
            raise InputError(f"{name}: a {what} is an array, got a {type(x).__name__} ({user_place()})")
        if leaf_of(x).type.dtype.kind not in "fc":
            raise InputError(f"{name}: a {what} must be of a float dtype, got {leaf_of(x).type}; keep integers out of the parameters "
                             f"({user_place()})")
    p, g = leaf_of(parameter).type, leaf_of(gradient).type
    if p.shape != g.shape:
        raise InputError(f"{name}: a gradient has the shape of its parameter, got {g} for {p} ({user_place()})")
