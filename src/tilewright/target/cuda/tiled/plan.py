"""Where the tiles of a block program live: register layouts for values, shared memory for the operands of products.

The sums of a product have the layout of its instruction; everything else follows its neighbours: the operands of an elementwise
operation lie as its result does, a reduction's result is a slice of its operand, a loop carries one layout. What no product reaches is laid
out so that its widest access is coalesced. Where two neighbours ask for different layouts the emitter converts.

An operand of a product that is loaded for products alone never passes through registers: it is copied to shared memory (asynchronously,
and ahead of time inside a loop). A computed left operand whose layout fits stays in registers, other computed operands are stored to
shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ....core.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, u8
from ....core.errors import CompileError
from ....kernels.cuda.tiled import PLAIN, TiledKernel, multiplied, split_warps
from ....tile.ir import BINARY, UNARY, Block, Instr, Operand, TileType, Var, ViewType
from .layout import Layout, blocked, fragment, log2, register_tile

ELEMENTWISE = frozenset((*UNARY, *BINARY, "cmp", "select", "fma", "dot4", "cast", "bitcast"))


@dataclass(frozen=True)
class SharedTile:
    """How a matrix lies in shared memory: rows of at most 128 bytes along its contiguous axis, in panels, 16-byte chunks swizzled."""

    rows: int  # rows of the stored matrix
    columns: int  # along the contiguous axis
    dtype: DType
    swapped: bool  # the tile's axis 0 is the contiguous one

    @property
    def pitch(self) -> int:
        return min(128, max(16, self.columns * self.dtype.itemsize))

    @property
    def nbytes(self) -> int:
        return -(-self.rows * max(16, self.columns * self.dtype.itemsize) // 1024) * 1024

    @property
    def mask(self) -> int:
        """The bits of an offset that the swizzle changes."""
        return self.pitch - 16

    def place(self, row: int, column: int) -> int:
        """The byte offset of an element, without the swizzle."""
        panel, inside = divmod(column * self.dtype.itemsize, self.pitch)
        return panel * self.rows * self.pitch + row * self.pitch + inside

    def swizzled(self, offset: int) -> int:
        return offset ^ (offset >> 3 & self.mask)


@dataclass(eq=False)
class Dot:
    """A product: its instruction kind, the layout of its sums, and its operands."""

    instr: Instr
    kind: str  # mma (16 and 8 bits), tf32, doubles, wgmma, wgmma_tf32 or fma
    layout: Layout
    down: int  # warps along rows
    across: int
    deep: int  # how much of K, and how many columns, are not known to be zeros
    wide: int


@dataclass
class Plan:
    layouts: dict[Var, Layout] = field(default_factory=dict)
    dots: dict[Instr, Dot] = field(default_factory=dict)
    staged: dict[Instr, SharedTile] = field(default_factory=dict)  # loads that go to shared memory only
    stored: dict[Var, SharedTile] = field(default_factory=dict)  # computed values that products read from shared memory
    roots: dict[Var, tuple[Var, bool]] = field(default_factory=dict)  # what an operand is, perhaps the transpose of it
    virtual: set[Var] = field(default_factory=set)  # transposes, and boxes as matrices, that only products read, from shared memory

    @property
    def has_wgmma(self) -> bool:
        return any(d.kind.startswith("wgmma") for d in self.dots.values())


def plan(kernel: TiledKernel, *, arch: str = "sm_80", staged: dict[Instr, SharedTile] | None = None) -> Plan:
    """`staged`: operands of products elsewhere that this program copies."""
    return _Planner(kernel, arch, staged or {}).run()


def tile(x: Operand) -> TileType:
    assert isinstance(x, Var) and isinstance(x.type, TileType)
    return x.type


def unit_axis(instr: Instr) -> int | None:
    """The tile axis along which a load or store moves through memory without gaps."""
    view = instr.operands[0]
    assert isinstance(view, Var) and isinstance(view.type, ViewType)
    if instr.op == "gather":
        return 1 if "run" in instr.attrs and view.type.strides[-1] == 1 else None
    return next((i for i, axis in enumerate(instr.attrs["axes"]) if view.type.strides[axis] == 1), None)


def spread_out(kernel: TiledKernel, t: TileType, axis: int, vector: int) -> Layout:
    """A tile over all threads, neighbours along an axis first."""
    if not t.shape:
        return Layout((), (None,) * 5, (None,) * log2(kernel.warps))
    vector = max(1, min(vector, t.shape[axis], t.numel // kernel.threads))
    order = [axis, *(a for a in reversed(range(len(t.shape))) if a != axis)]
    return blocked(t.shape, kernel.warps, order, vector)


def copy_layout(kernel: TiledKernel, instr: Instr, shared: SharedTile) -> tuple[Layout, int]:
    """Which elements of a staged load each thread copies, and how many neighbours at a time."""
    shape, axis = tile(instr.results[0]).shape, unit_axis(instr)
    view, item = instr.operands[0], shared.dtype.itemsize
    assert isinstance(view, Var)
    vector = 1 if axis is None else min(16 // item, kernel.vector(view.name), shape[axis])
    while vector > 1 and vector * item > 4 and shape[0] * shape[1] // vector < kernel.threads:
        vector //= 2
    inner = 0 if shared.swapped else 1
    if axis is not None and axis != inner:  # bytes that lie across K: single loads, and stores of four at once
        return blocked(shape, kernel.warps, (inner, 1 - inner), max(1, min(4 // item, shape[inner]))), 1
    return blocked(shape, kernel.warps, (inner, 1 - inner), vector), vector


def sums_in_place(kernel: TiledKernel, found: Plan) -> set[Instr]:
    """Products by `wgmma` whose sums a loop carries and nothing else reads: they are added to where they lie."""
    out: set[Instr] = set()
    uses: dict[Operand, int] = {}
    for i in kernel.walk():
        for x in (*i.operands, *(y for b in i.blocks for y in b.yields)):
            uses[x] = uses.get(x, 0) + 1
    for i in kernel.walk():
        if i.op == "for":
            block = i.blocks[0]
            for p, y in zip(block.params[1:], block.yields, strict=True):
                made = next((x for x in block.body if x.op == "mma" and x.results[0] is y), None)
                if made is not None and made.operands[2] is p and uses[p] == uses[y] == 1 and found.dots[made].kind.startswith("wgmma"):
                    out.add(made)
    return out


class _Planner:
    def __init__(self, kernel: TiledKernel, arch: str, staged: dict[Instr, SharedTile]) -> None:
        self.kernel, self.out, self.arch = kernel, Plan(staged=dict(staged)), arch
        self.instrs = list(kernel.walk())
        self.made: dict[Var, Instr] = {r: i for i in self.instrs for r in i.results}
        self.users: dict[Var, list[Instr]] = {}
        self.yielded: set[Operand] = set()
        for i in self.instrs:
            for x in i.operands:
                if isinstance(x, Var):
                    self.users.setdefault(x, []).append(i)
            for b in i.blocks:
                self.yielded.update(b.yields)
        self.loops = [i for i in self.instrs if i.op == "for"]

    def run(self) -> Plan:
        for i in self.instrs:
            for r in i.results:
                if isinstance(r.type, TileType) and any(d & (d - 1) or d < 1 for d in r.type.shape):
                    raise CompileError(f"cuda: kernel {self.kernel.name}: sides of a tile must be powers of two, got {r.type} from {i.op}")
        for i in self.out.staged:
            self._place_indices(i, self.out.staged[i])
        for i in self.instrs:
            if i.op == "mma":
                self._dot(i)
        self._propagate()
        for i in self._by_size():
            value = i.results[0] if i.results else i.operands[-1]
            assert isinstance(value, Var)
            if value not in self.out.layouts and i not in self.out.staged:
                self.out.layouts[value] = self._accessed(i, value)
                self._propagate()
        for v in self._values():
            if v not in self.out.layouts:
                t = tile(v)
                self.out.layouts[v] = spread_out(self.kernel, t, max(len(t.shape) - 1, 0), 1)
                self._propagate()
        return self.out

    def _values(self) -> Iterator[Var]:
        for i in self.instrs:
            if i in self.out.staged or (i.results and i.results[0] in self.out.virtual):
                continue
            for r in (*i.results, *(p for b in i.blocks for p in b.params)):
                if isinstance(r.type, TileType):
                    yield r

    def _by_size(self) -> list[Instr]:
        """Accesses, those of the largest tiles first and stores before loads."""
        found = [i for i in self.instrs if i.op in ("load", "store", "gather", "atomic")]
        return sorted(found, key=lambda i: (-tile(i.results[0] if i.results else i.operands[-1]).numel, i.op != "store"))

    def _accessed(self, i: Instr, value: Var) -> Layout:
        t, axis = tile(value), unit_axis(i)
        view = i.operands[0]
        assert isinstance(view, Var)
        if axis is None or not t.shape:
            return spread_out(self.kernel, t, max(len(t.shape) - 1, 0), 1)
        return spread_out(self.kernel, t, axis, min(16 // t.dtype.itemsize, self.kernel.vector(view.name)))

    # --- products -----------------------------------------------------------------------------------------------------
    def _root(self, x: Operand) -> tuple[Var, bool]:
        """What an operand of a product is the transpose of, and whether it is one."""
        assert isinstance(x, Var)
        transposed = False
        while x in self.made and self._seen(self.made[x]):
            transposed = transposed != (self.made[x].op == "transpose")
            x = self.made[x].operands[0]
            assert isinstance(x, Var)
        return x, transposed

    def _seen(self, i: Instr) -> bool:
        """A transpose, or a loaded box of more axes seen as a matrix of its rows: products read either where its operand lies."""
        if i.op != "reshape":
            return i.op == "transpose"
        (x,), to = i.operands, tile(i.results[0]).shape
        box = tile(x).shape
        loaded = isinstance(x, Var) and x in self.made and self.made[x].op == "load" and self._only_products(x)
        return loaded and len(box) > 2 and len(to) == 2 and to[1] == box[-1]

    def _only_products(self, x: Var) -> bool:
        users = self.users.get(x, [])
        if x in self.yielded or not users:
            return False
        views = ("transpose", "reshape") if len(tile(x).shape) > 2 else ("transpose",)
        return all((u.op == "mma" and x is not u.operands[2]) or (u.op in views and self._only_products(u.results[0])) for u in users)

    def _dot(self, i: Instr) -> None:
        a, b, acc = (tile(x) for x in i.operands)
        kind = "mma" if a.dtype in (bf16, f16) and b.dtype is a.dtype and acc.dtype is f32 else "fma"
        if a.dtype is b.dtype is acc.dtype is f32 and i.attrs.get("precision") == "tf32":
            kind = "tf32"
        if a.dtype is b.dtype is f64 and self.arch in ("sm_80", "sm_90a") and a.shape[1] % 16 == 0:
            kind = "doubles"
        bytes_ = (a.dtype in (i8, u8) and b.dtype is i8) or (a.dtype in (f8e4m3, f8e5m2) and b.dtype in (f8e4m3, f8e5m2))
        if bytes_ and acc.dtype is (i32 if a.dtype in (i8, u8) else f32):
            kind = "mma"
        if kind == "fma" and not (a.dtype is b.dtype is acc.dtype and acc.dtype in (f32, f64)):
            raise CompileError(f"cuda: kernel {self.kernel.name}: no product of {a} and {b} into {acc}")
        (left, left_transposed), (right, right_transposed) = self._root(i.operands[0]), self._root(i.operands[1])
        right_shape = self._stage(right, not right_transposed if bytes_ else None)
        loaded = self.made.get(left) is not None and self.made[left].op in ("load", "gather") and self._only_products(left)
        left_shape = self._stage(left, left_transposed if bytes_ else None) if loaded else None
        if kind in ("mma", "tf32") and not bytes_ and self._takes_wgmma(i, left_shape, right_shape, right_transposed):
            kind = "wgmma" if kind == "mma" else "wgmma_tf32"
        chained = self._feeds_rows(i) or (kind == "mma" and not bytes_ and self._comes_from_product(i.operands[0]))
        down, across = self._split(acc.shape, kind, chained)
        if kind != "fma":
            layout = fragment(acc.shape, down, across)
        else:  # the right operand's columns are neighbours in memory: so are a thread's
            layout = register_tile(acc.shape, down, across, neighbours=right_shape.swapped == right_transposed)
        self.out.dots[i] = Dot(i, kind, layout, down, across, *multiplied(self.made, i))
        for v in (i.results[0], i.operands[2]):
            assert isinstance(v, Var)
            self.out.layouts.setdefault(v, layout)
        own = i.operands[0]
        assert isinstance(own, Var)
        if not loaded and not bytes_ and kind in ("mma", "wgmma") and across == 1 and left is own:
            self.out.layouts.setdefault(left, fragment(a.shape, down, 1))
        elif not loaded:
            self._stage(left, left_transposed if bytes_ else None)
        for x in i.operands[:2]:
            assert isinstance(x, Var)
            self.out.roots[x] = self._root(x)
            while x in self.made and self._seen(self.made[x]) and self._only_products(x):
                self.out.virtual.add(x)
                x = self.made[x].operands[0]
                assert isinstance(x, Var)

    def _takes_wgmma(self, i: Instr, left: SharedTile | None, right: SharedTile, right_transposed: bool) -> bool:
        """Whether warpgroups of four warps can multiply these operands where they lie: rows of 64 a warpgroup, and a matrix whose rows are
        not along K in whole swizzled rows of 128 bytes."""
        (rows, deep), (_, columns) = (tile(x).shape for x in i.operands[:2])
        warps = self.kernel.warps
        if self.arch != "sm_90a" or warps % 4 or rows < 64 or deep < 16 or columns * min(warps, rows // 16) < 8 * warps:
            return False
        if right.pitch < 32 or (right.swapped == right_transposed and right.pitch != 128):
            return False
        if right.dtype is f32:  # rounded by TMA, as the left operand is in registers
            view = self.made[self._root(i.operands[1])[0]].operands[0]
            known = isinstance(view, Var) and view.name in dict(self.kernel.mapped)
            return known and right.swapped != right_transposed and left is not None and left.swapped == self._root(i.operands[0])[1]
        if left is None:
            return self._root(i.operands[0])[1] is False and rows * 4 >= 64 * warps
        return left.pitch == 128 or (left.pitch >= 32 and left.swapped == self._root(i.operands[0])[1])

    def _place_indices(self, made: Instr, shared: SharedTile) -> None:
        """Indices of a gather lie where the copies that they address are made."""
        if made.op == "gather":
            indices, shape = made.operands[1 + len(self._strides(made))], tile(made.results[0]).shape
            assert isinstance(indices, Var)
            self.out.layouts.setdefault(indices, copy_layout(self.kernel, made, shared)[0].project(shape, tile(indices).shape))

    def _stage(self, x: Var, across: bool | None = None) -> SharedTile:
        """Put an operand into shared memory: by a copy where it is only loaded, by a store where it is computed. `across`: whether axis 0
        must be the contiguous one there (the tensor cores want bytes along K)."""
        made, t = self.made.get(x), tile(x)
        if made is not None and made.op in ("load", "gather") and self._only_products(x):
            axis = unit_axis(made)  # rows that indices name and that lie across memory have neighbouring first elements
            swapped = (axis == 0 or (axis is None and "run" in made.attrs)) and t.shape[0] > 1 if across is None else across
            matrix = (t.numel // t.shape[-1], t.shape[-1])  # the rows of a box
            rows, columns = matrix[::-1] if swapped else matrix
            shared = self.out.staged.setdefault(made, SharedTile(rows, columns, t.dtype, swapped))
            self._place_indices(made, shared)
            return shared
        if made is None or made.op == "for":
            raise CompileError(f"cuda: kernel {self.kernel.name}: an operand of a product must not be carried by a loop, got {t}")
        rows, columns = (t.shape[1], t.shape[0]) if across else t.shape
        return self.out.stored.setdefault(x, SharedTile(rows, columns, t.dtype, bool(across)))

    @staticmethod
    def _strides(i: Instr) -> tuple[int | None, ...]:
        view = i.operands[0]
        assert isinstance(view, Var) and isinstance(view.type, ViewType)
        return view.type.strides

    def _feeds_rows(self, i: Instr) -> bool:
        """The sums are reduced along rows or are the left operand of another product: rows should not be spread over warps."""
        seen, stack = set(), list(i.results)
        while stack:
            for u in self.users.get(stack.pop(), []):
                if u in seen:
                    continue
                seen.add(u)
                if u.op == "reduce" or (u.op == "mma" and u is not i):
                    return True
                stack += [r for r in u.results if isinstance(r.type, TileType) and len(r.type.shape) == 2]
        return False

    def _comes_from_product(self, x: Operand) -> bool:
        """A left operand is computed from sums of another product, whose rows then stay in the registers where they are."""
        made = self.made.get(x) if isinstance(x, Var) else None
        return made is not None and (made.op == "mma" or (made.op in ELEMENTWISE and any(map(self._comes_from_product, made.operands))))

    def _split(self, shape: tuple[int, ...], kind: str, chained: bool) -> tuple[int, int]:
        rows, columns = shape
        warps = self.kernel.warps
        if kind.startswith("wgmma"):
            return min(warps, rows // 16), warps // min(warps, rows // 16)
        found = split_warps(rows, columns, warps, (16, 16) if kind != "fma" else PLAIN, chained=chained)
        if found is None:
            raise CompileError(f"cuda: kernel {self.kernel.name}: a product of {rows}x{columns} is too small for {warps} warps")
        return found

    # --- neighbours ---------------------------------------------------------------------------------------------------
    def _propagate(self) -> None:
        changed = True
        while changed:
            before = len(self.out.layouts)
            self._sweep(self.kernel.body)
            changed = len(self.out.layouts) != before

    def _sweep(self, block: Block) -> None:
        for i in block.body:
            if i.op in ELEMENTWISE:
                self._elementwise(i)
            elif i.op == "broadcast":
                self._spread(i.results[0], i.operands[0])
            elif i.op == "reduce":
                self._reduced(i)
            elif i.op in ("transpose", "reshape") and i.results[0] not in self.out.virtual:
                self._moved(i)
            elif i.op == "mma":
                self._same([i.results[0], i.operands[2]])
            elif i.op == "for":
                inner = i.blocks[0]
                for r, init, p, y in zip(i.results, i.operands[2:], inner.params[1:], inner.yields, strict=True):
                    self._same([r, init, p, y])
            for b in i.blocks:
                self._sweep(b)

    def _same(self, values: list[Operand]) -> None:
        tiles = [v for v in values if isinstance(v, Var) and isinstance(v.type, TileType)]
        found = next((self.out.layouts[v] for v in tiles if v in self.out.layouts), None)
        if found is not None:
            for v in tiles:
                self.out.layouts.setdefault(v, found)

    def _spread(self, result: Var, operand: Operand) -> None:
        """An operand is read as its larger result lies."""
        if result in self.out.layouts and isinstance(operand, Var):
            self.out.layouts.setdefault(operand, self.out.layouts[result].project(tile(result).shape, tile(operand).shape))

    def _elementwise(self, i: Instr) -> None:
        result = i.results[0]
        whole = [x for x in i.operands if tile(x).shape == tile(result).shape]
        self._same([result, *whole])
        for x in i.operands:
            self._spread(result, x)

    def _reduced(self, i: Instr) -> None:
        x, result = i.operands[0], i.results[0]
        assert isinstance(x, Var)
        if x in self.out.layouts:
            self.out.layouts.setdefault(result, self.out.layouts[x].project(tile(x).shape, tile(result).shape))

    def _moved(self, i: Instr) -> None:
        x, result = i.operands[0], i.results[0]
        assert isinstance(x, Var)
        for a, b in ((x, result), (result, x)):
            if a in self.out.layouts and b not in self.out.layouts:
                lay = self.out.layouts[a]
                self.out.layouts[b] = lay.transposed(tile(a).shape) if i.op == "transpose" else lay
