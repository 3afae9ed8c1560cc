"""Convolution on a CPU. Pixels lie channels last (`channels_last.py`), so that channels run along registers.

One tap at step 1 is a matrix product over the pixels as they lie (`matmul.py`), depthwise convolutions have `conv_depthwise.py`, and
everything else is a direct convolution (`conv_direct.py`) over an input that is copied where it needs padding, wider elements or another
order of axes. Constant weights are packed in panels before the first run, others by a launch, unless their results lie side by side.
Bytes are multiplied four channels at a time (by constant weights) and bf16 numbers two (`quant/words.py`), where the CPU can.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...core.dims import Shape
from ...core.dtypes import DType, compute_dtype, i32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.matmul.contractions import Conv as ConvOp
from ...ops.matmul.int_products import IntConv as IntConvOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import FEW, Buffer, Launch, Packed, window_order
from ..matmul.matmul import default_config, product_launch
from ..matmul.product import Problem
from ..pointwise.copies import MOVED
from ..pointwise.pointwise import unravel
from ..quant.tiles import SIDE
from ..quant.word_copies import planes_to_words
from ..quant.words import PAIRS, Words, in_words, word_operand, words_of
from ..region import Operand, Region
from ..template import Reason, Template, from_memory, shaped_as_result
from .channels_last import channels_last
from .depthwise import TAPS, Depthwise, is_depthwise, long_lines, taps_first
from .direct import direct_launch, few_results, windows_fit
from .parts import AnyConv, Plain, int_of, plain_parts, spread, weights_of

PACKED, PACKED_LINE = 16, 2048  # the most channels (or words) that a program packs, and elements of a result's window for several of them
LONGEST_LINE = 8192  # elements of a window that a program transposes in its own memory


class ConvTemplate(Template):
    key = "conv"
    serves = (ConvOp, IntConvOp)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        if (why := from_memory(region)) is not None:
            return why
        if not all(isinstance(d, int) for d in node.operands[1].shape):
            return Reason("the kernel must have a static shape")
        return shaped_as_result(region)

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        node = region.node
        op = region.op(ConvOp, IntConvOp)
        value = node.operands[1]
        o = region.operand(value)
        if o is None or o.data is None or value not in region.body.inputs:
            return {}
        whole = o.type.shape == o.data.type.shape and o.layout.is_contiguous
        words = _words(region, target)
        form = Packed("filters", _width(region, target), op.transposed, groups=op.groups, words=1 if words is None else words.per)
        if _is_depthwise(region, target):
            form = TAPS
        return {region.body.inputs.index(value): form} if whole else {}

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, width = region.op(ConvOp, IntConvOp), _width(region, target)
        x, w = region.places
        words = _words(region, target)
        if w.packed.words == 1 and (w.packed.form == "filters" or words is not PAIRS):
            words = None
        few = int_of(x.type.shape[1]) // op.groups < FEW and words is None

        def place(x: Operand, shape: Shape) -> tuple[DType, Layout]:
            """Few channels stay as they lie: they are no inner axis. Words are filled up with channels."""
            if words is not None:
                return x.type.dtype, channels_last((shape[0], -(-int_of(shape[1]) // words.per) * words.per, *shape[2:]))
            last = not few or x.layout.strides[1] == 1
            return compute_dtype(x.type.dtype), channels_last(shape) if last else Layout.contiguous(shape)

        forward = all(not isinstance(s, int) or s >= 0 for s in x.layout.strides)
        fits = forward and (few or x.layout.strides[1] == 1)
        fits = fits and (x.type.dtype is compute_dtype(x.type.dtype) if words is None else in_words(x.layout, 1, words.per))
        if _is_depthwise(region, target):
            packing, weights = taps_first(region.name, w, target)
            room = long_lines(op, int_of(w.type.shape[-1]))
            if not forward or x.layout.strides[1] != 1 or room != (0, 0):
                around, note = (*((0, 0),) * (len(op.stride) - 1), room), "" if room == (0, 0) else "zeros at the ends of lines"
                copies, x = spread(region.name, x, (1,) * len(op.stride), around, target, note, _last)
                packing = [*packing, *copies]
            return [*packing, Depthwise(region, x, weights, target, room[0]).launch()]
        planes = words is not None and not op.transposed and x.layout.strides[1] != 1 and x.layout.strides[-1] == 1 and forward
        if words is not None and planes and op.groups == 1 and all(p >= 0 for pair in op.padding for p in pair):
            border = op.border if isinstance(op, IntConvOp) else 0
            launch, x = planes_to_words(region.name, x, op.padding, words.per, border, target)
            kernel = tuple(int_of(k) for k in w.type.shape[2:])
            parts, launches = [Plain(x, kernel, op.stride, op.dilation, ((0, 1),) * len(kernel))], [launch]
        else:
            launches, parts = plain_parts(region, target, place, copies=not fits)
            if words is not None:
                parts = [replace(p, x=word_operand(p.x, p.x.layout, 1, words.per)) for p in parts]
        plain = len(parts) == 1 and _is_product(op, parts[0].kernel)
        per = 1 if words is None else words.per
        packing, buffer, panels, in_place = panels_of(region.name, op, w, width, per, target, may_stay=not plain and width > 1)
        launches = [*packing, *launches]
        if plain:
            return [*launches, _product(region, parts[0].x, w, buffer, panels, width, words, target)]
        kind = w.type.dtype if words is None else i32
        return [*launches, *(direct_launch(region, p, (kind, buffer, p.cut(panels)), width, words, target, in_place=in_place)
                             for p in parts)]


def _last(x: Operand, shape: Shape) -> tuple[DType, Layout]:
    return x.type.dtype, channels_last(shape)


def _words(region: Region, target: TargetSpec) -> Words | None:
    """What weights may be multiplied in: groups of bf16 channels must be whole words, since nothing may stand beside a NaN."""
    node = region.node
    op = region.op(ConvOp, IntConvOp)
    x, w = node.operands
    channels, taps = int_of(x.shape[1]) // op.groups, prod(int_of(d) for d in w.shape[2:])
    panel = default_config(node.types[0].dtype, int_of(node.types[0].shape[1]) // op.groups, target).width
    by_tiles = channels % (SIDE * PAIRS.per) == 0 and panel % SIDE == 0 and windows_fit(channels // PAIRS.per * taps)
    words = words_of(x.dtype, w.dtype, target, tiles=taps == 1 or (by_tiles and not target.checks))
    whole = words is not None and (op.groups == 1 or int_of(x.shape[1]) // op.groups % words.per == 0)
    return words if whole and not _is_depthwise(region, target) else None


def _width(region: Region, target: TargetSpec) -> int:
    """Result channels of a panel of weights; 1 where registers run along the channels of windows."""
    out, (x, w), op = region.node.types[0], region.node.operands, region.op(ConvOp, IntConvOp)
    results, window = int_of(out.shape[1]) // op.groups, (int_of(x.shape[1]) // op.groups, *(int_of(d) for d in w.shape[2:]))
    if not out.dtype.is_int and _words(region, target) is None and not _is_product(op, window[1:]) and few_results(results, window, target):
        return 1
    return default_config(out.dtype, results, target).width


def _is_depthwise(region: Region, target: TargetSpec) -> bool:
    node = region.node
    return is_depthwise(region.op(ConvOp, IntConvOp), int_of(node.operands[0].shape[1]), int_of(node.values[0].shape[1]), target)


def _is_product(op: AnyConv, kernel: tuple[int, ...]) -> bool:
    one = all(k == s == 1 for k, s in zip(kernel, op.stride, strict=True))
    return one and op.groups == 1 and not op.transposed


def panels_of(name: str, op: AnyConv, w: Operand, width: int, per: int, target: TargetSpec, *,
              may_stay: bool) -> tuple[list[Launch], Buffer, Layout, bool]:
    """Weights as panels [group, panel, channels, taps…, width], `per` channels a word: a launch that packs them (if any is needed), where
    they lie, and whether that is where they were, with columns of a last panel that are not there."""
    raw = weights_of(op, w.layout)
    g, results, *window = (int_of(d) for d in raw.shape)
    count, order = -(-results // width), window_order(window[0], len(window) - 1, per)
    channels, window[0] = window[0], -(-window[0] // per)
    forward = all(not isinstance(s, int) or s >= 0 for s in raw.strides)
    if w.packed.form != "filters" and per == 1 and may_stay and raw.strides[1] == 1 and forward:
        return [], w.buffer, Layout((g, count, *window, width), (raw.strides[0], width, *raw.strides[2:], 1), raw.offset), True
    stored = Layout.contiguous((g, count, *(window[i] for i in order), width))
    panels = stored.permute((0, 1, *(2 + order.index(i) for i in range(len(window))), len(window) + 2))
    if w.packed.form == "filters":
        return [], w.buffer, panels, False
    kind, made = (MOVED.get(w.type.dtype.itemsize, w.type.dtype),) * 2 if per == 1 else (MOVED[4 // per], i32)
    buffer = Buffer(f"{name}.filters", "temp", made.itemsize * g * count * width * _product_of(window))
    call = Call("pack_filters", f"{name}.pack")
    b = call.b
    source = call.view("w", kind, w.buffer, raw)
    out = call.view("panels", made, buffer, panels, write=True)
    taken, line = _product_of(window[1:]), channels * _product_of(window[1:])
    run = Layout((channels, *window[1:]), raw.strides[2:]).is_contiguous  # memory of all channels and taps of a result
    run = run and target.kind == "cpu" and kind.itemsize in MOVED and 0 < per * taken <= LONGEST_LINE
    side = target.vector_bits // (8 * max(kind.itemsize, 4))  # results and elements of their windows that are transposed at once
    at_once = max(1, min(PACKED, window[0], PACKED_LINE // (per * taken))) if run else 1  # words of channels that a program packs
    chunks = -(-window[0] // at_once)
    group, panel, chunk = unravel(b, b.pid, [g, count, chunks])
    own = b.scratch(kind, (at_once * per * taken + side, -(-width // side) * side)) if run else None
    if own is not None:  # results are gathered a square of registers at a time
        flat = call.view("lines", kind, w.buffer, Layout((g, results, line), (*raw.strides[:2], 1), raw.offset))
        begin = chunk * (at_once * per * taken)
        with b.loop(0, at_once * per * taken, side) as loop:
            for column in range(0, width, side):
                there = (results - panel * width - column, line - begin - loop.index)
                x = b.load(flat, (group, panel * width + column, begin + loop.index), (side, side), limit=there)
                b.store(own, (loop.index, column), b.transpose(x))

    def channel(at: list[Ix | int], j: int) -> Tile:
        """Channel j of the word at `at`, for all results of the panel; zeros where there is none."""
        place, inside = at[0] * per + j, results - panel * width
        if own is not None:
            row: Ix | int = place - chunk * (at_once * per)
            for t, d in zip(at[1:], window[1:], strict=True):
                row = row * d + t
            x = b.load(own, (row, 0), (width,), axes=(1,))
        else:
            if channels % per and j:
                inside = inside * b.maximum(0, b.minimum(1, channels - place))
            x = b.load(source, (group, panel * width, place, *at[1:]), (width,), limit=(inside,), axes=(1,))
        return x if per == 1 else b.cast(x, i32)

    def taps(axis: int, at: list[Ix | int]) -> None:
        if axis == len(window):
            x = channel(at, 0)
            for j in range(1, per):
                x = b.binary("or", x, b.binary("shl", channel(at, j), j * 32 // per))
            b.store(out, (group, panel, *at, 0), x)
            return
        with b.loop(0, window[axis]) as loop:
            taps(axis + 1, [*at, loop.index])

    first = chunk * at_once
    with b.loop(first, b.minimum(first + at_once, window[0])) as words:
        taps(1, [words.index])
    launch = call.finish(g * count * chunks, bytes_=2 * w.type.nbytes, note="run-time weights packed into panels")
    return [launch], buffer, panels, False


def _product_of(sizes: list[int]) -> int:
    total = 1
    for d in sizes:
        total *= d
    return total


def _product(region: Region, x: Operand, w: Operand, buffer: Buffer, panels: Layout, width: int, words: Words | None,
             target: TargetSpec) -> Launch:
    """One tap at step 1: pixels times weights."""
    value = region.node.values[0]
    order = (0, *range(2, len(value.shape)), 1)
    a = x.layout.permute(order)
    *_, m, k = a.shape
    n = int_of(value.shape[1])
    if words is not None:
        w = replace(w, type=TensorType(i32, (n, k)))
    problem = Problem(x, w, a, Layout((k, n), (1, k)), m, n, k, 1.0, value.dtype, words, order)
    matrix = Layout((panels.shape[1], k, width), (panels.strides[1], panels.strides[2], 1), panels.offset)
    config = replace(default_config(value.dtype, n, target), width=width)
    return product_launch(region, problem, config, buffer, matrix, target)
