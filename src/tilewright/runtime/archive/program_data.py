"""Programs, interfaces and signatures as plain data (for JSON), and back. Whatever cannot be right is a FormatError.

A dim is an int or its text (in the code cache, the number of a row of one table). Buffers are numbered: inputs, outputs, constants, temps,
in this order. Kernels are named by the symbol of their object code; their tile IR is not stored.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import numpy as np

from ...core.dims import Dim, DimRows, Expr, Symbol, integer, parse_dim, read_rows
from ...core.dtypes import dtype, u64
from ...core.errors import STRANGE, FormatError, ParseError
from ...core.pytree import SCALARS, Spec
from ...core.records import dataclass
from ...core.signature import Fixed, Signature, Size, Slot
from ...ir.types import TensorType
from ...kernels.launch import (
    Argument,
    Buffer,
    BufferKind,
    ConstBuffer,
    ErrorWord,
    Form,
    Launch,
    Native,
    Packed,
    Pointer,
    Program,
    Site,
    Variant,
    Word,
)
from ...tile.ir import Kernel
from ..executable import Interface
from .control_data import control_data, read_block, read_windows, windows_of

Data = dict[str, Any]

SEED_TYPE = TensorType(u64, ())  # the type of a random seed


@dataclass(eq=False)
class Stored:
    """A constant of a file, in the form it is stored. It stands in for the graph's ConstantData until the graph is wanted."""

    name: str
    type: TensorType
    packed: Packed
    storage: np.ndarray[Any, Any]


def dim_data(d: Dim) -> int | str:
    return d if isinstance(d, int) else str(d)


class Reader:
    """Reads dims of one file; equal texts are parsed once. `#3` is a row of its table, where it has one."""

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self.known: dict[str, Expr] = {s.name: integer(s.name, s.lo, s.hi) for s in symbols}
        self.seen: dict[str, Dim] = {}

    def table(self, rows: Sequence[Any]) -> None:
        self.seen.update((f"#{k}", e) for k, e in enumerate(read_rows(rows, self.known)))

    def dim(self, value: Any) -> Dim:
        if type(value) is int:
            return value
        if type(value) is not str or len(value) > 10_000:
            raise FormatError(f"archive: a dim must be a number or a text, got {value!r:.40}")
        if value not in self.seen:
            try:
                self.seen[value] = parse_dim(value, self.known)
            except (ParseError, RecursionError, ArithmeticError) as e:
                raise FormatError(f"archive: cannot read the dim {value!r:.60}") from e
        return self.seen[value]

    def type(self, data: Any) -> TensorType:
        try:
            return TensorType(dtype(data[0]), tuple(self.dim(d) for d in data[1]))
        except (ParseError, TypeError, IndexError, KeyError) as e:
            raise FormatError(f"archive: cannot read the type {data!r:.60}") from e


def type_data(t: TensorType) -> list[Any]:
    return [t.dtype.name, [dim_data(d) for d in t.shape]]


def interface_data(i: Interface) -> Data:
    return {"names": list(i.input_names), "inputs": [type_data(t) for t in i.inputs], "outputs": [type_data(t) for t in i.outputs],
            "symbols": [[s.name, s.lo, s.hi] for s in i.symbols], "donated": [list(pair) for pair in i.donated],
            "called": list(i.called), "windows": [[dim_data(d), what] for d, what in i.windows],
            "needs": [[dim_data(d), text, place] for d, text, place in i.needs]}


def read_interface(data: Data) -> tuple[Interface, Reader]:
    with reading("interface.symbols", data, "symbols"):
        symbols = tuple(Symbol(str(n), lo, hi) for n, lo, hi in data["symbols"])
        reader = Reader(symbols)
        if len(reader.known) != len(symbols):
            raise ValueError("a name is used twice")
    with reading("interface.inputs and .outputs", data, "inputs", "outputs", "names"):
        inputs, outputs = ([reader.type(t) for t in data[k]] for k in ("inputs", "outputs"))
        names = tuple(map(str, data["names"]))
        if len(names) != len(inputs):
            raise ValueError(f"{len(inputs)} inputs have {len(names)} names")
    with reading("interface.donated", data, "donated"):
        donated = tuple((int(i), int(k)) for i, k in data["donated"])
        if any(min(i, k) < 0 or inputs[i] != outputs[k] for i, k in donated):
            raise ValueError("a donated input has another type than its output")
    with reading("interface.called", data, "called"):
        called = tuple(map(str, data["called"]))
        if not reader.known.keys() >= set(called):
            raise ValueError("there is no such symbol")
    with reading("interface.windows and .needs", data, "windows", "needs"):
        kept = tuple((reader.dim(d), str(what)) for d, what in data["windows"])
        needs = tuple((reader.dim(d), str(text), str(place)) for d, text, place in data["needs"])
    return Interface(names, tuple(inputs), tuple(outputs), symbols, donated, called, kept, needs), reader


@contextmanager
def reading(field: str, data: Data, *keys: str) -> Iterator[None]:
    """Whatever goes wrong inside is a FormatError that names the field and shows what it holds."""
    try:
        yield
    except (ParseError, FormatError, *STRANGE) as e:
        held = ", ".join(f"{data[k]!r:.60}" if k in data else f"no {k!r}" for k in keys)
        raise FormatError(f"archive: the field '{field}' cannot be read ({e!s:.100}), got {held}") from e


def signature_data(s: Signature) -> Data:
    def role(r: Slot | Fixed | Size) -> list[Any]:
        if isinstance(r, Slot):
            return ["slot", r.index]
        return ["fixed", r.value] if isinstance(r, Fixed) else ["size", dim_data(r.dim)]

    return {"params": list(s.params), "in": s.in_spec.to_data(), "out": s.out_spec.to_data(), "inputs": [role(r) for r in s.inputs],
            "outputs": [role(r) for r in s.outputs], "names": list(s.input_names),
            **({"updates": [list(u) for u in s.updates]} if s.updates else {}), **({"seeded": True} if s.seeded else {})}


def read_signature(data: Data, reader: Reader, interface: Interface) -> Signature:
    """The signature of a program with this interface. Structures are of builtin containers and of classes that are imported already."""

    def role(kind: Any, value: Any, count: int) -> Slot | Fixed:
        if kind == "slot" and type(value) is int and 0 <= value < count:
            return Slot(value)
        if kind == "fixed" and isinstance(value, SCALARS):
            return Fixed(value)
        raise ValueError(f"{[kind, value]!r:.40} is no leaf")

    seeded = data.get("seeded", False)  # the last input is a seed that every call draws
    if not isinstance(seeded, bool) or (seeded and (not interface.inputs or interface.inputs[-1] != SEED_TYPE)):
        raise FormatError(f"archive: the field 'signature.seeded' says that the last input is {SEED_TYPE}, got {seeded!r:.20}")
    with reading("signature.in", data, "in", "inputs"):
        in_spec = Spec.from_data(data["in"]).plain(classes=True)
        inputs = tuple(role(kind, value, len(interface.inputs)) for kind, value in data["inputs"])
        if [c.type for c in in_spec.children] != ["tuple", "dict"] or in_spec.type != "tuple" or in_spec.size != len(inputs):
            raise ValueError("it must be a tuple and a dict, with a leaf for each input")
        if not all(isinstance(k, str) for k in in_spec.children[1].keys):
            raise ValueError("named arguments have names")
        given = len(interface.inputs) - seeded
        if {r.index for r in inputs if isinstance(r, Slot)} != set(range(given)):
            raise ValueError(f"each of {given} inputs must be a leaf")
    with reading("signature.out", data, "out", "outputs"):
        out_spec = Spec.from_data(data["out"]).plain(classes=True)
        outputs = tuple(Size(reader.dim(value)) if kind == "size" else role(kind, value, len(interface.outputs))
                        for kind, value in data["outputs"])
        if out_spec.size != len(outputs):
            raise ValueError(f"a structure with {out_spec.size} leaves holds {len(outputs)}")
    with reading("signature.updates", data, "updates"):
        updates = tuple((int(i), int(k)) for i, k in data.get("updates", ()))
        if any(min(i, k) < 0 or interface.inputs[i] != interface.outputs[k] for i, k in updates):
            raise ValueError("an updated input has another type than its output")
    with reading("signature.params and .names", data, "params", "names"):
        params, names = (tuple(map(str, data[k])) for k in ("params", "names"))
        if names != interface.input_names:
            raise ValueError(f"the inputs are called {interface.input_names!s:.60}")
    return Signature(params, in_spec, out_spec, inputs, outputs, names, updates, seeded)


def program_data(program: Program, symbols: Sequence[str], rows: DimRows | None = None) -> Data:
    """`symbols` names the object code of every launch and, after it, of each of its variants. With `rows` dims are numbers of rows."""
    def dim(d: Dim) -> int | str:
        return dim_data(d) if isinstance(d, int) or rows is None else f"#{rows.number(d)}"

    groups = (program.inputs, program.outputs, [c.buffer for c in program.constants], program.temps)
    number = {b: i for i, b in enumerate(dict.fromkeys(b for g in groups for b in g))}  # a state is input and output
    plain = [b for launch in program.launches for b in (*launch.reads, *launch.writes) if b.kind != "window"]
    for b in [*plain, *windows_of(program)]:  # windows come last: they name others
        if b not in number:
            number[b] = len(number)

    def argument(a: Argument) -> list[Any]:
        if isinstance(a, Pointer):
            return ["p", number[a.buffer], dim(a.offset), dim(a.extent)]
        if isinstance(a, Native):
            return ["n", a.name]
        return ["w", dim(a.value)] if isinstance(a, Word) else ["e", *([a.turn] if a.turn else [])]

    names = iter(symbols)

    def way(x: Launch | Variant) -> Data:
        return {"code": next(names), "args": [argument(a) for a in x.arguments], "grid": dim(x.grid), "scratch": dim(x.scratch)}

    launches = [
        {**way(x), "name": x.name, "reads": [number[b] for b in x.reads], "writes": [number[b] for b in x.writes],
         "inplace": [[number[a], number[b]] for a, b in x.inplace], "flops": dim(x.flops), "bytes": dim(x.bytes),
         "serial": x.serial, "note": x.note, "streams": x.streams, "shared": x.shared,
         "sites": [[s.op, s.place, None if s.size is None else dim(s.size)] for s in x.sites],
         "variants": [{**way(v), "when": [dim(v.value), v.lo, v.hi]} for v in x.variants]}
        for x in program.launches
    ]
    return {"buffers": [[b.name, b.kind, dim(b.nbytes), b.index] for b in number if b.kind != "window"], "launches": launches,
            "outputs": [number[b] for b in program.outputs], "control": control_data(program, number, dim)}


def read_program(data: Data, constants: Sequence[Any], reader: Reader,
                 known: Mapping[str, Kernel] | None = None) -> tuple[Program, list[str]]:
    """The program and its code symbols, in the order of `program_data`. `constants` are like ConstantData, without the array but
    with their form `packed`; `known` has kernels of which more than the symbol matters."""
    try:
        buffers = [Buffer(str(n), _kind(k), reader.dim(size), int(index)) for n, k, size, index in data["buffers"]]
        of_kind: dict[BufferKind, list[Buffer]] = {k: [b for b in buffers if b.kind == k] for k in get_args(BufferKind)}
        given = sorted(of_kind["input"] + of_kind["state"], key=lambda b: b.index)
        program = Program(given, [buffers[int(i)] for i in data["outputs"]], [], of_kind["temp"])
        stored = of_kind["const"]
        program.constants = [ConstBuffer(c, b, c.packed) for c, b in zip(constants, stored, strict=True)]
        loops = read_windows(data["control"], buffers, reader.dim)
        kernels: dict[str, Kernel] = dict(known or {})
        symbols: list[str] = []

        def way(x: Data) -> tuple[Kernel, tuple[Argument, ...], Dim]:
            symbols.append(str(x["code"]))
            kernel = kernels.setdefault(symbols[-1], Kernel(symbols[-1]))
            return kernel, tuple(_argument(a, buffers, reader) for a in x["args"]), reader.dim(x["grid"])

        for x in data["launches"]:
            reads, writes = (tuple(buffers[int(i)] for i in x[key]) for key in ("reads", "writes"))
            launch = Launch(
                str(x["name"]), *way(x), reads, writes, tuple((buffers[a], buffers[b]) for a, b in x["inplace"]), reader.dim(x["scratch"]),
                reader.dim(x["flops"]), reader.dim(x["bytes"]), bool(x["serial"]), str(x["note"]), bool(x["streams"]), bool(x["shared"]))
            sites = ((str(op), str(place), None if size is None else reader.dim(size)) for op, place, size in x.get("sites", ()))
            launch.sites = tuple(Site(*each) for each in sites)
            for v in x["variants"]:
                value, lo, hi = v["when"]
                launch.variants += (Variant(reader.dim(value), int(lo), int(hi), *way(v), reader.dim(v["scratch"])),)
            program.launches.append(launch)
        read_block(data["control"], program, buffers, loops, reader.dim)
        return program, symbols
    except STRANGE as e:
        raise FormatError(f"archive: the program cannot be read ({type(e).__name__}: {e!s:.80})") from e


def _kind(text: Any) -> BufferKind:
    found: BufferKind | None = next((k for k in get_args(BufferKind) if k == text), None)
    if found is None:
        raise FormatError(f"archive: a buffer cannot be {text!r:.40}")
    return found


def _argument(data: Sequence[Any], buffers: Sequence[Buffer], reader: Reader) -> Argument:
    if data[0] == "p":
        return Pointer(buffers[data[1]], reader.dim(data[2]), reader.dim(data[3]))
    if data[0] == "n":
        return Native(str(data[1]))
    return Word(reader.dim(data[1])) if data[0] == "w" else ErrorWord(*map(int, data[1:]))


def packed_data(p: Packed) -> list[Any]:
    return [p.form, p.width, p.transposed, p.format, p.groups, p.words]


def read_packed(data: Any) -> Packed:
    if not (isinstance(data, list) and [type(v) for v in data] == [str, int, bool, str, int, int] and data[0] in get_args(Form)
            and (data[0] != "quantized panels" or _is_panel(data[1], data[3]))):
        raise FormatError(f"archive: not a form of a constant: {data!r:.60}")
    return Packed(*data)


def _is_panel(width: int, name: str) -> bool:
    from ...kernels.quant.panels import LANES, PANELS  # with the op registry: only programs with quantized weights pay for it

    return width == LANES and name in PANELS


