"""Rows written at indices on a GPU: the gradient of an embedding, messages summed at the nodes of a graph, maxima of groups.

A radix sort gives the indices in the order of their rows (`index_order`, which scatters with the same indices share). Then a group of
threads for each chunk of that order joins the rows of every segment in it. A segment inside a chunk goes to the result at once; the first
and the last segment of a chunk also leave what they have as two rows with words of their own, which are a shorter order: chunks of that
follow, and at last one program for each segment that is left. Sums depend on the indices alone, however long a segment is, and every row
of the result has one writer in a launch. One chunk leaves nothing. Rows of any width: strips of it, of which the last one is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce

from ....core.dims import Dim, Shape, bounds, ceildiv, minimum, product
from ....core.dtypes import DType, compute_dtype, i32, u64
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.index.scatter import IndexOrder, ScatterOrdered
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import on_threads, vector_width
from ...cuda.kernel import WARP
from ...launch import Buffer, Launch
from ...pointwise.copies import copy_launch
from ...pointwise.pointwise import unravel
from ...region import Operand, Region, narrow, widen
from ...sort.cuda.radix import ITEMS, THREADS, Words
from ...sort.keys import RADIX, index_of, word
from ...template import Template
from ..gather import report_index

AT_ONCE = (8, 4)  # rows whose loads are in flight together: of few threads, and of more (measured)
CHUNK = 32  # elements of the order in a chunk; twice as many where there is so much to add that all SMs are busy
MUCH = 1 << 25
LAST = 1024  # rows that chunks may leave: one program for each segment takes them
NEUTRAL = {"add": -0.0, "mul": 1}  # the other modes may take a row twice
BLOCK = 128  # threads


class CudaIndexOrder(Template):
    key = "index_order"
    serves = (IndexOrder,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, ids, result = region.op(IndexOrder), region.operands[0], region.results[0]
        shape, steps = ids.type.shape, op.steps or (0,) * (ids.type.ndim - 1) + (1,)
        axis = op.axis if op.steps else ids.type.ndim - 1
        most = bounds(sum((n - 1) * s for n, s in zip((*shape[:axis], op.rows, *shape[axis + 1 :]), steps, strict=True)))[1]
        launches = []
        if not ids.layout.is_contiguous:
            made = Operand(ids.type, Buffer(f"{region.name}.indices", "temp", ids.type.nbytes), Layout.contiguous(ids.type.shape))
            launches.append(copy_launch(made.buffer.name, ids, made, target, "copy: indices must be contiguous"))
            ids = made
        count = result.type.shape[0]
        words = Words(region.name, *sorted_parts(shape, axis, op.rows, steps))
        shifts = range(0, max(1, most.bit_length()), RADIX)
        moves = 1 if words.blocks == 1 else len(shifts)
        if moves % 2:
            words.other = result.buffer
        else:
            words.now = result.buffer
        call = Call("scatter_words", f"{region.name}.words")
        b = call.b
        source = call.view("ids", ids.type.dtype, ids.buffer, Layout((count,), (1,), ids.layout.offset))
        goal = call.view("words", u64, words.now, Layout.contiguous((count,)), write=True)
        error, size = call.error(), call.word("size", op.rows)
        wanted = b.to_index(b.load(source, (b.pid,), ()))
        for bad in (b.compare("lt", wanted, 0), b.compare("ge", wanted, size)):
            with b.if_(bad):
                report_index(b, error, b.pid, wanted)
        row = b.minimum(b.maximum(wanted, 0), size - 1) * steps[axis]
        for a, at in enumerate(unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(shape)]) if op.steps else ()):
            row = row if a == axis else row + at * steps[a]
        b.store(goal, (b.pid,), word(b, b.from_index(row, u64), b.from_index(b.pid, u64)))
        launch = call.finish(count, bytes_=ids.type.nbytes + count * 8, note="words of row and place")
        launch.kernel = on_threads(launch.kernel, 1, BLOCK)
        return [*launches, launch, *words.sort(list(shifts))]


def sorted_parts(shape: Shape, axis: int, rows: Dim, steps: Sequence[int]) -> tuple[Dim, Dim]:
    """How many parts of the indices are sorted by themselves, one after the other, and how long each is: runs along the axes before `axis`,
    whose rows rise from one to the next, where a block holds enough of them."""
    count = product(shape)
    ends = [n * s for n, s in zip((*shape[:axis], rows, *shape[axis + 1 :]), steps, strict=True)]
    rise = all(isinstance(e, int) and e <= s for s, e in zip(steps, ends[1:], strict=False))
    outer, each = product(shape[:axis]), product(shape[axis:])
    if not (rise and isinstance(outer, int) and isinstance(each, int) and 0 < each <= ITEMS):
        return 1, count
    together = max(m for m in range(1, ITEMS // each + 1) if outer % m == 0)
    return (outer // together, each * together) if each * together >= THREADS else (1, count)


class CudaScatterOrdered(Template):
    key = "scatter_ordered"
    serves = (ScatterOrdered,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, *given = (region.given(v) for v in region.node.operands)
        result = region.results[0]
        launches = [] if x.buffer is result.buffer else [copy_launch(f"{region.name}.copy", x, result, target)]
        far = [o.layout.strides[-1] not in (0, 1) if o.type.ndim == 2 else not o.layout.is_contiguous for o in given]
        if any(far) or any(o.buffer is result.buffer for o in given):  # a table that the sums overwrite is copied, too
            for i, o in enumerate(given):
                given[i] = Operand(o.type, Buffer(f"{region.name}.{i}", "temp", o.type.nbytes), Layout.contiguous(o.type.shape))
                launches.append(copy_launch(given[i].buffer.name, o, given[i], target, "copy: rows must be contiguous"))
        words, updates, *read = given
        level = _Level(region.name, region.op(ScatterOrdered).mode, result, words, updates, *read)
        high = bounds(level.count)[1]
        chunk = CHUNK if high * level.width < MUCH else 2 * CHUNK
        if high <= chunk:
            return [*launches, level.chunks(None)]
        while True:
            launches.append(level.chunks(chunk))
            level, high = level.left, 2 * -(-high // chunk)
            if high <= LAST:
                return [*launches, level.segments()]
            few = -(-2 * high // (LAST - 2))  # chunks no longer than must be: a thread waits for each step of one
            chunk = min(chunk, -(-few // level.at_once) * level.at_once)


class _Level:
    """Rows in an order, to be joined with the rows of the result: those of [n, w], or those that `ids` name of [t, w], times `factor`."""

    def __init__(self, name: str, mode: str, result: Operand, words: Operand, rows: Operand, ids: Operand | None = None,
                 factor: Operand | None = None) -> None:
        self.name, self.mode, self.result, self.words, self.rows, self.ids, self.factor = name, mode, result, words, rows, ids, factor
        (self.count,), width = words.type.shape, rows.type.shape[1]
        assert isinstance(width, int)
        self.width, self.dtype = width, result.type.dtype
        self.wide: DType = compute_dtype(self.dtype)
        read = [rows] if factor is None or factor.type.shape[1] == 1 else [rows, factor]
        item = min(o.type.dtype.itemsize for o in (result, rows))
        self.vector = vector_width([item], width, [result.layout, *(o.layout for o in read)])
        while self.vector * item > 8 and self.vector * WARP > width:
            self.vector //= 2
        self.lanes = min(WARP, 1 << (-(-width // self.vector) - 1).bit_length())
        self.at_once = AT_ONCE[self.lanes > 4]
        self.left: _Level

    def _begin(self, what: str, lanes: int) -> Ix | int:
        """Views of a kernel whose program takes a strip of columns; gives the number of the program in its strip."""
        self.call = call = Call(what, self.name)
        self.b, self.lanes, self.strip = call.b, lanes, lanes * self.vector
        r = self.result
        self.old, self.new = (call.view(n, self.dtype, r.buffer, r.layout, write=n == "new") for n in ("old", "new"))
        self.source = call.view("rows", self.rows.type.dtype, self.rows.buffer, self.rows.layout)
        self.order = call.view("order", u64, self.words.buffer, self.words.layout)
        self.size, self.last = call.word("size", r.type.shape[0]), call.word("last", self.count - 1)
        if self.ids is not None:
            self.named, self.error = call.view("ids", self.ids.type.dtype, self.ids.buffer, self.ids.layout), call.error()
            self.high = call.word("high", self.rows.type.shape[0] - 1)
        if self.factor is not None:
            self.times = call.view("factor", self.factor.type.dtype, self.factor.buffer, self.factor.layout)
        strips = -(-self.width // self.strip)
        self.column = self.b.pid % strips * self.strip
        self.limit = None if self.width % self.strip == 0 else (self.b.minimum(self.width - self.column, self.strip),)
        return self.b.pid // strips

    def _finish(self, grid: Dim, note: str) -> Launch:
        rows = self.count * self.width * self.rows.type.dtype.itemsize
        moved = rows + 2 * minimum(self.result.type.nbytes, rows) + self.count * 8
        moved = moved + sum(o.type.nbytes for o in (self.ids, self.factor) if o is not None)
        launch = self.call.finish(grid * -(-self.width // self.strip), flops=self.count * self.width, bytes_=moved, note=note)
        launch.kernel = on_threads(launch.kernel, self.lanes, (BLOCK if self.lanes > 4 else WARP) // self.lanes, self.vector)
        return launch

    def _word(self, place: Ix | int) -> Tile:
        return self.b.load(self.order, (place,), ())

    def _row(self, word: Tile) -> Tile:
        return self.b.cast(self.b.binary("shr", word, 32), i32)

    def _place(self, word: Tile) -> Ix | int:
        """A launch that is measured by itself may find any words: none of them may lead out of bounds."""
        return self.b.minimum(self.b.to_index(index_of(self.b, word)), self.last)

    def _named(self, word: Tile) -> list[Tile]:
        """The index of the row of a word, where rows have any."""
        return [] if self.ids is None else [self.b.load(self.named, (self._place(word),), ())]

    def _load(self, word: Tile, named: Sequence[Tile] = ()) -> Tile:
        b, at = self.b, self._place(word)
        row = b.minimum(b.maximum(b.to_index(named[0]), 0), self.high) if named else at
        tile = widen(b, b.load(self.source, (row, self.column), (self.strip,), limit=self.limit))
        if self.factor is None:
            return tile
        each = b.load(self.times, (at, 0), ()) if self.factor.type.shape[1] == 1 else b.load(self.times, (at, self.column), (self.strip,),
                                                                                             limit=self.limit)
        return tile * widen(b, each)

    def _report(self, words: Sequence[Tile], named: Sequence[Tile]) -> None:
        """An index that is outside of the table, if there is one."""
        b = self.b
        for extreme, than in (("min", "lt"), ("max", "gt")):
            found = reduce(lambda a, c: b.binary(extreme, a, c), named)
            with b.if_(b.compare(than, b.to_index(found), 0 if than == "lt" else self.high)):
                word_ = reduce(lambda a, c: b.select(b.cmp("eq", c[1], found), c[0], a), zip(words, named, strict=True), words[0])
                report_index(b, self.error, self._place(word_), b.to_index(found))

    def _join(self, a: Tile, b: Tile) -> Tile:
        return b if self.mode == "set" else self.b.binary(self.mode, a, b)

    def _old(self, at: tuple[Ix | int, ...], limit: tuple[Ix | int] | None) -> Tile | None:
        return None if self.mode == "set" else widen(self.b, self.b.load(self.old, at, (self.strip,), limit=limit))

    def _put(self, row: Tile, total: Tile) -> None:
        at = (self.b.to_index(row), self.column)
        old = self._old(at, self.limit)
        self.b.store(self.new, at, narrow(self.b, total if old is None else self._join(old, total), self.dtype), limit=self.limit)

    def _limited(self, inside: Tile) -> tuple[Ix | int]:
        """The columns of a strip where `inside`, else none."""
        return (self.b.to_index(self.b.cast(inside, i32)) * (self.strip if self.limit is None else self.limit[0]),)

    def _inside(self, row: Tile) -> Tile:
        b = self.b
        return b.binary("and", b.cmp("ge", row, 0), b.cmp("lt", row, b.from_index(self.size, i32)))

    def chunks(self, chunk: int | None) -> Launch:
        """A program for each chunk of the order; None: one for all of it."""
        program = self._begin("scatter_chunks", self.lanes)
        b, each = self.b, chunk or self.at_once * -(-bounds(self.count)[1] // self.at_once)
        grid = ceildiv(self.count, each) if chunk else minimum(self.count, 1)  # none for an empty order, which has no word to read
        first = program * each
        stop = b.minimum(first + each, self.last + 1)
        none, no, yes = b.full((), -1, i32), b.full((), 0, i32), b.full((), 1, i32)
        if chunk:
            before = b.select(b.compare("gt", first, 0), self._row(self._word(b.maximum(first - 1, 0))), none)
            behind = b.select(b.compare("le", stop, self.last), self._row(self._word(b.minimum(stop, self.last))), none)
            begun = b.cmp("eq", before, self._row(self._word(first)))
            leave = self._left(2 * grid, program)
        n = self.at_once

        def words_at(place: Ix | int) -> list[Tile]:
            return [self._word(b.minimum(place + u, stop - 1)) for u in range(n)]

        ahead = words_at(first)  # words that name rows are two steps ahead, what they name one
        ahead += [] if self.ids is None else [*words_at(first + n), *(i for w in ahead for i in self._named(w))]
        with b.loop(first, stop, n, [none, b.full((self.strip,), 0, self.wide), no, *ahead]) as loop:
            current, total, number, *words = loop.carried  # the row of the segment, what it has so far, and which of the chunk it is
            words, next_, named = words[:n], words[n : 2 * n], words[2 * n :]
            ahead = [*next_, *words_at(loop.index + (n if self.ids is None else 2 * n)), *(i for w in next_ for i in self._named(w))]
            rows, tiles = [self._row(w) for w in words], [self._load(w, named[u : u + 1]) for u, w in enumerate(words)]
            if named:
                self._report(words, named)
            if self.mode in NEUTRAL:  # what is behind the last place counts for nothing
                inside = [b.compare("lt", loop.index + u, stop) for u in range(self.at_once)]
                tiles = [b.select(i, t, self._neutral(t)) for i, t in zip(inside, tiles, strict=True)]
            changes = [b.cmp("ne", row, before_) for row, before_ in zip(rows, [current, *rows], strict=False)]
            with b.if_(b.cmp("ne", rows[-1], current)):  # rows rise: a segment ends here
                ends = []
                so_far, which = total, number
                for before_, change in zip([current, *rows], changes, strict=False):
                    leads = b.cmp("eq", which, yes)
                    ended = b.binary("and", change, self._inside(before_))
                    open_ = b.binary("and", leads, begun) if chunk else None
                    done = ended if open_ is None else b.binary("and", ended, b.cmp("eq", b.cast(open_, i32), no))
                    at, limit = (b.to_index(b.select(done, before_, no)), self.column), self._limited(done)
                    ends.append((b.binary("and", ended, leads), open_, at, limit, self._old(at, limit)))
                    which = which + b.select(change, yes, no)
                for before_, change, tile, (leads, open_, at, limit, old) in zip([current, *rows], changes, tiles, ends, strict=False):
                    if open_ is not None:
                        with b.if_(leads):
                            leave(0, before_, b.select(open_, so_far, self._neutral(so_far)))
                    b.store(self.new, at, narrow(b, so_far if old is None else self._join(old, so_far), self.dtype), limit=limit)
                    so_far = b.select(change, tile, self._join(so_far, tile))
            for change, tile in zip(changes, tiles, strict=True):
                total = b.select(change, tile, self._join(total, tile))
                number = number + b.select(change, yes, no)
            current = rows[-1]
            loop.next(current, total, number, *ahead)
        current, total, number, *_ = loop.results
        with b.if_(self._inside(current)):
            closed: AbstractContextManager[None] = nullcontext()
            if chunk:
                leads = b.cmp("eq", number, yes)
                goes_on = b.binary("or", b.binary("and", leads, begun), b.cmp("eq", behind, current))
                rest = b.select(goes_on, total, self._neutral(total))
                with b.if_(leads):
                    leave(0, current, rest)
                leave(1, current, b.select(leads, self._neutral(total), rest))
                closed = b.if_(b.cmp("eq", b.cast(goes_on, i32), no))
            with closed:
                self._put(current, total)
        return self._finish(grid, f"chunks of {each} in order" if chunk else "one chunk")

    def _neutral(self, total: Tile) -> Tile:
        return self.b.full(total.shape, NEUTRAL[self.mode], self.wide) if self.mode in NEUTRAL else total

    def _left(self, count: Dim, program: Ix | int) -> Callable[[int, Tile, Tile], None]:
        """What chunks leave: two rows each. Gives what stores one of them."""
        b, name = self.b, f"{self.name}.left"
        type_ = TensorType(self.wide, (count, self.width))
        rows = Operand(type_, Buffer(f"{name}.rows", "temp", type_.nbytes), Layout.contiguous(type_.shape))
        words = Operand(TensorType(u64, (count,)), Buffer(f"{name}.words", "temp", count * 8), Layout.contiguous((count,)))
        self.left = _Level(name, self.mode, self.result, words, rows)
        goal = self.call.view("left", self.wide, rows.buffer, rows.layout, write=True)
        order = self.call.view("left_order", u64, words.buffer, words.layout, write=True)

        def leave(which: int, row: Tile, tile: Tile) -> None:
            place = program * 2 + which
            b.store(goal, (place, self.column), tile, limit=self.limit)
            with b.if_(b.compare("eq", self.column, 0)):
                b.store(order, (place,), word(b, b.cast(row, u64), b.from_index(place, u64)))

        return leave

    def segments(self) -> Launch:
        """A warp for each place; those that are not the first of their segment have nothing to do."""
        self.vector = 1
        place = self._begin("scatter_segments", WARP)
        b, step = self.b, 4 * WARP
        row = self._row(self._word(place))
        same = b.binary("and", b.compare("gt", place, 0), b.cmp("eq", row, self._row(self._word(b.maximum(place - 1, 0)))))
        with b.if_(b.binary("and", self._inside(row), b.cmp("eq", b.cast(same, i32), b.full((), 0, i32)))):
            with b.loop(place // step * step, self.last + 1, step, [b.full((), 0, i32)]) as loop:
                words = b.load(self.order, (loop.index,), (step,), limit=(self.last + 1 - loop.index,), other=(1 << 64) - 1)
                alike = b.cast(b.cmp("eq", self._row(words), row), i32)
                loop.next(loop.carried[0] + b.reshape(b.reduce("sum", alike), ()))
            stop = b.minimum(place + b.to_index(loop.results[0]), self.last + 1)
            with b.loop(place + 1, stop, self.at_once, [self._load(self._word(place))]) as loop:
                total = loop.carried[0]
                next_ = [self._word(b.minimum(loop.index + u, stop - 1)) for u in range(self.at_once)]
                for u, tile in enumerate([self._load(w) for w in next_]):
                    inside = b.compare("lt", loop.index + u, stop)
                    total = b.select(inside, self._join(total, tile), total)
                loop.next(total)
            self._put(row, loop.results[0])
        return self._finish(self.count, "segments in order")
