"""Tracing: a Python function runs once on tracers, and every operation on them becomes a node.

A trace belongs to one run of one function. What an inner function closes over from an outer trace is captured: it becomes a further input
of the inner graph, and whoever inlines that graph gives the outer value. So transforms of nested functions are plain graph transforms.
"""
from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dims import Expr, evaluate
from ..core.dtypes import DType
from ..core.errors import InputError, ParseError, ShapeError, SizeError, TraceError
from ..core.places import within
from ..core.pytree import Spec, flatten, unflatten
from ..core.tensors import is_masked, is_tensor, tensor_to_numpy
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from ..ops import functions as F
from ..ops.base import Op

PACKAGE = str(Path(__file__).resolve().parent.parent)


class Functions(dict[str, Callable[..., Any]]):
    """The public functions of a module by name. As a decorator it enters one: `sum_` as `sum`."""

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        self[fn.__name__.rstrip("_")] = fn
        return fn


class _Stack(threading.local):
    def __init__(self) -> None:
        self.traces: list[Trace] = []


_stack = _Stack()


def user_place() -> str:
    """`file.py:12`: the innermost line that is not Tilewright's own (some of its generated functions are called <string>)."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((PACKAGE, "<string>")):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def called_place(op: Op) -> str:
    """The user's line; of an op that may find bad data while it runs also what was called there, where that has another name."""
    place = user_place()
    if not op.faults:
        return place
    name = called_name("")
    return within(name, place) if name and name != op.name else place


def called_name(otherwise: str = "trace") -> str:
    """The function of ours that the user called."""
    frame: Any = sys._getframe(1)
    name = otherwise
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        code = frame.f_code.co_name
        if code.rstrip("_") in frame.f_globals.get("FUNCTIONS", ()):
            name = code.rstrip("_")
        elif code == "call" and hasattr(op := frame.f_locals.get("op"), "traits"):  # made from a table, one for each op
            name = op.name
        elif frame.f_code is getattr(Tracer, "__getitem__").__code__:  # noqa: B009  installed by lib/indexing.py
            name = "index"
        frame = frame.f_back
    return name


def as_array(x: Any) -> np.ndarray[Any, Any]:
    """What a user gave for an array: an array, a number, or lists of numbers."""
    if is_tensor(x):
        return tensor_to_numpy(x, called_name())
    try:
        a = np.asanyarray(x)
        if is_masked(a):
            raise InputError(f"{called_name()}: a masked array would lose its mask; pass its data and use tw.where ({user_place()})")
        a = np.asarray(a, a.dtype.newbyteorder("="))
        dt.dtype(a.dtype)
    except (ValueError, ParseError):
        shown = repr(x) if len(repr(x)) < 60 else f"a {type(x).__name__}"
        raise InputError(f"{called_name()}: an operand must be an array or a number, or lists of numbers that make one, got {shown} "
                         f"({user_place()})") from None
    return a


def dtype_given(name: Any) -> DType:
    """The dtype that a user asks for."""
    try:
        return dt.dtype(name)
    except ParseError as e:
        raise ParseError(f"{called_name()}: {e} ({user_place()})") from None


class Trace:
    """One function being traced: its graph, and what it captured of the traces around it."""

    def __init__(self, name: str) -> None:
        self.graph = Graph(name)
        self.captured: dict[Value, Value] = {}  # value of an outer trace -> input of this graph
        self.outer: list[Tracer] = []  # the captured tracers, in the order of those inputs

    def lift(self, x: Any, dtype: DType | None = None) -> Value:
        """A value of this graph: a tracer's (captured when it is from outside), or a constant."""
        if isinstance(x, Expr):
            return F.dim_value(self.graph, x, dt.i64 if dtype is None else dtype)
        if not isinstance(x, Tracer):
            try:
                # a copy: a program must not see the half of a later change, where some of its constants are packed and some are not
                return self.graph.constant(np.array(x if python_type(x) else as_array(x), None if dtype is None else dtype.np))
            except OverflowError:
                raise ShapeError(f"trace: {x} does not fit {dtype}; cast the array to a wider dtype ({user_place()})") from None
        if x.trace is self:
            return x.value
        if x.value not in self.captured:
            if x.trace not in _stack.traces:
                raise TraceError(f"trace: a value traced at {x.place} was kept and used after its function had returned; return it instead "
                                 f"({user_place()})")
            self.captured[x.value] = self.graph.input(x.value.type, "captured")
            self.outer.append(x)
        return self.captured[x.value]

    def wrap(self, value: Value, *, weak: bool = False) -> Tracer:
        return Tracer(self, value, weak)


class Tracer:
    """An array whose elements are not known yet. Behaves like a NumPy array; what needs its elements raises TraceError."""

    __slots__ = ("trace", "value", "weak")
    __hash__ = object.__hash__

    def __init__(self, trace: Trace, value: Value, weak: bool = False) -> None:
        self.trace, self.value, self.weak = trace, value, weak

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.value.shape

    @property
    def dtype(self) -> Any:
        """The NumPy dtype."""
        return self.value.dtype.np

    @property
    def ndim(self) -> int:
        return len(self.value.shape)

    @property
    def size(self) -> Any:
        return self.value.type.numel

    @property
    def type(self) -> TensorType:
        return self.value.type

    @property
    def place(self) -> str:
        return self.value.node.place or "an input"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a traced scalar")
        return int(self.shape[0])

    def __repr__(self) -> str:
        return f"<traced {self.value.type} from {self.place}>"

    def _elements(self, what: str, instead: str) -> TraceError:
        return TraceError(f"trace: {what} needs the elements of a traced {self.value.type}, which are not known yet; {instead} "
                          f"({user_place()})")

    def __bool__(self) -> bool:
        raise self._elements("a Python condition (if, while, and, or, not, assert)", "use tw.cond, tw.where or tw.while_loop")

    def __int__(self) -> int:
        raise self._elements("int()", "use .astype, or give the number as a static argument: tw.jit(f, static=...)")

    def __index__(self) -> int:
        raise self._elements("an index or a size", "use tw.take for traced indices; sizes must be Python ints or static arguments")

    def __float__(self) -> float:
        raise self._elements("float()", "use .astype, or call float on the result outside")

    def __complex__(self) -> complex:
        raise self._elements("complex()", "use .astype")

    def item(self) -> Any:
        raise self._elements("item()", "return the value and call item on the result outside")

    def tolist(self) -> Any:
        raise self._elements("tolist()", "return the value and call tolist on the result outside")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TraceError(f"trace: a traced {self.value.type} does not change in place; use tw.where, tw.scatter or tw.concat "
                         f"({user_place()})")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._elements("a NumPy function", "use Tilewright's function of that name (tw.sum for np.sum)")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """`np.exp(tracer)` and `array + tracer` are Tilewright's functions of that name."""
        return self._numpy(ufunc.__name__ if method == "__call__" and not kwargs else f"{ufunc.__name__}.{method}", inputs, {})

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        module = getattr(function, "__module__", "").rpartition("numpy.")[2]
        return self._numpy(f"{module}.{function.__name__}" if module in ("linalg", "fft") else function.__name__, args, kwargs)

    def _numpy(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        found = self._named(name)
        if found is None:
            raise self._elements(f"np.{name}", "Tilewright has no function of that name")
        return found(*args, **kwargs)

    def _named(self, name: str) -> Callable[..., Any] | None:
        """A function of Tilewright by NumPy's name."""
        from .lib import ALIASES, FUNCTIONS

        return FUNCTIONS.get(ALIASES.get(name, name))


def install(**methods: Any) -> None:
    """Give tracers methods that are defined above this module, where the functions are."""
    for name, method in methods.items():
        setattr(Tracer, name, method)


def tracing() -> bool:
    return bool(_stack.traces)


def current() -> Trace:
    """The innermost trace."""
    if not _stack.traces:
        raise TraceError(f"trace: there is no traced function here; a traced value that was kept after its function had returned has no "
                         f"elements, return it instead ({user_place()})")
    return _stack.traces[-1]


@contextmanager
def entered(trace: Trace) -> Iterator[Trace]:
    _stack.traces.append(trace)
    try:
        yield trace
    finally:
        _stack.traces.pop()


def apply(op: Op, *operands: Any) -> Any:
    """Append an op to the innermost trace: a tracer, or a tuple of them. Operands are tracers or arrays of the right dtype."""
    trace = current()
    node = trace.graph.add(op, *(trace.lift(x) for x in operands), place=called_place(op))
    made = tuple(trace.wrap(v) for v in node.values)
    return made[0] if len(made) == 1 else made


def built(fn: Callable[..., Any], *operands: Any, **attributes: Any) -> Any:
    """Call a function of graph values on tracers; the nodes it adds have the user's line as their place."""
    trace = current()
    values = [trace.lift(x) for x in operands]
    before, trace.graph.place = trace.graph.place, user_place()
    count = len(trace.graph.nodes)
    try:
        out = fn(*values, **attributes)
    except ShapeError as e:  # one that no node's type rule raised has no place yet
        named = re.match(r"\w+: ", str(e)) or not fn.__name__.isidentifier()  # a rule of a function that is no op knows no name
        text = str(e) if named else f"{fn.__name__}: {e}"
        raise ShapeError(text if text.endswith(f"({trace.graph.place})") else f"{text} ({trace.graph.place})") from None
    finally:
        trace.graph.place = before
    for node in trace.graph.nodes[count:]:
        if node.op.faults:
            node.place = called_place(node.op)
    return trace.wrap(out) if isinstance(out, Value) else tuple(trace.wrap(v) for v in out)


def is_array(x: Any) -> bool:
    """Whether a leaf is data (and not a static Python object)."""
    return isinstance(x, (Tracer, np.ndarray, np.generic, bool, int, float, complex, Expr)) or hasattr(x, "__array__")


_PYTHON = {bool: dt.bool_, int: dt.i64, Expr: dt.i64, float: dt.f32, complex: dt.c64}


def python_type(x: Any) -> DType | None:
    """The dtype that a Python number (or a dynamic size) has of itself: a weak one, which gives way to that of an array."""
    return _PYTHON.get(type(x))


@dataclass(frozen=True)
class Leaf:
    """The type of one array argument; weak: it came as a Python number."""

    type: TensorType
    weak: bool = False


def leaf_of(x: Any) -> Leaf:
    if isinstance(x, Tracer):
        return Leaf(x.value.type, x.weak)
    own = python_type(x)
    if own is not None:
        return Leaf(TensorType(own, ()), True)
    a = as_array(x)
    return Leaf(TensorType(dt.dtype(a.dtype.newbyteorder("=")), tuple(int(n) for n in a.shape)))


@dataclass(eq=False)
class Traced:
    """A function as a graph. Inputs: the array leaves of the arguments, then the captured values. Outputs: the array leaves of the result;
    `statics` holds its other leaves by position."""

    graph: Graph
    captured: list[Tracer]
    out_spec: Spec
    n_leaves: int
    statics: dict[int, Any]
    weak: list[bool]

    def result(self, outputs: Sequence[Any], sizes: Mapping[str, int] | None = None) -> Any:
        """The function's result from the values of the graph's outputs; `sizes` gives the values of dynamic sizes."""
        leaves = self.leaves(outputs)
        return unflatten(self.out_spec, [evaluate(x, sizes) if sizes and isinstance(x, Expr) else x for x in leaves])

    def leaves(self, outputs: Sequence[Any]) -> list[Any]:
        arrays = iter(outputs)
        return [self.statics[i] if i in self.statics else next(arrays) for i in range(self.n_leaves)]


def _placed(problem: SizeError) -> SizeError:
    """The error with the user's line, which is where a size was used."""
    others = (PACKAGE, str(Path(np.__file__).parent))
    lines = [(f.f_code.co_filename, n) for f, n in walk_tb(problem.__traceback__) if not f.f_code.co_filename.startswith(others)]
    known = not lines or str(problem).endswith(")")
    return problem if known else SizeError(f"{problem} ({Path(lines[-1][0]).name}:{lines[-1][1]})")


def trace(fn: Callable[..., Any], spec: Spec, leaves: Sequence[Any], name: str | None = None) -> Traced:
    """Run `fn(*args, **kwargs)` with (args, kwargs) = unflatten(spec, leaves), in which every `Leaf` is replaced by a tracer."""
    made = Trace(str(name or getattr(fn, "__name__", "function")))
    with entered(made):
        inputs = [made.wrap(made.graph.input(x.type, f"x{i}"), weak=x.weak) if isinstance(x, Leaf) else x for i, x in enumerate(leaves)]
        args, kwargs = unflatten(spec, inputs)
        try:
            out = fn(*args, **kwargs)
        except SizeError as e:
            raise _placed(e) from None
        found, out_spec = flatten(out)
        statics: dict[int, Any] = {}
        weak: list[bool] = []
        for i, x in enumerate(found):
            if not isinstance(x, Tracer) and (not is_array(x) or python_type(x) is not None):
                statics[i] = x
                continue
            made.graph.outputs.append(made.lift(x))
            weak.append(isinstance(x, Tracer) and x.weak)
    return Traced(made.graph, made.outer, out_spec, len(found), statics, weak)
