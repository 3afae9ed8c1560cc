"""Expressions of kernels: Python's own where constants are involved, instructions where tiles and index values are."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import operator
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.dtypes import DType, bool_, compute_dtype, f32, f64, i32, i64
from ..core.dtypes import dtype as dtype_of
from ..core.errors import CompileError
from ..tile.builder import Ix, Tile
from .context import Place, Recorder
from .functions import INTRINSICS, Range, reshape, tile_attribute, where
from .values import Partition, TileRef, View, as_tuple, shown

# Arithmetic of the kernel language: which dtype an operation has, and the instructions it becomes.
# Small floats are widened to f32 by arithmetic. Of two dtypes the wider wins, a float wins over integers, and Python numbers take the dtype
# of the tile they meet. Index values stay index values among themselves.
CPU_ELEMENTS = 1 << 14  # elements of a tile that is held in registers and written out instruction by instruction
_INDEX = {"add", "sub", "mul", "floordiv", "rem", "max", "min", "shl", "shr", "and"}
_BITS = {"and", "or", "xor", "shl", "shr"}


class Arithmetic:
    """What tile functions ask of the kernel that is being built."""

    b: Recorder
    kind: str
    debug: bool

    def dtype(self, given: Any) -> DType:
        """A dtype from its name, from NumPy or from PyTorch."""
        if type(given).__module__.split(".")[0] == "torch":
            from ..core.tensors import torch_dtypes

            return torch_dtypes()[given]
        return dtype_of(given)

    def tile(self, x: Any) -> Tile:
        """A value as a tile; numbers become tiles of rank 0."""
        if isinstance(x, Tile):
            return x
        if isinstance(x, Ix):
            return self.b.from_index(x)
        if isinstance(x, (bool, np.bool_)):
            return self.b.full((), bool(x), bool_)
        if isinstance(x, (int, np.integer)):
            return self.b.full((), int(x), i64)
        if isinstance(x, (float, np.floating)):
            return self.b.full((), float(x), f32)
        raise CompileError(f"needs a tile or a number, got {shown(x)}")

    def computed(self, x: Tile) -> Tile:
        """The tile in the dtype that arithmetic on it has."""
        return self.b.cast(x, compute_dtype(x.dtype))

    def promote(self, what: str, a: Any, b: Any) -> tuple[Tile, Tile]:
        """Both as tiles of one dtype."""
        d = common(what, a, b)
        return self._as(a, d), self._as(b, d)

    def _as(self, x: Any, d: DType) -> Tile:
        if isinstance(x, (bool, int, float, np.generic)):
            number = x.item() if isinstance(x, np.generic) else x
            if d.is_int and isinstance(number, int) and not isinstance(number, bool):
                bits = 8 * d.itemsize
                low, high = (0, (1 << bits) - 1) if d.kind == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
                if not low <= number <= high:
                    raise CompileError(f"{number} does not fit {d}; cast the tile to a wider dtype")
            return self.b.full((), number, d)
        if isinstance(x, Ix):
            return self.b.from_index(x, d)
        return self.b.cast(x, d)

    def unary(self, fn: str, x: Any, ints: bool = False) -> Any:
        if fn == "abs" and isinstance(x, (int, float)):
            return abs(x)
        t = self.computed(self.tile(x))
        if not t.dtype.is_float and not (ints and t.dtype.is_int):
            t = self.b.cast(t, f32)
        return self.b.unary(fn, t)

    def binary(self, fn: str, a: Any, b: Any) -> Any:
        if isinstance(a, (Ix, int)) and isinstance(b, (Ix, int)) and not isinstance(a, bool) and not isinstance(b, bool):
            if fn not in _INDEX:
                raise CompileError(f"index values have no {fn}; use // for division, or tl.cast(i, 'f32') for arithmetic with floats")
            if isinstance(b, int) and b == 0 and fn in ("floordiv", "rem"):
                raise CompileError(f"{fn}: an index is divided by 0")
            if isinstance(a, int) and isinstance(b, int):
                return {"max": max, "min": min}[fn](a, b)
            if isinstance(b, Ix) and fn in ("floordiv", "rem") and not self.debug:
                b = self.b.maximum(b, 1)  # a division by 0 would end the process; the debugger names its line
            return self.b.index_op("mod" if fn == "rem" else fn, a, b)
        if fn == "pow" and isinstance(b, (int, float)) and b == 2:
            x = self.computed(self.tile(a))
            return self.b.binary("mul", x, x)
        x, y = self.promote(fn, a, b)
        if fn in _BITS and x.dtype.is_float:
            raise CompileError(f"{fn}: needs bools or integers, got {shown(a)} and {shown(b)}")
        if fn == "div" and not x.dtype.is_float:
            x, y = self.b.cast(x, f32), self.b.cast(y, f32)
        if x.dtype.is_bool and fn not in _BITS and fn not in ("max", "min"):
            x, y = self.b.cast(x, i32), self.b.cast(y, i32)
        return self.b.binary(fn, x, y)

    def compare(self, fn: str, a: Any, b: Any) -> Tile:
        if isinstance(a, (Ix, int)) and isinstance(b, (Ix, int)):
            return self.b.compare(fn, a, b)
        x, y = self.promote(fn, a, b)
        return self.b.cmp(fn, x, y)

    def reduce(self, fn: str, x: Any, axis: int) -> Tile:
        if not isinstance(x, Tile) or not x.shape:
            raise CompileError(f"{fn}: needs a tile with axes, got {shown(x)}; maximum and minimum work on pairs")
        if not isinstance(axis, int) or not -len(x.shape) <= axis < len(x.shape):
            raise CompileError(f"{fn}: axis must be in {-len(x.shape)}..{len(x.shape) - 1}, got {shown(axis)}")
        t = self.computed(x)
        if (fn in ("any", "all")) != t.dtype.is_bool:
            if fn in ("any", "all"):
                raise CompileError(f"{fn}: needs bools, got {shown(x)}")
            t = self.b.cast(t, i32)
        return self.b.reduce(fn, t, axis)

    def cast_for_store(self, name: str, x: Any, dtype: DType) -> Tile:
        """A tile as a view's elements: narrowed, never from floats to integers unasked."""
        if isinstance(x, (bool, int, float)):
            if isinstance(x, float) and not dtype.is_float:
                raise CompileError(f"{name}.store: {name} holds {dtype}, got {x!r}")
            return self._as(x, dtype)
        if isinstance(x, Ix):
            return self.b.from_index(x, dtype)
        if not isinstance(x, Tile):
            raise CompileError(f"{name}.store: needs a tile, got {shown(x)}")
        if x.dtype.is_float and not dtype.is_float:
            raise CompileError(f"{name}.store: {name} holds {dtype}, got {shown(x)}; cast it with .to({dtype.name!r})")
        return self.b.cast(x, dtype)

    def check_sides(self, what: str, sides: tuple[int, ...]) -> None:
        """The limits of the target on a tile."""
        n = 1
        for d in sides:
            n *= d
            if self.kind == "cuda" and d & (d - 1):
                low = 1 << (d.bit_length() - 1)
                raise CompileError(f"{what}: on a GPU the sides of a tile are powers of two, got {sides}; {low} or {2 * low} fits")
        if self.kind == "cpu" and n > CPU_ELEMENTS:
            raise CompileError(f"{what}: a tile is held in registers, and on a CPU has at most {CPU_ELEMENTS} elements, got {sides}; "
                               "loop over smaller tiles")


def common(what: str, a: Any, b: Any) -> DType:
    """The dtype of an operation on two values."""
    tiles = [compute_dtype(x.dtype) for x in (a, b) if isinstance(x, Tile)]
    if not tiles:
        floats = any(isinstance(x, (float, np.floating)) for x in (a, b))
        return f32 if floats else i64
    if len(tiles) == 1:
        d = tiles[0]
        other = b if isinstance(a, Tile) else a
        if not isinstance(other, (Ix, bool, int, float, np.generic)):
            raise CompileError(f"{what}: needs a tile or a number, got {shown(other)}")
        if isinstance(other, (float, np.floating)) and not d.is_float:
            return f32
        if d.is_bool and not isinstance(other, (bool, np.bool_)):
            return i64
        return d
    x, y = tiles
    if x is y:
        return x
    if x.is_float or y.is_float:
        return f64 if f64 in (x, y) else x if x.is_float else y
    if x.is_bool or y.is_bool:
        return y if x.is_bool else x
    wide = np.promote_types(x.np, y.np)
    if wide.kind == "f":
        raise CompileError(f"{what}: {x} and {y} have no common integer dtype; cast one")
    return dtype_of(wide)


_BINARY: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul), ast.Div: ("div", operator.truediv),
    ast.FloorDiv: ("floordiv", operator.floordiv), ast.Mod: ("rem", operator.mod), ast.Pow: ("pow", operator.pow),
    ast.BitAnd: ("and", operator.and_), ast.BitOr: ("or", operator.or_), ast.BitXor: ("xor", operator.xor),
    ast.LShift: ("shl", operator.lshift), ast.RShift: ("shr", operator.rshift),
}  # fmt: skip
_COMPARE: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne), ast.Lt: ("lt", operator.lt), ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt), ast.GtE: ("ge", operator.ge),
}  # fmt: skip
_PLAIN = {len, int, float, bool, str, tuple, list, dict, enumerate, zip, isinstance, sorted, reversed, round, divmod}


@dataclass(frozen=True)
class Undefined:
    """What a name holds after a loop or a branch that alone assigned it."""

    why: str


@dataclass
class Frame:
    """A function that is being read."""

    fn: types.FunctionType
    file: str
    env: dict[str, Any]
    nested: int = 0  # run-time loops and branches around the statement


def is_value(x: Any) -> bool:
    return isinstance(x, (Tile, Ix))


class Expressions(Arithmetic):
    """Evaluates the expressions of the function that is being read."""

    frames: list[Frame]

    def call_function(self, fn: types.FunctionType, env: dict[str, Any]) -> Any:
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Any) -> None:
        raise NotImplementedError

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def env(self) -> dict[str, Any]:
        return self.frame.env

    def here(self, node: ast.AST) -> None:
        line = getattr(node, "lineno", 0)
        self.b.place = Place(self.frame.file, line, linecache.getline(self.frame.file, line).strip())

    def truth(self, x: Any) -> Tile:
        """A condition as one bool."""
        if isinstance(x, Ix):
            return self.b.compare("ne", x, 0)
        t = self.tile(x)
        if t.type.numel != 1:
            raise CompileError(f"if: a condition is one bool, got {shown(x)}; use tl.where for tiles, or reduce it with .any() or .all()")
        t = t if t.dtype is bool_ else self.b.cmp("ne", t, 0)
        return t if not t.shape else self.b.reshape(t, ())

    def expr(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.name_value(name)
            case ast.Tuple(elts=elts):
                return tuple(self.elements(elts))
            case ast.List(elts=elts):
                return self.elements(elts)
            case ast.BinOp(left=left, op=op, right=right):
                return self.binop(op, self.expr(left), self.expr(right), node)
            case ast.UnaryOp(op=op, operand=operand):
                return self.unop(op, self.expr(operand), node)
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self.comparison(self.expr(left), ops, others, node)
            case ast.BoolOp(op=op, values=values):
                return self.boolop(op, values, node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.choice(self.expr(test), body, orelse, node)
            case ast.Attribute(value=value, attr=attr):
                owner = self.expr(value)
                self.here(node)
                return tile_attribute(owner, attr) if isinstance(owner, Tile) else getattr(owner, attr)
            case ast.Subscript(value=value, slice=key):
                return self.subscript(self.expr(value), self.expr(key), node)
            case ast.Slice(lower=None, upper=None, step=None):
                return slice(None)
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if x is None else self.expr(x) for x in (lower, upper, step)))
            case ast.Call():
                return self.call(node)
            case ast.JoinedStr(values=values):
                return "".join(str(self.expr(v)) for v in values)
            case ast.FormattedValue(value=value):
                return shown(self.expr(value))
            case ast.ListComp() | ast.GeneratorExp():
                return self.comprehension(node)
        raise CompileError(f"{ast.unparse(node)}: kernels do not have this kind of expression ({type(node).__name__})")

    def elements(self, elts: Sequence[ast.expr]) -> list[Any]:
        out: list[Any] = []
        for x in elts:
            if isinstance(x, ast.Starred):
                out.extend(self.expr(x.value))
            else:
                out.append(self.expr(x))
        return out

    def comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> list[Any]:
        if len(node.generators) != 1 or node.generators[0].ifs:
            raise CompileError("for: comprehensions in kernels have one for and no if")
        before, out = dict(self.env), []
        for item in self.expr(node.generators[0].iter):
            self.assign(node.generators[0].target, item)
            out.append(self.expr(node.elt))
        self.frame.env = before
        return out

    def name_value(self, name: str) -> Any:
        if name in self.env:
            found = self.env[name]
            if isinstance(found, Undefined):
                raise CompileError(found.why)
            return found
        fn = self.frame.fn
        if name in fn.__code__.co_freevars and fn.__closure__ is not None:
            return fn.__closure__[fn.__code__.co_freevars.index(name)].cell_contents
        if name in fn.__globals__:
            return fn.__globals__[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise CompileError(f"{name} has no value here")

    def binop(self, op: ast.operator, a: Any, b: Any, node: ast.AST) -> Any:
        self.here(node)
        if type(op) is ast.MatMult:
            raise CompileError("@: products of tiles are tl.mma(a, b, acc)")
        fn, plain = _BINARY[type(op)]
        return self.binary(fn, a, b) if is_value(a) or is_value(b) else plain(a, b)

    def unop(self, op: ast.unaryop, x: Any, node: ast.AST) -> Any:
        self.here(node)
        if not is_value(x):
            plain: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_,
                                                       ast.Invert: operator.invert}
            return plain[type(op)](x)
        if isinstance(op, ast.USub):
            return 0 - x if isinstance(x, Ix) else self.b.unary("neg", self.computed(x))
        if isinstance(op, ast.UAdd):
            return x
        if isinstance(op, ast.Not):
            return self.b.unary("not", self.truth(x))
        if isinstance(x, Ix) or x.dtype.is_float:
            raise CompileError(f"~: needs bools or integers, got {shown(x)}")
        return self.b.unary("not", x)

    def comparison(self, left: Any, ops: Sequence[ast.cmpop], others: Sequence[ast.expr], node: ast.AST) -> Any:
        found: Any = None
        for op, other in zip(ops, others, strict=True):
            right = self.expr(other)
            self.here(node)
            if isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
                plain: dict[type, Callable[[Any, Any], Any]] = {ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b,
                                                                ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b}
                one: Any = plain[type(op)](left, right)
            else:
                fn, python = _COMPARE[type(op)]
                one = self.compare(fn, left, right) if is_value(left) or is_value(right) else python(left, right)
            found = one if found is None else self.both("and", found, one)
            left = right
        return found

    def both(self, fn: str, a: Any, b: Any) -> Any:
        if not is_value(a) or not is_value(b):
            known, other = (a, b) if not is_value(a) else (b, a)
            return (other if known else known) if fn == "and" else (known if known else other)
        return self.b.binary(fn, self._bools(a), self._bools(b))

    def _bools(self, x: Any) -> Tile:
        return x if isinstance(x, Tile) and x.dtype is bool_ else self.truth(x)

    def boolop(self, op: ast.boolop, values: Sequence[ast.expr], node: ast.AST) -> Any:
        fn = "and" if isinstance(op, ast.And) else "or"
        found = self.expr(values[0])
        for v in values[1:]:
            if not is_value(found) and bool(found) == (fn == "or"):
                return found
            right = self.expr(v)
            self.here(node)
            found = self.both(fn, found, right)
        return found

    def choice(self, test: Any, body: ast.expr, orelse: ast.expr, node: ast.AST) -> Any:
        if not is_value(test):
            return self.expr(body if test else orelse)
        cond, a, b = self.truth(test), self.expr(body), self.expr(orelse)
        self.here(node)
        if all(isinstance(x, (Ix, int)) and not isinstance(x, bool) for x in (a, b)):
            return self.b.to_index(self.b.select(cond, self.tile(a), self.tile(b)))
        return where(cond, a, b)

    def subscript(self, owner: Any, key: Any, node: ast.AST) -> Any:
        self.here(node)
        if isinstance(owner, Partition):
            return owner.get_tile(*as_tuple(key)).load()
        if isinstance(owner, Tile):
            keys = as_tuple(key)
            if all(k is None or k == slice(None) for k in keys) and sum(k is not None for k in keys) == len(owner.shape):
                sides = iter(owner.shape)
                return reshape(owner, tuple(1 if k is None else next(sides) for k in keys))
            raise CompileError(f"elements of a tile are not picked by position, got {shown(owner)}; load them from memory, or use tl.where")
        if isinstance(key, Ix) and not isinstance(owner, View):
            raise CompileError(f"{shown(owner)}: a run-time index works on views and partitions only")
        return owner[key]

    # --- calls ------------------------------------------------------------------------------------------------------------------------
    def call(self, node: ast.Call) -> Any:
        fn = self.expr(node.func)
        args = self.elements(node.args)
        kwargs: dict[str, Any] = {}
        for k in node.keywords:
            if k.arg is None:
                kwargs.update(self.expr(k.value))
            else:
                kwargs[k.arg] = self.expr(k.value)
        self.here(node)
        return self.apply(fn, args, kwargs)

    def apply(self, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if fn is print:
            return self.show(args)
        if fn is builtins.range:
            return Range(tuple(args), None) if any(map(is_value, args)) else range(*args)
        values = any(map(is_value, args)) or any(map(is_value, kwargs.values()))
        if fn in (max, min) and values and len(args) > 1:
            return functools.reduce(lambda a, b: self.binary("max" if fn is max else "min", a, b), args)
        if fn is abs and values:
            return self.unary("abs", args[0], True)
        owner = getattr(fn, "__self__", None)
        ours = _hashed(fn, INTRINSICS) or isinstance(owner, (View, Partition, TileRef)) or not values or _hashed(fn, _PLAIN)
        inner = getattr(fn, "__module__", "") or ""
        if ours or inner.startswith("tilewright.lang"):
            if isinstance(fn, types.FunctionType) and not inner.startswith("tilewright.") and _touches_kernel(args, kwargs, fn):
                return self.inline(fn, args, kwargs)
            return fn(*args, **kwargs)
        if isinstance(fn, types.FunctionType):
            return self.inline(fn, args, kwargs)
        raise CompileError(f"{getattr(fn, '__name__', fn)}: cannot be called with values of a kernel; use the functions of tilewright.lang")

    def inline(self, fn: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        bound = inspect.signature(fn).bind(*args, **kwargs)
        bound.apply_defaults()
        return self.call_function(fn, dict(bound.arguments))

    def show(self, args: list[Any]) -> None:
        """`print` shows values in the debugger; compiled kernels do not print."""
        if self.debug:
            self.b._emit("debug.print", [x.var for x in args if is_value(x)])
            self.b.prints[self.b.last] = ("", args)


def _hashed(fn: Any, among: set[Any]) -> bool:
    try:
        return fn in among
    except TypeError:
        return False


def _touches_kernel(args: list[Any], kwargs: dict[str, Any], fn: types.FunctionType) -> bool:
    """A user's function is read, not run, where it may build instructions: it has views among its arguments, or names the language."""
    if any(isinstance(x, (View, Partition, TileRef)) for x in (*args, *kwargs.values())):
        return True
    names = {getattr(fn.__globals__.get(n), "__name__", "") for n in fn.__code__.co_names}
    return any(str(n).startswith("tilewright.lang") for n in names)
