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
import os
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.dtypes import DType, i64
from ..core.errors import CompileError, TilewrightError
from ..core.syntax import parse_python
from ..target.cpu.host import host_target
from ..tile.builder import Ix, Tile
from ..tile.builder import View as RawView
from ..tile.ir import Block
from .context import Access, KernelError, Place, Recorder, stack
from .expressions import Expressions, Frame, Undefined, is_value
from .functions import Range, loop_bounds
from .values import Index, Partition, TileRef, View, as_tuple, shown

_HERE = "<start of the tile>"  # no name of Python's
LEAST = -(1 << 63)
MOST_STEPS = 4096  # iterations of a loop that is written out


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


def source_of(fn: types.FunctionType) -> ast.FunctionDef | ast.Lambda:
    """The syntax tree of a function, with the line numbers of its file."""
    return _tree(fn.__code__)


@functools.lru_cache(1024)  # by code: functions that a loop defines anew share it, and are not kept
def _tree(code: types.CodeType) -> ast.FunctionDef | ast.Lambda:
    name = code.co_name
    try:
        lines, first = inspect.getsourcelines(code)
        tree = parse_python(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        raise CompileError(f"{name}: the source text of the function is not there; define it with def in a file or in a notebook"
                           ) from None
    ast.increment_lineno(tree, first - 1)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found: list[ast.FunctionDef | ast.Lambda] = []
    for n in ast.walk(tree):
        if isinstance(n, ast.FunctionDef if name != "<lambda>" else ast.Lambda):
            named = getattr(n, "name", "<lambda>") == name
            if named and tuple(a.arg for a in (*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs)) == names:
                found.append(n)
    if not found or (len(found) > 1 and name == "<lambda>"):
        raise CompileError(f"{name}: which function of its line this is cannot be told; write it with def")
    return found[0]


def _assigned(body: Sequence[ast.stmt]) -> list[str]:
    """Names that statements assign, in order."""
    return list(dict.fromkeys(n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)))


class Evaluator(Expressions):
    """Reads one kernel. `grid` are the sizes of the grid; `error` reports positions outside a view where checks are on."""

    def __init__(self, b: Recorder, name: str, kind: str, grid: Sequence[Index], *, debug: bool = False,
                 report: Callable[[Tile, str, Place | None, Index, Index], None] | None = None) -> None:
        self.b, self.name, self.kind, self.grid, self.debug, self.report = b, name, kind, list(grid), debug, report
        self.frames: list[Frame] = []
        self.written: set[str] = set()  # names of the results that a store goes to
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
        square = rows == columns and rows & (rows - 1) == 0 and rows <= host_target().vector_bits // 32
        native = columns == 1 or square
        if self.kind != "cpu" or native:
            return self.b.transpose(x)
        place = self.scratch(x.dtype, x.shape)  # registers have no way for it: through memory
        self.b.store(place, (0, 0), x)
        return self.b.load(place, (0, 0), (columns, rows), axes=(1, 0))

    def reshaped(self, x: Tile, shape: tuple[int, ...]) -> Tile:
        old = x.shape
        if self.kind != "cpu" or (old or (1,))[-1] == (shape or (1,))[-1]:
            return self.b.reshape(x, shape)
        if [d for d in old if d != 1] != [d for d in shape if d != 1]:
            raise CompileError(f"reshape: on a CPU sides of one come and go, or the last side stays, got {shown(x)} and {shape}; "
                               "load the tile in that shape instead")
        place = self.scratch(x.dtype, (*old, *(1 for _ in shape)))  # through memory, which has an axis for every side of one
        zeros = (0,) * (len(old) + len(shape))
        self.b.store(place, zeros, x, axes=tuple(range(len(old))))
        long = iter(a for a, d in enumerate(old) if d != 1)
        axes = tuple(next(long) if d != 1 else len(old) + k for k, d in enumerate(shape))
        return self.b.load(place, zeros, shape, axes=axes)

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

    def check_indices(self, name: str, indices: Tile, axis: int, size: Index) -> None:
        """Where checks are on, report a gathered index outside the view."""
        if self.report is None:
            return
        wide = self.b.cast(indices, i64)
        bad = self.b.binary("or", self.b.cmp("lt", wide, 0), self.b.cmp("ge", wide, self.tile(size)))
        worst = self.b.select(bad, wide, LEAST)
        for k in range(len(indices.shape)):
            bad, worst = self.b.reduce("any", bad, k), self.b.reduce("max", worst, k)
        self.report(self.truth(bad), f"gather of {name} along axis {axis}", self.b.place, self.b.to_index(worst), size)

    # --- functions ------------------------------------------------------------------------------------------------------------
    def run(self, fn: types.FunctionType, args: dict[str, Any], results: Sequence[str]) -> None:
        """The kernel itself, which writes all of `results`."""
        stack.evaluators.append(self)
        try:
            returned = self.call_function(fn, args)
        finally:
            stack.evaluators.pop()
        missing = [name for name in results if name not in self.written]
        place = f"({os.path.basename(fn.__code__.co_filename)}:{fn.__code__.co_firstlineno})"
        if returned is not None:
            raise KernelError(f"kernel {self.name}: return: results are written, not returned, as in `out[i] = x` {place}")
        if missing:
            raise KernelError(f"kernel {self.name}: the result {missing[0]} is never written {place}")

    def call_function(self, fn: types.FunctionType, env: dict[str, Any]) -> Any:
        if len(self.frames) > 50:
            raise CompileError(f"{fn.__name__}: functions of kernels do not call themselves")
        tree = source_of(fn)
        place = self.b.place
        self.frames.append(Frame(fn, fn.__code__.co_filename, env))
        try:
            if isinstance(tree, ast.Lambda):
                return self.expr(tree.body)
            self.block(tree.body)
            return None
        except _Return as r:
            return r.value
        finally:
            self.frames.pop()
            self.b.place = place

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

    def partition_loop(self, s: ast.For, over: Partition, starts: tuple[Index, ...] = (), whole: tuple[bool, ...] = ()) -> None:
        """All tiles of a partition in order, the last axis fastest. On a CPU those that are whole along an axis come first, in a loop
        without masks."""
        axis = len(starts)
        side, size = over.sides[axis], over.view.shape[axis]

        def go(start: Index, stop: Index, *, inside: bool) -> None:
            def bind(at: Index) -> None:
                self.env[_HERE] = (*starts, at)
                if axis == len(over.sides) - 1:
                    self.assign(s.target, TileRef(over, (*starts, at), (*whole, inside)))

            def run() -> None:
                if axis == len(over.sides) - 1:
                    self.block(s.body)
                else:
                    self.partition_loop(s, over, self.env[_HERE], (*whole, inside))

            self.loop(s, s.body, start, stop, side, bind, run=run)

        if isinstance(size, int) and size % side == 0:
            go(0, size, inside=True)
        elif self.kind == "cuda" or self.debug:
            go(0, size, inside=False)
        else:
            full = size // side * side
            go(0, full, inside=True)
            go(full, size, inside=False)

    def loop(self, s: ast.stmt, body: Sequence[ast.stmt], start: Index, stop: Index, step: int, bind: Callable[[Index], None],
             unroll: int | None = None, run: Callable[[], None] | None = None) -> None:
        """A loop of the kernel. A first reading of the body, which is thrown away, finds out which names change and to what."""
        before = dict(self.env)
        names = [n for n in _assigned(body) if n in before and not isinstance(before[n], Undefined)]
        own = {n.id for n in ast.walk(s.target) if isinstance(n, ast.Name)} if isinstance(s, ast.For) else set()
        names = [n for n in names if n not in own]
        self.b._blocks.append(Block())
        top = list(self.b.kernel.body.body)
        with self.inside():
            bind(Ix(self.b, self.b._fresh(self.b.kernel.pid.type)))
            self.block(body) if run is None else run()
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
            self.block(body) if run is None else run()
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
        if not isinstance(before, (bool, int, float)):
            raise CompileError(f"{name} is {shown(before)} before the loop and {shown(after)} after an iteration; "
                               "loops carry tiles, index values and numbers")
        if isinstance(after, Tile):
            return self.b.full(after.shape, before, after.dtype)
        if isinstance(before, (bool, float)):
            return self.tile(before)
        return self.b.lifted_index(before)

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
