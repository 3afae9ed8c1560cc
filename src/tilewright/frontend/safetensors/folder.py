"""A Hugging Face model folder: configuration, weights in one or several safetensors files, and the tokenizer's files.

The folder is untrusted: names of shards may not leave it, JSON has a size limit, and what the index says is compared with the files.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import FormatError, UnsupportedError
from ...core.extras import need
from ...core.files import open_file, reading
from ...ops.quant import PackedTensor, by_name

FORMATS = {"F32": "F32", "F16": "F16", "BF16": "BF16", "F64": "F64", "I8": "I8", "I16": "I16", "I32": "I32", "I64": "I64"}
HEADER_LIMIT = 32 << 20  # bytes; the package, which allows more, and Python take many times as many for it


def open_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, PackedTensor], dict[str, str]]:
    """(tensors by name, dtype by name of those in a type that has no format here). FormatError for a damaged file.

        tensors, others = open_safetensors("model.safetensors")
    """
    need("safetensors", "safetensors")
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    with os.fdopen(open_file(path, subject="safetensors"), "rb") as handle, reading(path, subject="safetensors"):
        length, first = os.fstat(handle.fileno()).st_size, handle.read(8)
        if len(first) < 8:
            raise FormatError(f"safetensors: a file has at least 8 bytes, got {length} ({path})")
        (size,) = struct.unpack("<Q", first)
        if size > min(HEADER_LIMIT, length - 8):
            raise FormatError(f"safetensors: the header of {size} bytes does not fit the file of {length}, or is longer than "
                              f"{HEADER_LIMIT} ({path})")
        data = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        with safe_open(path, framework="numpy"):  # checks the header: offsets, overlap, sizes, the end of the file
            pass
        header: dict[str, Any] = json.loads(bytes(data[8 : 8 + size]))
    except (SafetensorError, OverflowError, ValueError, RecursionError) as e:
        raise FormatError(f"safetensors: {e!s:.600} ({path})") from e
    tensors: dict[str, PackedTensor] = {}
    others: dict[str, str] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in FORMATS:
            others[name] = entry["dtype"]
            continue
        tensors[name] = _tensor(name, entry, data, 8 + size, path)
    return tensors, others


def _tensor(name: str, entry: dict[str, Any], data: memoryview, base: int, path: Path) -> PackedTensor:
    fmt = by_name(FORMATS[entry["dtype"]])
    shape = tuple(int(d) for d in entry["shape"])
    start, end = entry["data_offsets"]
    if prod(max(d, 1) for d in shape) * fmt.bytes >= 1 << 62:
        raise FormatError(f"safetensors: tensor {name!r:.200} has an impossible shape {shape!r:.100} ({path})")
    if end - start != prod(shape) * fmt.bytes or base + end > len(data):
        raise FormatError(f"safetensors: tensor {name!r:.200} ({fmt}{list(shape)!s:.100}) does not fit its bytes {start} .. {end} ({path})")
    rows, width = prod(shape[:-1]), (shape[-1] if shape else 1) * fmt.bytes
    view = np.frombuffer(data, np.uint8, end - start, base + start) if end > start else np.zeros(0, np.uint8)
    view.setflags(write=False)
    return PackedTensor(name, fmt, shape, view.reshape(rows, width))


JSON_LIMIT = 16 << 20  # bytes; as Python objects, a file may take twenty times as many
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, eq=False)
class HFFolder:
    """An open folder. `others` are tensors in a type without a format here (name -> dtype)."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, PackedTensor]
    others: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"HFFolder({str(self.path)!r}, {self.config.get('model_type')}, {len(self.tensors)} tensors)"

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def architecture(self) -> str:
        """`model_type` of the configuration: llama, qwen2, gemma3 …"""
        kind = self.config.get("model_type")
        if not isinstance(kind, str):
            raise FormatError(f"config.json: 'model_type' must be a string, got {kind!r:.60} ({self.path})")
        return kind

    def tensor(self, name: str) -> PackedTensor:
        found = self.tensors.get(name)
        if found is not None:
            return found
        if name in self.others:
            kind = self.others[name]
            raise UnsupportedError(f"safetensors: tensor {name!r:.200} has type {kind}; supported: F32 F16 BF16 F64 and integers")
        raise FormatError(f"safetensors: tensor {name!r:.200} is missing; the folder has {len(self.tensors)} tensors ({self.path})")

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder (`generation_config.json`, `tokenizer_config.json`); empty when there is none."""
        path = self.path / name
        return read_json(path) if path.is_file() else {}


def open_folder(path: str | os.PathLike[str]) -> HFFolder:
    """Open `config.json` and the weights beside it."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise FormatError(f"model folder: no config.json in {folder}; give a folder in Hugging Face's layout or a .gguf file")
    config = read_json(folder / "config.json")
    tensors: dict[str, PackedTensor] = {}
    others: dict[str, str] = {}
    if (folder / INDEX).is_file():
        _open_shards(folder, tensors, others)
    elif (folder / SINGLE).is_file():
        found, rest = open_safetensors(folder / SINGLE)
        tensors.update(found)
        others.update(rest)
    else:
        pickled = " (pytorch_model.bin is a pickle and is not read: convert it)" if list(folder.glob("pytorch_model*.bin")) else ""
        raise FormatError(f"model folder: neither {SINGLE} nor {INDEX} in {folder}{pickled}")
    return HFFolder(folder, config, tensors, others)


def _open_shards(folder: Path, tensors: dict[str, PackedTensor], others: dict[str, str]) -> None:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise FormatError(f"{INDEX}: 'weight_map' must map names to files ({folder})")
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise FormatError(f"{INDEX}: a shard must be a .safetensors file in the folder itself, got {shard!r:.200} ({folder})")
        if not (folder / shard).is_file():
            raise FormatError(f"{INDEX}: the shard {shard:.200} is missing in {folder}")
        found, rest = open_safetensors(folder / shard)
        for name in [*found, *rest]:
            if name in tensors or name in others:
                raise FormatError(f"safetensors: tensor {name!r:.200} stands in two files of {folder}")
        tensors.update(found)
        others.update(rest)
    absent = [n for n in weight_map if n not in tensors and n not in others]
    if absent:
        raise FormatError(f"{INDEX}: {len(absent)} tensors are in no file, the first is {absent[0]!r:.200} ({folder})")


def read_json(path: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """A JSON object; FormatError when it is none."""
    with os.fdopen(open_file(path, subject=path.name), "rb") as file, reading(path, subject=path.name):
        data = file.read(limit + 1)
    if len(data) > limit:
        raise FormatError(f"{path.name}: {path.stat().st_size} bytes, at most {limit} are read ({path})")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{path.name}: not valid JSON: {e!s:.300} ({path})") from e
    if not isinstance(value, dict):
        raise FormatError(f"{path.name}: must be a JSON object, got {type(value).__name__} ({path})")
    return value
