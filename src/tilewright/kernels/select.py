"""From an optimised graph to a program: every region gets a template, every value a place.

Views cost nothing: they are layouts over their root's buffer; a view that no strides describe becomes one explicit copy, and
the report says so. A node without a template on this target is a compile error that names it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from ..core.dims import Dim, ceildiv, product
from ..core.errors import CompileError
from ..core.target_spec import TargetSpec
from ..ir.graph import Graph, Node, Value
from ..ir.layout import Layout
from ..ir.types import TensorType
from ..ops.attention.backward import AttentionBackward as AttentionBackwardOp
from ..ops.attention.backward import AttentionSaved
from ..ops.attention.forward import Attention as AttentionOp
from ..ops.control.flow import CONTROL
from ..ops.fused import Fused
from ..ops.index.indexing import Concat
from ..ops.index.scatter import ScatterAlong, ScatterRows
from ..ops.kernels import OwnKernel
from ..ops.state import UpdateSlice as UpdateSliceOp
from ..ops.structure import Constant, ConstantData, Input, Number
from ..ops.views import Reshape, Transpose
from .attention.backward import AttentionBackwardTemplate
from .attention.forward import AttentionTemplate, result_layout
from .attention.q8 import Q8BlocksTemplate
from .attention.rope import RopeTemplate
from .catalogue import CATALOGUE
from .control import lower_control
from .conv.channels_last import behind_views, channels_last_layouts, seen_through, turned_alike
from .conv.conv import ConvTemplate
from .conv.winograd import Winograd, WinogradTilesTemplate
from .index.gather import GatherTemplate
from .index.gather_last import IndexRows
from .index.scatter import ScatterAddTemplate
from .launch import Argument, Buffer, ConstBuffer, Item, Launch, Packed, Pointer, Program, Variant, filter_sizes, flatten, roots
from .matmul.dots import DotProducts
from .matmul.matmul import MatmulTemplate
from .matmul.vectors import VectorProducts
from .past_caches import past_caches
from .pointwise.complex import computed_in_place, part
from .pointwise.concat_parts import computed_in_concat, layout_in
from .pointwise.copies import ConcatTemplate, copy_launch
from .pointwise.elements import Elements
from .pointwise.pointwise import Pointwise
from .pointwise.update import UpdateSliceTemplate
from .quant.cuda.fragments import fragment_shape
from .quant.panels import panel_shape
from .quant.qdot import QDotTemplate, QuantizeRowsTemplate
from .quant.qdot_experts import QExpertsDotTemplate
from .quant.quantized import QExpertsTemplate, QGatherTemplate, QMatmulTemplate
from .region import Operand, Region
from .rows.norm_backward import NormBackwardTemplate
from .rows.reduce import Reduce
from .rows.rows import Rows
from .rows.sweeps import RowSweeps
from .sites import name_sites
from .sort.sampling import SampleTemplate
from .state import computed_in_window, in_place_updates, land_states, updated
from .template import Foreign, Template, Unserved


class Memo:
    """Launches by structure. One per selection."""

    def __init__(self, target: TargetSpec) -> None:
        self.target = target
        self._known: dict[Hashable, tuple[Region, list[Launch]]] = {}

    def build(self, template: Template, region: Region) -> list[Launch]:
        key = (template.key, _body_key(region.body), _places_key(region))
        if key not in self._known:
            self._known[key] = (region, template.build(region, self.target))
            return self._known[key][1]
        model, launches = self._known[key]
        return _with_buffers(launches, model, region)


def _in_panels(o: Operand) -> bool:
    return o.packed.form != "plain"


def _given(node: Node) -> tuple[Value, ...]:
    """Operands that a region reads from memory: numbers that a small float dtype does not hold stand in its body."""
    return tuple(v for v in node.operands if not (isinstance(v.op, Constant) and isinstance(v.op.data, Number)))


def _body_key(body: Graph) -> Hashable:
    number = {v: (i, v.index) for i, n in enumerate(body.nodes) for v in n.values}
    nodes = []
    for n in body.nodes:
        op: Hashable = n.op
        if isinstance(n.op, Constant):
            data = n.op.data
            op = (data.type, data.content) if data.array.size == 1 else data
        nodes.append((op, tuple(number[v] for v in n.operands)))
    return tuple(nodes), tuple(number[v] for v in body.outputs)


def _places_key(region: Region) -> Hashable:
    """Types, layouts and packing, which operands share a buffer, and known indices: templates look at those."""
    order: dict[Buffer, int] = {}

    def one(o: Operand) -> Hashable:
        kept = o.buffer.kind in ("const", "input")  # nothing in the program writes it
        known = o.data if o.type.dtype.is_int and o.type.dtype.itemsize >= 4 else o.data is not None
        return (o.type, o.layout, o.packed, known, kept, order.setdefault(o.buffer, len(order)))

    return tuple(one(o) for o in region.operands), tuple(one(o) for o in region.results)


def _with_buffers(launches: list[Launch], model: Region, region: Region) -> list[Launch]:
    mapping = {
        old.buffer: new.buffer for old, new in zip([*model.operands, *model.results], [*region.operands, *region.results], strict=True)
    }

    def buffer(b: Buffer) -> Buffer:
        if b not in mapping:  # a temporary of the template's own
            mapping[b] = replace(b, name=b.name.replace(model.name, region.name))
        return mapping[b]

    def arguments(way: Launch | Variant) -> tuple[Argument, ...]:
        return tuple(replace(a, buffer=buffer(a.buffer)) if isinstance(a, Pointer) else a for a in way.arguments)

    return [
        replace(
            launch,
            name=launch.name.replace(model.name, region.name),
            arguments=arguments(launch),
            variants=tuple(replace(v, arguments=arguments(v)) for v in launch.variants),
            reads=tuple(map(buffer, launch.reads)),
            writes=tuple(map(buffer, launch.writes)),
            inplace=tuple((buffer(a), buffer(b)) for a, b in launch.inplace),
        )
        for launch in launches
    ]


def _scores_beside(region: Region) -> list[int]:
    """The operands of a region that are the mask and the bias of its attention."""
    node = region.anchor
    if node is None or not isinstance(node.op, (AttentionOp, AttentionSaved, AttentionBackwardOp)):
        return []
    last = 3 + node.op.has_mask + node.op.has_bias
    return [region.body.inputs.index(v) for v in node.operands[3:last] if v in region.body.inputs]


def stored_bytes(type_: TensorType, packed: Packed) -> Dim:
    if packed.form == "plain":
        return type_.nbytes
    if packed.form == "taps":
        out, channels, *kernel = type_.shape
        return product((out, *kernel)) * ceildiv(channels, packed.width) * packed.width * type_.dtype.itemsize
    if packed.form == "folded":
        rows, near = type_.shape[-2] if type_.ndim > 3 else 1, packed.groups
        return type_.shape[0] * ceildiv(rows, packed.width) * ceildiv(type_.shape[-1], near) * near * packed.words * type_.dtype.itemsize
    if packed.form == "filters":
        c, per, _ = filter_sizes(type_.shape, packed)
        c = ceildiv(c, packed.words) * packed.words
        return product((packed.groups, ceildiv(per, packed.width) * packed.width, c, *type_.shape[2:])) * type_.dtype.itemsize
    *stack, n, k = type_.shape
    if packed.form in ("quantized panels", "fragments"):
        assert isinstance(n, int) and isinstance(k, int)
        panels, blocks, size = (panel_shape if packed.form == "quantized panels" else fragment_shape)(packed.format, n, k)
        return panels * blocks * size
    n, k = (k, n) if packed.transposed else (n, k)
    k = ceildiv(k, packed.words) * packed.words
    return product(stack) * ((n + packed.width - 1) // packed.width) * packed.width * k * type_.dtype.itemsize


TEMPLATES: list[Template] = [
    *CATALOGUE, DotProducts(), VectorProducts(), MatmulTemplate(),
    QDotTemplate(), QExpertsDotTemplate(), QuantizeRowsTemplate(), AttentionTemplate(),
    AttentionBackwardTemplate(), NormBackwardTemplate(), Q8BlocksTemplate(), RowSweeps(), Reduce(), Rows(), GatherTemplate(), IndexRows(),
    Pointwise(), QMatmulTemplate(), QGatherTemplate(), QExpertsTemplate(), UpdateSliceTemplate(), ScatterAddTemplate(),
    SampleTemplate(), ConvTemplate(), Winograd(), WinogradTilesTemplate(), RopeTemplate(), ConcatTemplate(), Elements(),
]

OVERWRITING = (ScatterRows, ScatterAlong, UpdateSliceOp)
GATHERS = {"panels": "gather", "quantized panels": "qgather"}  # lookups that read a table in a form made for a product


def templates_of(target: TargetSpec, *, inside: bool = False) -> list[Template]:
    """The templates of a kind of target, best first. `inside`: of a loop or a branch."""
    if target.kind == "cuda":
        from .cuda.templates import CUDA_TEMPLATES, INSIDE

        return INSIDE if inside else CUDA_TEMPLATES
    return TEMPLATES


def padded_rows_of(graph: Graph, target: TargetSpec) -> dict[Value, Layout]:
    """Values whose rows are padded on a kind of target."""
    if target.kind != "cuda":
        return {}
    from .pointwise.cuda.padded_rows import padded_rows

    return padded_rows(graph, target)


def select(graph: Graph, target: TargetSpec) -> Program:
    """Choose templates and build the launches of a graph."""
    return Selector(graph, target).run()


class Selector:
    """Selects one graph. The body of a control-flow op has a selector of its own (`inside`), whose launches become part of the program."""

    def __init__(self, graph: Graph, target: TargetSpec, around: Selector | None = None, depth: int = 0) -> None:
        self.graph, self.target, self.depth = graph, target, depth  # loops around this graph
        self.program: Program = Program() if around is None else around.program
        self.block: list[Item] = []
        self.outputs: list[Buffer] = []
        self.shown: set[Buffer] = set()  # outputs that copies were made in
        self.places: dict[Value, Operand] = {}
        self.constants: dict[tuple[ConstantData, Packed], Operand] = {} if around is None else around.constants
        self.packing: dict[ConstantData, Packed] = {} if around is None else around.packing
        self.users = graph.users()
        self.channels_last = channels_last_layouts(graph, target)
        self.padded = padded_rows_of(graph, target)
        self.preferred = self.padded | self.channels_last  # values that do not lie contiguous
        if target.kind == "cpu":
            self.preferred |= turned_alike(graph, self.preferred)
        self.direct = self._direct_outputs()
        self.in_place = in_place_updates(graph)
        self.windows = computed_in_window(graph, self.in_place)
        self.parts = computed_in_place(graph) if any(v.dtype.kind == "c" for n in graph.nodes for v in n.values) else {}
        others = self.preferred if target.kind == "cuda" else self.channels_last
        self.joined = {v: part for v, part in computed_in_concat(graph, target, others).items() if v not in self.windows}
        self.joins = {part.node for part in self.joined.values()}
        self.overwritten = self._overwritten()
        self.memo: Memo = Memo(target) if around is None else around.memo
        self.templates = templates_of(target, inside=around is not None)

    def run(self) -> Program:
        for i, v in enumerate(self.graph.inputs):
            buffer = Buffer(v.name, "state" if i in self.graph.donated else "input", v.type.nbytes, i)
            self.program.inputs.append(buffer)
            self.places[v] = Operand(v.type, buffer, Layout.contiguous(v.shape))
        for i, v in enumerate(self.graph.outputs):
            donor = next((k for k, out in self.graph.donated.items() if out == i), None)
            self.program.outputs.append(
                Buffer(f"out{i}", "output", v.type.nbytes, i) if donor is None else self.program.inputs[donor]
            )
        self.outputs = self.program.outputs
        self._nodes()
        if self.target.kind == "cuda" and any(not isinstance(x, Launch) for x in self.block):
            from .cuda.whole import small_loops

            self.block = small_loops(self.block)
        program = self.program
        program.launches = flatten(self.block)
        program.block = self.block if any(not isinstance(x, Launch) or x.on_host for x in self.block) else []
        touched = (b for x in program.launches for used in (*x.reads, *x.writes) for b in roots(used))
        program.temps = [b for b in dict.fromkeys(touched) if b.kind == "temp"]
        return program

    def inside(self, body: Graph, inputs: Sequence[Operand], outputs: Sequence[Buffer], depth: int) -> list[Item]:
        """The launches of a body whose inputs lie there and whose outputs shall fill these buffers."""
        inner = Selector(body, self.target, self, depth)
        inner.places.update(zip(body.inputs, inputs, strict=True))
        inner.outputs = list(outputs)
        inner._nodes()
        return inner.block

    def _nodes(self) -> None:
        problems = []
        self._decide_packing()
        for node in self.graph.nodes:
            if isinstance(node.op, (Input, Constant)):
                continue
            if node.op.traits.view:
                if not isinstance(_root(node.operands[0])[0].node.op, Constant):  # views of constants: when a kernel asks for them
                    self._view(node)
                continue
            try:
                if isinstance(node.op, CONTROL):
                    lower_control(self, node)
                else:
                    self._region(node)
            except Unserved as e:
                problems.append(str(e))
                for v in node.values:  # go on, so that one error lists all
                    self.places[v] = Operand(v.type, Buffer(v.name, "temp", v.type.nbytes), Layout.contiguous(v.shape))
        if problems:
            raise CompileError("select: no kernel on this target for\n" + "\n".join(f"  {p}" for p in problems))
        self._outputs()

    # --- constants ----------------------------------------------------------------------------------------------------
    def _decide_packing(self) -> None:
        """A constant matrix that a matmul reads is packed for it; a gather of the same constant reads the panels. Anyone else who needs
        the plain form gets a second copy."""
        for node in self.graph.nodes:
            if node.op.traits.view or node.op.traits.source or isinstance(node.op, CONTROL):
                continue
            region = self._make_region(node)
            template = self._template(region)
            if template is not None:
                for index, packed in template.packs(region, self.target).items():
                    data = region.operands[index].data
                    assert data is not None
                    self.packing.setdefault(data, packed)

    def _probe(self, v: Value) -> Operand:
        """Operand for matching only: type, constant data, layout if it is known."""
        root, layout = _root(v, self.places, self.preferred)
        data = root.node.op.data if isinstance(root.node.op, Constant) else None
        return Operand(v.type, Buffer(v.name, "temp", 0), layout or Layout.contiguous(v.shape), data)

    def _constant(self, data: ConstantData, packed: Packed) -> Operand:
        if (data, packed) not in self.constants:
            nbytes = stored_bytes(data.type, packed)
            buffer = Buffer(data.name, "const", nbytes, len(self.program.constants))
            self.program.constants.append(ConstBuffer(data, buffer, packed))
            self.constants[data, packed] = Operand(data.type, buffer, Layout.contiguous(data.type.shape), data, packed)
        return self.constants[data, packed]

    # --- places -------------------------------------------------------------------------------------------------------
    def place(self, v: Value) -> Operand:
        """Where a value lies; constants are entered on first use, in plain form."""
        if v not in self.places and isinstance(v.node.op, Constant):
            self.places[v] = self._constant(v.node.op.data, Packed())
        if v not in self.places and v.node.op.traits.view:
            self._view(v.node)
        return self.places[v]

    def _view(self, node: Node) -> None:
        base = self.place(node.operands[0])
        layouts = node.op.views(base.layout)
        if any(lay is None for lay in layouts):
            why = f"{node.op.name} %{node.name} needs contiguous elements"
            base = self._copy(node.operands[0], base, why, self._shown_by(node.operands[0], base))
            layouts = node.op.views(base.layout)
        for v, lay in zip(node.values, layouts, strict=True):
            assert lay is not None
            self.places[v] = Operand(v.type, base.buffer, lay, base.data, base.packed)

    def _copy(self, v: Value, source: Operand, why: str, buffer: Buffer | None = None) -> Operand:
        """A contiguous copy of a value, as a launch of its own."""
        target = Operand(v.type, buffer or self._temp(v), Layout.contiguous(v.shape))
        self.add(copy_launch(f"copy_{v.name}", source, target, self.target, f"copy: {why}"))
        return target

    def _along_rows(self, v: Value) -> None:
        """A value whose rows lie across memory, copied once for all who read them in pieces along rows."""
        o = self.place(v)
        if o.layout.strides[-1] not in (0, 1):
            shape = tuple(1 if s == 0 else d for d, s in zip(v.shape, o.layout.strides, strict=True))
            source = Operand(v.type.with_shape(shape), o.buffer, replace(o.layout, shape=shape))
            to = Operand(source.type, Buffer(f"{v.name}.rows", "temp", source.type.nbytes), Layout.contiguous(shape))
            self.add(copy_launch(to.buffer.name, source, to, self.target, "copy: scores want their rows along memory"))
            self.places[v] = Operand(v.type, to.buffer, to.layout.expand(v.shape))

    def _shown_by(self, v: Value, base: Operand) -> Buffer | None:
        """The memory of an output that shows a contiguous copy of v whole, for the copy to be made there."""
        for i, output in enumerate(self.graph.outputs if self.outputs is self.program.outputs else ()):  # a loop may still read its own
            chain, seen = list[Value](), output
            while seen is not v and seen.node.op.traits.view:
                chain.append(seen)
                seen = seen.node.operands[0]
            taken = self.outputs[i] in self.shown or self.outputs[i] is base.buffer or i in self.graph.donated.values()
            if seen is not v or taken or output.type.nbytes != v.type.nbytes:
                continue
            layout: Layout | None = Layout.contiguous(v.shape)
            for step in reversed(chain):
                layout = None if layout is None else step.node.op.views(layout)[step.index]
            if layout is not None and layout.is_contiguous and layout.offset == 0:
                self.shown.add(self.outputs[i])
                return self.outputs[i]
        return None

    def _temp(self, v: Value) -> Buffer:
        return Buffer(v.name, "temp", v.type.nbytes)

    def add(self, launch: Launch) -> None:
        self.block.append(past_caches(launch, self.target) if self.target.kind == "cpu" else launch)

    # --- regions ------------------------------------------------------------------------------------------------------
    def _make_region(self, node: Node) -> Region:
        if isinstance(node.op, Fused):
            body = node.op.body
        else:
            body = Graph(node.name)
            held = _given(node)
            ins = [body.input(v.type, f"x{i}") if v in held else body.constant(v.op.attrs()["data"]) for i, v in enumerate(node.operands)]
            op = node.op
            if isinstance(op, OwnKernel):
                op = op.without(tuple(i for i, v in enumerate(node.values) if not self.users[v] and v not in self.graph.outputs))
            body.outputs = list(body.add(op, *ins, name=node.name, place=node.place).values)
        return Region(node.name, body, [self._probe(v) for v in _given(node)], [self._probe(v) for v in node.values], node.place)

    def _template(self, region: Region) -> Template | None:
        return next((t for t in self.templates if t.matches(region, self.target) is None), None)

    def _region(self, node: Node) -> None:
        if isinstance(node.op, UpdateSliceOp) and node.operands[1] in self.windows:
            self.places[node.value] = Operand(node.value.type, self.places[node.operands[0]].buffer, Layout.contiguous(node.value.shape))
            return
        if node.operands and node.operands[0] in self.parts and self.parts[node.operands[0]][0] is node.values[0]:
            return  # both parts have been computed in its memory
        if node in self.joins and node.value in self.places:
            self._join(node)
            return
        probe = self._make_region(node)
        template = self._template(probe)
        if template is None:
            why = {t.key: t.matches(probe, self.target) for t in self.templates}
            reasons = "; ".join(f"{key}: {w.text}" for key, w in why.items() if w is not None and not isinstance(w, Foreign))
            what = probe.anchor.op.name if probe.anchor is not None else node.op.name
            raise Unserved(f"{what} %{node.name}{f' ({node.place})' if node.place else ''}: {reasons or 'no template is for it'}")
        wanted = template.packs(probe, self.target)
        for i in _scores_beside(probe) if self.target.kind == "cuda" else ():
            self._along_rows(_given(node)[i])
        operands = [self._operand(v, i, template, wanted.get(i)) for i, v in enumerate(_given(node))]
        results = [self._result(v, probe) for v in node.values]
        region = Region(node.name, probe.body, operands, results, node.place)
        if self.target.kind == "cuda" and template.matches(region, self.target) is not None and not any(map(_in_panels, operands)):
            template = self._template(region) or template  # operands do not lie as was expected
        launches = name_sites(self.memo.build(template, region), region)
        apart = len(launches) == 1 and all(v in self.joined for v in node.values)  # whatever writes the rest of the concatenation
        for launch in launches:
            self.add(replace(launch, apart=True) if apart else launch)
        for v, r in zip(node.values, results, strict=True):
            self.places[v] = r

    def _operand(self, v: Value, index: int, template: Template, wanted: Packed | None) -> Operand:
        root, _ = _root(v)
        if isinstance(root.node.op, Constant):
            data = root.node.op.data
            packed = self.packing.get(data)
            if wanted is not None and packed == wanted:
                return self._constant(data, wanted)
            if packed is not None and template.key == GATHERS.get(packed.form) and root is v and index == 0 and data.type.ndim == 2:
                return self._constant(data, packed)
        return self.place(v)

    def _result(self, v: Value, region: Region) -> Operand:
        layout = Layout.contiguous(v.shape)
        if v in self.places:  # its operand was computed there
            return self.places[v]
        if v.node in self.in_place and (old := updated(v)) is not None:
            return Operand(v.type, self.places[old].buffer, layout)
        if v in self.parts:
            whole, which = self.parts[v]
            if whole not in self.places:
                self.places[whole] = self.fresh(whole, layout)
            return part(self.places[whole], which)
        if v in self.windows:
            update = self.windows[v]
            op, cache = update.op, self.places[update.operands[0]]
            assert isinstance(op, UpdateSliceOp)
            return Operand(v.type, cache.buffer, cache.layout.slice(op.axis, op.start, v.shape[op.axis], op.step))
        if region.anchor is not None and region.anchor.op.by_heads and len(v.shape) == 4 and not self._lands(v, layout):
            layout = result_layout(v.shape)
        if v in self.joined:
            return self._part(v)
        if region.anchor is not None and isinstance(region.anchor.op, AttentionBackwardOp) and self._transposed(v):
            layout = result_layout(v.shape)
        return self.fresh(v, self.preferred.get(v, layout))

    def _part(self, v: Value) -> Operand:
        """The place of a value in the concatenation that it is computed in, which may be part of another."""
        whole = self.joined[v].node.value
        if whole not in self.places:
            plain = self.preferred.get(whole, Layout.contiguous(whole.shape))
            self.places[whole] = self._part(whole) if whole in self.joined else self.fresh(whole, plain)
        there = self.places[whole]
        return Operand(v.type, there.buffer, layout_in(self.joined[v], v, there.layout))

    def _join(self, node: Node) -> None:
        """Copies of what has not been computed in a concatenation's memory."""
        start: Dim = 0
        whole = self.places[node.value]
        assert isinstance(node.op, Concat)
        for i, v in enumerate(node.operands):
            size = v.shape[node.op.axis]
            there = Operand(v.type, whole.buffer, whole.layout.slice(node.op.axis, start, size))
            root, _ = behind_views(v)
            part = self.joined.get(root)
            if part is None or part.node is not node or not _alike(_through_views(root, self.places[root].layout, v), there.layout):
                self.add(replace(copy_launch(f"{node.name}.{i}", self.place(v), there, self.target), apart=True))
            start += size

    def _transposed(self, v: Value) -> bool:
        """Everybody reads it as [B, S, H, D]."""
        readers = self.users[v]
        transposed = all(isinstance(n.op, Transpose) and n.op.perm == (0, 2, 1, 3) for n in readers)
        return bool(readers) and transposed and v not in self.graph.outputs

    def fresh(self, v: Value, layout: Layout) -> Operand:
        """New memory for a value: an output's own where the output shows it whole."""
        made = self.overwritten.get(v)
        if made is not None and layout.is_contiguous:
            if made not in self.places:
                self.places[made] = self.fresh(made, Layout.contiguous(made.shape))
            return Operand(v.type, self.places[made].buffer, layout)
        if self._lands(v, layout):
            return Operand(v.type, self.outputs[self.direct[v]], layout)
        padded = v in self.padded and layout.strides[-1] == 1
        nbytes = layout.shape[0] * layout.strides[0] * v.dtype.itemsize if padded else v.type.nbytes
        return Operand(v.type, Buffer(v.name, "temp", nbytes), layout)

    # --- outputs ------------------------------------------------------------------------------------------------------
    def _direct_outputs(self) -> dict[Value, int]:
        """Computed values that an output shows whole: they can be computed in the output's own memory."""
        found: dict[Value, int] = {}
        for i, v in enumerate(self.graph.outputs):
            root, _ = _root(v)
            if i in self.graph.donated.values():  # its memory holds the old value, which may still be read
                continue
            if not root.node.op.traits.source and root not in found and root.type.nbytes == v.type.nbytes:
                found[root] = i
        return found

    def _lands(self, v: Value, layout: Layout) -> bool:
        """Whether a value can be computed in an output's own memory with this layout."""
        return v in self.direct and self._lands_whole(v, layout, self.graph.outputs[self.direct[v]])

    def _overwritten(self) -> dict[Value, Value]:
        """Values that nothing reads but an op that gives them back with a part exchanged: they are computed in its result's memory."""
        found: dict[Value, Value] = {}
        for n in self.graph.nodes:
            if not isinstance(n.op, OVERWRITING) or self.target.kind != "cpu" or n in self.in_place or n.value in self.preferred:
                continue
            v, readers = n.operands[0], [n]
            while self.users[v] == readers and v not in self.graph.outputs and isinstance(v.node.op, Reshape):
                v, readers = v.node.operands[0], [v.node]
            computed = not v.node.op.traits.view and not isinstance(v.node.op, (Input, Constant, *CONTROL))
            elsewhere = v in self.graph.outputs or v in self.joined or v in self.preferred
            if computed and not elsewhere and self.users[v] == readers:
                found[v] = n.value
        return found

    def _lands_whole(self, root: Value, layout: Layout, output: Value) -> bool:
        """Whether the output, seen through its views of root, is contiguous from the buffer's start."""
        seen = _through_views(root, layout, output)
        return seen is not None and seen.is_contiguous and seen.offset == 0

    def _outputs(self) -> None:
        """Copies into outputs that were not computed in place; states last, since others may show their old values."""
        donated = set(self.graph.donated.values())
        late: list[tuple[int, Value, Operand]] = []
        for i, v in enumerate(self.graph.outputs):
            place = self.place(v)
            if place.buffer is self.outputs[i]:
                continue
            if i not in donated:
                self._copy(v, place, "an output must be contiguous memory of its own", self.outputs[i])
                continue
            if place.buffer.kind == "state":  # two states exchange values
                place = self._copy(v, place, "a state takes the value of another")
            late.append((i, v, place))
        copies: list[tuple[Launch, Buffer, Buffer]] = []
        for i, v, place in late:
            self._copy(v, place, "the next value of a state was not computed in its memory", self.outputs[i])
            if place.layout.is_contiguous and place.layout.offset == 0:
                last = self.block[-1]
                assert isinstance(last, Launch)
                copies.append((last, place.buffer, self.outputs[i]))
        land_states(self.block, copies)


def _alike(a: Layout | None, b: Layout) -> bool:
    """Whether the elements lie at the same places."""
    return a is not None and a.offset == b.offset and all(d == 1 or s == t for d, s, t in zip(b.shape, a.strides, b.strides, strict=True))


def _root(v: Value, places: Mapping[Value, Operand] | None = None,
          expected: Mapping[Value, Layout] | None = None) -> tuple[Value, Layout | None]:
    """The non-view value behind a chain of views, and v's layout over it when strides describe it. `places` knows how the inputs of a body
    lie, `expected` how computed values will; everything else is contiguous."""
    root, chain = behind_views(v)
    given = places.get(root) if places is not None and isinstance(root.node.op, Input) else None
    plain = Layout.contiguous(root.shape)
    layout = given.layout if given is not None else plain if expected is None else expected.get(root, plain)
    return root, seen_through(chain, layout)


def _through_views(root: Value, layout: Layout, v: Value) -> Layout | None:
    found, chain = behind_views(v)
    assert found is root
    return seen_through(chain, layout)
