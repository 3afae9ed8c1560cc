"""Compiled programs of language models in the code cache: what passes and templates made of a graph, and its machine code, without the
weights. A start from the cache builds no graph and loads no compiler: it reads the program and lays the weights out.

The key covers all that shapes a program: sizes and features of the model, names, formats and shapes of its tensors, the contents of the
small ones (they may be folded into constants), the machine, the source of this package. An entry is trusted as the object code beside
it is: the folder is the user's own. Whatever is wrong with an entry, the program is compiled again.
"""
from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..build.code import link
from ..build.packing import pack_constants
from ..build.quantized_panels import packing_code
from ..core.dtypes import dtype
from ..core.errors import STRANGE, TilewrightError
from ..core.hashing import blake2b
from ..core.signature import Signature
from ..core.target_spec import TargetSpec
from ..core.validation import Level
from ..ir.graph import Graph
from ..ir.types import TensorType
from ..kernels.launch import Program
from ..ops.structure import ConstantData, Joined, Seen
from ..runtime.archive.entry import Data, Tiles, entry_bytes, package_state, packed_tiles, read_entry, target_text
from ..runtime.archive.program_data import (
    Reader,
    interface_data,
    packed_data,
    program_data,
    read_interface,
    read_packed,
    read_program,
    read_signature,
    signature_data,
)
from ..runtime.executable import CpuExecutable
from ..runtime.session import Model, Session
from ..target.cpu.cache import CodeCache
from ..tile.ir import Kernel
from .config import ModelConfig
from .weights import Weights

VERSION = 4


def program_key(config: ModelConfig, weights: Weights, target: TargetSpec, *parts: object) -> str:
    """`parts` name the program: context length, kind of cache, number of sequences …"""
    digest = blake2b(digest_size=20)
    digest.update("\0".join(["llm program", str(VERSION), package_state(), target_text(target), repr(config), *map(repr, parts)]).encode())
    for name, t in sorted(weights.tensors.items()):
        digest.update(f"\0{name} {t.format.name} {t.shape}".encode())
        if weights.is_numbers(name, t.shape):
            digest.update(np.ascontiguousarray(t.data).reshape(-1).data)
    return digest.hexdigest()


def save(key: str, session: Session, weights: Weights) -> None:
    """Store the program of a session just compiled. Matrices are named, everything else is written out."""
    executable = session.executable
    assert executable is not None
    constants, blobs = constants_data(executable.program, weights)
    formats = sorted({c.packed.format for c in executable.program.constants if c.packed.form == "quantized panels"})
    packers = packing_code(formats, session.model.target)
    objects = {**executable.code.objects, **packers.objects}
    header: Data = {
        "interface": interface_data(session.interface), "signature": signature_data(session.model.signature), "name": session.model.name,
        "program": program_data(executable.program, executable.code.symbols), "constants": constants, "passes": session.model.passes,
        "packers": dict(zip(formats, packers.symbols, strict=True)), "objects": list(objects),
    }
    CodeCache().put(key, entry_bytes(header, [[packed_tiles(executable.code.tiles)], blobs, list(objects.values())]))


def constants_data(program: Program, weights: Weights) -> tuple[list[Data], list[bytes]]:
    """Constants with their forms, and the contents of those that are no matrices of the file."""
    names = {id(m.data): (name, m) for name, m in weights.matrices.items()}
    blobs: list[bytes] = []

    def described(data: ConstantData) -> Data:
        if id(data) in names:
            name, m = names[id(data)]
            return {"matrix": [name, m.n, m.k, m.experts]}
        if isinstance(data, Seen):
            return {"seen": described(data.of), "dtype": data.type.dtype.name, "shape": list(data.type.shape)}
        if isinstance(data, Joined):
            return {"joined": [described(p) for p in data.parts], "axis": data.axis}
        blobs.append(np.ascontiguousarray(data.array).tobytes())
        return {"name": data.name, "dtype": data.type.dtype.name, "shape": list(data.type.shape), "blob": len(blobs) - 1}

    return [{"packed": packed_data(c.packed), **described(c.data)} for c in program.constants], blobs


def load(key: str, weights: Weights, target: TargetSpec, graph: Callable[[], Graph], *, level: Level,
         threads: int | None) -> Session | None:
    """The session of a stored program, over these weights; None when there is none. `graph` makes the graph after the passes, should
    somebody ask for it."""
    data = CodeCache().get(key)
    if data is None:
        return None
    try:
        return _session(memoryview(data), weights, target, graph, level, threads)
    except (TilewrightError, *STRANGE, struct.error):
        return None  # written by something else: compiled again and overwritten


def _session(data: memoryview, weights: Weights, target: TargetSpec, graph: Callable[[], Graph], level: Level,
             threads: int | None) -> Session:
    header, ((tiles,), blobs, objects) = read_entry(data)
    interface, reader = read_interface(header["interface"])
    signature: Signature = read_signature(header["signature"], reader, interface)
    program, symbols = stored_program(header, blobs, weights, reader)
    code = link(symbols, {name: bytes(o) for name, o in zip(header["objects"], objects, strict=True)})
    code.tiles, code.checked = Tiles(bytes(tiles)), target.checks
    packers = {name: code.address(symbol) for name, symbol in header["packers"].items()}
    storages = pack_constants(program.constants, packers=packers)
    model = Model(str(header["name"]), graph, signature, target, level)
    model.stored_interface, model.passes = interface, header["passes"]
    return Session(model, CpuExecutable(program, interface, code, storages), threads=threads)


def stored_program(header: Data, blobs: list[memoryview], weights: Weights, reader: Reader,
                   kernels: Mapping[str, Kernel] | None = None) -> tuple[Program, list[str]]:
    """The program over these weights, and the symbols of its kernels."""
    constants = [_Constant(_data(e, blobs, weights), read_packed(e["packed"])) for e in header["constants"]]
    program, symbols = read_program(header["program"], constants, reader, kernels)
    for c in program.constants:
        c.data = c.data.data  # type: ignore[attr-defined]
    return program, symbols


@dataclasses.dataclass
class _Constant:
    """What `read_program` wants to know of a constant."""

    data: ConstantData
    packed: Any


def _data(entry: Data, blobs: list[memoryview], weights: Weights) -> ConstantData:
    if "matrix" in entry:
        return weights.matrix(*entry["matrix"]).data
    if "seen" in entry:
        return Seen(_data(entry["seen"], blobs, weights), TensorType(dtype(entry["dtype"]), tuple(entry["shape"])))
    if "joined" in entry:
        return Joined([_data(e, blobs, weights) for e in entry["joined"]], entry["axis"])
    raw = np.frombuffer(blobs[entry["blob"]], np.uint8).copy()  # aligned
    return ConstantData(raw.view(dtype(entry["dtype"]).np).reshape(entry["shape"]), entry["name"])


def optimised(graph: Graph, target: TargetSpec) -> Graph:
    """The graph after the passes."""
    from ..passes.base import Log
    from ..passes.pipeline import run_pipeline

    return run_pipeline(graph, target, (), Log())
