"""From a kernel's definition, the types and places of its arrays and its constants to a launch."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core.dims import Dim, Expr, product
from ..core.dtypes import bool_
from ..core.errors import InputError
from ..ir.layout import Layout
from ..ir.types import TensorType
from ..kernels.call import Call, report
from ..kernels.launch import Buffer, Launch, Site
from ..runtime.faults import USERS
from ..runtime.native.layout import POSITION
from ..tile.builder import Ix, Tile
from ..tile.ir import Block, Instr, Kernel, Operand, TileType, Var
from ..tile.passes import optimise
from ..tile.passes.base import Cloner, limit_start
from ..tile.verify import verify
from .context import Place, Recorder
from .evaluate import Evaluator
from .functions import ByTarget
from .signature import Bound, Signature
from .values import Index, View

# Two versions of a program: tiles that lie inside their arrays are read and written without masks.
# Whether all limits that are known at the start of a program take in whole tiles is asked once. The program's instructions then stand
# twice, without those limits where the answer is yes. Limits that change inside a loop stay as they are.
_FIRST = frozenset(("alloc", "full", "iota"))


def split_edges(kernel: Kernel) -> None:
    """Rewrite the body in place, before its tokens are made."""
    head, rest = _head(kernel.body)
    known = {r for i in head for r in i.results} | {kernel.pid, *kernel.params}
    limits: dict[tuple[Var, int], None] = {}  # (limit, elements that a whole tile needs)
    full: set[tuple[Instr, int]] = set()

    def visit(block: Block | list[Instr]) -> None:
        for i in block.body if isinstance(block, Block) else block:
            if i.op in ("load", "store") and "limits" in i.attrs:
                tile = i.results[0].type if i.op == "load" else i.operands[-1].type  # type: ignore[union-attr]
                assert isinstance(tile, TileType)
                first = limit_start(i)
                for n, axis in enumerate(i.attrs["limits"]):
                    limit = i.operands[first + n]
                    if isinstance(limit, Var) and limit in known:
                        limits[limit, tile.shape[axis]] = None
                        full.add((i, axis))
            for b in i.blocks:
                visit(b)

    visit(rest)
    if not limits or any(i.op == "alloc" for b in rest for i in _walk(b)):
        return
    whole = _all_whole(list(limits), head)
    edge = Var(TileType((), bool_), "edge")
    inside = Block(body=Cloner({}, None, full).body(Block(body=rest)))
    tests = [Instr("not", [whole], {}, [edge]), Instr("if", [whole], {}, [], [inside]), Instr("if", [edge], {}, [], [Block(body=rest)])]
    kernel.body.body = [*head, *tests]


def drop_stores(kernel: Kernel, name: str) -> None:
    """Leave out the stores to a view, unless the program reads it too."""
    views: set[Operand] = {p for p in kernel.params if p.name == name}
    for i in kernel.walk():
        if i.op == "subview" and i.operands[0] in views:
            views.update(i.results)
        elif i.op != "store" and not views.isdisjoint(i.operands):
            return

    def visit(block: Block) -> None:
        block.body = [i for i in block.body if i.op != "store" or i.operands[0] not in views]
        for i in block.body:
            for inner in i.blocks:
                visit(inner)

    visit(kernel.body)


def _head(block: Block) -> tuple[list[Instr], list[Instr]]:
    """What can be computed before anything is read: index arithmetic and scratch memory; and the rest, in order."""
    head: list[Instr] = []
    rest: list[Instr] = []
    late: set[Var] = set()
    for i in block.body:
        pure = i.op in _FIRST or (i.op.startswith("index.") and not any(o in late for o in i.operands if isinstance(o, Var)))
        if pure:
            head.append(i)
        else:
            rest.append(i)
            late.update(i.results)
    return head, rest


def _walk(i: Instr) -> list[Instr]:
    return [i, *(x for b in i.blocks for inner in b.body for x in _walk(inner))]


def _all_whole(limits: list[tuple[Var, int]], head: list[Instr]) -> Var:
    found: Operand | None = None
    for n, (limit, need) in enumerate(limits):
        one = Var(TileType((), bool_), f"whole{n}")
        head.append(Instr("index.cmp", [limit, need], {"fn": "ge"}, [one]))
        if found is None:
            found = one
        else:
            both = Var(TileType((), bool_), f"wholes{n}")
            head.append(Instr("and", [found, one], {}, [both]))
            found = both
    assert isinstance(found, Var)
    return found


UNKNOWN_TRIPS = 16  # iterations that a loop of unknown length counts for in estimates


@dataclass(frozen=True, eq=False)
class Definition:
    """What the decorator was told."""

    fn: types.FunctionType
    name: str
    signature: Signature
    names: tuple[str, ...]  # names of the arguments, then of the results
    constants: dict[str, Any]  # defaults; inspect.Parameter.empty: must be given
    grid: Callable[..., Any] | Sequence[Any] | int
    warps: int | None = None
    stages: int | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.names[: len(self.signature.inputs)]

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.names[len(self.signature.inputs) :]

    def bind(self, types_: Sequence[TensorType], given: dict[str, Any], kind: str = "cpu") -> tuple[Bound, dict[str, Any]]:
        """The signature on these types, and the value of every constant: given, a default, or a size of that name."""
        for t, name in zip(types_, self.inputs, strict=True):
            if t.dtype.kind == "c":
                raise InputError(f"kernel {self.name}: {name} must have bools, integers or floats, got {t}; "
                                 "pass its real and its imaginary part")
        every = {n: getattr(v, kind) if isinstance(v, ByTarget) else v for n, v in {**self.constants, **given}.items()}
        whole = {n: v for n, v in every.items() if isinstance(v, int)}
        bound = self.signature.bind(types_, self.names, self.name, whole)
        values = {}
        for name, value in every.items():
            if name in bound.dims:
                size = bound.dims[name]
                if value is not inspect.Parameter.empty and value != size:
                    raise InputError(f"kernel {self.name}: {name} is a size of the arrays, {size}, got {name}={value!r}")
                value = size
            if value is inspect.Parameter.empty:
                raise InputError(f"kernel {self.name}: the constant {name} has no default; pass {name}=")
            values[name] = value
        return bound, values

    def grid_of(self, bound: Bound, constants: dict[str, Any]) -> tuple[Dim, ...]:
        """The sizes of the grid, from sizes and constants by name."""
        grid: Any = self.grid
        if callable(grid):
            known = {**bound.dims, **constants}
            wanted = inspect.signature(grid).parameters
            missing = [n for n in wanted if n not in known]
            if missing:
                raise InputError(f"kernel {self.name}: grid takes sizes and constants by name ({', '.join(known)}), got {missing[0]}")
            try:
                grid = grid(**{n: known[n] for n in wanted})
            except (ArithmeticError, TypeError, ValueError) as e:
                given = ", ".join(f"{n}={known[n]}" for n in wanted)
                raise InputError(f"kernel {self.name}: the grid cannot be computed for {given} ({type(e).__name__}: {e})") from e
        sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        for d in sizes:
            if not isinstance(d, Expr) and (not isinstance(d, (int, np.integer)) or isinstance(d, bool) or d < 0):
                raise InputError(f"kernel {self.name}: the grid has sizes of 0 or more, got {grid!r}")
        return tuple(d if isinstance(d, Expr) else int(d) for d in sizes)


@dataclass(eq=False)
class Built:
    """A kernel for given dtypes, ranks and constants."""

    launch: Launch
    recorder: Recorder
    grid: tuple[Dim, ...]
    plain: Kernel  # before any pass: what the debugger runs


@dataclass(frozen=True)
class Place_:
    """Where an argument or result lies."""

    type: TensorType
    buffer: Buffer
    layout: Layout


def build(d: Definition, bound: Bound, inputs: Sequence[Place_], outputs: Sequence[Place_], constants: dict[str, Any], kind: str, *,
          label: str = "", debug: bool = False, checks: bool = False, unread: Sequence[str] = ()) -> Built:
    """Read the function and make its launch. Results that are `unread` are not written."""
    call = Call(d.name, label or d.name)
    b = Recorder(d.name)
    call.b = b
    words: dict[Dim, Ix] = {}

    def size(dim: Dim) -> Index:
        if isinstance(dim, int):
            return dim
        if dim not in words:
            words[dim] = call.word(f"n{len(words)}", dim)
        return words[dim]

    env: dict[str, Any] = {}
    views = []
    for name, p in zip(d.names, (*inputs, *outputs), strict=True):
        raw = call.view(name, p.type.dtype, p.buffer, p.layout, write=name in d.outputs)
        views.append((name, raw, p))
    grid = d.grid_of(bound, constants)
    sites: list[Site] = []
    error = call.error() if checks else None

    def found_outside(bad: Tile, what: str, place: Place | None, at: Index, end: Index) -> None:
        assert error is not None
        dim: Dim | None = end if isinstance(end, int) else next((k for k, v in words.items() if v.var is end.var), None)
        sites.append(Site(f"kernel {d.name}: {what}", str(place), dim))
        with b.if_(bad):
            report(b, error, POSITION, b.pid, at, len(sites) - 1)

    e = Evaluator(b, d.name, kind, [size(x) for x in grid], debug=debug, report=found_outside if checks else None)
    for argument, (name, raw, p) in zip((*d.signature.inputs, *d.signature.outputs), views, strict=True):
        view = View(e, raw, tuple(size(x) for x in p.type.shape), name, name in d.outputs)
        if argument.dims is not None:
            env[name] = view
        else:
            number = b.load(raw, (), ())
            env[name] = b.to_index(number) if p.type.dtype.is_int else number
    e.run(d.fn, {**env, **constants}, [name for name in d.outputs if name not in unread])
    plain = Kernel(d.name, list(b.kernel.params), b.kernel.pid, b.kernel.body)
    for name in unread:
        drop_stores(b.kernel, name)
    if kind == "cpu" and not debug and not checks:
        split_edges(b.kernel)
    moved: Dim = 0
    for p in (*inputs, *outputs):
        moved = moved + product(p.type.shape) * p.type.dtype.itemsize
    total = product(grid)
    heavy = any(i.op in ("mma", "alloc") for i in b.kernel.walk())  # long programs share their work, others go along memory
    launch = call.finish(total, flops=total * _work(b.kernel.body.body), bytes_=moved, note=USERS, streams=not heavy, shared=heavy)
    launch.sites = tuple(sites)
    if not debug:
        if kind == "cpu":
            launch = replace(launch, kernel=optimise(launch.kernel))
        verify(launch.kernel)
    return Built(launch, b, grid, plain)


def _work(body: Sequence[Instr]) -> int:
    """Elements that a program computes, roughly."""
    total = 0
    for i in body:
        inner = sum(_work(block.body) for block in i.blocks)
        if i.op == "for":
            start, stop = i.operands[:2]
            known = isinstance(start, int) and isinstance(stop, int)
            inner *= max(0, -(-(stop - start) // i.attrs["step"])) if known else UNKNOWN_TRIPS  # type: ignore[operator]
        t = i.results[0].type if i.results else None
        own = t.numel if isinstance(t, TileType) else 1
        if i.op == "mma":
            a = i.operands[0].type  # type: ignore[union-attr]
            assert isinstance(a, TileType)
            own *= 2 * a.shape[1]
        total += inner + own
    return total


def need_definition(fn: Any, text: str, grid: Any, warps: int | None, stages: int | None) -> Definition:
    """Check what the decorator was given."""
    if not isinstance(fn, types.FunctionType):
        raise InputError(f"kernel: decorates a function, got a {type(fn).__name__}")
    name = fn.__name__
    signature = Signature.parse(text, name)
    positional, constants = [], {}
    for p in inspect.signature(fn).parameters.values():
        if p.kind is p.KEYWORD_ONLY:
            constants[p.name] = p.default
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty:
            positional.append(p.name)
        else:
            raise InputError(f"kernel {name}: parameters are arrays (without defaults) and, behind *, constants; got {p}")
    want = len(signature.inputs) + len(signature.outputs)
    if len(positional) != want:
        raise InputError(f"kernel {name}: {text!r} names {want} arrays, and the function takes {len(positional)} ({', '.join(positional)})")
    if grid is None:
        raise InputError(f"kernel {name}: needs grid=, the number of programs: a number, or a function of sizes and constants by name")
    return Definition(fn, name, signature, tuple(positional), constants, grid, warps, stages)
