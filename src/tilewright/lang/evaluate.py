"""Turns a Python function into tile IR by reading its syntax tree.

Reading the tree, and not running the function on tracers, is what lets `for` and `if` be Python's own: a loop over `range` becomes a loop
of the kernel, whose carried values are the names that its body assigns. Everything else is evaluated as Python would, on values of the
kernel where those are involved: constants, closures, tuples, calls of other functions (which are read in the same way).
Every instruction knows the line it comes from.
"""
from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import operator
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..core.dtypes import DType, bool_, i64
from ..core.errors import CompileError, TilewrightError
from ..target.cpu.host import host_target
from ..tile.builder import Ix, Tile
from ..tile.builder import View as RawView
from ..tile.ir import Block
from .context import Access, KernelError, Place, Recorder, stack
from .functions import INTRINSICS, Range, loop_bounds, tile_attribute, where
from .tiles import Arithmetic
from .values import Index, Partition, TileRef, View, as_tuple, shown

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
MOST_STEPS = 4096  # iterations of a loop that is written out


@dataclass(frozen=True)
class Undefined:
    """What a name holds after a loop or a branch that alone assigned it."""

    why: str


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass
class Frame:
    """A function that is being read."""

    fn: types.FunctionType
    file: str
    env: dict[str, Any]
    nested: int = 0  # run-time loops and branches around the statement


def is_value(x: Any) -> bool:
    return isinstance(x, (Tile, Ix))


@functools.cache
def source_of(fn: types.FunctionType) -> ast.FunctionDef:
    """The syntax tree of a function, with the line numbers of its file."""
    try:
        lines, first = inspect.getsourcelines(fn)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        raise CompileError(f"{fn.__name__}: the source text of the function is not there; define it in a file or in a notebook") from None
    ast.increment_lineno(tree, first - 1)
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        raise CompileError(f"{fn.__name__}: a kernel is written with def, not as a lambda")
    return found


def _assigned(body: Sequence[ast.stmt]) -> list[str]:
    """Names that statements assign, in order."""
    return list(dict.fromkeys(n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)))


class Evaluator(Arithmetic):
    """Reads one kernel. `grid` are the sizes of the grid; `error` reports positions outside a view where checks are on."""

    def __init__(self, b: Recorder, name: str, kind: str, grid: Sequence[Index], *, debug: bool = False,
                 report: Callable[[Tile, str, Place | None, Index, Index], None] | None = None) -> None:
        self.b, self.name, self.kind, self.grid, self.debug, self.report = b, name, kind, list(grid), debug, report
        self.frames: list[Frame] = []
        rest: Index = b.pid
        at: list[Index] = []
        for size in reversed(self.grid[1:]):
            at.append(rest % size)
            rest = rest // size
        self.at = [rest, *reversed(at)]

    def program(self, axis: int) -> tuple[Index, Index]:
        if not 0 <= axis < len(self.grid):
            raise CompileError(f"program_id: the grid has axes 0..{len(self.grid) - 1}, got {axis}")
        return self.at[axis], self.grid[axis]

    def scratch(self, dtype: DType, shape: tuple[int, ...]) -> RawView:
        """Memory of a program's own. It is taken once, at the start, wherever it is asked for."""
        made = self.b.scratch(dtype, shape, "local" if self.kind == "cpu" else "shared")
        self.b.kernel.body.body.insert(0, self.b._blocks[-1].body.pop())
        return made

    def transposed(self, x: Tile) -> Tile:
        rows, columns = x.shape
        native = 1 in x.shape or (rows == columns and rows & (rows - 1) == 0 and rows <= host_target().vector_bits // 32)
        if self.kind != "cpu" or native:
            return self.b.transpose(x)
        place = self.scratch(x.dtype, x.shape)  # registers have no way for it: through memory
        self.b.store(place, (0, 0), x)
        return self.b.load(place, (0, 0), (columns, rows), axes=(1, 0))

    def check_access(self, access: Access) -> None:
        """Where checks are on, report a start outside the view."""
        if self.report is None:
            return
        for a, (start, size, inside) in enumerate(zip(access.starts, access.sizes, access.inside, strict=True)):
            if isinstance(start, int) and start >= 0 and (not inside or (isinstance(size, int) and start + inside <= size)):
                continue
            at, end = (x if isinstance(x, int) else Ix(self.b, x) for x in (start, size))
            bad = self.b.compare("lt", at, 0)
            if inside:
                bad = self.b.binary("or", bad, self.b.compare("gt", at + inside, end))
            self.report(bad, f"{access.name} along axis {a}", self.b.place, at, end)

    # --- functions ------------------------------------------------------------------------------------------------------------
    def run(self, fn: types.FunctionType, args: dict[str, Any]) -> None:
        """The kernel itself."""
        stack.evaluators.append(self)
        try:
            self.call_function(fn, args)
        finally:
            stack.evaluators.pop()

    def call_function(self, fn: types.FunctionType, env: dict[str, Any]) -> Any:
        if len(self.frames) > 50:
            raise CompileError(f"{fn.__name__}: functions of kernels do not call themselves")
        tree = source_of(fn)
        place = self.b.place
        self.frames.append(Frame(fn, fn.__code__.co_filename, env))
        try:
            self.block(tree.body)
            return None
        except _Return as r:
            return r.value
        finally:
            self.frames.pop()
            self.b.place = place

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def env(self) -> dict[str, Any]:
        return self.frame.env

    def here(self, node: ast.AST) -> None:
        line = getattr(node, "lineno", 0)
        self.b.place = Place(self.frame.file, line, linecache.getline(self.frame.file, line).strip())

    def error(self, text: str) -> KernelError:
        p = self.b.place
        return KernelError(f"kernel {self.name}: {text}" + (f" ({p}: `{p.text}`)" if p is not None else ""))

    # --- statements -------------------------------------------------------------------------------------------------------------
    def block(self, body: Sequence[ast.stmt]) -> None:
        for s in body:
            self.here(s)
            try:
                self.statement(s)
            except (KernelError, _Return):
                raise
            except TilewrightError as e:
                raise self.error(str(e)) from None
            except (TypeError, ValueError, AttributeError, IndexError, KeyError, ZeroDivisionError, OverflowError) as e:
                raise self.error(f"{type(e).__name__}: {e}") from e

    def statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Assign(targets=targets, value=value):
                found = self.expr(value)
                for t in targets:
                    self.assign(t, found)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self.assign(target, self.expr(value))
            case ast.AugAssign(target=target, op=op, value=value):
                read = ast.copy_location(ast.Name(target.id, ast.Load()), target) if isinstance(target, ast.Name) else target
                self.assign(target, self.binop(op, self.expr(read), self.expr(value), s))
            case ast.Expr(value=value):
                self.expr(value)
            case ast.For():
                self.loop_statement(s)
            case ast.If():
                self.if_statement(s)
            case ast.Return(value=value):
                if self.frame.nested:
                    raise CompileError("return: a kernel cannot leave a run-time loop or branch; put the rest into an else")
                raise _Return(None if value is None else self.expr(value))
            case ast.Assert(test=test, msg=msg):
                self.assertion(self.expr(test), "" if msg is None else str(self.expr(msg)))
            case ast.Pass():
                pass
            case ast.While():
                raise CompileError("while: kernels loop with for; use `for i in range(most):` with an if inside")
            case _:
                raise CompileError(f"{type(s).__name__.lower()}: kernels are made of assignments, for, if, assert and calls")

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.env[name] = value
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                if not isinstance(value, (tuple, list)) or len(value) != len(elts):
                    raise CompileError(f"{len(elts)} names take {len(elts)} values, got {shown(value)}")
                for t, v in zip(elts, value, strict=True):
                    self.assign(t, v)
            case ast.Subscript(value=owner, slice=key):
                held = self.expr(owner)
                if not isinstance(held, Partition):
                    raise CompileError(f"only tiles of a partition are assigned by position, got {shown(held)}; "
                                       "a view has .store(start, tile)")
                at = as_tuple(self.expr(key))
                self.here(target)
                held.get_tile(*at).store(value)
            case _:
                raise CompileError(f"assignments go to names, tuples of names and p[i, j] of a partition, got {ast.unparse(target)}")

    def assertion(self, test: Any, text: str) -> None:
        if not is_value(test):
            if not test:
                raise CompileError(f"assert: {text or 'this does not hold'}")
        elif self.debug:
            self.b._emit("debug.assert", [self.truth(test).var])
            self.b.prints[self.b.last] = (text, [])

    # --- control ------------------------------------------------------------------------------------------------------------------
    def truth(self, x: Any) -> Tile:
        """A condition as one bool."""
        if isinstance(x, Ix):
            return self.b.compare("ne", x, 0)
        t = self.tile(x)
        if t.type.numel != 1:
            raise CompileError(f"if: a condition is one bool, got {shown(x)}; use tl.where for tiles, or reduce it with .any() or .all()")
        t = t if t.dtype is bool_ else self.b.cmp("ne", t, 0)
        return t if not t.shape else self.b.reshape(t, ())

    def if_statement(self, s: ast.If) -> None:
        test = self.expr(s.test)
        if not is_value(test):
            self.block(s.body if test else s.orelse)
            return
        cond = self.truth(test)
        for body, c in ((s.body, cond), (s.orelse, None)):
            if not body:
                continue
            taken = self.b.unary("not", cond) if c is None else c
            before = dict(self.env)
            if any(n in before for n in _assigned(body)):
                count = self.b.to_index(self.b.cast(taken, i64))  # a loop of one iteration or none gives the names that it changes
                self.loop(s, body, 0, count, 1, lambda i: None)
            else:
                with self.b.if_(taken), self.inside():
                    self.block(body)
                self.forget(body, before, s)
            self.here(s)

    @contextmanager
    def inside(self) -> Iterator[None]:
        self.frame.nested += 1
        yield
        self.frame.nested -= 1

    def forget(self, body: Sequence[ast.stmt], before: dict[str, Any], s: ast.stmt) -> None:
        for n in _assigned(body):
            if n not in before and n in self.env:
                self.env[n] = Undefined(f"{n} is assigned only inside the loop or branch of line {s.lineno}; give it a value before it")

    def loop_statement(self, s: ast.For) -> None:
        if s.orelse:
            raise CompileError("for: kernels have no else of loops")
        over = self.range_call(s.iter)
        if over is None:
            over = self.expr(s.iter)
        if isinstance(over, Range):
            start, stop, step = loop_bounds(over.bounds)
            self.loop(s, s.body, start, stop, step, lambda i: self.assign(s.target, i), over.unroll)
        elif isinstance(over, Partition):
            self.partition_loop(s, over)
        elif is_value(over) or isinstance(over, View):
            raise CompileError(f"for: goes over range(...), a partition, or a tuple, got {shown(over)}")
        else:
            items = list(over)
            if len(items) > MOST_STEPS:
                raise CompileError(f"for: a loop that is written out has at most {MOST_STEPS} iterations, got {len(items)}; use range")
            for item in items:
                self.assign(s.target, item)
                self.block(s.body)

    def range_call(self, node: ast.expr) -> Range | None:
        if isinstance(node, ast.Call) and not node.keywords and self.expr(node.func) is builtins.range:
            return Range(tuple(self.expr(a) for a in node.args), None)
        return None

    def partition_loop(self, s: ast.For, over: Partition) -> None:
        """All tiles of a partition in order. On a CPU those that are whole come first, in a loop without masks."""
        *outer, side = over.sides
        size = over.view.shape[-1]

        if outer:
            raise CompileError(f"for: goes over partitions of rank 1, got {over}; loop over x[i].partition(...) in a loop over rows")

        def bind(*, whole: bool) -> Callable[[Index], None]:
            return lambda start: self.assign(s.target, TileRef(over, (start,), (whole,)))

        if isinstance(size, int) and size % side == 0:
            self.loop(s, s.body, 0, size, side, bind(whole=True))
        elif self.kind == "cuda" or self.debug:
            self.loop(s, s.body, 0, size, side, bind(whole=False))
        else:
            full = size // side * side
            self.loop(s, s.body, 0, full, side, bind(whole=True))
            self.loop(s, s.body, full, size, side, bind(whole=False))

    def loop(self, s: ast.stmt, body: Sequence[ast.stmt], start: Index, stop: Index, step: int, bind: Callable[[Index], None],
             unroll: int | None = None) -> None:
        """A loop of the kernel. A first reading of the body, which is thrown away, finds out which names change and to what."""
        before = dict(self.env)
        names = [n for n in _assigned(body) if n in before and not isinstance(before[n], Undefined)]
        own = {n.id for n in ast.walk(s.target) if isinstance(n, ast.Name)} if isinstance(s, ast.For) else set()
        names = [n for n in names if n not in own]
        self.b._blocks.append(Block())
        top = list(self.b.kernel.body.body)
        with self.inside():
            bind(Ix(self.b, self.b._fresh(self.b.kernel.pid.type)))
            self.block(body)
        self.b._blocks.pop()
        self.b.kernel.body.body[:] = top
        after = {n: self.env[n] for n in names}
        self.here(s)
        carried = [n for n in names if after[n] is not before[n] and (is_value(after[n]) or after[n] != before[n])]
        first = [self.start_value(n, before[n], after[n]) for n in carried]
        self.frame.env = dict(before)
        with self.b.loop(start, stop, step, first, unroll=unroll) as handle, self.inside():
            self.env.update(zip(carried, handle.carried, strict=True))
            bind(handle.index)
            self.block(body)
            self.here(s)
            handle.next(*(self.next_value(n, self.env[n], f) for n, f in zip(carried, first, strict=True)))
        last = dict(zip(carried, handle.results, strict=True))
        self.forget(body, before, s)
        for n in own:
            self.env[n] = Undefined(f"{n} counts the loop of line {s.lineno} and has no value after it")
        self.env.update({n: before[n] for n in names if n not in last})
        self.env.update(last)

    def start_value(self, name: str, before: Any, after: Any) -> Any:
        """What a loop carries at first: a number takes the type that the loop gives it."""
        if isinstance(before, (Tile, Ix)):
            return before
        if isinstance(before, bool) or not isinstance(before, (int, float)):
            if not isinstance(before, bool):
                raise CompileError(f"{name} is {shown(before)} before the loop and {shown(after)} after an iteration; "
                                   "loops carry tiles, index values and numbers")
        if isinstance(after, Tile):
            return self.b.full(after.shape, before, after.dtype)
        if isinstance(before, int) and isinstance(after, (Ix, int)):
            return self.b.lifted_index(before)
        return self.tile(before)

    def next_value(self, name: str, x: Any, first: Any) -> Any:
        if isinstance(first, Ix):
            if isinstance(x, int) and not isinstance(x, bool):
                return self.b.lifted_index(x)
            if isinstance(x, Ix):
                return x
        elif not isinstance(x, Ix):
            t = self.tile(x) if isinstance(x, (Tile, int, float)) else None
            if isinstance(x, (int, float)):
                t = self.b.full(first.shape, x, first.dtype)
            if t is not None and t.type == first.type:
                return t
        raise CompileError(f"{name} is {shown(first)} before the loop and {shown(x)} after an iteration; "
                           "start it with that type (tl.zeros(shape, dtype), tl.full(shape, value, dtype))")

    # --- expressions ----------------------------------------------------------------------------------------------------------------
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
        if fn in (max, min) and values and len(args) == 2:
            return self.binary("max" if fn is max else "min", *args)
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
