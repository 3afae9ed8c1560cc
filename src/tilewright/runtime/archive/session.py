"""A session in one file: `save` and `load`. No pickle, and nothing in the file is imported. Machine code in it runs only where the file is
trusted: it was written with this user's key (`user_key.py`), has the digest that the caller pins, or the caller says so (`trust=True`).

Constants are stored once, packed. The header holds the program for the CPU that wrote it and the graph for any other. Where the code may
not run here, the graph is compiled again and weights are unpacked from their stored form: the session's notes and the log `tilewright`
say so and why. What such a file says of itself is believed only as far as its graph, which is verified, says the same. Of a session on a
GPU the file holds the graph; its kernels are in the cache on disk.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from ... import __version__
from ...build.code import link
from ...build.packing import Array, packed_shape, unpack
from ...core.dims import Dim, at_least
from ...core.dtypes import dtype
from ...core.errors import STRANGE, ConfigError, FormatError, ParseError, TilewrightError, UnsupportedError
from ...core.needs import Need, collected
from ...core.target_spec import TargetSpec
from ...core.validation import Level
from ...ir.graph import Graph, complaint
from ...ir.text import all_nodes
from ...ir.types import TensorType
from ...ir.verify import verify
from ...kernels.launch import Packed, Program
from ...target.cpu.cache import ABI_VERSION
from ...target.cpu.host import host_target
from ..executable import CpuExecutable, Interface
from ..session import Compiled, Model, Session
from .file import Data, SavedFile, Sections
from .program_data import (
    Stored,
    interface_data,
    packed_data,
    program_data,
    read_interface,
    read_packed,
    read_program,
    read_signature,
    signature_data,
)
from .user_key import key_path, user_key

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from ...ops.structure import ConstantData


def check_graph(file: SavedFile, model: Model, stored: Interface) -> None:
    """Verify the graph, take the interface from it, and compare it with the stored one, which is what the file's user has read."""
    try:
        verify(model.graph)
    except TilewrightError as e:
        raise file.broken(f"the graph is not sound: {str(e)[:200]}") from e
    model.needs = (*stored.needs, *asked(model.graph))
    model.stored_interface = found = model.interface
    for name in ("input_names", "inputs", "outputs", "symbols", "donated", "called"):
        said, is_ = getattr(stored, name), getattr(found, name)
        if said != is_:
            raise file.broken(f"the field 'interface.{name}' does not fit the graph: {_shown(said)} against {_shown(is_)}")


def asked(graph: Graph) -> tuple[Need, ...]:
    """What kernels take for granted of the symbols: the type rules of a graph after the passes (ours keep to those of the model that they
    were given, which the file may leave out), and that no size is negative. Passes make maxima over axes that may be empty, which is
    no harm to memory: of reductions only what the file says counts."""
    found: dict[Dim, Need] = {}
    for n in all_nodes(graph):
        with collected() as rules:
            n.op.infer(*(v.type for v in n.operands))
        for room, rule in () if n.op.traits.reduction else rules:
            found.setdefault(room, (room, complaint(n.op, n.operands, rule), n.place))
        for t in n.types:
            for d in t.shape:
                if not at_least(d, 0):
                    found.setdefault(d, (d, f"{n.op.name}: a size must not be negative, got {d} for %{n.name}: {t}", n.place))
    return tuple(found.values())


def _shown(value: object) -> str:
    return f"{value!s:.80}"


Rebuild = Callable[..., Session]
LOG = logging.getLogger("tilewright")
DIGEST = re.compile(r"[0-9a-f]{64}")


def save(session: Compiled, path: str | PathLike[str]) -> None:
    """Write `session` to `path`. A file that was there stays whole until the new one is."""
    from ...ir.text import constants_of, to_text
    from ...ops.kernels import OwnKernel

    model = session.model
    own = next((n.op for n in all_nodes(model.graph) if isinstance(n.op, OwnKernel) and not n.op.stored), None)
    if own is not None:
        raise UnsupportedError(f"save: {model.name} contains {own.name}, a function of this process; compile it where it runs")
    executable = session.executable if isinstance(session.executable, CpuExecutable) else None  # a GPU's code is in its cache on disk
    stored: list[tuple[ConstantData, Packed, Array]] = []
    if executable is not None:
        stored = [(c.data, c.packed, a) for c, a in zip(executable.program.constants, executable.constants, strict=True)]
    where: dict[ConstantData, int] = {}
    for i, (data, _, _) in enumerate(stored):
        where.setdefault(data, i)
    in_program = len(stored)
    named: dict[str, int] = {}
    for name, data in constants_of(model.graph).items():
        if data not in where:
            where[data] = len(stored)
            stored.append((data, Packed(), np.ascontiguousarray(data.array)))
        named[name] = where[data]
    objects = {} if executable is None else executable.code.objects
    sections = Sections()
    code = {symbol: [sections.place(data), len(data)] for symbol, data in objects.items()}
    constants = [{"name": d.name, "dtype": d.type.dtype.name, "shape": list(d.type.shape), "packed": packed_data(p),
                  "nbytes": int(a.nbytes), "offset": sections.place(a)} for d, p, a in stored]
    header: Data = {
        "tilewright": __version__, "abi": ABI_VERSION, "name": model.name, "target": _target_data(model.target),
        "interface": interface_data(session.interface), "signature": signature_data(model.signature), "graph": to_text(model.graph),
        "graph_constants": named, "constants": constants, "in_program": in_program, "code": code,
        "program": None if executable is None else program_data(executable.program, executable.code.symbols),
        "tiles": {} if executable is None else dict(executable.code.tiles), "framework": model.framework, "passes": model.passes,
    }
    key, problem = user_key(create=True)
    if key is None and objects:
        LOG.warning("%s is saved without authentication, loading it will compile again: %s", os.fspath(path), problem)
    sections.write(os.fspath(path), header, key)


def _target_data(t: TargetSpec) -> Data:
    """What machine code depends on."""
    return {"kind": t.kind, "triple": t.triple, "cpu": t.cpu, "features": t.feature_string, **({"checks": True} if t.checks else {})}


def digest(path: str | PathLike[str]) -> str:
    """The digest of a saved session, whose every byte is as it was written. `load(path, digest=...)` runs the machine code of that file
    and of no other."""
    with SavedFile(os.fspath(path)) as file:
        file.read([*_code_sections(file), *((s.what, s.offset, s.nbytes) for s in _entries(file))], 0)
        return file.digest


def load(path: str | PathLike[str], *, rebuild: Rebuild, threads: int | None = None, trust: bool = False, digest: str | None = None,
         level: Level = "normal") -> Session:
    """The session in the file. `rebuild(model, threads=)` compiles from the graph where the stored code cannot be used."""
    if digest is not None and DIGEST.fullmatch(digest) is None:
        raise ConfigError(f"digest: must be 64 hexadecimal digits, as `tilewright digest` prints them, got {digest!r}")
    with SavedFile(os.fspath(path)) as file:
        if digest is not None and file.digest != digest:
            raise FormatError(f"archive: {file.path} must have the digest {digest}, got {file.digest}; it is not the file that was pinned")
        interface, reader = read_interface(file.field("interface", dict))
        signature = read_signature(file.field("signature", dict), reader, interface)
        passes = read_passes(file)
        entries = _entries(file)
        target = host_target()
        distrust = None if trust or digest is not None else _distrust(file)
        reason = _why_not(file, target) or distrust
        code_sections = _code_sections(file)
        code = [] if reason is not None else file.read(code_sections, 0)
        storages = file.begin([(e.what, e.offset, e.nbytes) for e in entries], len(code_sections))
        data = [e.stored(raw) for e, raw in zip(entries, storages, strict=True)]
        program: Program | None = None
        source = lambda: _graph(file, data, program, trusted=distrust is None)
        model = Model(str(file.field("name", str)), source, signature, target, level, framework="numpy")
        model.passes = passes
        if reason is None:
            count = file.field("in_program", int)
            program, symbols = read_program(file.field("program", dict), data[:count], reader)
            linked = link(symbols, {s: raw.tobytes() for s, raw in zip(file.header["code"], code, strict=True)})
            linked.tiles, linked.checked = {str(k): str(v) for k, v in file.field("tiles", dict).items()}, target.checks
            model.stored_interface = interface
            made = Session(model, CpuExecutable(program, interface, linked, [d.storage for d in data[:count]]), threads=threads)
            file.finish()
            return made
        file.finish()
        model.target = _target(file, target)
        if model.target.kind == "cpu":
            model.notes.append(f"{file.path}: compiled again from the stored graph: {reason}")
            LOG.warning(model.notes[-1])

        model.source = _graph(file, data, None, trusted=distrust is None)
        check_graph(file, model, interface)
    try:
        return rebuild(model, threads=threads)
    except STRANGE as e:
        if isinstance(e, TilewrightError):
            raise
        raise FormatError(f"archive: {file.path}: its graph cannot be compiled ({type(e).__name__}: {str(e)[:100]}); use another copy. If "
                          "this release saved it, please report a bug") from e


def _target(file: SavedFile, here: TargetSpec) -> TargetSpec:
    """What the graph is compiled for where its code is not used: the kind of machine that it was saved for."""
    kind = file.header["target"]["kind"]
    if kind == "reference":
        from ...core.target_spec import REFERENCE

        return REFERENCE
    if kind != "cuda":
        return here
    from ...build.cuda import cuda_target_of
    from ..cuda.driver import available

    return cuda_target_of("cuda") if available() == "" else cuda_target_of(str(file.header["target"]["cpu"]))


def _why_not(file: SavedFile, target: TargetSpec) -> str | None:
    """Why the stored machine code cannot run here; None when it can."""
    header, there = file.header, file.field("target", dict)
    for name in ("kind", "triple", "cpu", "features"):
        file.field(name, str, there, "target.")
    if header.get("program") is None:
        return "it holds no machine code"
    if there != _target_data(target):
        return f"its machine code is for another kind of CPU ({there['cpu']!r:.40}; this is {target.cpu!r}, perhaps with other features)"
    if (file.field("abi", int), file.field("tilewright", str)) != (ABI_VERSION, __version__):
        return f"its machine code is of another release ({header['tilewright']!r:.20}, this is {__version__!r})"
    return None


def _distrust(file: SavedFile) -> str | None:
    """Why the file is not known to be this user's; None when it is."""
    key, problem = user_key()
    if key is not None and hmac.compare_digest(hmac.digest(key, file.text, "sha256"), file.mac):
        return None
    what = problem if key is None else f"the key {key_path()} does not fit, or the file was changed since"
    return (f"its machine code was not written by this user, as far as can be told ({what}). If you trust whoever wrote it, load it with "
            "trust=True or with the digest that `tilewright digest` prints, or share the writer's key (TILEWRIGHT_KEY_FILE)")


@dataclass(frozen=True)
class _Entry:
    """A constant as the header describes it."""

    name: str
    type: TensorType
    packed: Packed
    offset: int
    nbytes: int
    shape: tuple[int, ...]  # the shape of its storage

    @property
    def what(self) -> str:
        return f"constant {self.name!r:.80}"

    def stored(self, raw: Array) -> Stored:
        return Stored(self.name, self.type, self.packed, raw.view(self.type.dtype.np).reshape(self.shape))


def _entries(file: SavedFile) -> list[_Entry]:
    found = []
    for i, entry in enumerate(file.field("constants", list)):
        path = f"constants[{i}]."
        if type(entry) is not dict:
            raise file.broken(f"the field 'constants[{i}]' must be a mapping, got {entry!r:.40}")
        name, shape = file.field("name", str, entry, path), file.field("shape", list, entry, path)
        if not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
            raise file.broken(f"the field '{path}shape' must hold integers from 0 on, got {shape!r:.60}")
        try:
            kind, packed = dtype(file.field("dtype", str, entry, path)), read_packed(entry.get("packed"))
            want = packed_shape(shape, packed)
        except (TilewrightError, *STRANGE) as e:
            raise file.broken(f"constant {name!r:.80} cannot have the form {entry.get('packed')!r:.60}: {e}") from e
        nbytes, need = file.field("nbytes", int, entry, path), kind.itemsize
        for n in want:
            need *= n
        if need != nbytes:
            raise file.broken(f"constant {name!r:.80} has {nbytes!r:.20} bytes, needs {need!r:.20}")
        found.append(_Entry(name, TensorType(kind, tuple(shape)), packed, file.field("offset", int, entry, path), nbytes, want))
    return found


def _code_sections(file: SavedFile) -> list[tuple[str, int, int]]:
    found = []
    for symbol, at in file.field("code", dict).items():
        if type(at) is not list or [type(n) for n in at] != [int, int]:
            raise file.broken(f"the field 'code.{symbol:.80}' must be an offset and a size, got {at!r:.40}")
        found.append((f"object code {symbol!r:.80}", at[0], at[1]))
    return found


def read_passes(file: SavedFile) -> dict[str, dict[str, int]]:
    """Pass -> named rule -> times applied; for reports."""
    found: dict[str, dict[str, int]] = file.field("passes", dict)
    if not all(type(rules) is dict and all(type(n) is int for n in rules.values()) for rules in found.values()):
        raise file.broken(f"the field 'passes' must map names to counts of rules, got {found!r:.60}")
    return found


def _graph(file: SavedFile, data: list[Stored], program: Program | None, *, trusted: bool) -> Graph:
    """The stored graph. Plain forms of the constants are made here; the program learns which constant of the graph is its own."""
    from ...ir.parse import parse
    from ...ops.structure import ConstantData

    named = file.field("graph_constants", dict)
    for name, i in named.items():
        if type(i) is not int or not 0 <= i < len(data):
            raise file.broken(f"the field 'graph_constants.{name:.80}' must be one of {len(data)} constants, got {i!r:.20}")
    try:
        plain = [ConstantData(unpack(d.storage, d.type, d.packed), d.name) for d in data]
        for constant, known in zip(() if program is None else program.constants, plain, strict=False):
            constant.data = known
        return parse(file.field("graph", str), {name: plain[i] for name, i in named.items()}, trusted=trusted)
    except (ParseError, *STRANGE) as e:
        raise file.broken(f"the graph cannot be read: {str(e)[:200]}") from e
