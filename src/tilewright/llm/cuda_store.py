"""Compiled programs of language models for a GPU in the code cache: launches, PTX, and what a launch needs to know of its kernel. See
`program_store.py` for keys and for how matrices are named."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..build.cuda import session_of
from ..compile import Stages
from ..core.dtypes import dtype
from ..core.errors import STRANGE, TilewrightError
from ..core.target_spec import TargetSpec
from ..core.validation import Level
from ..ir.graph import Graph
from ..kernels.cuda.kernel import BlockKernel, SimtKernel, TensorMap, Windows, reads_late
from ..runtime.archive.entry import Data, entry_bytes, read_entry
from ..runtime.archive.program_data import Reader, dim_data, interface_data, program_data, read_interface, read_signature, signature_data
from ..runtime.cuda.executable import KernelCode
from ..runtime.cuda.session import CudaSession
from ..runtime.session import Model
from ..target.cpu.cache import CodeCache
from ..tile.ir import Kernel
from .program_store import constants_data, stored_program
from .weights import Weights


@dataclass(eq=False)
class MappedKernel(Kernel):
    """A stored kernel that takes tensor maps, or none, and reads no argument from memory."""

    maps: tuple[TensorMap, ...] = ()


def save(key: str, session: CudaSession, weights: Weights) -> None:
    """Store the program of a session just compiled. Kernels that hold others (`table`) and loops are not stored."""
    executable = session.executable
    ways = [w.kernel for x in executable.program.launches for w in x.ways]
    if executable.program.block or any(getattr(k, "table", False) for k in ways):
        return
    constants, blobs = constants_data(executable.program, weights)
    kernels: list[Data] = []
    numbers: dict[str, str] = {}  # kernels of one name may have tensor maps of their own
    symbols = []
    for k in ways:
        entry = kernel_data(k)
        text = json.dumps(entry)
        if text not in numbers:
            numbers[text] = str(len(kernels))
            kernels.append(entry)
        symbols.append(numbers[text])
    header: Data = {
        "interface": interface_data(session.interface), "signature": signature_data(session.model.signature), "name": session.model.name,
        "program": program_data(executable.program, symbols), "constants": constants, "passes": session.model.passes, "kernels": kernels,
        "code": [[c.name, c.block, c.dynamic_shared] for c in executable.code.values()], "late": executable.rebinds,
    }  # fmt: skip
    texts = zlib.compress(json.dumps([c.ptx for c in executable.code.values()]).encode(), 1)
    CodeCache().put(key, entry_bytes(header, [[texts], blobs]))


def load(key: str, weights: Weights, target: TargetSpec, graph: Callable[[], Graph], level: Level, stages: Stages) -> CudaSession | None:
    """The session of a stored program, over these weights; None when there is none. `graph` makes the graph after the passes, should
    somebody ask for it."""
    data = CodeCache().get(key)
    if data is None:
        return None
    try:
        header, ((texts,), blobs) = read_entry(memoryview(data))
        interface, reader = read_interface(header["interface"])
        kernels = {str(i): read_kernel(k, reader) for i, k in enumerate(header["kernels"])}
        program, _ = stored_program(header, blobs, weights, reader, kernels)
        ptx = json.loads(zlib.decompress(texts))
        code = {name: KernelCode(name, text, block, shared) for (name, block, shared), text in zip(header["code"], ptx, strict=True)}
        if missing := {k.name for k in kernels.values()} - code.keys():
            raise ValueError(f"no code of {missing}")
        model = Model(str(header["name"]), graph, read_signature(header["signature"], reader, interface), target, level, stages.seconds)
        model.stored_interface, model.passes = interface, header["passes"]
        return session_of(model, program, code, late=bool(header["late"]), stages=stages)
    except (TilewrightError, *STRANGE, struct.error, zlib.error):
        return None  # written by something else: compiled again and overwritten


def kernel_data(k: Kernel) -> Data:
    """What a launch needs to know, beside code and arguments."""
    found: Data = {"name": k.name}
    if isinstance(k, SimtKernel) and reads_late(k):
        found |= {"indirect": sorted(k.indirect), "beside": k.beside}
    if isinstance(k, BlockKernel):
        found |= {"threads": k.threads, "programs": k.programs}
    maps: tuple[TensorMap, ...] = getattr(k, "maps", ())
    if maps:
        found["maps"] = [
            {"argument": m.argument, "dtype": m.dtype.name, "sizes": [dim_data(d) for d in m.sizes],
             "strides": [dim_data(d) for d in m.strides], "box": list(m.box), "swizzle": m.swizzle, "rounded": m.rounded,
             "windows": None if m.windows is None else [list(m.windows.lower), list(m.windows.upper), list(m.windows.steps)]}
            for m in maps
        ]  # fmt: skip
    return found


def read_kernel(data: Data, reader: Reader) -> Kernel:
    """A kernel without its body: that is in the code."""
    name = str(data["name"])
    if "indirect" in data:
        sizes = {key: int(data[key]) for key in ("threads", "programs", "beside") if key in data}
        made = (BlockKernel if "threads" in data else SimtKernel)(name, **sizes)  # type: ignore[arg-type]
        made.indirect = frozenset(data["indirect"])
        return made
    return MappedKernel(name, maps=tuple(_map(m, reader) for m in data.get("maps", ())))


def _map(m: Any, reader: Reader) -> TensorMap:
    windows = m["windows"] and Windows(*(tuple(part) for part in m["windows"]))
    sizes, strides = (tuple(reader.dim(d) for d in m[key]) for key in ("sizes", "strides"))
    return TensorMap(int(m["argument"]), dtype(m["dtype"]), sizes, strides, tuple(m["box"]), int(m["swizzle"]), bool(m["rounded"]), windows)
