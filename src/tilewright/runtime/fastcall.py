"""The fast way into a session: one generated function per session and framework that checks, allocates, runs and returns.

It handles plain, contiguous CPU tensors (or NumPy arrays) of the right type; anything else is handed to `slow`, which handles or
explains it. A call costs what its checks and the allocation of its outputs cost, a few microseconds. Symbols are renamed and
names never reach the source, so the text holds only numbers and our own identifiers.
"""
from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Sequence
from functools import cache
from math import prod
from typing import Any

from ..core.dims import Dim, Expr, Symbol, symbols
from ..core.dtypes import DType
from ..core.pytree import expression
from ..core.signature import Fixed, Signature, Slot
from ..core.torch_context import allocator, modes
from ..ir.types import TensorType
from ..plan.values import dim_source
from .arguments import from_dtype
from .executable import Interface
from .outputs import is_recycled, recycler
from .owners import Watched

GENERATED = os.path.join(os.path.dirname(__file__), "generated")  # the file of such functions, for those who look for code of ours


def symbol_positions(interface: Interface, given: Collection[str] = ()) -> dict[str, tuple[int, int]] | None:
    """symbol -> (input, axis) that is exactly this symbol; None when a symbol that is not `given` appears only inside expressions."""
    found: dict[str, tuple[int, int]] = {}
    for i, type_ in enumerate(interface.inputs):
        for axis, d in enumerate(type_.shape):
            if isinstance(d, Expr) and len(d.terms) == 1 and d.terms[0][1] == 1:
                mono = d.terms[0][0]
                if len(mono) == 1 and isinstance(mono[0], Symbol) and mono[0].name not in given:
                    found.setdefault(mono[0].name, (i, axis))
    return found if all(s.name in found or s.name in given for s in interface.symbols) else None


@cache
def array_address() -> str:
    """The expression of a plain array's address. NumPy's own attribute makes a dict, which takes longer than all else in a call together;
    the pointer is the first field of its C struct, behind Python's header (checked here, should a build differ)."""
    import numpy as np

    plain, head = "{}.__array_interface__['data'][0]", object.__basicsize__
    for a in (np.empty(3), np.zeros((2, 5), np.int8)[1:], np.empty(0, np.float32)):
        if ctypes.c_int64.from_address(id(a) + head).value != a.__array_interface__["data"][0]:
            return plain
    return f"at(id({{}}) + {head}).value"


def _checks(interface: Interface, where: dict[str, tuple[int, int]]) -> list[str]:
    """Lines that send every shape but the compiled ones to `slow`, and set one variable per symbol."""
    names = {s.name: f"s{k}" for k, s in enumerate(interface.symbols)}
    lines: list[str] = []
    later: list[str] = []
    for i, type_ in enumerate(interface.inputs):
        if type_.is_static:
            # by hash: the sizes that torch.jit.trace sees are tensors, which compare equal to numbers
            lines.append(f"if x{i}.shape not in H{i}: return slow(args, kwargs, out)")
            continue
        lines.append(f"h{i} = x{i}.shape")
        lines.append(f"if len(h{i}) != {type_.ndim}: return slow(args, kwargs, out)")
        for axis, d in enumerate(type_.shape):
            if isinstance(d, int):
                lines.append(f"if h{i}[{axis}] != {d}: return slow(args, kwargs, out)")
            elif where.get(str(d)) == (i, axis):
                (symbol,) = symbols(d)
                lines.append(f"{names[symbol.name]} = h{i}[{axis}]")
                lines.append(f"if not {symbol.lo} <= {names[symbol.name]} <= {symbol.hi}: return slow(args, kwargs, out)")
            else:
                later.append(f"if h{i}[{axis}] != {dim_source(d, names)}: return slow(args, kwargs, out)")
    return lines + later


def _shape(shape: Sequence[Dim], names: dict[str, str]) -> str:
    return "(" + "".join(dim_source(d, names) + ", " for d in shape) + ")"


def _strides(type_: TensorType) -> tuple[Dim, ...]:
    """The strides of a contiguous tensor. (Those of an empty one may be 0 here, which is as good as any.)"""
    return tuple(prod(type_.shape[i + 1 :], start=1) for i in range(type_.ndim))


def result_source(signature: Signature, symbols: Sequence[Symbol], scope: dict[str, Any]) -> str:
    """The expression of a call's result in the outputs y0, y1, ... and the sizes s0, s1, ...; `scope` gets the objects that it names."""
    names = {s.name: f"s{k}" for k, s in enumerate(symbols)}

    def bind(value: Any) -> str:
        scope[name := f"K{len(scope)}"] = value
        return name

    texts = (f"y{o.index}" if isinstance(o, Slot) else bind(o.value) if isinstance(o, Fixed) else dim_source(o.dim, names)
             for o in signature.outputs)
    return expression(signature.out_spec, texts, bind)


def finisher(signature: Signature, interface: Interface) -> Callable[..., Any] | None:
    """A function of the outputs of fixed shapes that gives the result; None where the only output is the result."""
    scope: dict[str, Any] = {}
    given, result = ", ".join(f"y{k}" for k in range(len(interface.outputs))), result_source(signature, (), scope)
    if given == result:
        return None
    exec(compile(f"def finish({given}): return {result}", GENERATED, "exec"), scope)
    found: Callable[..., Any] = scope.pop("finish")
    return found


def generate(interface: Interface, framework: str, *, errors: int, result: str, prologue: Sequence[str] | None = None,
             watched: Sequence[Watched] = ()) -> str | None:
    """The text of `call(args, kwargs, out)`, or None when symbols cannot be read off the shapes. `result`: the expression of the result in
    the outputs y0, y1, ... and the sizes s0, s1, ... A function whose arguments are trees has a `prologue`, lines that set x0, x1, ... from
    args and kwargs; its donated inputs are written in place and come back as the results that take their memory."""
    where = symbol_positions(interface)
    if where is None or (interface.donated and prologue is None):
        return None
    names = {s.name: f"s{k}" for k, s in enumerate(interface.symbols)}
    n = len(interface.inputs)
    takes = {k: i for i, k in interface.donated}
    if prologue is not None:
        body = list(prologue)
    else:
        body = [f"if out is not None or kwargs or len(args) != {n}: return slow(args, kwargs, out)"]
        if n:
            body.append(f"{', '.join(f'x{i}' for i in range(n))}, = args")
    body += [f"if W{j}._version != {count} or P{j}() != {place}: stale()" for j, (_, _, count, place) in enumerate(watched)]
    if framework == "torch":
        seen = any(t.is_static and t.shape for t in interface.inputs)  # by their shapes
        other = ("" if seen else " or recording()") + ("" if allocator()[1] else " or overriding()")
        body.append(f"if dispatching(){other}: return slow(args, kwargs, out)")
    for i in range(n):
        if framework == "torch":
            body.append(f"if type(x{i}) not in classes or x{i}.dtype is not D{i} or not x{i}.is_cpu: return slow(args, kwargs, out)")
            conj = f" or x{i}.is_conj()" if interface.inputs[i].dtype.kind == "c" else ""  # signs that are not in the memory
            body.append(f"if not x{i}.is_contiguous() or x{i}.is_neg(){conj} or x{i}.requires_grad and recorded(): "
                        "return slow(args, kwargs, out)")
        else:
            body.append(f"if type(x{i}) is not ndarray or x{i}.dtype != D{i}: return slow(args, kwargs, out)")
            body.append(f"g{i} = x{i}.flags")
            instead = f"x{i} = tight(x{i})" if prologue is not None and i not in takes.values() else "return slow(args, kwargs, out)"
            body.append(f"if not g{i}.c_contiguous or not g{i}.aligned: {instead}")
            if i in takes.values():
                body.append(f"if not g{i}.writeable: return slow(args, kwargs, out)")
    body += _checks(interface, where)
    address = "{}.data_ptr()" if framework == "torch" else array_address()
    body += [f"p{i} = {address.format(f'x{i}')}" for i in range(n)]
    for k, type_ in enumerate(interface.outputs):
        if k in takes:
            body.append(f"y{k}, q{k} = x{takes[k]}, p{takes[k]}")
            continue
        if is_recycled(type_):
            body.append(f"y{k} = R{k}()")
        elif framework == "torch":
            static = type_.is_static
            body.append(f"y{k} = alloc({f'Y{k}' if static else _shape(type_.shape, names)}, "
                        f"{f'S{k}' if static else _shape(_strides(type_), names)}, E{k})")
        else:
            body.append(f"y{k} = empty({_shape(type_.shape, names)}, E{k})")
        body.append(f"q{k} = {address.format(f'y{k}')}")
    if framework == "torch":  # an empty tensor has no address, and one of functionalize has none either
        named = [*(f"p{i}" for i, t in enumerate(interface.inputs) if t.nbytes != 0),
                 *(f"q{k}" for k, t in enumerate(interface.outputs) if t.nbytes != 0)]
        body += [f"if not ({' and '.join(named)}): return slow(args, kwargs, out)"] if named else []
    body += ["try: w = take()", "except IndexError: w = grow()", "io = w.io"]
    body += [f"io[{i}] = p{i}" for i in range(n)]
    if takes and n > 1:
        body.append("apart(io)")
    body += [f"io[{n + k}] = q{k}" for k in range(len(interface.outputs))]
    key = "(" + "".join(f"{names[s.name]}, " for s in interface.symbols) + ")"
    body.append(f"status = run({f'w.job({key})' if interface.symbols else 'w.fixed'})")
    body.append("if status: settle(status, w)")
    if errors:
        body.append(f"if {' or '.join(f'w.errors.item({4 * e})' for e in range(errors))}: fail(w)")
    body.append("if len(free) < most: give(w)")
    body.append(f"return {result}")
    return "def call(args, kwargs, out):\n" + "".join(f"    {line}\n" for line in body)


def compile_call(interface: Interface, framework: str, *, errors: int, result: str, scope: dict[str, Any],
                 prologue: Sequence[str] | None = None, watched: Sequence[Watched] = ()) -> Callable[..., Any] | None:
    """The generated function with its names bound: `scope` brings slow, free, take, give, most, grow, run, settle, fail, what
    `result` and `prologue` name, apart where inputs are donated, and stale where constants are `watched`."""
    text = generate(interface, framework, errors=errors, result=result, prologue=prologue, watched=watched)
    if text is None:
        return None
    names: dict[str, Any] = dict(scope)
    for j, (_, tensor, _, _) in enumerate(watched):
        names |= {f"W{j}": tensor, f"P{j}": tensor.data_ptr}
    wanted: Callable[[DType], Any]
    if framework == "torch":
        import torch

        names |= {"classes": frozenset({torch.Tensor, torch.nn.Parameter}), "alloc": allocator()[0], **modes()}
        wanted = lambda d: from_dtype()[d]
    else:
        import numpy as np

        names |= {"ndarray": np.ndarray, "empty": np.empty, "at": ctypes.c_int64.from_address}
        names["tight"] = lambda x: np.array(x, order="C")
        wanted = lambda d: d.np
    for i, type_ in enumerate(interface.inputs):
        names[f"D{i}"], names[f"H{i}"] = wanted(type_.dtype), frozenset({type_.shape})
    for k, type_ in enumerate(interface.outputs):
        names[f"E{k}"] = wanted(type_.dtype)
        if framework == "torch" and type_.is_static:
            names[f"Y{k}"], names[f"S{k}"] = type_.shape, _strides(type_)
        if is_recycled(type_):
            shape = tuple(d for d in type_.shape if isinstance(d, int))
            names[f"R{k}"] = recycler(type_, shape, framework == "torch")
    exec(compile(text, GENERATED, "exec"), names)
    found: Callable[..., Any] = names.pop("call")  # left there, it would be a cycle that keeps the program until the next collection
    return found
