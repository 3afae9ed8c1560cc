"""How a kernel is run on a GPU: threads per program, programs per block, and what its author promises about alignment."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

from ...core.dims import Dim, bounds
from ...core.dtypes import DType
from ...core.hashing import blake2b
from ...tile.ir import Block, Kernel, Var
from ...tile.text import to_text


@dataclass(frozen=True)
class FlashPlan:
    consumers: int = 2  # warpgroups of 64 query rows in a block
    per_sm: int = 1  # blocks of an SM
    keys: int = 128  # keys of a tile
    stages: int = 2  # tiles of keys, and of values, in flight
    kept: int = 24 << 20  # bytes of keys and values that blocks work on at a time


PLANS = {64: FlashPlan(consumers=1, per_sm=3, keys=64, stages=3), 128: FlashPlan()}


WARP = 32
K = TypeVar("K", bound=Kernel)


def identified(kernel: K) -> K:
    """The kernel under the name of its whole description: a hash of its text and of every field. What lies behind a tensor map is the
    host's matter, not the code's."""

    def shown(value: object) -> object:
        if isinstance(value, Var):
            return value.name, str(value.type)
        if isinstance(value, TensorMap):
            return value.argument, str(value.dtype), value.box, value.swizzle, value.rounded, value.windows
        if isinstance(value, (tuple, frozenset)):
            return [shown(v) for v in (sorted(value) if isinstance(value, frozenset) else value)]
        return value

    more = [(f.name, shown(getattr(kernel, f.name))) for f in fields(kernel) if f.name not in ("name", "params", "pid", "body")]
    text = to_text(Kernel("kernel", kernel.params, kernel.pid, kernel.body))
    made = blake2b(repr((type(kernel).__name__, text, more)).encode(), digest_size=8).hexdigest()
    kernel.name = f"{kernel.name.rpartition('_')[0] or kernel.name}_{made}"
    return kernel


@dataclass(eq=False)
class SimtKernel(Kernel):
    """A kernel without tensor maps: its argument words may lie in memory."""

    indirect: frozenset[int] = frozenset()  # arguments whose word is the address of the value
    beside: int = 1  # launches that run as one, each with words of its own, the number of its programs last: word i of all, then word i + 1

    def __post_init__(self) -> None:
        _unclaim(self.body)


def reads_late(kernel: Kernel) -> bool:
    """Whether a kernel may find argument words in memory: one with tensor maps, which the host writes, does not."""
    return isinstance(kernel, SimtKernel) and not getattr(kernel, "maps", ())


def _unclaim(block: Block) -> None:
    """On a GPU the threads of a program report together, and the one old value of an atomic is not for all of them: they look at the error
    block's first word instead of claiming it (see `kernels/call.py`). Two programs that fail at once may both write there."""
    unused = set()
    for i in block.body:
        for inner in i.blocks:
            _unclaim(inner)
        if i.op == "atomic" and isinstance(i.operands[0], Var) and i.operands[0].name == "error":
            unused.add(i.operands[-1])
            i.op, i.operands, i.attrs = "load", i.operands[:-1], {k: v for k, v in i.attrs.items() if k in ("axes", "limits")}
    block.body[:] = [i for i in block.body if not (i.results and i.results[0] in unused)]


@dataclass(eq=False)
class BlockKernel(SimtKernel):
    """A tile kernel whose programs run on groups of threads.

    The last axis of a tile is dealt out in pieces of `vector` neighbours, piece i to thread i mod `threads`; other axes, and tiles whose
    last axis is 1, are held by every thread of the group. A group is one thread, a part of a warp, or a whole block
    (then `programs` is 1). With `vector` > 1 the author promises that every unit-stride access starts at a multiple of `vector`
    elements and that limits along the last axis are such multiples.
    """

    threads: int = 1
    programs: int = 128
    vector: int = 1
    streamed: frozenset[str] = frozenset()  # parameters that are only read, once: they stay out of L1
    early: bool = False  # streamed parameters are in memory from the start: their first loads do not wait for the previous kernel
    ready: frozenset[str] = frozenset()  # parameters of which the same is true and that are read more than once
    runs: frozenset[str] = frozenset()  # parameters of tiles [4, threads] whose first axis has stride 1 and starts at multiples of 16 bytes
    workspace: Var | None = None  # a parameter whose memory the programs share out for what they allocate

    @property
    def block(self) -> int:
        return self.threads * self.programs


@dataclass(frozen=True)
class Windows:
    """How TMA walks an image: the first and one past the last place (relative to the image's ends) of a window's first tap, and
    the step between windows; innermost axis first."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor the host makes at launch: which argument word holds the pointer, and the tensor behind it, innermost first.
    With `windows`, the box is (channels, windows)."""

    argument: int
    dtype: DType
    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]  # in bytes, of every axis but the innermost
    box: tuple[int, ...]
    swizzle: int  # bytes: 0, 32, 64 or 128
    rounded: bool = False  # f32 is rounded to tf32 on the way
    windows: Windows | None = None


def forward(*strides: Dim) -> bool:
    """No axis steps back, as those of flipped values do: a tensor map has no word for it."""
    return all(bounds(s)[0] >= 0 for s in strides)


@dataclass(eq=False)
class GemmKernel(Kernel):
    """A matrix product on Hopper's tensor cores, C = epilogue(alpha · A · B): `params` and `body` are the epilogue in tile IR.

    The body sees `acc` (f32, 64 rows of one warpgroup × `slice` columns), its first row `row` and column `column`, and runs once per
    slice; the rest of the kernel is written by the target from the sizes here. Both matrices are read through tensor maps.
    """

    acc: Var | None = None
    row: Var | None = None
    column: Var | None = None
    batch: Var | None = None
    bm: int = 128
    bn: int = 256
    slice: int = 32  # columns of one run of the epilogue: wider ones would spill registers
    stages: int = 4
    consumers: int = 2
    transposed_a: bool = False  # A is [K, M]
    transposed_b: bool = True  # B is [N, K]
    cluster: int = 1  # neighbouring blocks that share B
    splits: int = 1  # neighbouring blocks that share K: a cluster that adds its sums in order
    per_sm: int = 1  # blocks that share an SM
    rows: int = 0  # rows of A that are read, where fewer than bm: what stands in the others' place is multiplied and thrown away
    dtype: str = "bf16"
    dtype_b: str = "bf16"
    run: int = 2  # neighbours in a row that are loaded and stored at once
    matrices: tuple[int, ...] = (0, 0)  # A and B that the batch takes in turn; 0: as many as there are products
    promote: int = 0  # steps of K after which the tensor cores' sums are added to others in registers; 0: at the end only
    alpha: float = 1.0
    group: int = 8  # tiles of rows that share columns of B in L2
    maps: tuple[TensorMap, ...] = ()  # tensor maps of A and B, then of the results that are stored through shared memory
    stored: tuple[Var, ...] = ()  # views of those results
    kept: int = 0  # steps of K whose part of B all stay in shared memory: one tile of columns, not too deep
    added: Var | None = None  # a matrix of 16-bit floats that the epilogue reads: it comes through the ring, by the last map

    @property
    def block(self) -> int:
        return 128 * (self.consumers + 1)


@dataclass(eq=False)
class TransposeKernel(Kernel):
    """A copy between views [outer, batch, rows, columns]: `source` is read along rows (or, if `straight`, along columns), `target` lies
    along columns."""

    source: Var | None = None
    target: Var | None = None
    item: int = 1
    straight: bool = False  # the source is contiguous along columns, too

    @property
    def block(self) -> int:
        return 256


@dataclass(eq=False)
class ThinKernel(SimtKernel):
    """C = epilogue(A · Bᵀ) for few rows of A (see the target's `thin`): `params` and `body` are the epilogue in tile IR.

    The body sees `acc` (f32, one row × `panel` columns), its `row` and first `column`; `a` and `b` are the views of the operands.
    """

    acc: Var | None = None
    row: Var | None = None
    column: Var | None = None
    a: Var | None = None
    b: Var | None = None
    rows: int = 8  # rows of A, a multiple of 8
    panel: int = 16  # rows of B in a block
    warps: int = 8
    unroll: int = 4
    dtype: str = "bf16"

    @property
    def block(self) -> int:
        return 32 * self.warps


@dataclass(eq=False)
class FlashKernel(Kernel):
    """Attention on Hopper's tensor cores: `params` and `body` are the epilogue in tile IR, over the finished rows of one warpgroup.

    The body sees `acc` (f32, 64 rows × head size), its first row `row`, and `head` and `batch`. Operands come through tensor maps
    [batch, head, position, d].
    """

    acc: Var | None = None
    row: Var | None = None
    head: Var | None = None
    batch: Var | None = None
    softcap: float | None = None
    nan_rows: bool = False  # a row that sees nothing is NaN, not zeros
    mask: Var | None = None  # views [batch, head, row, key]
    bias: Var | None = None
    together: int = 1  # keys whose mask and bias are read by one load
    logsumexps: Var | None = None  # a view [batch, head, row] for log Σ exp of the rows, or nothing
    d: int = 128
    causal: bool = False
    windowed: bool = False
    scale: float = 1.0
    dtype: str = "bf16"
    maps: tuple[TensorMap, ...] = ()
    plan: FlashPlan = FlashPlan()

    @property
    def block(self) -> int:
        return 128 * (self.plan.consumers + 1)

    @property
    def rows(self) -> int:
        return 64 * self.plan.consumers

    @property
    def keys(self) -> int:
        return self.plan.keys


@dataclass(eq=False)
class DecodeKernel(SimtKernel):
    """Attention of one query row per head on a block or a `cluster` (see the target's `decode`): the first `split` instructions of `body`
    run on groups of `threads` and leave
    `found` (running maximum, sum, both halves of the weighted values); the others see `acc`, the row itself, on one thread per column."""

    split: int = 0
    part: Var | None = None  # index of the group
    found: tuple[Var, ...] = ()
    acc: Var | None = None
    d: int = 64
    threads: int = 8
    vector: int = 4
    groups: int = 32
    cluster: int = 1  # blocks of a head, which share its groups
    streamed: frozenset[str] = frozenset()  # as in `BlockKernel`
    early: bool = False

    @property
    def block(self) -> int:
        return self.threads * self.groups // self.cluster

    @property
    def warp_parts(self) -> int:
        """Groups of a warp: their results are joined in registers."""
        return max(1, WARP // self.threads)


@dataclass(eq=False)
class QGemmKernel(SimtKernel):
    """Products of many rows with a packed matrix (see the target's `qgemm`): `params` and `body` are the epilogue in tile IR, over the
    block's `rows` × 16 `panels` sums `acc`; `x` is bf16[rows, k]."""

    acc: Var | None = None
    row: Var | None = None
    column: Var | None = None
    weights: Var | None = None
    x: Var | None = None
    format: str = "Q4_K"
    k: int = 256
    panels: int = 8  # panels of a block
    rows: int = 128
    tall: int = 2  # panels of a warp
    wide: int = 8  # times eight rows of a warp
    wgmma: bool = False  # on Hopper's tensor cores: panels of a warp are one, its rows all
    warps: int = 8
    splits: int = 1  # neighbouring blocks that share K: a cluster that adds its sums in order

    @property
    def down(self) -> int:
        """Warps along the panels."""
        return self.panels // self.tall

    @property
    def block(self) -> int:
        return 32 * self.warps


@dataclass(eq=False)
class QDotKernel(SimtKernel):
    """Products with packed matrices (see the target's `qdot`): `params` and `body` are the epilogue in tile IR.

    The body sees `accs` (f32, one row × 16 columns, one per matrix), its `row` and first `column`. The activations are either one row `x`
    of f32 that every block rounds to quantized values itself (times the weights `norm` of an RMS norm, whose factor goes onto the sums), or
    `quantized`, `scales` and `sums` of `tiles` times eight rows a block.
    """

    accs: tuple[Var, ...] = ()
    row: Var | None = None
    column: Var | None = None
    weights: tuple[Var, ...] = ()
    x: Var | None = None
    norm: Var | None = None
    norm_early: bool = False  # nothing in the program writes the norm's weights
    eps: float = 0.0
    quantized: Var | None = None
    scales: Var | None = None
    sums: Var | None = None
    format: str = "Q4_K"
    k: int = 256
    per: int = 1  # panels of a block
    tiles: int = 0
    warps: int = 8

    @property
    def spread(self) -> bool:
        """Whether the units of a single row are whole: their eight blocks of 32 columns are the eight columns of a product."""
        return self.x is not None and self.k % 256 == 0 and not self.format.startswith("F8")

    @property
    def block(self) -> int:
        return 32 * self.warps


@dataclass(eq=False)
class QFewKernel(SimtKernel):
    """Products of a few rows with a packed matrix (see the target's `qfew`): `params` and `body` are the epilogue in tile IR, over one
    row × 16 columns `acc`; `x` is bf16[rows, k]."""

    acc: Var | None = None
    row: Var | None = None
    column: Var | None = None
    weights: Var | None = None
    x: Var | None = None
    format: str = "Q4_K"
    k: int = 256
    tiles: int = 2  # times eight rows
    per: int = 8  # panels of a block
    warps: int = 8  # that share the columns of a panel
    groups: int = 2  # groups of warps
    cluster: int = 1  # blocks that share the columns
    sets: int = 1  # units of a warp in flight or in use

    @property
    def block(self) -> int:
        return 32 * self.warps * self.groups
