"""Loops and branches: where carried values, slices and results lie. Their bodies are selected like any graph and run in place.

A carried value alternates between two buffers, read in one and written in the other, so that nothing is copied from step to step; where
the kernel that writes the next value may overwrite the old one, both are one buffer. Slices of stacked operands and results are windows
that move with the iteration; captured values are read where they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from math import gcd
from typing import TYPE_CHECKING

from ..core.dims import Dim, divisible
from ..ir.graph import Graph, Node, Value
from ..ir.layout import Layout
from ..ops.control.flow import Cond, Scan, While
from ..ops.matmul.contractions import Matmul
from ..ops.rows.norms import LayerNorm, RmsNorm, Softmax
from ..ops.views import Slice, Split
from .launch import CARRIED, Alternating, Branch, Buffer, Item, Launch, Loop, Pointer, Sliding, flatten, parts, roots
from .pointwise.copies import copy_launch, fill_launch
from .region import Operand
from .template import Unserved

if TYPE_CHECKING:
    from .select import Selector

# Slices of stacked values on targets whose wide accesses want aligned addresses.
# Kernels judge alignment by a layout's strides and offset, and take its buffer's start for aligned. A slice starts a multiple of its loop's
# step further on. Where a kernel that reads or writes slices whole could take accesses wider than that step allows, or where a body may see
# parts of them, the stack gets a place of its own with steps of whole units.
UNIT = 16  # bytes of the widest access


def even_steps(o: Operand, body: Graph) -> bool:
    """Whether every slice along the first axis lies as kernels of the body take it to lie."""
    item = o.type.dtype.itemsize
    if divisible(o.layout.strides[0] * item, UNIT):
        return True
    return sees_whole(body) and _as_wide(o.layout, max(1, UNIT // item))


def padded(o: Operand, name: str) -> Operand:
    """A new place for a stack, with slices at multiples of the widest access."""
    unit = max(1, UNIT // o.type.dtype.itemsize)
    inner = Layout.contiguous(o.type.shape[1:])
    size: Dim = 1
    for d in inner.shape:
        size = size * d
    step = (size + unit - 1) // unit * unit
    buffer = Buffer(name, "temp", o.type.shape[0] * step * o.type.dtype.itemsize)
    return Operand(o.type, buffer, Layout(o.type.shape, (step, *inner.strides)))


def sees_whole(body: Graph) -> bool:
    """No op of the body reads a part of an operand or writes a part of a result; ops not known for that count as such."""
    for node in body.nodes:
        op = node.op
        inside = [g for f in fields(op) if isinstance(g := getattr(op, f.name), Graph)]
        known = op.traits.elementwise or op.traits.source or op.traits.reduction or isinstance(op, (Matmul, Softmax, LayerNorm, RmsNorm))
        if not (inside or known or (op.traits.view and not isinstance(op, (Slice, Split)))) or not all(map(sees_whole, inside)):
            return False
    return True


def _as_wide(layout: Layout, unit: int) -> bool:
    """Whether the step is a multiple of every width that the slice's layout allows."""
    step, shape, strides = layout.strides[0], layout.shape[1:], layout.strides[1:]
    if Layout(shape, strides).is_contiguous and layout.is_contiguous:
        return True  # the step is the slice's size
    if not all(isinstance(d, int) for d in (step, *shape, *strides)):
        return False
    run, others = 1, 0  # elements in one piece from the start, and what all other strides are multiples of
    for stride, size in sorted((s, d) for s, d in zip(strides, shape, strict=True) if isinstance(s, int) and isinstance(d, int)):
        if size == 1 or stride == 0:
            continue
        if stride == run and not others:
            run *= size
        else:
            others = gcd(others, stride)
    width = gcd(others or run, unit)
    return divisible(step, width)


MAX_DEPTH = 12  # loops inside loops that the native walker can count


def lower_control(s: Selector, node: Node) -> None:
    """Append a control-flow node to the selector's block and enter the places of its results."""
    where = f" ({node.place})" if node.place else ""
    if s.depth >= MAX_DEPTH and not isinstance(node.op, Cond):
        raise Unserved(f"{node.op.name} %{node.name}{where}: loops nest at most {MAX_DEPTH} deep")
    if isinstance(node.op, Scan):
        _scan(s, node, node.op)
    elif isinstance(node.op, While):
        _while(s, node, node.op)
    elif isinstance(node.op, Cond):
        _cond(s, node, node.op)


class Carry:
    """The memory of one carried value. `now` and `next` are what the body reads and writes."""

    def __init__(self, s: Selector, node: Node, k: int, loop: Loop) -> None:
        v, init = node.values[k], node.operands[k]
        self.source = s.place(init)
        self.result = s.fresh(v, Layout.contiguous(v.shape))
        self.taken = _only_read_here(s, node, init, self.source)
        spare = Buffer(f"{v.name}.next", "temp", v.type.nbytes)
        if isinstance(loop.count, int) and loop.count % 2 == 1:  # an odd number of steps ends in the other buffer
            first, second = self.source.buffer if self.taken else spare, self.result.buffer
        else:
            self._reuse()
            first, second = self.result.buffer, spare
        self.first, self.loop = first, loop
        self.now = Alternating(f"{v.name}.now", "window", v.type.nbytes, even=first, odd=second, loop=loop)
        self.next = Alternating(f"{v.name}.next", "window", v.type.nbytes, even=second, odd=first, loop=loop)
        self.in_place = False

    def _reuse(self) -> None:
        if self.taken and self.result.buffer.kind == "temp":
            self.result = self.source

    @property
    def operand(self) -> Operand:
        return Operand(self.result.type, self.now, Layout.contiguous(self.result.type.shape))

    def settle(self) -> None:
        """Once the body is known: one buffer where its kernel allows that."""
        self.in_place = _overwrites(self.loop.body, self.now, self.next)
        if self.in_place:
            self._reuse()
            self.first = self.now.even = self.now.odd = self.next.even = self.next.odd = self.result.buffer
        self.loop.carried += [b for b in roots(self.now) if b.kind == "temp"]

    def start(self, s: Selector) -> None:
        """The first value, before the loop."""
        if self.source.buffer is not self.first:
            target = Operand(self.result.type, self.first, Layout.contiguous(self.result.type.shape))
            s.add(copy_launch(f"{self.now.name}.first", self.source, target, s.target, CARRIED))

    def finish(self, s: Selector, *, serial: bool) -> None:
        """The last value, after a loop whose count is not known here: it lies in one buffer or the other. Of a loop that one thread ran
        only that thread knows the count."""
        if not self.in_place:
            launch = copy_launch(f"{self.now.name}.last", self.operand, self.result, s.target, "copy: the loop's count decides where it is")
            launch.serial = serial
            s.add(launch)


def _only_read_here(s: Selector, node: Node, v: Value, place: Operand) -> bool:
    """The value is a temporary, whole in its own buffer, that nothing but this loop reads: the loop may overwrite it."""
    computed = not (v.node.op.traits.view or v.node.op.traits.source)
    if not computed or place.buffer.kind != "temp" or place.layout != Layout.contiguous(v.shape) or v in s.graph.outputs:
        return False
    return sum(u is v for n in s.graph.nodes for u in n.operands) == 1


def _reaches(buffer: Buffer, wanted: Buffer) -> bool:
    if buffer is wanted:
        return True
    if isinstance(buffer, Sliding):
        return _reaches(buffer.base, wanted)
    return isinstance(buffer, Alternating) and (_reaches(buffer.even, wanted) or _reaches(buffer.odd, wanted))


def _overwrites(body: list[Item], now: Buffer, new: Buffer) -> bool:
    """One launch of the body writes the next value, may do that in place, and nothing reads the old value after it."""
    writers = [x for x in flatten(body) if any(_reaches(b, new) for b in x.writes)]
    if len(writers) != 1 or not any(x is writers[0] for x in body):
        return False
    (writer,) = writers
    if not any(a is now and b is new for a, b in writer.inplace):
        return False
    for way in writer.ways:
        if sum(isinstance(a, Pointer) and _reaches(a.buffer, now) for a in way.arguments) != 1:  # seen twice, perhaps in another order
            return False
    later = body[next(i for i, x in enumerate(body) if x is writer) + 1 :]
    return not any(_reads(x, now) for x in later)


def _reads(item: Item, buffer: Buffer) -> bool:
    if isinstance(item, Launch):
        return any(_reaches(b, buffer) for b in item.reads)
    seen = item.predicate is not None and _reaches(item.predicate.buffer, buffer)
    return seen or any(_reads(x, buffer) for part in parts(item) for x in part)


def _hoist(s: Selector, loop: Loop) -> None:
    """Launches that do the same in every iteration (packing a captured matrix, for instance) go before the loop."""
    while True:
        everything = [x for part in parts(loop) for x in part]
        written = Counter(r for x in flatten(everything) for r in dict.fromkeys(r for b in x.writes for r in roots(b)))
        found = next((x for x in everything if isinstance(x, Launch) and _steady(x, loop, written)), None)
        if found is None:
            return
        s.add(found)
        for part in parts(loop):
            part[:] = [x for x in part if x is not found]


def _steady(launch: Launch, loop: Loop, written: Counter[Buffer]) -> bool:
    """It reads nothing that the loop changes, writes only temporaries of its own, and cannot fail: the loop may run no iteration."""
    if launch.fails:
        return False
    if any(_moves_with(b, loop) or any(written[r] for r in roots(b)) for b in launch.reads):
        return False
    return all(b.kind == "temp" and written[b] == 1 and b not in loop.carried for b in launch.writes)


def _moves_with(buffer: Buffer, loop: Loop) -> bool:
    if isinstance(buffer, Sliding):
        return buffer.loop is loop or _moves_with(buffer.base, loop)
    return isinstance(buffer, Alternating) and (buffer.loop is loop or _moves_with(buffer.even, loop) or _moves_with(buffer.odd, loop))


def _slice(o: Operand, loop: Loop, length: Dim, reverse: bool) -> Operand:
    """One slice of a stacked operand."""
    step = o.layout.strides[0] * o.type.dtype.itemsize
    window = Sliding(f"{o.buffer.name}[i]", "window", o.buffer.nbytes, base=o.buffer, offset=(length - 1) * step if reverse else 0,
                     step=-step if reverse else step, loop=loop)
    return Operand(o.type.with_shape(o.type.shape[1:]), window, Layout(o.layout.shape[1:], o.layout.strides[1:], o.layout.offset))


def _stack(s: Selector, v: Value, op: Scan) -> Operand:
    """Where the slices of a stacked operand lie: in place, or in a copy where wide accesses would find them unaligned."""
    o = s.place(v)
    if s.target.kind != "cuda" or op.length == 0 or even_steps(o, op.body):
        return o
    copied = padded(o, f"{v.name}.steps")
    s.add(copy_launch(f"{v.name}.steps", o, copied, s.target, "copy: steps of the loop lie at multiples of 16 bytes"))
    return copied


def _scan(s: Selector, node: Node, op: Scan) -> None:
    n, m, length = op.carries, op.xs, op.length
    loop = Loop(node.name, s.depth, length)
    stacked = [s.fresh(v, Layout.contiguous(v.shape)) for v in node.values[n:]]
    carries = [Carry(s, node, k, loop) for k in range(n)]
    inputs = [c.operand for c in carries]
    inputs += [_slice(_stack(s, v, op), loop, length, op.reverse) for v in node.operands[n : n + m]]
    inputs += [s.place(v) for v in node.operands[n + m :]]
    uneven = s.target.kind == "cuda" and length != 0
    written = [padded(o, f"{o.buffer.name}.steps") if uneven and not even_steps(o, op.body) else o for o in stacked]
    outputs = [c.next for c in carries] + [_slice(o, loop, length, op.reverse).buffer for o in written]
    if length != 0:
        loop.body = s.inside(op.body, inputs, outputs, s.depth + 1)
    for c in carries:
        c.settle()
        c.start(s)
    _hoist(s, loop)
    if length == 0:
        for v, o in zip(node.values[n:], stacked, strict=True):
            s.add(fill_launch(f"{v.name}.empty", 0, o, s.target))
    else:
        s.block.append(loop)
    if not isinstance(length, int):
        for c in carries:
            c.finish(s, serial=False)
    for w, o in zip(written, stacked, strict=True):
        if w is not o:
            s.add(copy_launch(f"{o.buffer.name}.whole", w, o, s.target, "copy: steps of the loop lie at multiples of 16 bytes"))
    for v, o in zip(node.values, [*(c.result for c in carries), *stacked], strict=True):
        s.places[v] = o


def _while(s: Selector, node: Node, op: While) -> None:
    loop = Loop(node.name, s.depth, None)
    carries = [Carry(s, node, k, loop) for k in range(op.carries)]
    loop.count = op.max_iterations
    inputs = [*(c.operand for c in carries), *(s.place(v) for v in node.operands[op.carries :])]
    going = Buffer(f"{node.name}.going", "temp", 1)
    loop.test = s.inside(op.test, inputs, [going], s.depth + 1)
    loop.predicate = Pointer(going, 0, 1)
    loop.body = s.inside(op.body, inputs, [c.next for c in carries], s.depth + 1)
    for c in carries:
        c.settle()
        c.start(s)
    _hoist(s, loop)
    s.block.append(loop)
    for v, c in zip(node.values, carries, strict=True):
        c.finish(s, serial=True)
        s.places[v] = c.result


def _cond(s: Selector, node: Node, op: Cond) -> None:
    predicate = s.place(node.operands[0])
    results = [s.fresh(v, Layout.contiguous(v.shape)) for v in node.values]
    inputs = [s.place(v) for v in node.operands[1:]]
    branch = Branch(node.name, Pointer(predicate.buffer, predicate.layout.offset, 1))
    branch.then = s.inside(op.then, inputs, [o.buffer for o in results], s.depth)
    branch.other = s.inside(op.other, inputs, [o.buffer for o in results], s.depth)
    s.block.append(branch)
    s.places.update(zip(node.values, results, strict=True))
