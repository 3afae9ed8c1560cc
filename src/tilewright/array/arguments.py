"""Calls by the names and the order of arguments that NumPy's function has, where the one here has others; and NumPy's function itself, over
the Arrays' memory, for arguments that it alone has."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.errors import TraceError, UnsupportedError
from ..core.pytree import flatten, mapped
from ..transform.trace import user_place
from .api.base import COMPLEX, FLOAT
from .arrays import Array, plain
from .trees import rewrapped

Fn = Callable[..., Any]
Call = tuple[list[Any], dict[str, Any]]
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# NumPy's arguments that change no element of a result here: values stay, results are of one class, and sorts are stable.
WITHOUT_EFFECT = frozenset({"copy", "kind", "like", "optimize", "overwrite_input", "sorted", "subok"})
SYNONYMS = {"a_max": "max", "a_min": "min", "rcond": "rtol"}  # older names of NumPy's arguments
OTHERS = frozenset({"load", "resize", "save"})  # functions here that are not NumPy's of that name


@functools.cache
def _signature(fn: Fn) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):  # some of NumPy's functions have none
        return None


def fit(fn: Fn, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function has parameters for these arguments."""
    return _bound(fn, args, kwargs) is not None


def _bound(fn: Fn, args: Any, kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
    signature = _signature(fn)
    try:
        return None if signature is None else signature.bind(*args, **kwargs)
    except TypeError:
        return None


def named(fn: Fn, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The first argument, and the others that are not the defaults by name. A bool in the place of a dtype or of `out` is `keepdims`."""
    bound = _bound(fn, args, kwargs)
    assert bound is not None
    first, *names = bound.arguments
    found = {n: bound.arguments[n] for n in names if not _is_default(bound.arguments[n], bound.signature.parameters[n])}
    found = {("keepdims" if n in ("dtype", "out") and type(v) is bool else n): v for n, v in found.items()}
    return bound.arguments[first], found


def _is_default(value: Any, parameter: inspect.Parameter) -> bool:
    return value is parameter.default or (isinstance(value, (int, str)) and type(value) is type(parameter.default)
                                          and value == parameter.default)


@functools.cache
def _names(source: Fn, target: Fn) -> dict[str, str]:
    """What the target calls the parameters of the source: the same, else the name in the same place that the source does not have."""
    given, wanted = (_signature(fn) for fn in (source, target))
    assert given is not None
    assert wanted is not None
    places, others = ([n for n, p in s.parameters.items() if p.kind in POSITIONAL] for s in (given, wanted))
    made = {n: n for n in given.parameters if n in wanted.parameters}
    made |= {n: m for n, m in zip(places, others, strict=False) if n not in made and (m not in given.parameters or SYNONYMS.get(n) == m)}
    if any(p.kind is p.VAR_KEYWORD for p in wanted.parameters.values()):
        made |= {n: n for n in given.parameters if n not in made and n not in WITHOUT_EFFECT}
    return made


def translated(source: Fn, target: Fn, args: Any, kwargs: Mapping[str, Any], also: Sequence[str] = ()) -> Call | None:
    """Arguments for `target` of a call of `source`; None where that has no such arguments, or the target has not. `also` are names of
    arguments that somebody else takes from the call."""
    if _signature(source) is None:  # as of NumPy's functions in C before 2.4
        return ([*args], {**kwargs}) if fit(target, args, kwargs) else None
    bound, wanted = _bound(source, args, kwargs), _signature(target)
    if bound is None or wanted is None:
        return None
    names: dict[str, str] = _names(source, target) | {n: n for n in also}
    found: dict[str, Any] = {}
    rest: list[Any] = []
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = list(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            found |= value
        elif name in ("dtype", "out") and type(value) is bool:  # PyTorch's order
            found["keepdims"] = value
        elif not _is_default(value, parameter):
            if name in names:
                found[names[name]] = value
            elif name not in WITHOUT_EFFECT and not (name == "order" and value in (None, "C", "A", "K")):
                return None
    positional = []
    for name, parameter in wanted.parameters.items():
        if name not in found or parameter.kind not in POSITIONAL:
            if parameter.kind is not parameter.POSITIONAL_ONLY or parameter.default is parameter.empty:
                break
            positional.append(parameter.default)
        else:
            positional.append(found.pop(name))
    given = [*positional, *rest]
    return (given, found) if fit(target, given, {k: v for k, v in found.items() if k in wanted.parameters or k not in also}) else None


def inside(name: str, public: Fn, traced: Fn, numpy: Fn | None, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The traced form of a function, called by the names and the order of the public one, or of NumPy's."""
    if not kwargs and len(args) <= 2 and fit(traced, args, kwargs):
        return traced(*args)
    sources = [s for s in (public, numpy) if s is not None and fit(s, args, kwargs)] or [traced]
    for source in sources:
        given = translated(source, traced, args, kwargs)
        if given is not None:
            return traced(*given[0], **given[1])
    if _signature(traced) is None:
        return traced(*args, **kwargs)
    given_names = ", ".join([*map(_kind, args), *(f"{k}=" for k in kwargs)])
    shown = ", ".join(str(p) if p.default is p.empty else f"{p.name}={p.default!r}" for p in
                      (p.replace(annotation=p.empty) for p in _signature(traced).parameters.values()))  # type: ignore[union-attr]
    raise TraceError(f"{name}: in a traced function it takes ({shown}), got ({given_names}); call "
                     f"it outside of the traced function ({user_place()})")


def _kind(x: Any) -> str:
    return "an array" if hasattr(x, "shape") else "arrays" if isinstance(x, (list, tuple)) and hasattr(x[:1][0], "shape") else f"{x!r:.20}"


def by_numpy(name: str, numpy: Fn, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """NumPy's function of the Arrays' memory. Small floats are computed in f32, and results are in the default dtypes where no operand is
    wider."""
    bound = _bound(numpy, args, kwargs)
    if bound is not None:
        args, kwargs = bound.args, bound.kwargs
    arrays = [x for x in flatten((list(args), dict(kwargs)))[0] if type(x) is Array]
    if any(x.device != "cpu" for x in arrays):
        raise UnsupportedError(f"{name}: these arguments are NumPy's alone and need the elements on the host, x.to('cpu') ({user_place()})")
    small = {x.dtype for x in arrays if dt.dtype(x.dtype) in dt.SMALL}
    given: Any = mapped(lambda x: x.astype(np.float32) if type(x) is Array and x.dtype in small else x, (list(args), dict(kwargs)))
    with np.errstate(all="ignore"):
        got = numpy(*plain(given[0]), **plain(given[1]))
    if kwargs.get("dtype") is not None:
        return rewrapped(got)
    wide = {x.dtype for x in arrays} & {np.dtype(np.float64), np.dtype(np.complex128)}
    to: dict[Any, Any] = {} if wide else {np.dtype(np.float64): FLOAT, np.dtype(np.complex128): COMPLEX}
    if len(small) == 1 and not any(x.dtype == FLOAT for x in arrays):
        to |= dict.fromkeys((np.dtype(np.float64), FLOAT), next(iter(small)))

    def narrow(x: Any) -> Any:
        return np.asarray(x, to[x.dtype]) if isinstance(x, (np.ndarray, np.generic)) and x.dtype in to else x

    return rewrapped(mapped(narrow, got))
