"""The skeleton of the CUDA emitter: parameters, thread positions, structured control flow and index arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from ....core.dtypes import DType, f32, i64
from ....core.errors import CompileError
from ....kernels.cuda.kernel import WARP
from ....tile.ir import BINARY, UNARY, Block, Instr, Kernel, Operand, TileType, Type, Var, ViewType
from ...cpu import arithmetic
from ..arithmetic import math
from ..arithmetic.convert import convert
from ..arithmetic.scalar import Scalars
from ..ptx.text import KernelText, literal
from .access import Address, _raw
from .layout import Group, Layout, Regs, elem_type

_INDEX = {"add": "add.s64", "sub": "sub.s64", "mul": "mul.lo.s64", "min": "min.s64", "max": "max.s64", "and": "and.b64"}
STREAMED = ".nc.L1::no_allocate.L2::256B"
# Before the wait for the previous kernel: the assembler would move a load of constants (`.nc`) behind it. With 256 bytes a decode step took
# 26 us more.
EARLY = ".L1::no_allocate.L2::128B"


class Control:
    def __init__(self, kernel: Kernel, layout: Layout, text: KernelText | None = None) -> None:
        self.kernel, self.layout = kernel, layout
        self.k = text if text is not None else KernelText(kernel.name, [])
        self.k.beside = getattr(kernel, "beside", 1)
        self.f = Scalars(self.k)
        self.env: dict[Var, Any] = {}
        self.loops = 0  # loops around the current instruction
        self.private = 0  # thread-private arrays so far
        self._known: dict[str, str] = {}
        self.rest: Sequence[Instr] = ()  # the instructions behind the current one
        self.reduced: set[Instr] = set()  # reductions that were done with one before

    # --- parameters and positions -------------------------------------------------------------------------------------
    def parameters(self, extra: Sequence[str] = ()) -> None:
        """Load every argument word; views take their pointer, then their unknown strides."""
        for p in self.kernel.params:
            if isinstance(p.type, ViewType):
                generic = self._parameter(p.name)
                pointer = self.k.value("i64", f"cvta.to.global.u64 {{}}, {generic};")
                strides = tuple(self._parameter(f"{p.name}.s") if s is None else str(s) for s in p.type.strides)
                hint = STREAMED if p.name in getattr(self.kernel, "streamed", ()) else ""
                early = bool(hint) or p.name in getattr(self.kernel, "ready", ())
                runs = p.name in getattr(self.kernel, "runs", ())
                self.env[p] = Address(pointer, strides, p.type.dtype, hint=hint, early=early, runs=runs)
            else:
                self.env[p] = self._parameter(p.name)
        self._words = [self._parameter(name) for name in extra]

    def block_number(self) -> str:
        """The number of this block among those of its launch: launches side by side take turns."""
        block = self.k.value("i32", "mov.u32 {}, %ctaid.x;")
        return block if self.k.beside == 1 else self.k.value("i32", f"div.u32 {{}}, {block}, {self.k.beside};")

    def inside_grid(self, program: str) -> str:
        """The number of a program as an index; there is none behind the last one, which is the last word."""
        wide = self.k.value("i64", f"cvt.u64.u32 {{}}, {program};")
        self.k.emit(f"@{self.k.value('i1', f'setp.ge.u64 {{}}, {wide}, {self.word(-1)};')} exit;")
        return wide

    def word(self, i: int) -> str:
        return self._words[i]

    def _parameter(self, name: str) -> str:
        self.k.params.append(name)
        number = len(self.k.params) - 1
        at, beside = f"p{number}", self.k.beside
        if beside > 1:
            turn = self._once("words.turn", "i32", "mov.u32 {}, %ctaid.x;", f"rem.u32 {{}}, $, {beside};")
            words = self._once("words", "i64", "mov.b64 {}, words;")
            own = self._once("words.own", "i64", f"mad.wide.u32 {{}}, {turn}, 8, {words};")
            at = f"{own}+{8 * beside * number}"
        word = self.k.value("i64", f"ld.param.u64 {{}}, [{at}];")
        if number in getattr(self.kernel, "indirect", ()):
            word = self.k.value("i64", f"ld.global.u64 {{}}, [{word}];")
        return word

    def _once(self, name: str, ty: str, *lines: str) -> str:
        """A value computed at the kernel's start, on first use."""
        if name not in self._known:
            for i, line in enumerate(lines):
                reg = self.k.reg(ty if i == len(lines) - 1 else "i32")
                self.k.prologue.append("  " + line.replace("{}", reg, 1).replace("$", self._known.get("_", "")))
                self._known["_"] = reg
            self._known[name] = self._known["_"]
        return self._known[name]

    def base(self, shape: tuple[int, ...], axis: int) -> str:
        """This thread's first position along a spread axis."""
        if isinstance(self.layout, Group):
            n, v = self.layout.threads, self.layout.vector
            if n & (n - 1):  # a block
                return self._once("column", "i64", "mov.u32 {}, %tid.x;", f"mul.wide.u32 {{}}, $, {v};")
            return self._once("column", "i64", "mov.u32 {}, %tid.x;", f"and.b32 {{}}, $, {n - 1};", f"mul.wide.u32 {{}}, $, {v};")
        if axis == len(shape) - 1:
            return self._once("column", "i64", "mov.u32 {}, %tid.x;", "and.b32 {}, $, 3;", "mul.wide.u32 {}, $, 2;")
        self._once("row16", "i32", "mov.u32 {}, %tid.x;", "bfe.u32 {}, $, 5, 2;", "shl.b32 {}, $, 4;")
        return self._once(
            "row", "i64", "mov.u32 {}, %tid.x;", "bfe.u32 {}, $, 2, 3;", f"add.u32 {{}}, $, {self._known['row16']};", "cvt.u64.u32 {}, $;"
        )

    def first_thread(self) -> str:
        """True in the first thread of the group."""
        return self._once("first", "i1", "mov.u32 {}, %tid.x;", f"and.b32 {{}}, $, {self.layout.threads - 1};", "setp.eq.u32 {}, $, 0;")

    def first_lane(self) -> str:
        return self._once("lane0", "i1", "mov.u32 {}, %laneid;", "setp.eq.u32 {}, $, 0;")

    def warp(self) -> str:
        return self._once("warp", "i32", "mov.u32 {}, %tid.x;", "shr.u32 {}, $, 5;")

    def shared_base(self) -> str:
        return self._once("shared", "i64", "mov.u64 {}, scratch;")

    def member_mask(self) -> str:
        """The lanes of this thread's group."""
        n = self.layout.threads
        if n >= WARP:
            return "-1"
        return self._once("members", "i32", "mov.u32 {}, %laneid;", f"and.b32 {{}}, $, {WARP - n};", f"shl.b32 {{}}, {(1 << n) - 1}, $;")

    def barrier(self) -> None:
        self.k.emit("bar.sync 0;")

    # --- operands -----------------------------------------------------------------------------------------------------
    def ix(self, x: Operand) -> str:
        return str(x) if isinstance(x, int) else str(self.env[x])

    def index_register(self, x: Operand) -> str:
        text = self.ix(x)
        return text if text.startswith("%") else self.k.value("i64", f"mov.b64 {{}}, {text};")

    def tile(self, x: Operand) -> Regs:
        assert isinstance(x, Var)
        found = self.env[x]
        assert isinstance(found, Regs)
        return found

    # --- structure ----------------------------------------------------------------------------------------------------
    def block(self, block: Block) -> None:
        for n, instr in enumerate(block.body):
            self.rest = block.body[n + 1 :]
            self.step(instr)

    def step(self, instr: Instr) -> None:
        handler: Callable[[Instr], None] | None = getattr(self, "do_" + instr.op.replace(".", "_"), None)
        if instr.op in UNARY:
            handler = self.do_unary
        elif instr.op in BINARY:
            handler = self.do_binary
        elif handler is None and instr.op.startswith("index."):
            handler = self.index_op
        if handler is None:
            raise CompileError(f"cuda: kernel {self.kernel.name} uses {instr.op!r}, which this target does not have")
        handler(instr)

    def carried(self, type_: Type, value: Any) -> tuple[Any, list[tuple[str, str, str]]]:
        """Fresh registers that hold a value across iterations, and the moves (bits, register, source) that fill them."""
        if not isinstance(type_, TileType):
            reg = self.k.reg("i64")
            return reg, [("b64", reg, value)]
        ty, held = elem_type(type_.dtype), copy(value)
        held.type, held.values = type_, {key: self.k.reg(ty) for key in value.values}
        return held, [(self.move_kind(ty), held.values[key], v) for key, v in value.values.items()]

    @staticmethod
    def move_kind(ty: str) -> str:
        return {"i1": "pred", "half": "b16", "bf16": "b16", "double": "f64", "i64": "b64", "float": "f32"}.get(ty, "b32")

    def move(self, kind: str, target: str, source: str) -> None:
        if kind == "pred" and source in ("true", "false"):
            source = self.k.truth(source == "true")
        self.k.emit(f"mov.{kind} {target}, {source};")

    @property
    def branch(self) -> str:
        """Where a program is a whole block, its branches are taken by all threads of the block together."""
        return "bra.uni" if self.layout.threads > WARP else "bra"

    def do_for(self, instr: Instr) -> None:
        k, block = self.k, instr.blocks[0]
        start, stop, carried = instr.operands[0], instr.operands[1], instr.operands[2:]
        types = [r.type for r in instr.results]
        counter, last = k.reg("i64"), self.index_register(stop)
        k.emit(f"mov.b64 {counter}, {self.ix(start)};")
        held = []
        for t, c in zip(types, carried, strict=True):
            regs, moves = self.carried(t, self.ix(c) if not isinstance(t, TileType) else self.tile(c))
            held.append(regs)
            for m in moves:
                self.move(*m)
        top, done = k.label("loop"), k.label("done")
        if not (instr.attrs.get("nonempty") or (isinstance(start, int) and isinstance(stop, int) and start < stop)):
            k.emit(f"@{k.value('i1', f'setp.ge.s64 {{}}, {counter}, {last};')} {self.branch} {done};")
        k.place(top)
        self.loops += 1
        self.env[block.params[0]] = counter
        for p, regs in zip(block.params[1:], held, strict=True):
            self.env[p] = regs
        self.block(block)
        self.loops -= 1
        self.carry(types, block.yields, held)
        k.emit(f"add.s64 {counter}, {counter}, {instr.attrs.get('step', 1)};")
        k.emit(f"@{k.value('i1', f'setp.lt.s64 {{}}, {counter}, {last};')} {self.branch} {top};")
        k.place(done)
        for result, regs in zip(instr.results, held, strict=True):
            self.env[result] = regs

    def carry(self, types: Sequence[Type], yields: Sequence[Operand], held: Sequence[Any]) -> None:
        """The values of the next iteration into the registers that carry them. A yield may be another's old value: read all, then write."""
        pending = []
        for t, y, regs in zip(types, yields, held, strict=True):
            value = self.ix(y) if not isinstance(t, TileType) else self.tile(y)
            fresh, moves = self.carried(t, value)
            for m in moves:
                self.move(*m)
            names = list(zip(_names(regs), _names(fresh), strict=True))
            pending += [(m[0], a, b) for m, (a, b) in zip(moves, names, strict=True)]
        for kind, a, b in pending:
            self.move(kind, a, b)

    def do_if(self, instr: Instr) -> None:
        k = self.k
        after = k.label("after")
        condition = next(iter(self.tile(instr.operands[0]).values.values()))
        condition = k.truth(condition == "true") if condition in ("true", "false") else condition
        k.emit(f"@!{condition} {self.branch} {after};")
        self.loops += 1  # registers and shared memory of a branch are not for others to reuse
        self.block(instr.blocks[0])
        self.loops -= 1
        k.place(after)

    # --- index scalars ------------------------------------------------------------------------------------------------
    def index_op(self, instr: Instr) -> None:
        fn, (a, b) = instr.op[6:], (self.ix(x) for x in instr.operands)
        k = self.k
        if fn in ("floordiv", "mod"):
            out = self._divide(fn, a, b)
        elif fn in ("shl", "shr"):
            amount = b if not b.startswith("%") else k.value("i32", f"cvt.u32.u64 {{}}, {b};")
            out = k.value("i64", f"{'shl.b64' if fn == 'shl' else 'shr.u64'} {{}}, {a}, {amount};")
        else:
            out = k.value("i64", f"{_INDEX[fn]} {{}}, {a}, {b};")
        self.env[instr.results[0]] = out

    def _divide(self, fn: str, a: str, b: str) -> str:
        """Operands are not negative. Powers of two shift, other constants multiply (exact below 2^48); otherwise 32-bit division where both
        fit, which is several times faster."""
        k = self.k
        if not b.startswith("%") and int(b) & (int(b) - 1) == 0:
            n = int(b)
            return k.value("i64", f"shr.u64 {{}}, {a}, {n.bit_length() - 1};" if fn == "floordiv" else f"and.b64 {{}}, {a}, {n - 1};")
        if not b.startswith("%") and int(b) < 1 << 16 and a.startswith("%"):
            whole = k.value("i64", f"mul.hi.u64 {{}}, {a}, {(1 << 64) // int(b) + 1};")
            if fn == "floordiv":
                return whole
            return k.value("i64", f"sub.s64 {{}}, {a}, {k.value('i64', f'mul.lo.s64 {{}}, {whole}, {b};')};")
        out = k.reg("i64")
        op = "div" if fn == "floordiv" else "rem"
        a, b = (x if x.startswith("%") else k.value("i64", f"mov.b64 {{}}, {x};") for x in (a, b))
        high = k.value("i64", f"shr.u64 {{}}, {k.value('i64', f'or.b64 {{}}, {a}, {b};')}, 32;")
        long, done = k.label("long"), k.label("divided")
        k.emit(f"@{k.value('i1', f'setp.ne.u64 {{}}, {high}, 0;')} {self.branch} {long};")
        x, y = (k.value("i32", f"cvt.u32.u64 {{}}, {v};") for v in (a, b))
        k.emit(f"cvt.u64.u32 {out}, {k.value('i32', f'{op}.u32 {{}}, {x}, {y};')};")
        k.emit(f"{self.branch} {done};")
        k.place(long)
        k.emit(f"{op}.u64 {out}, {a}, {b};")
        k.place(done)
        return out

    def do_index_cmp(self, instr: Instr) -> None:
        fn = instr.attrs["fn"]
        out = self.f.icmp(fn if fn in ("eq", "ne") else "s" + fn, "i64", *(self.ix(x) for x in instr.operands))
        self._scalar(instr, out)

    def do_to_index(self, instr: Instr) -> None:
        x = self.tile(instr.operands[0])
        self.env[instr.results[0]] = convert(self.f, x.type.dtype, i64, next(iter(x.values.values())))

    def do_from_index(self, instr: Instr) -> None:
        out = instr.results[0].type
        assert isinstance(out, TileType)
        self._scalar(instr, convert(self.f, i64, out.dtype, self.index_register(instr.operands[0])))

    # --- elements -----------------------------------------------------------------------------------------------------
    def elementwise(self, instr: Instr, emit: Callable[..., str]) -> None:
        """emit(dtype of the operands, *operands) for every element a thread holds."""
        raise NotImplementedError

    def do_unary(self, instr: Instr) -> None:
        fn = math.short if instr.attrs.get("short") else math.unary
        self.elementwise(instr, lambda dt, x: fn(self.f, instr.op, dt, x))

    def do_binary(self, instr: Instr) -> None:
        made: list[tuple[str, str, str, str]] = []

        def emit(dt: DType, a: str, b: str) -> str:
            if instr.op == "div" and dt is f32 and a.startswith("%") and (y := math.inverse(b)):
                made.append((*math.quotient(self.f, a, b, y), a, b))
                return made[-1][0]
            if instr.attrs.get("short"):
                return math.short_quotient(self.f, a, b)
            return math.binary(self.f, instr.op, dt, a, b)

        self.elementwise(instr, emit)
        if made:  # a quotient of its own for each would be a branch each: the elements of a tile would wait for one another
            k, exact = self.k, made[0][1]
            for _, inside, _, _ in made[1:]:
                exact = self.f.op("and", "i1", exact, inside)
            done = k.label("divided")
            k.emit(f"@{exact} bra {done};")
            for out, _, a, b in made:
                k.emit(f"div.rn.f32 {out}, {a}, {b};")
            k.place(done)

    def do_cmp(self, instr: Instr) -> None:
        self.elementwise(instr, lambda dt, a, b: arithmetic.compare(self.f, instr.attrs["fn"], dt, elem_type(dt), a, b))

    def do_select(self, instr: Instr) -> None:
        self.elementwise(instr, lambda dt, c, a, b: self.f.select(elem_type(dt), c, a, b))

    def do_fma(self, instr: Instr) -> None:
        self.elementwise(instr, lambda dt, a, b, c: self.f.fma(elem_type(dt), a, b, c))

    def do_broadcast(self, instr: Instr) -> None:
        self.elementwise(instr, lambda dt, x: x)

    def do_bitcast(self, instr: Instr) -> None:
        out = instr.results[0].type
        assert isinstance(out, TileType)
        target = elem_type(out.dtype)
        self.elementwise(instr, lambda dt, x: self.f.cast("bitcast", elem_type(dt), x, target))

    def constant(self, dtype: DType, value: Any) -> str:
        """The text of a number as an operand."""
        ty = elem_type(dtype)
        if dtype.kind == "u" and ty == "i64":
            return str(int(value)) + ("U" if value >= 1 << 63 else "")
        return self.k.value("half", f"mov.b16 {{}}, {_raw(dtype, value)};") if ty in ("half", "bf16") else literal(ty, value)

    def do_prefetch(self, instr: Instr) -> None:
        """A hint for CPUs; the GPU hides latency with other warps."""

    def _scalar(self, instr: Instr, value: str) -> None:
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        self.env[instr.results[0]] = Regs(type_, {(0,) * len(type_.shape): value})


def _names(held: Any) -> list[str]:
    return list(held.values.values()) if isinstance(held, Regs) else [held]
