"""Groups nodes into regions that become one kernel each: contraction epilogues, norms with their producers, pointwise chains."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..core.dims import bounds, product
from ..core.dtypes import bool_
from ..ir.graph import Graph, Node, Value
from ..ir.rewrite import Match, P, Rule, rule, sort_nodes
from ..ops.packed.quant_dot import BLOCK
from .base import Log, Pass, apply_rules, elementwise_classes
from .regions import Regions, is_elementwise, is_inner, joins_anchor, starts_region
from .view_rules import kept_tail

PIXELS, MOST_SEEN = (o.Conv, o.WinogradConv), 32  # what makes pixels channels last, and the values that are looked at for it
SHORTEST, LONGEST, FEWEST = 64, 1 << 14, 8  # elements of a row, and rows, of a kernel that sweeps a row several times
REGISTER = 16  # lanes of the widest registers that rotate at once


def leads_to_anchor(v: Value) -> bool:
    """v is a contraction's result, or an elementwise chain of one shape on top of it."""
    for _ in range(16):
        if v.op.fusion == "contraction":
            return True
        above = [u for u in v.node.operands if u.shape == v.shape] if is_elementwise(v.node) else []
        if not above:
            return False
        v = above[0]
    return False


@rule(P(elementwise_classes(), name="root"))
def reshape_after_epilogue(root: Any, m: Match) -> Value | None:
    """E(reshape(y), z) becomes reshape(E(y, reshape(z))) where y comes from a contraction, so that E can be its epilogue."""
    want = root.types[0].shape
    if any(u.shape == want and not isinstance(u.op, o.Reshape) and leads_to_anchor(u) for u in root.operands):
        return None  # it is another contraction's epilogue already: two of them would pass the reshape back and forth
    for v in root.operands:
        if not isinstance(v.op, o.Reshape) or v.shape != want or m.readers(v) != 1:
            continue
        y = v.node.operands[0]
        if m.readers(y) != 1 or not leads_to_anchor(y):
            continue
        tail = kept_tail(y.shape, want)
        operands: list[Value] = []
        for u in root.operands:
            if u is v:
                operands.append(y)
            elif len(u.shape) <= tail:
                operands.append(u)
            elif u.shape == want:
                operands.append(o.Reshape(shape=y.shape)(u))
            else:
                break
        if len(operands) == len(root.operands):
            return o.emit(o.Reshape(shape=want), root.op(*operands))
    return None


@rule(P(o.Reshape, P(o.Reshape, name="inner"), name="root"))
def reshape_of_reshape(inner: Any, root: Any) -> Value:
    x = inner.operands[0]
    out: Value = x if x.type == root.types[0] else root.op(x)
    return out


@rule(P(o.GatherAlongAxis, name="root"))
def gather_before_cast(root: Any) -> Value | None:
    """What is picked is widened, where widening everything would store a wider copy for a few elements."""
    wide, ids = root.operands
    if not isinstance(wide.op, o.Cast) or not _fewer(ids.shape, wide.shape):
        return None
    x = wide.node.operands[0]
    if x.dtype.itemsize >= wide.dtype.itemsize:
        return None
    return o.emit(wide.op, root.op(x, ids))


@rule(P(o.Gather, name="root"))
def gather_before_elementwise(root: Any) -> Value | None:
    """Rows of what an elementwise op makes of a table and numbers are what it makes of the table's rows. Where that is less work, or where
    the table is a constant that was too large to fold: a quantized embedding would be dequantized whole at every call."""
    made, ids = root.operands
    wide = [v for v in made.node.operands if v.shape]
    if not is_elementwise(made.node) or not joins_anchor(made.node) or len(wide) != 1 or wide[0].shape != made.shape:
        return None
    base = wide[0]
    while is_elementwise(base.node) and len(above := [v for v in base.node.operands if v.shape]) == 1:
        base = above[0]
    if not isinstance(base.op, o.Constant) and not _fewer(root.types[0].shape, made.shape):
        return None
    rows = root.op(wide[0], ids)
    return o.emit(made.op, *(rows if v is wide[0] else v for v in made.node.operands))


def _fewer(some: Any, all_: Any) -> bool:
    return bool(bounds(product(some))[1] < bounds(product(all_))[0])


def spread_casts(graph: Graph, log: Log) -> None:
    """A cast that several ops read is computed again in each of their regions: cheaper than storing the wider copy."""
    users = graph.users()
    for n in [n for n in graph.nodes if widens(n)]:
        readers = list(dict.fromkeys(users[n.value]))
        for u in readers[1:]:
            if is_elementwise(u) or u.op.fusion in ("norm", "reduction"):
                again = n.op(*n.operands, name=n.name, place=n.place)
                u.operands = tuple(again if v is n.value else v for v in u.operands)
                log.hit("cast_again")


def spread_cheap(graph: Graph, log: Log) -> None:
    """What a reduction reads and others do, too, is computed again for it from a value of no more bytes: cheaper than storing it."""
    users, outputs = graph.users(), set(graph.outputs)
    for n in reversed(list(graph.nodes)):
        if not cheap_from_memory(n) or n.value in outputs:
            continue
        readers = list(dict.fromkeys(users[n.value]))
        if not all(is_elementwise(u) or u.op.fusion == "reduction" for u in readers):
            continue
        reduced = [u for u in readers if is_reduced(u, users, outputs)]
        for u in reduced[len(reduced) == len(readers) :]:
            again = n.op(*n.operands, name=n.name, place=n.place)
            u.operands = tuple(again if v is n.value else v for v in u.operands)
            users[again] = [u]
            for v in n.operands:
                users[v].append(again.node)
            log.hit("cheap_again")


def is_reduced(n: Node, users: dict[Value, list[Node]], outputs: set[Value]) -> bool:
    """A reduction, or elementwise work for one alone."""
    while is_elementwise(n) and n.value not in outputs and len(users[n.value]) == 1:
        n = users[n.value][0]
    return n.op.fusion == "reduction"


def widens(n: Node) -> bool:
    return isinstance(n.op, o.Cast) and n.types[0].dtype.itemsize > n.operands[0].dtype.itemsize


def cheap_from_memory(n: Node) -> bool:
    """A few operations on one whole value, of which no element has more bytes, and values that are broadcast."""
    v, item = n.value if len(n.values) == 1 else None, n.types[0].dtype.itemsize
    for _ in range(4):
        if v is None or not isinstance(v.op, (o.Add, o.Sub, o.Mul, o.Neg, o.Square, o.Cast)):
            break
        whole = [u for u in v.node.operands if u.shape == v.shape]
        v = whole[0] if len(whole) == 1 else None
    return v is not None and v is not n.values[0] and v.dtype.itemsize <= item


def above(node: Node, inside: set[Node]) -> set[Node]:
    """Nodes of a region that `node` depends on."""
    found: set[Node] = set()
    todo = [node]
    while todo:
        for v in todo.pop().operands:
            if v.node in inside and v.node not in found:
                found.add(v.node)
                todo.append(v.node)
    return found


def _reduces_rows(n: Node) -> bool:
    """A reduction over trailing axes that keeps them, as axes of one element."""
    if not isinstance(n.op, (o.Sum, o.Mean, o.Max, o.Min, o.Prod, o.Any, o.All)) or not n.op.keepdims:
        return False
    return n.op.axes != () and n.op.axes == tuple(range(len(n.types[0].shape)))[-len(n.op.axes) :]


def _of_pixels(n: Node) -> bool:
    """Whether it reduces the pixels of what a convolution made, elementwise nodes between."""
    x = n.operands[0]
    todo, seen = [x], {x}
    while todo and len(seen) < MOST_SEEN:
        v = todo.pop()
        if isinstance(v.op, PIXELS):
            return len(n.op.axes) == len(x.shape) - 2  # type: ignore[attr-defined]
        if is_elementwise(v.node):
            more = [u for u in v.node.operands if u.shape == x.shape and u not in seen]
            todo, seen = [*todo, *more], seen.union(more)
    return False


def narrow_chain(v: Value, inside: set[Node], regions: Regions) -> list[Node]:
    """Elementwise nodes of one shape, read by a region alone, from a cast of a narrower value down to v; none: v is no such thing."""
    chain: list[Node] = []
    readers = inside
    while True:
        n = v.node
        alone = regions.alone(v, readers)
        if not joins_anchor(n) or not regions.free(n) or not alone:
            return []
        chain.append(n)
        readers = {n}
        wide = [u for u in n.operands if not is_inner(u)]
        if len(wide) != 1 or wide[0].shape != n.types[0].shape:
            return []
        if isinstance(n.op, o.Cast) and wide[0].dtype.itemsize < n.types[0].dtype.itemsize:
            return chain[::-1]
        v = wide[0]


@dataclass(frozen=True)
class Fuse(Pass):
    """Before: canonical graph, everything recognized and merged.
    After: elementwise work next to a contraction, norm, softmax, reduction or gather is in a `Fused` region with it, the rest is in
    pointwise regions of one shape. A region has at most one anchor (an attention takes the ropes of its queries and keys
    with it where the target's kernel for that many rows rotates them; reductions of rows whose results go back along the rows are in one
    region with what they go to, and with further reductions of these rows), is free of views, and never closes a cycle. Random numbers
    are in pointwise regions, which count their elements. A region around a contraction has one result; one around a norm or reduction
    may also give the sum it reads, and one around several sums whatever is computed from them; pointwise ones give whatever is read
    elsewhere. A `qdot` or a norm rounds its result to quantized values itself where the next product wants them. Rows of a table are looked
    up before elementwise work on the table."""

    name: ClassVar[str] = "fuse"
    rules: ClassVar[tuple[Rule, ...]] = (reshape_after_epilogue, reshape_of_reshape, gather_before_cast, gather_before_elementwise)
    max_ops: int = 24
    chain: int = 24  # most ops of a pointwise region
    most_reads: ClassVar[int] = 160  # values that a pointwise region of more ops than `max_ops` reads: each is a parameter of its kernel,
    most_results: ClassVar[int] = 32  # and its results, which are all in registers before the first is stored
    quantizes: bool = True  # kernels of the target can round their results to quantized values
    rotated_rows: int | None = None  # most query rows of an attention whose kernel rotates queries and keys itself (None: any number)
    sweeps: bool = True  # kernels of the target take the result of a reduction back along its rows
    gate_prologue: bool = False  # silu(g) * u computed while a matmul reads it: measured before it is switched on

    def run(self, graph: Graph, log: Log) -> Graph:
        apply_rules(graph, self.rules, log)
        if not self.sweeps:
            spread_cheap(graph, log)
        spread_casts(graph, log)
        sort_nodes(graph)  # a region needs a result that somebody reads
        regions = Regions(graph, loose=not self.sweeps)
        order = list(graph.nodes)
        for wanted in ("epilogue", "prologue"):
            for n in order:
                if not starts_region(n) or not regions.free(n) or (n.op.fusion == "contraction") != (wanted == "epilogue"):
                    continue
                self.grow(n, regions, log)
        for n in order:
            if is_elementwise(n) and regions.free(n):
                self.pointwise(n, regions, log)
        regions.build()
        return regions.graph

    def grow(self, anchor: Node, regions: Regions, log: Log) -> None:
        region = self.swept(anchor, regions)
        if region:
            position = regions.place(set(region))
            assert position is not None
            regions.close(region, position)
            log.hit("row_sweeps")
            return
        region = [anchor]
        if anchor.op.fusion in ("norm", "reduction"):
            region = self.producers(anchor, regions)
        elif isinstance(anchor.op, o.Attention):
            region = self.ropes(anchor, regions)
        elif self.gate_prologue and isinstance(anchor.op, o.Matmul):
            region = self.gate(anchor, regions)
        region = self.vectors(anchor, region, regions) if len(anchor.values) > 1 else self.epilogue(anchor, region, regions)
        if (self.quantizes and anchor.op.fusion == "contraction") or (not self.sweeps and anchor.op.fusion == "reduction"):
            region = self.widened(anchor, region, regions)
        if not self.sweeps and isinstance(anchor.op, o.Conv):
            region = self.masks(anchor, region, regions)
        region = self.rounded(anchor, region, regions)
        position = regions.place(set(region))
        if position is None:
            region, position = [anchor], regions.position[anchor]
        regions.close(region, position)
        if len(region) > 1:
            log.hit(f"{anchor.op.name}_region")

    def epilogue(self, anchor: Node, start: list[Node], regions: Regions) -> list[Node]:
        """Add elementwise readers of the anchor's shape while the region has one way out (beyond those it started with)."""
        shape = anchor.types[0].shape
        region, best = list(start), list(start)
        inside = set(region)
        extra = {v for v in regions.exits(inside) if v.node is not anchor}
        frontier = list(regions.users[anchor.values[0]])
        seen: set[Node] = set()
        while frontier and len(region) < self.max_ops:
            n = min(frontier, key=regions.position.__getitem__)
            frontier.remove(n)
            if n in seen or n in inside:
                continue
            seen.add(n)
            if not joins_anchor(n) or not regions.free(n) or n.types[0].shape != shape:
                continue
            region.append(n)
            inside.add(n)
            frontier.extend(regions.users[n.values[0]])
            if len([v for v in regions.exits(inside) if v not in extra]) == 1 and regions.place(inside) is not None:
                best = list(region)
        return best

    def vectors(self, anchor: Node, start: list[Node], regions: Regions) -> list[Node]:
        """With all elementwise work on the results of several sums, which are short: the region has as many ways out as it takes."""
        shape, region, inside = anchor.types[0].shape, list(start), set(start)
        grown = True
        while grown and len(region) < self.max_ops:
            grown = False
            readers = {u for n in region if n is anchor or n.types[0].shape == shape for v in n.values for u in regions.users[v]}
            for n in sorted(readers - inside, key=regions.position.__getitem__):
                more = [n, *(v.node for v in n.operands if v.node not in inside and v.shape == shape and regions.alone(v, [n]))]
                more = [m for m in more if joins_anchor(m) and regions.free(m) and m.types[0].shape == shape]
                if n in more and len(region) + len(more) <= self.max_ops and regions.place({*inside, *more}) is not None:
                    region += more
                    inside.update(more)
                    grown = True
        return region

    def widened(self, anchor: Node, region: list[Node], regions: Regions) -> list[Node]:
        """With what an epilogue reads from a narrower value alone (a residual of values, with its scale): computed while it is read."""
        inside = set(region)
        for n in region:
            for v in n.operands:
                chain = [] if n is anchor or v.node in inside else narrow_chain(v, inside, regions)
                if chain and len(region) + len(chain) <= self.max_ops and regions.place({*inside, *chain}) is not None:
                    inside.update(chain)
                    region = [*region, *chain]
        return region

    def masks(self, anchor: Node, region: list[Node], regions: Regions) -> list[Node]:
        """With comparisons of a value with a number that the epilogue alone reads (where a ReLU was positive): never stored."""
        inside = set(region)
        for v in [v for n in region if n is not anchor for v in n.operands]:
            n = v.node
            compares = is_elementwise(n) and n.types[0].dtype is bool_ and joins_anchor(n) and regions.free(n) and n not in inside
            wide = [u for u in n.operands if not is_inner(u)]
            if compares and len(wide) == 1 and wide[0].shape == v.shape and regions.alone(v, inside) and len(region) < self.max_ops:
                if regions.place({*inside, n}) is not None:
                    inside.add(n)
                    region = [*region, n]
        return region

    def rounded(self, anchor: Node, region: list[Node], regions: Regions) -> list[Node]:
        """With the rounding of the region's result to quantized values, where the kernel that makes the result can do it."""
        wide = isinstance(anchor.op, o.QDot) and anchor.op.n % BLOCK == 0
        if not self.quantizes or (not wide and not (isinstance(anchor.op, (o.RmsNorm, o.LayerNorm)) and anchor.op.naxes == 1)):
            return region
        inside = set(region)
        for v in regions.exits(inside):
            for n in regions.users[v]:
                made = v.node is anchor or anchor in above(v.node, inside)
                if made and isinstance(n.op, o.QuantizeRows) and regions.free(n) and v.shape == anchor.types[0].shape:
                    if regions.place({*inside, n}) is not None:
                        return [*region, n]
        return region

    def producers(self, anchor: Node, regions: Regions) -> list[Node]:
        """Elementwise producers of the anchor's first operand (of several sums: of all) that nothing else reads; the operand itself may
        have other readers."""
        x = anchor.operands[0]
        region = [anchor]
        todo = [(v, True) for v in (anchor.operands if len(anchor.values) > 1 else [x])]
        while todo and len(region) < self.max_ops:
            v, first = todo.pop()
            n = v.node
            if not joins_anchor(n) or not regions.free(n) or v.shape != x.shape or n in region:
                continue
            alone = regions.alone(v, region)
            trial = [*region, n]
            if (alone or first) and regions.place(set(trial)) is not None:
                region = trial
                todo.extend((u, False) for u in n.operands)
        return region

    def swept(self, anchor: Node, regions: Regions) -> list[Node]:
        """A reduction of rows with what goes back along them: elementwise nodes of the rows' shape and of one element a row, and further
        reductions of such rows. None where nothing goes back, or where the rows are too short or too few for a program each, or pixels
        of a convolution, which lie channels last."""
        if not self.sweeps or not _reduces_rows(anchor):
            return []
        whole, short = anchor.operands[0].shape, anchor.types[0].shape
        length = product(tuple(d for d, r in zip(whole, short, strict=True) if r == 1))
        if not isinstance(length, int) or not SHORTEST <= length <= LONGEST or bounds(product(short))[1] < FEWEST or _of_pixels(anchor):
            return []
        region, inside, back = [anchor], {anchor}, {anchor}  # back: what depends on a reduction

        def joins(n: Node) -> bool:
            if _reduces_rows(n):
                return n.operands[0].shape == whole and n.types[0].shape == short
            return joins_anchor(n) and n.types[0].shape in (whole, short)

        grown = True
        while grown and len(region) < self.max_ops:
            grown = False
            readers = {u for n in region for v in n.values for u in regions.users[v]}
            sources = {v.node for n in region for v in n.operands
                       if v not in regions.outputs and all(u in inside for u in regions.users[v])}
            for n in sorted((readers | sources) - inside, key=regions.position.__getitem__):
                if not joins(n) or not regions.free(n) or regions.place(inside | {n}) is None:
                    continue
                region, grown = [*region, n], True
                inside.add(n)
                if any(v.node in back for v in n.operands):
                    back.add(n)
                break
        return region if any(n.types[0].shape == whole for n in back) else []

    def ropes(self, anchor: Node, regions: Regions) -> list[Node]:
        """The attention and the ropes of its queries and keys, where nothing else reads them and whole registers rotate."""
        region = [anchor]
        rows = anchor.operands[0].shape[2]
        if self.rotated_rows is not None and not (isinstance(rows, int) and rows <= self.rotated_rows):
            return region
        for v in anchor.operands[:2]:
            n, width = v.node, v.shape[-1]
            if not isinstance(n.op, o.Rope) or not regions.free(n) or v in regions.outputs or len(regions.users[v]) != 1:
                continue
            whole = isinstance(width, int) and n.op.n_rot in (None, width) and width // 2 % REGISTER == 0
            if whole and not n.op.interleaved and regions.place({*region, n}) is not None:
                region.append(n)
        return region

    def gate(self, anchor: Node, regions: Regions) -> list[Node]:
        x = anchor.operands[0]
        gates = [u.node for u in x.node.operands if isinstance(u.op, o.Silu)] if isinstance(x.op, o.Mul) else []
        nodes = [*gates[:1], x.node, anchor]
        alone = all(len(regions.users[n.values[0]]) == 1 and n.values[0] not in regions.outputs and regions.free(n) for n in nodes[:-1])
        return nodes if gates and alone and regions.place(set(nodes)) is not None else [anchor]

    def light(self, inside: set[Node], regions: Regions) -> bool:
        """Whether a long pointwise region has few operands and results."""
        reads = {v for n in inside for v in n.operands if v.node not in inside and not is_inner(v)}
        return len(reads) <= self.most_reads and len(regions.exits(inside)) <= self.most_results

    def pointwise(self, first: Node, regions: Regions, log: Log) -> None:
        shape, region = first.types[0].shape, [first]
        inside = {first}
        grown = True
        while grown and len(region) < self.chain:
            grown = False
            near = [u for n in region for v in n.values for u in regions.users[v]]
            near += [v.node for n in [*region, *(u for u in near if isinstance(u.op, o.Complex))] for v in n.operands]  # both parts at once
            near = [n for n in set(near) - inside if is_elementwise(n) and regions.free(n) and n.types[0].shape == shape]
            long = self.chain > self.max_ops  # what leaves fewest values for others comes first: a step with its results
            for n in sorted(near, key=lambda n: (regions.more_exits(inside, n) if long else 0, regions.position[n])):
                if regions.place(inside | {n}) is not None:
                    if len(region) >= self.max_ops and not self.light({*inside, n}, regions):
                        continue
                    region.append(n)
                    inside.add(n)
                    grown = True
                    if long or len(region) >= self.chain:
                        break
        for v in [v for n in list(region) for v in n.operands if v.shape != shape]:  # what it broadcasts is widened where it is read
            chain = [n for n in narrow_chain(v, inside, regions) if n not in inside]
            if chain and regions.place(inside.union(chain)) is not None:
                region += chain
                inside.update(chain)
        if not self.sweeps:  # what reads a wider copy widens it itself
            ends = [n for n in region if widens(n) and n.operands[0].node in inside and not inside.intersection(regions.users[n.value])]
            ends = [n for n in ends if n.value not in regions.outputs]
            region = [n for n in region if n not in ends]
            inside -= set(ends)
        position = regions.place(inside)
        regions.close(region, regions.position[first] if position is None else position)
        if len(region) > 1:
            log.hit("pointwise_region")
