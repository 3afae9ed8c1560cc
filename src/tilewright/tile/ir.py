"""Tile IR: the language kernels are written in.

A kernel is a function over a one-dimensional grid of programs. Values are SSA: index scalars (i64), tiles (a static shape of
elements held in registers; rank 0 is a scalar), views (pointer and strides of a tensor in some memory space) and tokens
(order between memory operations). Regions are structured: `for` and `if` own blocks. Everything prints and parses.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core.dtypes import DType
from ..core.records import dataclass, field


@dataclass(frozen=True)
class IndexType:
    """A run-time integer (i64): loop counters, dims, strides."""

    def __str__(self) -> str:
        return "index"


@dataclass(frozen=True)
class TokenType:
    """Order between memory operations; carries no data."""

    def __str__(self) -> str:
        return "token"


@dataclass(frozen=True)
class TileType:
    """`tile<6x64xf32>`: a block of elements with static shape."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def numel(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    def __str__(self) -> str:
        return f"tile<{''.join(f'{d}x' for d in self.shape)}{self.dtype}>"


@dataclass(frozen=True)
class ViewType:
    """`view<f32[?,1] global>`: a strided tensor in memory. Known strides (in elements) are part of the type, `?` are
    run-time words. Space `local` is per-program scratch (a thread's stack of memory on CPUs, shared memory on GPUs)."""

    dtype: DType
    strides: tuple[int | None, ...]
    space: str = "global"

    @property
    def rank(self) -> int:
        return len(self.strides)

    def __str__(self) -> str:
        return f"view<{self.dtype}[{','.join('?' if s is None else str(s) for s in self.strides)}] {self.space}>"


Type = IndexType | TokenType | TileType | ViewType
INDEX, TOKEN = IndexType(), TokenType()


class Var:
    """An SSA value of a kernel."""

    __slots__ = ("name", "type")

    def __init__(self, type_: Type, name: str) -> None:
        self.type, self.name = type_, name

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


Operand = Var | int  # index operands may be literal


@dataclass(eq=False)
class Block:
    """Straight-line instructions with parameters (loop counter and carried values) and yielded values."""

    params: list[Var] = field(default_factory=list)
    body: list[Instr] = field(default_factory=list)
    yields: list[Operand] = field(default_factory=list)
    token_params: tuple[Var, ...] = ()  # tokens that enter an iteration or a branch, and those that leave it
    token_yields: tuple[Var, ...] = ()


@dataclass(eq=False)
class Instr:
    """One operation: `results = op(operands) {attrs} blocks`.

    Tokens stand apart from the operands: a target where program order is enough (a CPU) ignores the two token fields and `join`.
    """

    op: str
    operands: list[Operand]
    attrs: dict[str, Any] = field(default_factory=dict)
    results: list[Var] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    tokens: tuple[Var, ...] = ()  # happens after these
    tokens_out: tuple[Var, ...] = ()  # at most one for a memory op; `for` and `if` give one per token they take


@dataclass(eq=False)
class Kernel:
    """Parameters (views and index scalars, in argument order), the program counter, and the body of one program.

    Argument words: a view takes its pointer, then one word for each unknown stride; an index takes one word.
    """

    name: str
    params: list[Var] = field(default_factory=list)
    pid: Var = field(default_factory=lambda: Var(INDEX, "pid"))
    body: Block = field(default_factory=Block)

    def walk(self) -> Iterator[Instr]:
        """Every instruction, outer before inner."""
        stack = [iter(self.body.body)]
        while stack:
            for instr in stack[-1]:
                yield instr
                if instr.blocks:
                    stack.extend(iter(b.body) for b in reversed(instr.blocks))
                    break
            else:
                stack.pop()


LOCAL_ALIGN = 64


def alloc_bytes(instr: Instr) -> int:
    """Bytes of one `alloc`, rounded up to the alignment of local memory."""
    type_ = instr.results[0].type
    assert isinstance(type_, ViewType)
    size = type_.dtype.itemsize
    for d in instr.attrs["shape"]:
        size *= d
    return -(-size // LOCAL_ALIGN) * LOCAL_ALIGN


def local_bytes(kernel: Kernel) -> int:
    """Local memory one program needs: the sum of its allocs."""
    return sum(alloc_bytes(i) for i in kernel.walk() if i.op == "alloc")


# The closed set of elementwise operations, by number of operands. Float unless said.
UNARY = ("neg", "abs", "sign", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "erf",
         "sigmoid", "floor", "ceil", "round", "trunc", "reciprocal", "not", "isnan", "isinf")
SHORT = ("exp2", "sigmoid", "div")  # f32, with the attribute `short`: 2^-17 is exact enough and results below 2^-126 may be 0
BINARY = ("add", "sub", "mul", "div", "max", "min", "pow", "rem", "floordiv", "and", "or", "xor", "shl", "shr", "mulhi")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
INDEX_BINARY = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "shl", "shr", "and")
REDUCE = ("sum", "max", "min", "prod", "any", "all")
SCAN = ("sum", "prod")
ORDERINGS = ("weak", "relaxed", "acquire", "release")
SCOPES = ("thread", "block", "cluster", "device", "system")
SPACES = ("global", "shared", "local")


def identity(fn: str, dtype: DType) -> float | int:
    """The value that leaves a reduction unchanged."""
    if fn in ("sum", "any"):
        return 0
    if fn in ("prod", "all"):
        return 1
    if dtype.is_float:
        return float("-inf") if fn == "max" else float("inf")
    if dtype.is_bool:
        return 0 if fn == "max" else 1
    bits = dtype.itemsize * 8
    low, high = (0, (1 << bits) - 1) if dtype.kind == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return low if fn == "max" else high
