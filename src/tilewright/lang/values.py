"""What a kernel's author holds beside tiles and index values: views of arrays, partitions of views, and single tiles of a partition."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.dtypes import DType
from ..core.errors import CompileError
from ..tile.builder import Ix, Tile
from ..tile.builder import View as RawView
from ..tile.ir import Var
from ..tile.rules import ATOMIC
from .context import Access

if TYPE_CHECKING:
    from .evaluate import Evaluator

Index = Ix | int


def shown(x: Any) -> str:
    """A value of a kernel, for messages."""
    if isinstance(x, Tile):
        return f"tile {x.dtype}[{', '.join(map(str, x.shape))}]"
    return "an index" if isinstance(x, Ix) else str(x) if isinstance(x, (View, Partition)) else repr(x)


def as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def need_indices(what: str, given: Sequence[Any], count: int) -> tuple[Index, ...]:
    """Positions: `count` of them, each an index value."""
    if len(given) != count:
        raise CompileError(f"{what}: needs {count} positions, got {len(given)}")
    for x in given:
        if isinstance(x, bool) or not isinstance(x, (int, Ix)):
            hint = "; use tl.index(x) for a tile of one integer" if isinstance(x, Tile) else ""
            raise CompileError(f"{what}: a position is an index, got {shown(x)}{hint}")
    return tuple(given)


def need_shape(what: str, given: Any) -> tuple[int, ...]:
    """A tile's shape: numbers that are known when the kernel is compiled."""
    shape = as_tuple(given)
    for d in shape:
        if isinstance(d, bool) or not isinstance(d, int) or d < 1:
            hint = "; tiles have sizes that are known at compile time: pass it as a keyword-only constant" if isinstance(d, Ix) else ""
            raise CompileError(f"{what}: the sides of a tile are positive integers, got {shown(d)}{hint}")
    return shape


class View:
    """An array inside a kernel: `shape`, `dtype`, `x[i]`, `x.T`, `x.load(...)`, `x.store(...)`, `x.partition(...)`."""

    def __init__(self, e: Evaluator, raw: RawView, shape: tuple[Index, ...], name: str, writable: bool, own: bool = False) -> None:
        """`own`: scratch memory, in which every access must lie inside."""
        self.e, self.raw, self.shape, self.name, self.writable, self.own = e, raw, shape, name, writable, own

    @property
    def dtype(self) -> DType:
        return self.raw.type.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"view {self.name}: {self.dtype}, rank {self.ndim}"

    def __getitem__(self, key: Any) -> View:
        """`x[i]`, `x[:, j]`: the view without the axes whose position is given."""
        at = as_tuple(key)
        if len(at) > self.ndim:
            raise CompileError(f"{self.name}: has {self.ndim} axes, got {len(at)} positions")
        at = (*at, *[slice(None)] * (self.ndim - len(at)))
        keep = [a for a, x in enumerate(at) if isinstance(x, slice)]
        if any(at[a] != slice(None) for a in keep):
            raise CompileError(f"{self.name}: only whole axes (:) can be kept; read parts with load(start, shape) or a partition")
        fixed = [a for a in range(self.ndim) if a not in keep]
        need_indices(self.name, [at[a] for a in fixed], len(fixed))
        starts = tuple(0 if isinstance(x, slice) else x for x in at)
        sizes = self._operands([self.shape[a] for a in fixed])
        checked = Access(self.name, self._operands([starts[a] for a in fixed]), sizes, (1,) * len(fixed))
        self.e.check_access(checked)
        raw = self.e.b.subview(self.raw, starts, keep)
        self.e.b.accesses.setdefault(self.e.b.last, []).append(checked)
        return View(self.e, raw, tuple(self.shape[a] for a in keep), self.name, self.writable, self.own)

    @property
    def T(self) -> View:
        """The last two axes swapped; nothing moves."""
        if self.ndim < 2:
            raise CompileError(f"{self.name}: .T needs at least two axes, got {self.ndim}")
        return self.permute(*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)

    def permute(self, *axes: int) -> View:
        """The axes in another order; nothing moves."""
        if sorted(axes) != list(range(self.ndim)):
            raise CompileError(f"{self.name}: permute needs an order of the axes 0..{self.ndim - 1}, got {axes}")
        raw = self.e.b.subview(self.raw, (0,) * self.ndim, axes)
        return View(self.e, raw, tuple(self.shape[a] for a in axes), self.name, self.writable, self.own)

    def partition(self, *shape: Any) -> Partition:
        """This view cut into tiles of a shape: `x.partition(64)`, `x.partition(8, 128)`."""
        sides = need_shape(f"{self.name}.partition", shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
        if len(sides) != self.ndim:
            raise CompileError(f"{self.name}.partition: needs a side for each of the {self.ndim} axes, got {sides}")
        self.e.check_sides(f"{self.name}.partition", sides)
        return Partition(self, sides)

    def load(self, start: Any = (), shape: Any = (), *, other: float = 0, inside: Any = False, after: Any = ()) -> Tile:
        """The tile whose first element is at `start`. Elements behind the end of the view are `other`, and memory is not touched there.
        `inside` promises that there are none, so that nothing is masked."""
        sides = need_shape(f"{self.name}.load", shape)
        at = need_indices(f"{self.name}.load", as_tuple(start), self.ndim)
        return self._load(at, sides, self._promised(inside, sides), other, after)

    def store(self, start: Any, tile: Any, *, inside: Any = False, after: Any = ()) -> None:
        """Write a tile whose first element goes to `start`; what would lie behind the end of the view is not written. `inside` promises
        that nothing would."""
        at = need_indices(f"{self.name}.store", as_tuple(start), self.ndim)
        shape = tile.shape if isinstance(tile, Tile) else ()
        if len(shape) > self.ndim:
            raise CompileError(f"{self.name}.store: a tile of rank {self.ndim} goes here, got {shown(tile)}")
        sides = (1,) * (self.ndim - len(shape)) + shape
        self._store(at, tile, sides, self._promised(inside, sides), after)

    def gather(self, indices: Any, axis: int = 0, start: Any = None) -> Tile:
        """Element e is the one at `start` with `indices[e]` added to its position along `axis`. Indices must be in range."""
        if not isinstance(indices, Tile) or not indices.dtype.is_int:
            raise CompileError(f"{self.name}.gather: needs a tile of integers, got {shown(indices)}")
        at = (0,) * self.ndim if start is None else need_indices(f"{self.name}.gather", as_tuple(start), self.ndim)
        if not 0 <= axis < self.ndim:
            raise CompileError(f"{self.name}.gather: axis must be in 0..{self.ndim - 1}, got {axis}")
        self.e.check_indices(self.name, indices, axis, self.shape[axis])
        return self.e.b.gather(self.raw, at, axis, indices)

    def atomic(self, fn: str, start: Any, tile: Any) -> Tile:
        """Combine single integers into memory ("add", "max", "min", "and", "or", "xor", "exchange"), undivided; gives the values before."""
        at = need_indices(f"{self.name}.atomic", as_tuple(start), self.ndim)
        self._need_writable("atomic")
        value = self.e.cast_for_store(self.name, tile, self.dtype)
        if value.type.numel != 1 or not self.dtype.is_int:
            raise CompileError(f"{self.name}.atomic: combines one integer, got {shown(tile)} for {self.dtype}")
        if fn not in ATOMIC:
            raise CompileError(f"{self.name}.atomic: must be one of {' '.join(ATOMIC)}, got {fn!r}")
        access = self._access(at, (1,) * self.ndim, None)
        out = self.e.b.atomic(fn, self.raw, at, self.e.reshaped(value, ()))
        self.e.b.accesses.setdefault(self.e.b.last, []).append(access)
        return out

    def _promised(self, inside: Any, sides: tuple[int, ...]) -> tuple[bool, ...] | None:
        """A promise that is known only at run time is none: the access is masked."""
        return (True,) * len(sides) if inside is True else None

    # --- shared by views and partitions ---------------------------------------------------------------------------------
    def _operands(self, xs: Sequence[Index]) -> tuple[Var | int, ...]:
        return tuple(x if isinstance(x, int) else x.var for x in xs)

    def _limits(self, at: Sequence[Index], sides: tuple[int, ...], whole: Sequence[bool] | None) -> list[Index | None]:
        """How many elements of each side are inside; None: all. A side of one element is not masked: its position must be inside."""
        out: list[Index | None] = []
        for a, (start, side, size) in enumerate(zip(at, sides, self.shape, strict=True)):
            inside = self.own or side == 1 or (whole is not None and whole[a])
            if isinstance(start, int) and isinstance(size, int):
                inside = inside or start + side <= size
            out.append(None if inside else size - start)
        return out

    def _access(self, at: Sequence[Index], sides: tuple[int, ...], whole: Sequence[bool] | None) -> Access:
        known = whole or (False,) * len(sides)
        inside = tuple(s if self.own or s == 1 or w else 0 for s, w in zip(sides, known, strict=True))
        access = Access(self.name, self._operands(at), self._operands(self.shape), inside)
        self.e.check_access(access)
        return access

    def _load(self, at: Sequence[Index], sides: tuple[int, ...], whole: Sequence[bool] | None, other: float, after: Any) -> Tile:
        if len(sides) != self.ndim:
            raise CompileError(f"{self.name}.load: a tile of rank {self.ndim} is read here, got the shape {sides}")
        self.e.check_sides(f"{self.name}.load", sides)
        access = self._access(at, sides, whole)
        out = self.e.b.load(self.raw, at, sides, self._limits(at, sides, whole), other, after=tokens(after))
        self.e.b.accesses.setdefault(self.e.b.last, []).append(access)
        return out

    def _store(self, at: Sequence[Index], tile: Any, sides: tuple[int, ...], whole: Sequence[bool] | None, after: Any) -> None:
        self._need_writable("store")
        value = self.e.cast_for_store(self.name, tile, self.dtype)
        try:
            fits = self.e.b.broadcast_shape(value.shape, sides) == sides
        except CompileError:
            fits = False
        if not fits:
            raise CompileError(f"{self.name}.store: a tile of shape {sides} goes here, got {shown(tile)}")
        access = self._access(at, sides, whole)
        self.e.b.store(self.raw, at, self.e.b.broadcast(value, sides), self._limits(at, sides, whole), after=tokens(after))
        self.e.b.accesses.setdefault(self.e.b.last, []).append(access)

    def _need_writable(self, what: str) -> None:
        if not self.writable:
            raise CompileError(f"{self.name}.{what}: {self.name} is an argument, which is only read; write to a result")
        self.e.written.add(self.name)


def tokens(after: Any) -> tuple[Var, ...]:
    found = as_tuple(after)
    for t in found:
        if not isinstance(t, Var):
            raise CompileError(f"after=: needs tokens (tl.token(), tl.join(...)), got {shown(t)}")
    return found


class Partition:
    """A view cut into tiles. `p[i, j]` reads a tile, `p[i, j] = t` writes one, `p.get_tile(i, j)` tells about one, and `for t in p` goes
    through all of them in order."""

    def __init__(self, view: View, sides: tuple[int, ...]) -> None:
        self.view, self.sides = view, sides

    def __str__(self) -> str:
        return f"partition of {self.view.name} in tiles of {self.sides}"

    def __iter__(self) -> Iterator[TileRef]:
        raise CompileError(f"{self.view.name}.partition: a loop goes over it directly (for t in p); t.start // side is a tile's number")

    @property
    def count(self) -> tuple[Index, ...]:
        """Tiles along each axis, a part of one at the end included."""
        return tuple(-(-n // s) if isinstance(n, int) else (n + (s - 1)) // s for n, s in zip(self.view.shape, self.sides, strict=True))

    def get_tile(self, *at: Any) -> TileRef:
        """The tile with these numbers."""
        where = need_indices(f"{self.view.name}.get_tile", at, len(self.sides))
        starts = tuple(i * s for i, s in zip(where, self.sides, strict=True))
        # A tile of one element, and one of a side that the view is a multiple of, is whole wherever it is inside.
        whole = tuple(s == 1 or (isinstance(n, int) and n % s == 0) for n, s in zip(self.view.shape, self.sides, strict=True))
        return TileRef(self, starts, whole)

    def tile_at(self, other: TileRef) -> TileRef:
        """The tile that lies here as `other` does in its partition, which has the same tiles over an array of the same shape."""
        if self.sides != other.partition.sides:
            raise CompileError(f"{self.view.name}.tile_at: partitions in the same tiles have tiles at the same places, "
                               f"got {self.sides} and {other.partition.sides}")
        same = self.view._operands(self.view.shape) == self.view._operands(other.partition.view.shape)
        return TileRef(self, other.start, other.whole if same else (False,) * len(self.sides))

    def load(self, *at: Any, other: float = 0, after: Any = ()) -> Tile:
        return self.get_tile(*at).load(other=other, after=after)

    def store(self, *at_and_tile: Any, after: Any = ()) -> None:
        *at, tile = at_and_tile
        self.get_tile(*at).store(tile, after=after)


@dataclass(frozen=True)
class TileRef:
    """One tile of a partition, in memory: where it lies, how much of it is inside the view, and whether it ends at the edge."""

    partition: Partition
    start: tuple[Index, ...]  # its first element
    whole: tuple[bool, ...]  # along which axes all of it is known to be inside

    @property
    def size(self) -> tuple[Index, ...]:
        """Elements inside the view along each axis."""
        e = self.partition.view.e
        limits = self.partition.view._limits(self.start, self.partition.sides, self.whole)
        return tuple(s if n is None else e.b.minimum(n, s) for n, s in zip(limits, self.partition.sides, strict=True))

    @property
    def is_edge(self) -> Any:
        """Whether some of its elements lie outside: False where that is known when the kernel is compiled."""
        e = self.partition.view.e
        found: Any = False
        for n, s in zip(self.size, self.partition.sides, strict=True):
            if isinstance(n, int):
                found = True if n < s else found
            elif found is not True:
                here = e.b.compare("lt", n, s)
                found = here if found is False else e.b.binary("or", found, here)
        return found

    @property
    def mask(self) -> Any:
        """A tile of bools, true inside the view; plain True where all of it is."""
        e, sides = self.partition.view.e, self.partition.sides
        found: Any = True
        for a, (n, s) in enumerate(zip(self.size, sides, strict=True)):
            if n != s:
                lane = e.b.iota(tuple(s if k == a else 1 for k in range(len(sides))), a)
                here = e.b.cmp("lt", lane, e.b.from_index(n))
                found = here if found is True else e.b.binary("and", found, here)
        return found

    def load(self, *, other: float = 0, after: Any = ()) -> Tile:
        return self.partition.view._load(self.start, self.partition.sides, self.whole, other, after)

    def store(self, tile: Any, *, after: Any = ()) -> None:
        self.partition.view._store(self.start, tile, self.partition.sides, self.whole, after)
