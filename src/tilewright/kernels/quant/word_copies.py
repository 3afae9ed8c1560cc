"""Copies of operands that do not lie in whole words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.dims import Dim, ceildiv, divisible, product
from ...core.dtypes import i32, u16
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Buffer, Launch
from ..pointwise.copies import copy_launch, fill_launch
from ..pointwise.pointwise import unravel
from ..region import Operand


def filled_copy(name: str, x: Operand, layout: Layout, axis: int, per: int, target: TargetSpec,
                order: Sequence[int]) -> tuple[list[Launch], Operand]:
    """A copy whose `axis` lies innermost and takes up whole words. What fills the last word is zeros, or undefined where elements are
    integers, which must then be multiplied by zeros.
    `order`: the axes from the outermost to the innermost one."""
    room: list[Dim] = [ceildiv(d, per) * per if i == axis else d for i, d in enumerate(layout.shape)]
    strides: list[Dim] = [0] * len(room)
    step: Dim = 1
    for i in reversed(order):
        strides[i] = step
        step = step * room[i]
    buffer = Buffer(f"{name}.words", "temp", step * x.type.dtype.itemsize)
    source = replace(x, type=x.type.with_shape(layout.shape), layout=layout)
    part = Operand(source.type, buffer, Layout(layout.shape, tuple(strides)))
    whole = Layout(tuple(room), tuple(strides))
    made = Operand(x.type.with_shape(whole.shape), buffer, whole)
    launches = [copy_launch(f"{name}.words", source, part, target, "copy: laid out in words")]
    if not x.type.dtype.is_int and not divisible(layout.shape[axis], per):
        size = layout.shape[axis]
        rest = whole.slice(axis, size, room[axis] - size)
        launches.append(fill_launch(f"{name}.rest", 0.0, Operand(x.type.with_shape(rest.shape), buffer, rest), target))
    return launches, made


STRETCH = 64  # pixels at a time


def planes_to_words(name: str, x: Operand, padding: Sequence[tuple[int, int]], per: int, border: int,
                    target: TargetSpec) -> tuple[Launch, Operand]:
    """Images x [N, C, sizes…] whose lines are contiguous as words of channels [N, sizes…, words], with `border` around them (and for
    channels that are not there): one program a line, pixels along registers. The result is in words: i32 [N, words, sizes…]."""
    n, channels, *sizes = x.type.shape
    assert isinstance(channels, int)
    words = -(-channels // per)
    wide = tuple(d + lo + hi for d, (lo, hi) in zip(sizes, padding, strict=True))
    layout = Layout.contiguous((n, *wide, words)).permute((0, len(sizes) + 1, *range(1, len(sizes) + 1)))
    made = Operand(TensorType(i32, layout.shape), Buffer(f"{name}.words", "temp", product(layout.shape) * 4), layout)
    call = Call("planes", f"{name}.words")
    b = call.b
    bits = 32 // per
    kind = x.type.dtype if x.type.dtype.is_int else u16
    source = call.view("x", kind, x.buffer, x.layout)
    out = call.view("y", i32, made.buffer, layout, write=True)
    outer = [call.word(f"d{i}", d) for i, d in enumerate((n, *wide[:-1]))]
    inside = [call.word(f"s{i}", d) for i, d in enumerate(sizes)]
    end = call.word("end", wide[-1])
    at = unravel(b, b.pid, outer)
    place = [p - lo for p, (lo, _) in zip(at[1:], padding, strict=False)]
    here: Ix | int = 1
    for p, d in zip(place, inside, strict=False):
        here = b.minimum(here, b.minimum(p + 1, d - p))
    count = b.minimum(1, b.maximum(0, here)) * inside[-1]  # pixels of this line that there are
    edge = padding[-1][0]
    one = border & ((1 << bits) - 1)
    around = sum(one << (bits * j) for j in range(per))
    around -= (1 << 32) if around >> 31 else 0
    side = target.vector_bits // 32  # pixels and words that are transposed at once
    squared = target.kind == "cpu" and words >= side
    if squared:
        split = Layout((n, words, per, *sizes), (x.layout.strides[0], x.layout.strides[1] * per, *x.layout.strides[1:]), x.layout.offset)
        parts = call.view("words", kind, x.buffer, split, sizes=(n, 1, channels, *sizes))

        def squares(first: Ix | int, stop: Ix | int, empty: Tile | None) -> None:
            """Pixels first … stop-1 of all words, a square of registers at a time."""
            with b.loop(first, stop, side) as pixel, b.loop(0, words, side) as word:
                left, total = stop - pixel.index, empty
                for j in range(per if empty is None else 0):
                    there = ((channels - j + per - 1) // per - word.index, left)  # words that have a channel j
                    part = b.load(parts, (at[0], word.index, j, *place, pixel.index - edge), (side, side), limit=there, other=one,
                                  axes=(1, len(at) + 2))
                    part = b.cast(part, i32)
                    part = b.binary("shl", part, bits * j) if j else part
                    total = part if total is None else b.binary("or", total, part)
                assert total is not None
                total = total if empty is not None else b.transpose(total)
                b.store(out, (at[0], word.index, *at[1:], pixel.index), total, limit=(left, words - word.index), axes=(len(at) + 1, 1))

        empty = b.full((side, side), around, i32)
        squares(0, edge, empty)
        squares(edge, edge + count, None)
        squares(edge + count, end, empty)
    for w in range(0 if squared else words):
        given = min(per, channels - w * per)
        rest = sum(one << (bits * j) for j in range(given, per))
        rest -= (1 << 32) if rest >> 31 else 0

        def store(first: Ix | int, stop: Ix | int, word: Tile | None, w: int = w, given: int = given, rest: int = rest) -> None:
            with b.loop(first, stop, STRETCH) as loop:
                left, total = stop - loop.index, word
                for j in range(given if word is None else 0):
                    pixels = b.load(source, (at[0], w * per + j, *place, loop.index - edge), (STRETCH,), limit=(left,))
                    part = b.cast(pixels, i32)
                    part = b.binary("shl", part, bits * j) if j else part
                    total = part if total is None else b.binary("or", total, part)
                assert total is not None
                if word is None and rest:
                    total = b.binary("or", total, rest)
                b.store(out, (at[0], w, *at[1:], loop.index), total, limit=(left,), axes=(len(at) + 1,))

        empty = b.full((STRETCH,), around, i32)
        store(0, edge, empty)
        store(edge, edge + count, None)
        store(edge + count, end, empty)
    return call.finish(product((n, *wide[:-1])), bytes_=x.type.nbytes + made.type.nbytes, note="channels in words", streams=True), made
