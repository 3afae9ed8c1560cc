"""Saved sessions to mutate, and what must hold of every mutated one: an error of ours or a result, nothing imported, nothing overrun."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.build.packing import unpack
from tilewright.core.dims import evaluate, sym
from tilewright.core.dtypes import dtype, f32, i64, u8
from tilewright.core.errors import ParseError, TilewrightError
from tilewright.core.pytree import flatten
from tilewright.ir.graph import Graph, Value
from tilewright.ir.parse import parse
from tilewright.ir.text import to_text
from tilewright.ir.types import TensorType
from tilewright.ops import REGISTRY
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.ops.index.indexing import Gather, TopK
from tilewright.ops.packed.products import QMatmul
from tilewright.ops.rows.cumulative import CumSum
from tilewright.ops.state import UpdateSlice
from tilewright.ops.structure import ConstantData
from tilewright.runtime.archive import file as archive_file
from tilewright.runtime.archive.entry import package_state
from tilewright.runtime.archive.program_data import interface_data, read_packed
from tilewright.runtime.session import Model
from tilewright.target.cpu.cache import CodeCache

from . import guarded

Data = dict[str, Any]
MOST = 1 << 16  # elements of an array that a mutated session is called with
LOOPS = re.compile(r"= (?:scan|while)\b")
OPS = sorted(REGISTRY)
N = sym("N", 1, 16)


class Refuse(MetaPathFinder):
    """Somebody imports a module that only a mutated file names."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.startswith("evil"):
            raise AssertionError(f"a file decided to import {name}")


def prepare() -> None:
    """Once a process."""
    if not any(isinstance(f, Refuse) for f in sys.meta_path):
        sys.meta_path.insert(0, Refuse())
        logging.getLogger("tilewright").setLevel(logging.ERROR)
        guarded.install()


# --- the files ----------------------------------------------------------------------------------------------------------
def modules() -> dict[str, Callable[[], tw.Session]]:
    import torch
    from torch import nn

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(24, 40), nn.Linear(40, 7), nn.LayerNorm(40)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            h = self.norm(torch.nn.functional.gelu(self.a(x)))
            return {"y": self.b(h), "h": (h, x.shape[0])}

    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.deep, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, groups=8), nn.MaxPool2d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen: torch.Tensor = self.pool(torch.relu(self.deep(self.conv(x))))
            return seen.mean((2, 3))

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.qkv = nn.Embedding(50, 32), nn.Linear(32, 96)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.reshape(*t.shape[:2], 2, 16).transpose(1, 2) for t in self.qkv(self.table(ids)).chunk(3, -1))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).argmax(-1)

    def seeded(make: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> Callable[[], tw.Session]:
        def build() -> tw.Session:
            torch.manual_seed(1)
            return tw.compile(make().eval(), args, **kwargs)

        return build

    def packed(g: Graph, v: Sequence[Value]) -> Value:
        from tilewright.ops.quant import by_name

        w = np.random.default_rng(1).standard_normal((37, 96)).astype(np.float32)
        return F.silu(QMatmul(format="Q8_0", n=37, k=96)(v[0], g.constant(by_name("Q8_0").quantize(w), "w")))

    def state() -> tw.Session:
        past, new = sym("P", 0, 23), sym("S", 1, 8)
        g = Graph("state")
        x, old = g.input(TensorType(f32, (new, 3)), "x"), g.input(TensorType(f32, (24, 3)), "cache")
        after = UpdateSlice(axis=0, start=past)(old, x)
        g.outputs = [F.sum_(F.slice_(after, 0, 0, past + new), (0,)), after]
        g.donated, g.call_symbols = {1: 1}, tuple(past.symbols)
        return tw.compile(g)

    def loop() -> tw.Session:
        from tilewright.ops.control.flow import Scan

        body = single(lambda g, v: (F.add(F.mul(v[0], 0.5), v[1]), F.exp(v[0])), TensorType(f32, (4,)), TensorType(f32, (4,)))
        types = TensorType(f32, (4,)), TensorType(f32, (N, 4))
        return tw.compile(single(lambda g, v: Scan(body=body, carries=1, xs=1, length=N)(*v), *types))

    def several(g: Graph, v: Sequence[Value]) -> tuple[Value, ...]:
        x = v[0]
        top = TopK(k=3, axis=1)(x)
        return (F.softmax(x, 1), top[1], F.concat([x, F.slice_(x, 1, 2, 5)], 1), CumSum(axis=0)(F.transpose(x, (1, 0))),
                Gather(axis=1)(x, F.cast(v[1], i64)))

    wide = TensorType(f32, (N, 12))
    return {
        "mlp": seeded(Mlp, torch.zeros(3, 24), dynamic={"x": {0: tw.Dim("N", 1, 16)}}),
        "image": seeded(Image, torch.zeros(1, 3, 12, 12)),
        "text": seeded(Text, torch.zeros(1, 6, dtype=torch.int64), dynamic={"ids": {1: tw.Dim("S", 2, 16)}}),
        "packed": lambda: tw.compile(single(packed, TensorType(f32, (N, 96)))),
        "state": state,
        "loop": loop,
        "several": lambda: tw.compile(single(several, wide, TensorType(u8, (5,)))),
    }


NAMES = ("mlp", "image", "text", "packed", "state", "loop", "several")


@functools.cache
def saved(name: str) -> bytes:
    """The bytes of a saved session; made once for all processes of a run, beside their code cache."""
    prepare()
    folder = CodeCache().folder
    assert folder is not None
    path = folder / f"{name}-{package_state()}.tw"
    if not path.exists():
        modules()[name]().save(path)
    return path.read_bytes()


@functools.cache
def samples() -> list[tuple[str, int]]:
    """Ops with the numbers of their samples."""
    return [(name, i) for name in OPS for i in range(len(REGISTRY[name].samples)) if name not in ("input", "constant")]


def op_graph(name: str, i: int) -> Graph:
    """One op as a whole graph."""
    s = REGISTRY[name].samples[i]
    g = Graph(name)
    made = g.add(REGISTRY[name](**s.attrs), *(g.input(t, f"x{k}") for k, t in enumerate(s.types)))
    g.outputs = list(made.values)
    return g


def header_and_data(raw: bytes) -> tuple[Data, bytes]:
    (n,) = struct.unpack("<Q", raw[8:16])
    return json.loads(raw[64 : 64 + n]), raw[-(-(64 + n) // 4096) * 4096 :]


def file_bytes(header: Any, data: bytes, mac: bytes = bytes(32)) -> bytes:
    """A file with this header, its checksum right."""
    text = json.dumps(header).encode()
    start = -(-(64 + len(text)) // 4096) * 4096
    return (archive_file.MAGIC + struct.pack("<Q", len(text)) + mac + archive_file.checksum(text) + text).ljust(start, b"\0") + data


def forged(graph: Graph) -> tuple[Data, bytes]:
    """Header and data of a file that holds this graph and no code."""
    from tilewright import __version__
    from tilewright.compile import graph_signature
    from tilewright.core.target_spec import REFERENCE
    from tilewright.ir.text import constants_of
    from tilewright.kernels.launch import Packed
    from tilewright.runtime.archive.program_data import packed_data, signature_data

    model = Model(graph.name, graph, graph_signature(graph), REFERENCE)
    sections = archive_file.Sections()
    named = constants_of(graph)
    constants = [{"name": name, "dtype": d.type.dtype.name, "shape": list(d.type.shape), "packed": packed_data(Packed()),
                  "nbytes": int(d.array.nbytes), "offset": sections.place(np.ascontiguousarray(d.array))} for name, d in named.items()]
    header = {"tilewright": __version__, "abi": 0, "name": graph.name, "target": {"kind": "cpu", "triple": "", "cpu": "", "features": ""},
              "interface": interface_data(model.interface), "signature": signature_data(model.signature), "graph": to_text(graph),
              "graph_constants": {name: i for i, name in enumerate(named)}, "constants": constants, "in_program": 0, "code": {},
              "program": None, "tiles": {}, "framework": "numpy", "passes": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.tw")
        sections.write(path, header, None)
        return header_and_data(Path(path).read_bytes())


# --- mutated graphs that get further --------------------------------------------------------------------------------------
DECLARED = re.compile(r"%(\S+) is declared .*, but (\w+) gives (.*) \(line (\d+)\)$")


def redeclared(text: str, constants: dict[str, Any]) -> tuple[str, Graph | None]:
    """The text with the types that the ops give, as far as that goes; and the graph."""
    for _ in range(60):
        try:
            return text, parse(text, constants)
        except ParseError as e:
            m = DECLARED.search(str(e))
            if m is None:
                return text, None
            lines = text.split("\n")
            at = int(m[4]) - 1
            given = m[3] if "], " not in m[3] else f"({m[3]})"
            new = re.sub(r"^(\s*%\S+: ).*?( = )", rf"\g<1>{given}\g<2>", lines[at], count=1)
            if new == lines[at]:
                return text, None
            lines[at] = new
            text = "\n".join(lines)
        except TilewrightError:
            return text, None
    return text, None


def constants_in(header: Data, data: bytes) -> dict[str, Any]:
    found = []
    for c in header["constants"]:
        packed, kind = read_packed(c["packed"]), dtype(c["dtype"])
        from tilewright.build.packing import packed_shape

        raw = np.frombuffer(data[c["offset"] : c["offset"] + c["nbytes"]], np.uint8).copy()
        storage = raw.view(kind.np).reshape(packed_shape(c["shape"], packed))
        found.append(ConstantData(unpack(storage, TensorType(kind, tuple(c["shape"])), packed), c["name"]))
    return {name: found[i] for name, i in header["graph_constants"].items()}


def fitted(header: Data, data: bytes) -> None:
    """Make what the header says of its graph true again, where it is a graph."""
    try:
        header["graph"], graph = redeclared(header["graph"], constants_in(header, data))
        if graph is None:
            return
        from tilewright.compile import graph_signature
        from tilewright.core.target_spec import REFERENCE
        from tilewright.runtime.archive.program_data import signature_data

        signature = graph_signature(graph)
        header["interface"] = interface_data(Model("m", graph, signature, REFERENCE).interface)
        header["signature"] = signature_data(signature)
    except (TilewrightError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        return  # the reader will have to say so


# --- what must hold --------------------------------------------------------------------------------------------------------
def opened(raw: bytes) -> tw.Session | None:
    """The session in the file; None for an error of ours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutated.tw"
        path.write_bytes(raw)
        try:
            return tw.load(path, threads=1)
        except TilewrightError as e:
            if str(path) not in str(e) and "archive" in str(e):
                raise AssertionError("the error does not name the file") from e
            return None


def called(session: tw.Session, seed: int = 0) -> list[Any] | None:
    """Results of a call with small inputs that begin or end where a page does; None for an error of ours."""
    rng = np.random.default_rng(seed)
    guarded.Where.start = seed % 2 == 1
    interface = session.interface
    env = {s.name: min(s.hi, max(s.lo, 1 + seed % 3)) for s in interface.symbols}
    try:
        shapes = [tuple(evaluate(d, env) for d in t.shape) for t in (*interface.inputs, *interface.outputs)]
    except ZeroDivisionError:
        return None
    if any(min(s, default=0) < 0 or max(s, default=0) > MOST or np.prod(s, dtype=object) > MOST for s in shapes):
        return None
    arrays = []
    for t, shape in zip(interface.inputs, shapes, strict=False):
        a = guarded.guarded_array(t.dtype.np, shape)
        a[...] = (rng.standard_normal(shape) if t.dtype.kind in "fc" else rng.integers(0, 3, shape)).astype(t.dtype.np)
        arrays.append(a)
    try:
        result = session._leaves(arrays, None, {n: env[n] for n in interface.called})
    except TilewrightError:
        return None
    return flatten(result)[0]


def check(raw: bytes, *, same_as: list[Any] | None = None, call: bool = True) -> None:
    """Load a mutated file and call what it holds. `same_as`: it can only be an error or give this."""
    prepare()
    guarded.Where.start = len(raw) % 2 == 1
    session = opened(raw)
    if session is None or not call:
        return
    found = called(session) if same_as is not None else called(session, sum(raw[64:4096]))
    session.close()
    if same_as is not None and found is not None:
        assert len(found) == len(same_as)
        for a, b in zip(found, same_as, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@functools.cache
def result_of(name: str) -> list[Any]:
    session = opened(saved(name))
    assert session is not None
    found = called(session)
    assert found is not None
    return found
