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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import CheckpointError, FormatError, TilewrightError
from ..core.pytree import Spec, find_class, flatten, unflatten
from ..core.tensor_file import Array, dtype_name, open_tensors, read_header, read_tensors, tensor_sums, write_tensors
from ..core.tensors import is_masked, is_tensor, tensor_to_numpy

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
            if "sums" in note and set(sums) != set(entries):
                raise FormatError(f"checkpoint: there must be a checksum of every tensor; the file is damaged, use another copy ({path})")
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
        whole = whole and set(note) <= {*kinds, "version", "sums"}  # a damaged "sums" would leave the arrays without checksums
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise FormatError(f"checkpoint: its notes cannot be read: {type(e).__name__} {e} ({path})") from e
    if version != VERSION:
        raise FormatError(f"checkpoint: written as version {version!s:.40}, this is version {VERSION} ({path})")
    if not whole:
        raise FormatError(f"checkpoint: its notes are damaged, a field is missing, unknown or of another type; use another copy ({path})")
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
