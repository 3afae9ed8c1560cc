"""What tile passes share: the pass interface, purity, copying with substitution, and index arithmetic that folds.

A pass is a frozen dataclass: its fields are its options, its docstring its contract. `run` changes the kernel in place and returns how
many rewrites it applied; a second run applies none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ...core.dtypes import bool_
from ..ir import INDEX, Block, Instr, Kernel, Operand, TileType, Var
from ..rules import RULES

EFFECTS = frozenset(("store", "scatter", "atomic", "prefetch", "call", "tile_dot"))
PURE = frozenset(RULES) - EFFECTS - {"load", "gather", "alloc", "join"}  # the result depends on operands and attributes alone
MAY_TRAP = frozenset(("index.floordiv", "index.mod"))  # unless the divisor is a literal


@dataclass(frozen=True)
class TilePass:
    """A rewrite of one kernel."""

    name: ClassVar[str] = ""

    def run(self, kernel: Kernel) -> int:
        """Rewrite in place; how many rewrites were applied."""
        raise NotImplementedError


def copy_kernel(kernel: Kernel) -> Kernel:
    """A kernel that passes may change, its instructions' attributes and lists too; only values are shared with the original."""
    return Kernel(kernel.name, list(kernel.params), kernel.pid, _copy_block(kernel.body))


def _copy_block(block: Block) -> Block:
    body = [
        Instr(i.op, list(i.operands), dict(i.attrs), list(i.results), [_copy_block(b) for b in i.blocks], i.tokens, i.tokens_out)
        for i in block.body
    ]
    return Block(list(block.params), body, list(block.yields), block.token_params, block.token_yields)


Parts = tuple[list[Instr], dict[Var, Operand]]  # what stands for an instruction, and for its results


def exchange(block: Block, change: Callable[[Instr], Parts | None]) -> int:
    """Exchange instructions, those in inner blocks first; `change` gives None for one that stays. How many were exchanged."""
    count, values, body = 0, dict[Var, Operand](), list[Instr]()
    for i in block.body:
        count += sum(exchange(b, change) for b in i.blocks)
        found = change(i)
        if found is None:
            body.append(i)
        else:
            count += 1
            body += found[0]
            values.update(found[1])
    block.body = body
    while any(v in values for v in values.values()):  # a result that feeds another instruction that was exchanged
        values = {k: values.get(v, v) if isinstance(v, Var) else v for k, v in values.items()}
    substitute(block, values)
    return count


def substitute(block: Block, values: dict[Var, Operand]) -> None:
    """Replace uses of values (tokens too) everywhere in a block."""
    if not values:
        return
    for i in block.body:
        i.operands = [values.get(o, o) if o.__class__ is Var else o for o in i.operands]
        if i.tokens:
            i.tokens = tuple([replaced(values, t) for t in i.tokens])
        for b in i.blocks:
            substitute(b, values)
    block.yields = [values.get(o, o) if o.__class__ is Var else o for o in block.yields]
    if block.token_yields:
        block.token_yields = tuple([replaced(values, t) for t in block.token_yields])


def replaced(values: dict[Var, Operand], token: Var) -> Var:
    """What stands for a token (never a literal)."""
    found = values.get(token, token)
    assert isinstance(found, Var)
    return found


def size(block: Block) -> int:
    """Instructions in a block, inner ones too."""
    return sum(1 + sum(size(b) for b in i.blocks) for i in block.body)


def fold_index(fn: str, a: Operand, b: Operand) -> Operand | None:
    """The value of an index operation when it needs no instruction."""
    if isinstance(a, int) and isinstance(b, int):
        match fn:
            case "add":
                return a + b
            case "sub":
                return a - b
            case "mul":
                return a * b
            case "min":
                return min(a, b)
            case "max":
                return max(a, b)
            case "floordiv" if a >= 0 and b > 0:
                return a // b
            case "mod" if a >= 0 and b > 0:
                return a % b
        return None
    if b == 0 and fn in ("add", "sub", "shl", "shr"):
        return a
    if b == 1 and fn in ("mul", "floordiv"):
        return a
    if (a == 0 and fn == "add") or (a == 1 and fn == "mul"):
        return b
    if (fn == "mul" and (a == 0 or b == 0)) or (fn == "mod" and b == 1) or (fn == "sub" and a is b):
        return 0
    return a if fn in ("min", "max") and a is b else None


class Emitter:
    """Appends index arithmetic to a list of instructions, folding literals."""

    def __init__(self) -> None:
        self.out: list[Instr] = []

    def index(self, fn: str, a: Operand, b: Operand) -> Operand:
        known = fold_index(fn, a, b)
        if known is not None:
            return known
        var = Var(INDEX, "x")
        self.out.append(Instr("index." + fn, [a, b], {}, [var]))
        return var

    def ceildiv(self, a: Operand, b: int) -> Operand:
        return self.index("floordiv", self.index("add", a, b - 1), b)


class Cloner:
    """Copies instructions with fresh results, replacing values; folds what becomes literal.

    `truth` gives the value of conditions that are known in the copy, `full` the (instruction, tile axis) pairs whose limit is known to
    take in the whole tile.
    """

    def __init__(self, values: dict[Var, Operand], truth: dict[Var, bool] | None = None,
                 full: set[tuple[Instr, int]] | None = None) -> None:
        self.values, self.truth, self.full = values, dict(truth or {}), full or set()

    def use(self, x: Operand) -> Operand:
        return self.values.get(x, x) if isinstance(x, Var) else x

    def token(self, t: Var) -> Var:
        return replaced(self.values, t)

    def define(self, var: Var) -> Var:
        new = self.values[var] = Var(var.type, var.name)
        return new

    def body(self, block: Block) -> list[Instr]:
        out: list[Instr] = []
        for i in block.body:
            self.instr(i, out)
        return out

    def block(self, block: Block) -> Block:
        new = Block([self.define(p) for p in block.params], token_params=tuple(self.define(t) for t in block.token_params))
        new.body = self.body(block)
        new.yields = [self.use(y) for y in block.yields]
        new.token_yields = tuple(self.token(t) for t in block.token_yields)
        return new

    def instr(self, i: Instr, out: list[Instr]) -> None:
        operands = [self.use(o) for o in i.operands]
        if i.op.startswith("index."):
            a, b = operands
            if i.op != "index.cmp":
                known = fold_index(i.op[6:], a, b)
                if known is not None:
                    self.values[i.results[0]] = known
                    return
            elif isinstance(a, int) and isinstance(b, int):
                value = _CMP[i.attrs["fn"]](a, b)
                self.truth[i.results[0]] = value
                out.append(Instr("full", [], {"value": value}, [self.define(i.results[0])]))
                assert i.results[0].type == TileType((), bool_)
                return
        elif i.op == "if":
            known_condition = self.truth.get(i.operands[0])  # type: ignore[arg-type]
            if known_condition is not None:
                self.inline_if(i, taken=known_condition, out=out)
                return
        attrs = dict(i.attrs)
        if "limits" in attrs and self.full:
            operands, attrs = self.drop_limits(i, operands)
        new = Instr(i.op, operands, attrs, tokens=tuple([self.token(t) for t in i.tokens]) if i.tokens else ())
        new.blocks = [self.block(b) for b in i.blocks]
        new.results = [self.define(r) for r in i.results]
        new.tokens_out = tuple([self.define(t) for t in i.tokens_out]) if i.tokens_out else ()
        out.append(new)

    def inline_if(self, i: Instr, *, taken: bool, out: list[Instr]) -> None:
        block = i.blocks[0]
        for param, t in zip(block.token_params, i.tokens, strict=True):
            self.values[param] = self.token(t)
        if taken:
            out.extend(self.body(block))
        for result, t in zip(i.tokens_out, block.token_yields if taken else i.tokens, strict=True):
            self.values[result] = self.token(t)

    def drop_limits(self, i: Instr, operands: list[Operand]) -> tuple[list[Operand], dict[str, object]]:
        limits: tuple[int, ...] = i.attrs["limits"]
        kept = [axis for axis in limits if (i, axis) not in self.full]
        if len(kept) == len(limits):
            return operands, dict(i.attrs)
        first = limit_start(i)
        values = [operands[first + n] for n, axis in enumerate(limits) if axis in kept]
        attrs = {k: v for k, v in i.attrs.items() if k != "limits" and (k != "other" or kept)}
        if kept:
            attrs["limits"] = tuple(kept)
        return [*operands[:first], *values, *operands[first + len(limits) :]], attrs


def limit_start(i: Instr) -> int:
    """Where the limit operands of a load or store begin."""
    return len(i.operands) - len(i.attrs["limits"]) - (0 if i.op == "load" else 1)


_CMP = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__}
