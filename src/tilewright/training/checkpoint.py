"""Checkpoints: a tree of arrays (parameters, optimizer state, a loss scale), a step number and notes of the user's in one safetensors file.

    tw.training.save_checkpoint("run/model.safetensors", {"params": params, "state": state}, step=1000, metadata={"data": "v2"})
    kept = tw.training.load_checkpoint("run/model.safetensors", like={"params": params, "state": state})
    kept.tree["params"], kept.step, kept.metadata

Arrays keep every bit. A leaf's name is its path in the tree (`params/layers.0.weight`). Leaves that are no arrays (numbers, strings, None)
and the structure itself stand in the header.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ..core.checksums import DIGITS, Reading, checksums, count_pieces
from ..core.errors import CheckpointError, FormatError, TilewrightError
from ..core.files import open_file, write_file
from ..core.pytree import Spec, find_class, flatten, unflatten
from ..core.tensors import is_masked, is_tensor, tensor_to_numpy

# Safetensors files of named arrays, written in one go and read back into fresh arrays: eight bytes (the header's length), a JSON header
# (dtype, shape and place of each array, and a map of strings) and the arrays, little endian, one after another. Other programs read them
# with the package `safetensors`, which is not needed here. A file is not trusted: sizes, places and dtypes are checked before anything is
# allocated, and arrays against their checksums.
Array = np.ndarray[Any, Any]
HEADER_LIMIT = 100_000_000  # bytes; the package has the same limit
ALIGN = 8
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_), "U8": np.dtype("<u1"), "U16": np.dtype("<u2"), "U32": np.dtype("<u4"), "U64": np.dtype("<u8"),
    "I8": np.dtype("<i1"), "I16": np.dtype("<i2"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16), "F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "C64": np.dtype("<c8"),
}
NAMES = {d: name for name, d in DTYPES.items()}


def dtype_name(array: Array) -> str | None:
    """The name of an array's dtype in such a file; None where it has none."""
    return NAMES.get(array.dtype) or NAMES.get(array.dtype.newbyteorder("="))


def write_tensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write the arrays and the strings to `path`, atomically."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):  # wide ones first: all are aligned
        kind = dtype_name(array)
        if name in header:
            raise CheckpointError(f"checkpoint: {name!r} is the name of a safetensors file's own entry; give the array another one")
        if kind is None:
            raise CheckpointError(f"checkpoint: {name!r} has dtype {array.dtype}; a safetensors file can hold {' '.join(DTYPES)}")
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGN)

    def write(handle: BinaryIO) -> None:
        handle.write(struct.pack("<Q", len(text)) + text)
        for name in header:
            if name != "__metadata__":
                array = tensors[name]
                handle.write(_bytes(np.ascontiguousarray(array, DTYPES[header[name]["dtype"]])))

    write_file(path, write, subject="checkpoint", error=CheckpointError)


def tensor_sums(tensors: Mapping[str, Array]) -> dict[str, str]:
    """Checksums of the arrays as they will be written."""
    found = {name: np.ascontiguousarray(a, DTYPES[kind]) for name, a in tensors.items() if (kind := dtype_name(a)) is not None}
    return dict(zip(found, checksums([memoryview(_bytes(a)) for a in found.values()]), strict=True))


def _bytes(array: Array) -> Any:
    """The memory of a contiguous array, byte by byte."""
    return array.reshape(-1).view(np.uint8).data


def open_tensors(path: Path) -> BinaryIO:
    """The file, for `read_header` and `read_tensor`."""
    return os.fdopen(open_file(path, subject="checkpoint", error=CheckpointError), "rb")


def read_header(handle: BinaryIO, path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """(entry by name, metadata, offset of the first array), all checked against the file's size."""
    size = os.fstat(handle.fileno()).st_size
    start = handle.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else HEADER_LIMIT + 1
    if length > min(HEADER_LIMIT, size - 8):
        raise FormatError(f"checkpoint: the header does not fit the file of {size} bytes: not a whole safetensors file ({path})")
    try:
        header = json.loads(handle.read(length))
    except (ValueError, RecursionError) as e:
        raise FormatError(f"checkpoint: the header is not valid JSON: {e} ({path})") from e
    if not isinstance(header, dict):
        raise FormatError(f"checkpoint: the header must be a JSON object, got a {type(header).__name__} ({path})")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError(f"checkpoint: '__metadata__' must map names to strings ({path})")
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: _start(item[1], path)):
        if not _is_whole(entry, end):
            raise FormatError(f"checkpoint: tensor {name!r} does not fit its place: {entry} ({path})")
        end = entry["data_offsets"][1]
    if 8 + length + end != size:
        raise FormatError(f"checkpoint: the tensors end at byte {8 + length + end} of a file of {size} bytes; it is damaged ({path})")
    return header, metadata, 8 + length


def _start(entry: Any, path: Path) -> Any:
    try:
        start, end = entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise FormatError(f"checkpoint: a tensor has no data_offsets: {entry} ({path})") from None
    if type(start) is not int or type(end) is not int:
        raise FormatError(f"checkpoint: data_offsets must be integers: {entry} ({path})")
    return start, end


def _is_whole(entry: dict[str, Any], start: int) -> bool:
    """Whether an entry begins at `start` and is as long as its dtype and shape say."""
    shape, dtype = entry.get("shape"), DTYPES.get(str(entry.get("dtype")))
    if dtype is None or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        return False
    return bool(entry["data_offsets"] == [start, start + prod(shape) * dtype.itemsize])


def read_tensors(handle: BinaryIO, entries: Mapping[str, dict[str, Any]], base: int, sums: Mapping[str, str],
                 path: Path) -> dict[str, Array]:
    """The arrays, in memory of their own: writable, so that a step may be given them to overwrite. `sums` are their checksums, where the
    file has any."""
    for name, e in entries.items():
        if name in sums and len(sums[name]) != DIGITS * count_pieces(e["data_offsets"][1] - e["data_offsets"][0]):
            raise FormatError(f"checkpoint: the checksum of {name!r} has {len(sums[name])} digits, which do not fit its size ({path})")
    arrays = {name: np.empty(e["shape"], DTYPES[e["dtype"]]) for name, e in entries.items()}
    places = [(base + entries[name]["data_offsets"][0], memoryview(_bytes(a)), sums.get(name)) for name, a in arrays.items()]
    wrong = Reading(handle.fileno(), places).finish()
    if wrong is not None:
        name = list(arrays)[wrong[0]]
        raise FormatError(f"checkpoint: tensor {name!r} is damaged at or after its byte {wrong[1]}: it does not match its checksum; "
                          f"use another copy of the file ({path})")
    return arrays


KEY, VERSION = "tilewright", 1
SHOWN = 8  # names of one kind in an error


@dataclass(frozen=True)
class Checkpoint:
    """What a file held."""

    tree: Any
    step: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(path: str | os.PathLike[str], tree: Any, *, step: int = 0, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a tree of arrays to one safetensors file. A file that was there stays whole until the new one is, on disk, byte for byte.

    `metadata` is anything that JSON can hold. A full disk, a missing folder or an array in a dtype without a name in this format is a
    CheckpointError.
    """
    leaves, spec = flatten(tree)
    arrays: dict[str, Array] = {}
    values: dict[str, Any] = {}
    names = leaf_names(spec)
    for name, leaf in zip(names, leaves, strict=True):
        if leaf is None or type(leaf) in (bool, int, float, str):
            values[name] = leaf
        else:
            arrays[name] = _as_array(name, leaf)
    try:
        note = json.dumps({"version": VERSION, "step": int(step), "structure": spec.to_data(), "names": names,
                           "values": values, "metadata": dict(metadata or {}), "sums": tensor_sums(arrays)})
    except (TypeError, ValueError) as e:
        raise CheckpointError(f"checkpoint: metadata and the keys of dicts must be JSON values: {e} ({path})") from e
    write_tensors(Path(path), arrays, {KEY: note})


def load_checkpoint(path: str | os.PathLike[str], like: Any = None) -> Checkpoint:
    """Read a checkpoint into fresh arrays.

    With `like`, a tree of the model at hand, the result has its structure, and a file of another model is one CheckpointError that lists
    the names that are missing, unexpected or of another type. Without it the structure is the file's, named tuples as plain ones.
    """
    path = Path(path)
    try:
        with open_tensors(path) as handle:
            entries, strings, base = read_header(handle, path)
            note = _note(strings, path)
            values, sums = note["values"], note.get("sums", {})
            spec, names = _structure(note, path)
            if like is not None:
                leaves, spec = flatten(like)
                names = leaf_names(spec)
                _compare(names, leaves, entries, values, path)
            known = [*entries, *values]
            if spec.size != len(names) or len(names) != len(known) or set(known) != set(names):
                raise FormatError(f"checkpoint: the structure and the tensors of the file do not fit each other ({path})")
            arrays = read_tensors(handle, entries, base, sums, path)
    except OSError as e:
        raise CheckpointError(f"checkpoint: could not read {path}: {e.strerror or e}") from e
    return Checkpoint(unflatten(spec, [values[n] if n in values else arrays[n] for n in names]), note["step"], note["metadata"])


def is_checkpoint(path: Path) -> bool:
    """Whether `save_checkpoint` wrote this file."""
    try:
        with open_tensors(path) as handle:
            return KEY in read_header(handle, path)[1]
    except TilewrightError:
        return False


def leaf_names(spec: Spec) -> list[str]:
    """A name for each leaf: the keys on its way joined by `/`. Where two would be the same the later ones get a number.

    >>> leaf_names(flatten({"w": 1, "m": (2, [3]), "a/b": 4, "a": {"b": 5}})[1])
    ['w', 'm/0', 'm/1/0', 'a/b', 'a/b~2']
    """
    found: list[str] = []
    _walk(spec, (), found)
    taken: dict[str, int] = {}
    for i, name in enumerate(found):
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            found[i] = f"{name}~{taken[name]}"
            taken[found[i]] = taken.get(found[i], 0) + 1
    return found


def _walk(spec: Spec, at: tuple[str, ...], found: list[str]) -> None:
    if spec.type == "leaf":
        found.append("/".join(at) or "leaf")
        return
    keys: tuple[Any, ...] = tuple(range(len(spec.children)))
    if spec.type == "dict":
        keys = spec.keys
    elif spec.type not in ("tuple", "list"):
        keys = getattr(find_class(spec.type), "_fields", keys)
    for key, child in zip(keys, spec.children, strict=True):
        _walk(child, (*at, str(key)), found)


def _structure(note: dict[str, Any], path: Path) -> tuple[Spec, list[str]]:
    """The tree's structure and the names of its leaves. Named tuples and other classes are tuples: reading a file imports nothing that
    the file names."""
    try:
        return Spec.from_data(note["structure"]).plain(), note["names"]
    except (FormatError, RecursionError) as e:
        raise FormatError(f"checkpoint: its structure cannot be read: {e} ({path})") from e


def _as_array(name: str, leaf: Any) -> Array:
    array = tensor_to_numpy(leaf) if is_tensor(leaf) else np.asarray(leaf)
    if array.dtype == object or is_masked(leaf):
        raise CheckpointError(f"checkpoint: leaf {name!r} must be an array, a number, a string or None, got a {type(leaf).__name__}")
    return array


def _note(strings: dict[str, str], path: Path) -> dict[str, Any]:
    if KEY not in strings:
        raise FormatError(f"checkpoint: a safetensors file that save_checkpoint did not write: no entry {KEY!r} in its metadata ({path})")
    try:
        note = json.loads(strings[KEY])
        version = note["version"]
        kinds = {"names": list, "step": int, "values": dict, "metadata": dict, "structure": object}
        sums = note.get("sums", {})  # older files have none
        whole = all(isinstance(note[key], kind) for key, kind in kinds.items()) and all(isinstance(n, str) for n in note["names"])
        whole = whole and isinstance(sums, dict) and all(isinstance(s, str) for s in sums.values())
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise FormatError(f"checkpoint: its notes cannot be read: {type(e).__name__} {e} ({path})") from e
    if version != VERSION or not whole:
        raise FormatError(f"checkpoint: written as version {version}, this is version {VERSION} ({path})")
    found: dict[str, Any] = note
    return found


def _compare(names: list[str], leaves: list[Any], entries: dict[str, Any], values: dict[str, Any], path: Path) -> None:
    """One error for everything in which the file and the model differ."""
    here = {n: _describe(x) for n, x in zip(names, leaves, strict=True)}
    there = {n: f"{e['dtype'].lower()}{e['shape']}" for n, e in entries.items()} | {n: type(v).__name__ for n, v in values.items()}
    problems = {
        "missing in the file": [n for n in here if n not in there],
        "unexpected in the file": [n for n in there if n not in here],
        "of another type": [f"{n} ({there[n]} in the file, {here[n]} here)" for n in here if n in there and here[n] != there[n]],
    }
    if any(problems.values()):
        text = "; ".join(f"{len(found)} {what}: {_some(found)}" for what, found in problems.items() if found)
        raise CheckpointError(f"checkpoint: of another model, got {text} ({path})")


def _describe(leaf: Any) -> str:
    if leaf is None or type(leaf) in (bool, int, float, str):
        return type(leaf).__name__
    array = _as_array("", leaf)
    return f"{str(dtype_name(array)).lower()}{list(array.shape)}"


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
