"""The skeleton of the CPU emitter: parameters, the loop over programs, structured control flow and index arithmetic."""
from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...core.dtypes import bf16, f32, i64
from ...core.errors import CompileError
from ...core.target_spec import TargetSpec
from ...tile.ir import BINARY, INDEX, UNARY, Block, Instr, Kernel, Operand, TileType, Type, Var, ViewType
from . import arithmetic
from .access import Address, Term
from .bounds import Bounds, Guard
from .llvm_text import FunctionText, module_text, vector
from .registers import Registers, chunk_sizes, chunks, elem_type

# --- What a kernel knows about its 32-bit words, so that rounding them to bf16 costs no more than it must.

MOVES = frozenset(("broadcast", "reshape", "extract", "bitcast", "transpose", "reverse", "shuffle", "pick"))
KEEPS = frozenset(("neg", "abs", "sign", "floor", "ceil", "round", "trunc", "max", "min", "or", "xor"))  # short of short operands
BITS = frozenset(("and", "or", "xor", "shl", "shr", "not", "mulhi"))


class Halves:
    def __init__(self) -> None:
        self.short: set[Var] = set()
        self.quiet: set[Var] = set()

    def see(self, instr: Instr) -> None:
        """Note what is known of an instruction's results. Values that loops and branches carry are not looked through."""
        if len(instr.results) != 1 or not isinstance(type_ := instr.results[0].type, TileType) or type_.dtype.itemsize != 4:
            return
        out, op = instr.results[0], instr.op
        tiles = [v for v in instr.operands if isinstance(v, Var) and isinstance(v.type, TileType)]
        chosen = tiles[1:] if op == "select" else tiles
        short, quiet = all(v in self.short for v in chosen), all(v in self.quiet for v in chosen)
        if op == "cast":
            source = tiles[0].type.dtype  # type: ignore[union-attr]
            short, quiet = source is bf16, source is bf16 or not source.is_float
        elif op == "full":
            short, quiet = _low(instr.attrs["value"], type_) == 0, True
        elif op == "and":
            short, quiet = any(v in self.short for v in tiles), False
        elif op in KEEPS or op in MOVES or op == "select":
            quiet = quiet and op not in BITS and op != "bitcast"
        elif op in UNARY or op in BINARY or op in ("fma", "reduce"):
            short, quiet = False, quiet and op not in BITS
        else:
            return
        if short:
            self.short.add(out)
        if type_.dtype is f32 and quiet | short:
            self.quiet.add(out)


def _low(value: float | int | bool, type_: TileType) -> int:
    """The last sixteen bits of a constant's word."""
    if not type_.dtype.is_float:
        return int(value) & 0xFFFF
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) & 0xFFFF
    except OverflowError:  # infinity, in f32
        return 0

_INDEX_OPS = {
    "add": "add nsw",
    "sub": "sub nsw",
    "mul": "mul nsw",
    "floordiv": "udiv",
    "mod": "urem",
    "shl": "shl",
    "shr": "lshr",
    "and": "and",
}


def _lanes(kernel: Kernel, target: TargetSpec) -> int:
    """Elements of a register: as many as f32 has, and more where a kernel computes in bytes, bools and integers of 16 bits alone."""
    dtypes = {v.type.dtype for instr in kernel.walk() for v in instr.results if isinstance(v.type, TileType)}
    narrow = dtypes and all((d.is_int or d.is_bool) and d.itemsize < 4 for d in dtypes)
    return target.vector_bits // (8 * max(d.itemsize for d in dtypes) if narrow else 32)


class Skeleton:
    """Walks a kernel once; `env` maps each tile-IR value to its LLVM form."""

    def __init__(self, kernel: Kernel, target: TargetSpec) -> None:
        self.kernel, self.target = kernel, target
        self.lanes = _lanes(kernel, target)
        self.f = FunctionText(
            kernel.name,
            [("ptr noalias readonly", "%args"), ("i64", "%begin"), ("i64", "%end"), ("ptr noalias", "%scratch")],
            target,
            attributes=f'nounwind "prefer-vector-width"="{target.vector_bits}"',
        )
        self.env: dict[Var, Any] = {}
        self.depth: dict[Var, int] = {}
        self.level = 0
        self.scratch = 0
        self.guard: Guard | None = None
        self.halves = Halves()
        self.fenced = False  # stores went past the caches: other threads see them behind a fence

    def run(self) -> str:
        f = self.f
        self._parameters()
        body, done = f.fresh_label("program"), f.fresh_label("done")
        f.branch(f.icmp("slt", "i64", "%begin", "%end"), body, done)
        f.label(body)
        pid, following = f.fresh("pid"), f.fresh("next")
        latch = f.fresh_label("latch")
        f.emit(f"{pid} = phi i64 [ %begin, %entry ], [ {following}, %{latch} ]")
        self.level = 1
        self._bind(self.kernel.pid, pid)
        if self.guard is not None:
            self.guard.program = pid
        self.block(self.kernel.body)
        f.jump(latch)
        f.label(latch)
        f.emit(f"{following} = add nsw i64 {pid}, 1")
        f.branch(f.icmp("slt", "i64", following, "%end"), body, done)
        f.label(done)
        if self.fenced:
            f.intrinsic("llvm.x86.sse.sfence", "void", [])
        f.ret()
        return module_text(f)

    def _parameters(self) -> None:
        word = 0

        def argument(ty: str) -> str:
            nonlocal word
            pointer = self.f.gep("i64", "%args", str(word)) if word else "%args"
            word += 1
            return self.f.value(f"load {ty}, ptr {pointer}, align 8, !invariant.load !{{}}")

        for p in self.kernel.params:
            if isinstance(p.type, ViewType):
                pointer = argument("ptr")
                self._bind(p, Address(pointer, tuple(argument("i64") if s is None else str(s) for s in p.type.strides), p.type.dtype))
            else:
                self._bind(p, argument("i64"))
        if self.target.checks:
            for k, p in enumerate(p for p in self.kernel.params if isinstance(p.type, ViewType)):
                self._bind(p, replace(self.env[p], bounds=Bounds(argument("i64"), argument("i64"), k)))
            self.guard = Guard(self.f, argument("ptr"))

    def _bind(self, var: Var, value: Any) -> None:
        self.env[var] = value
        self.depth[var] = self.level

    # --- operands -----------------------------------------------------------------------------------------------------
    def ix(self, x: Operand) -> str:
        return str(x) if isinstance(x, int) else str(self.env[x])

    def term(self, x: Operand) -> Term:
        return Term(str(x), 0) if isinstance(x, int) else Term(self.env[x], self.depth[x])

    def tile(self, x: Operand) -> Registers:
        assert isinstance(x, Var)
        found = self.env[x]
        assert isinstance(found, Registers)
        return found

    def _tile(self, instr: Instr, rows: list[list[str]]) -> None:
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        self._bind(instr.results[0], Registers(type_, self.lanes, rows))

    # --- structure ----------------------------------------------------------------------------------------------------
    def block(self, block: Block) -> None:
        for instr in block.body:
            handler: Callable[[Instr], None] | None = getattr(self, "do_" + instr.op.replace(".", "_"), None)
            if instr.op in UNARY or instr.op in BINARY:
                handler = self.arithmetic
            elif handler is None and instr.op.startswith("index."):
                handler = self.index_op
            if handler is None:
                raise CompileError(f"cpu: kernel {self.kernel.name} uses {instr.op!r}, which this target does not have")
            handler(instr)
            self.halves.see(instr)

    def arithmetic(self, instr: Instr) -> None:
        """An op of the closed elementwise set."""
        raise NotImplementedError

    def phi_types(self, type_: Type) -> list[str]:
        """LLVM types of the registers that hold one carried value."""
        if type_ == INDEX:
            return ["i64"]
        if not isinstance(type_, TileType):
            return []  # tokens
        return [vector(n, elem_type(type_.dtype)) for _, _, n in chunks(type_.shape, self.lanes)]

    def flatten(self, x: Operand) -> list[str]:
        if isinstance(x, int):
            return [str(x)]
        value = self.env[x]
        return [c for row in value.rows for c in row] if isinstance(value, Registers) else [value] if isinstance(value, str) else []

    def unflatten(self, type_: Type, names: list[str]) -> Any:
        if not isinstance(type_, TileType):
            return names[0] if names else None
        per_row = len(chunk_sizes(type_.shape[-1] if type_.shape else 1, self.lanes))
        return Registers(type_, self.lanes, [names[i : i + per_row] for i in range(0, len(names), per_row)])

    def do_for(self, instr: Instr) -> None:
        f, block = self.f, instr.blocks[0]
        start, stop, carried = instr.operands[0], instr.operands[1], instr.operands[2:]
        lo, hi, step = self.ix(start), self.ix(stop), instr.attrs["step"]
        types = [r.type for r in instr.results]
        initial = [self.flatten(c) for c in carried]
        before = f.block
        head, exit_ = f.fresh_label("loop"), f.fresh_label("exit")
        runs = instr.attrs.get("nonempty", False) or (isinstance(start, int) and isinstance(stop, int) and start < stop)
        f.jump(head) if runs else f.branch(f.icmp("slt", "i64", lo, hi), head, exit_)
        f.label(head)
        counter = f.fresh("i")
        names = [[f.fresh("c") for _ in self.phi_types(t)] for t in types]
        mark = len(f._lines)  # phis are inserted here once the latch is known
        self.level += 1
        self._bind(block.params[0], counter)
        for p, t, group in zip(block.params[1:], types, names, strict=True):
            self._bind(p, self.unflatten(t, group))
        self.block(block)
        self.level -= 1
        yields = [self.flatten(y) for y in block.yields]
        following = f.value(f"add nsw i64 {counter}, {step}")
        latch = f.block
        phis = [f"  {counter} = phi i64 [ {lo}, %{before} ], [ {following}, %{latch} ]"]
        for t, group, first, after in zip(types, names, initial, yields, strict=True):
            phis += [
                f"  {n} = phi {ty} [ {a}, %{before} ], [ {b}, %{latch} ]"
                for ty, n, a, b in zip(self.phi_types(t), group, first, after, strict=True)
            ]
        f._lines[mark:mark] = phis
        f.branch(f.icmp("slt", "i64", following, hi), head, exit_)
        f.label(exit_)
        for result, t, first, after in zip(instr.results, types, initial, yields, strict=True):
            merged = (
                after if runs else [f.phi(ty, [(a, before), (b, latch)]) for ty, a, b in zip(self.phi_types(t), first, after, strict=True)]
            )
            self._bind(result, self.unflatten(t, merged))

    def do_if(self, instr: Instr) -> None:
        f = self.f
        then, after = f.fresh_label("then"), f.fresh_label("after")
        f.branch(self.tile(instr.operands[0]).rows[0][0], then, after)
        f.label(then)
        self.level += 1
        self.block(instr.blocks[0])
        self.level -= 1
        f.jump(after)
        f.label(after)

    # --- index scalars ------------------------------------------------------------------------------------------------
    def index_op(self, instr: Instr) -> None:
        fn, (a, b) = instr.op[6:], (self.ix(x) for x in instr.operands)
        if fn in ("min", "max"):
            out = self.f.intrinsic(f"llvm.s{fn}.i64", "i64", [("i64", a), ("i64", b)])
        else:
            out = self.f.op(_INDEX_OPS[fn], "i64", a, b)
        result = instr.results[0]
        self.env[result] = out
        # An index is as invariant as its deepest operand, wherever it is computed: LLVM hoists it there.
        self.depth[result] = max((self.depth[x] for x in instr.operands if isinstance(x, Var)), default=0)

    def do_index_cmp(self, instr: Instr) -> None:
        fn = instr.attrs["fn"]
        out = self.f.icmp(fn if fn in ("eq", "ne") else "s" + fn, "i64", *(self.ix(x) for x in instr.operands))
        self._tile(instr, [[out]])

    def do_to_index(self, instr: Instr) -> None:
        x = self.tile(instr.operands[0])
        text = x.rows[0][0]
        if x.elem != "i64":
            text = self.f.cast("zext" if x.type.dtype.kind in "ub" else "sext", x.elem, text, "i64")
        self._bind(instr.results[0], text)

    def do_from_index(self, instr: Instr) -> None:
        out = instr.results[0].type
        assert isinstance(out, TileType)
        self._tile(instr, [[arithmetic.convert(self.f, i64, out.dtype, 0, self.ix(instr.operands[0]))]])
