"""A call's inputs: checked against what was compiled, and brought to an address without a copy where possible.

This is the slow, complete way: it says what is wrong, copies what is not contiguous, and binds the symbols. The fast way
(`fastcall.py`) accepts only what needs neither and leaves everything else to this module.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dims import UNBOUNDED, Dim, Expr, Symbol, evaluate, symbols
from ..core.dtypes import DType
from ..core.errors import InputError
from ..core.records import dataclass, field
from ..core.tensors import FOREIGN, Array, from_dtype, is_masked, is_tensor, numpy_to_tensor, tensor_to_numpy, torch_dtypes
from ..core.torch_context import why_not
from ..ir.types import TensorType

__all__ = ["FOREIGN", "Bound", "bind", "describe", "from_dtype", "is_tensor", "limits", "numpy_to_tensor", "solve", "tensor_to_numpy",
           "torch_dtypes"]


def limits(s: Symbol) -> str:
    """`1 <= S <= 1024`."""
    return f"{s.lo} <= {s.name} <= {s.hi}" if s.hi < UNBOUNDED else f"{s.name} >= {s.lo}"


def describe(type_: TensorType) -> str:
    """`i64[1,S] with 1 <= S <= 1024`."""
    found = sorted({s for d in type_.shape for s in symbols(d)}, key=lambda s: s.name)
    ranges = [limits(s) for s in found]
    return str(type_) + (" with " + ", ".join(ranges) if ranges else "")


@dataclass
class Bound:
    """Checked inputs: addresses, what keeps them alive, symbol values, and what had to be copied."""

    addresses: list[int] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    env: dict[str, int] = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)


def bind(names: Sequence[str], types: Sequence[TensorType], values: Sequence[Any], env: Mapping[str, int] | None = None,
         needed: Sequence[Symbol] = (), admit: Callable[[str, TensorType, Any, Bound], Sequence[int]] | None = None) -> Bound:
    """Check every input and bind every symbol, or raise the InputError that says what is wrong. `env` gives those that no shape shows;
    all of `needed` must have a value in the end. `admit` enters one input and gives its shape: by default arrays of the host."""
    bound = Bound(env=dict(env or {}))
    origin: dict[str, str] = dict.fromkeys(bound.env, "the call")
    shapes: list[Sequence[int]] = []
    for name, type_, value in zip(names, types, values, strict=True):
        shapes.append((admit or _admit)(name, type_, value, bound))
        _bind_symbols(name, type_, shapes[-1], bound.env, origin)
    for s in needed:
        if s.name not in bound.env:
            raise InputError(f"session: no input shows the value of {s.name}; give it with run_with({{{s.name!r}: ...}}, ...)")
    for name, type_, shape in zip(names, types, shapes, strict=True):
        for want, got in zip(type_.shape, shape, strict=True):
            if not all(s.name in bound.env for s in symbols(want)):
                raise InputError(f"session: input {name!r} is {describe(type_)}, whose dims do not determine every symbol")
            if evaluate(want, bound.env) != got:
                raise InputError(_mismatch(name, type_, f"{type_.dtype}[{','.join(map(str, shape))}]", bound.env, origin))
    for s in needed:
        if not s.lo <= bound.env[s.name] <= s.hi:
            raise InputError(f"session: {s.name} must be in {s.lo}..{s.hi}, got {bound.env[s.name]}")
    return bound


def _admit(name: str, type_: TensorType, value: Any, bound: Bound) -> Sequence[int]:
    """An input on the host."""
    if is_tensor(value):
        return _admit_tensor(name, type_, value, bound)
    if isinstance(value, (np.ndarray, np.generic)):
        refuse_masked(name, type_, value)
        return _admit_array(name, type_, np.asarray(value), bound)
    if hasattr(type(value), "__array_namespace__") and hasattr(value, "__array__"):  # an Array
        return _admit_array(name, type_, np.asarray(value), bound)
    if type_.shape == () and type(value) in (bool, int, float, complex) and "biufc".index(type_.dtype.kind) >= _KINDS[type(value)]:
        return _admit_array(name, type_, _number(name, type_, value), bound)
    what = "None" if value is None else f"a {type(value).__name__}"
    raise InputError(f"session: input {name!r} must be {describe(type_)}, got {what}; pass a torch tensor or a NumPy array")


_KINDS = {bool: 0, int: 1, float: 3, complex: 4}  # the first kind of dtype that holds such numbers


def _number(name: str, type_: TensorType, value: Any) -> Array:
    try:
        return np.array(value, type_.dtype.np)
    except OverflowError:
        raise InputError(f"session: input {name!r} must be {describe(type_)}, got {value}") from None


def _mismatch(name: str, type_: TensorType, got: str, env: Mapping[str, int], origin: Mapping[str, str]) -> str:
    """The message for a shape that fits no value, or not the value that another input has set."""
    used = sorted({s.name for d in type_.shape for s in symbols(d)})
    others = [f"{s} = {env[s]} (from {origin[s]!r})" for s in used if origin.get(s, name) != name]
    return f"session: input {name!r} must be " + (f"{type_} with {', '.join(others)}" if others else describe(type_)) + f", got {got}"


def _bind_symbols(name: str, type_: TensorType, shape: Sequence[int], env: dict[str, int], origin: dict[str, str]) -> None:
    """Learn symbols from dims of the form a*S + b; other dims are only checked."""
    for want, got in zip(type_.shape, shape, strict=True):
        solved = solve(want, got)
        if solved is None or solved[0].name in env:
            continue
        symbol, value = solved
        if value is None or not symbol.lo <= value <= symbol.hi:
            raise InputError(f"session: input {name!r} must be {describe(type_)}, got {type_.dtype}[{','.join(map(str, shape))}]")
        env[symbol.name], origin[symbol.name] = value, name


def solve(dim: Dim, value: int) -> tuple[Symbol, int | None] | None:
    """The symbol of a dim a*S + b and the S that gives `value` (None where there is none); None for other dims."""
    if not isinstance(dim, Expr):
        return None
    slope, constant, found = 0, 0, None
    for mono, c in dim.terms:
        if mono == ():
            constant = c
        elif len(mono) == 1 and isinstance(mono[0], Symbol) and found is None:
            found, slope = mono[0], c
        else:
            return None
    if found is None:
        return None
    return found, (value - constant) // slope if (value - constant) % slope == 0 else None


def widens(given: DType | None, wanted: DType) -> bool:
    """Integers whose every value another integer dtype holds: i32 ids for a model of i64 ids are converted."""
    return given is not None and given.is_int and wanted.is_int and np.can_cast(given.np, wanted.np, "safe")


def _check_type(name: str, type_: TensorType, dtype: DType | None, shown: str, shape: tuple[int, ...], *, widening: bool = False) -> None:
    fits = (dtype is type_.dtype or (widening and widens(dtype, type_.dtype))) and len(shape) == len(type_.shape)
    if not fits or any(isinstance(w, int) and w != g for w, g in zip(type_.shape, shape, strict=True)):
        cast = "; cast it first" if dtype is not None and dtype is not type_.dtype and not (widening and widens(dtype, type_.dtype)) else ""
        raise InputError(f"session: input {name!r} must be {describe(type_)}, got {shown}[{','.join(map(str, shape))}]{cast}")


def _admit_tensor(name: str, type_: TensorType, tensor: Any, bound: Bound) -> tuple[int, ...]:
    import torch

    if tensor.is_nested or tensor.is_quantized:
        kind, way = ("nested", "to_padded_tensor(0)") if tensor.is_nested else ("quantized", "dequantize()")
        raise InputError(f"session: input {name!r} must be {describe(type_)}, got a {kind} tensor; pass {name}.{way}")
    if reason := why_not(tensor):
        raise InputError(f"session: input {name!r} {reason}")
    shape = tuple(int(n) for n in tensor.shape)
    dtype = torch_dtypes().get(tensor.dtype)
    shown = str(dtype) if dtype is not None else str(tensor.dtype)
    if tensor.device.type != "cpu":
        raise InputError(f"session: input {name!r} must be on the CPU, got {shown}[{','.join(map(str, shape))}] on {tensor.device}; "
                         f"pass {name}.cpu()")
    if tensor.layout != torch.strided:
        raise InputError(f"session: input {name!r} must be a dense tensor, got layout {tensor.layout}; pass {name}.to_dense()")
    _check_type(name, type_, dtype, shown, shape, widening=True)
    plain = tensor
    if dtype is not type_.dtype:
        plain = plain.detach().to(from_dtype()[type_.dtype])
        bound.copied.append(name)
    if not plain.is_contiguous() or plain.is_neg() or plain.is_conj() or plain.data_ptr() % plain.element_size():
        plain = plain.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        check_plain(plain, from_dtype()[type_.dtype], shape, f"session: the copy of input {name!r}")
        bound.copied.append(name)
    bound.addresses.append(plain.data_ptr())
    bound.kept.append(plain)
    return shape


def check_plain(tensor: Any, dtype: Any, shape: Sequence[int], what: str, device: str = "cpu") -> None:
    """What torch gives for a new tensor is one, and plain memory: inside its modes it may be anything."""
    reason = why_not(tensor)
    if not reason and (tensor.dtype is not dtype or tuple(tensor.shape) != tuple(shape) or tensor.device.type != device):
        got = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"
        reason = f"is {got}, a mode has changed it; call it outside"
    if reason:
        want = torch_dtypes().get(dtype, dtype)
        raise InputError(f"{what} must be {want}[{','.join(map(str, shape))}] in memory, and torch's tensor {reason}")


def refuse_masked(name: str, type_: TensorType, array: Any) -> None:
    if is_masked(array):
        raise InputError(f"session: input {name!r} must be {describe(type_)}, got a masked array, whose mask would be lost; "
                         f"pass {name}.filled(...)")


def _admit_array(name: str, type_: TensorType, array: Array, bound: Bound) -> tuple[int, ...]:
    dtype = dt.of_numpy(array.dtype.newbyteorder("="))
    _check_type(name, type_, dtype, str(dtype if dtype is not None else array.dtype), array.shape, widening=True)
    if not (array.flags.c_contiguous and array.flags.aligned and array.dtype == type_.dtype.np):
        array = np.array(array, dtype=type_.dtype.np, order="C")
        bound.copied.append(name)
    bound.addresses.append(array.ctypes.data)
    bound.kept.append(array)
    return tuple(array.shape)


def as_given(leaves: Sequence[Any], results: list[Any]) -> list[Any]:
    """Results as Arrays in the same memory where an input is one."""
    kind = next((x for x in leaves if hasattr(type(x), "__array_namespace__") and not isinstance(x, np.ndarray)), None)
    return results if kind is None else list(map(kind.__array_namespace__().asarray, results))
