"""Writes GGUF files: `quantize_gguf` rounds the matrices of a model to other formats, and copies everything else as it is."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...core.errors import FormatError, InputError
from ...core.files import write_file
from ...core.workers import Workers
from ...ops.quant import BY_ID, FORMATS, BlockFormat, PackedTensor, by_name
from .metadata import Cursor, read_metadata
from .reader import open_gguf

ALIGNMENT = 32
ROWS = 1 << 20  # elements that a thread rounds at once
LOW = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
# What a format becomes where rows are no multiple of its block, and in turn; the last one takes any row.
SHORTER = {**dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0", *LOW), "Q4_0"),
           "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
FINER = dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "IQ4_XS", "IQ4_NL", *LOW), "Q6_K")  # for the embedding and the output layer
# llama.cpp's number for a file "mostly" in a format; others are told by the tensors alone
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 12, "Q4_K": 15, "Q5_K": 17,
              "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ3_XXS": 23, "IQ1_S": 24, "IQ3_S": 26, "IQ2_S": 28,
              "IQ1_M": 31, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37}
FIXED = ("*_norm.weight", "*.ffn_gate_inp.weight", "*.ssm_conv1d.weight", "*.time_mix_*", "position_embd.weight", "token_types.weight")

Entry = tuple[tuple[int, ...], int, int, Iterable[Any]]  # shape, number of the format, bytes, and where they come from, in pieces


def quantize_gguf(source: str | os.PathLike[str], target: str | os.PathLike[str], format: str = "Q4_K", *,  # noqa: A002
                  formats: Mapping[str, str] | None = None, threads: int = 2,
                  progress: Callable[[str], None] | None = None) -> dict[str, str]:
    """Write the model in `source` (a GGUF file, best in F32, F16 or BF16) to `target` with its matrices in `format`: Q2_K … Q6_K, Q4_0 …
    Q8_0, IQ4_XS, IQ4_NL, TQ2_0, MXFP4, F16 …. Returns the format of every tensor.

    Vectors, norms and routers stay as they are. The embedding and the output layer are Q6_K beside formats of five bits and fewer. Where
    rows are no multiple of a format's block, the next one that fits is taken. `formats` gives other formats by name of tensor (patterns as
    in file names; the first that fits counts, "keep" leaves a tensor as it is). `progress` is called with a line a tensor."""
    wanted = {p: None if f == "keep" else _writable(f) for p, f in (formats or {}).items()}
    main, file = _writable(format), open_gguf(source)
    if Path(target).exists() and Path(source).samefile(target):
        raise InputError(f"quantize_gguf: the target is the source, which is mapped while it is read: {target}")
    unused = [p for p in wanted if not any(fnmatchcase(n, p) for n in file.tensors)]
    if unused:
        some = ", ".join(list(file.tensors)[:8])
        raise InputError(f"quantize_gguf: formats names {unused[0]!r}, which no tensor has; tensors are {some} …")
    chosen = {n: _format(t, main, wanted) for n, t in file.tensors.items()}
    entries: dict[str, Entry] = {}
    with Workers(threads) as pool:
        for name, tensor in file.tensors.items():
            fmt = chosen[name]
            size = tensor.rows * fmt.row_bytes(tensor.columns)
            entries[name] = tensor.shape, fmt.type_id, size, _pieces(tensor, fmt, pool, progress)
        keys, count = _keys(Path(source), {"general.file_type": FILE_TYPES.get(main.name, 0), "split.count": 0})
        write_file(target, lambda out: write_gguf(out, keys, count, entries), subject="quantize_gguf")
    return {n: f.name for n, f in chosen.items()}


def _writable(name: str) -> BlockFormat:
    found = FORMATS.get(name.upper())
    if found is None or found.encode is None or found.type_id >= 1000:
        names = " ".join(f.name for _, f in sorted(BY_ID.items()) if f.encode is not None and f.type_id < 1000)
        raise InputError(f"quantize_gguf: {name} is not written to GGUF files; those that are: {names}")
    return found


def _format(t: PackedTensor, main: BlockFormat, wanted: Mapping[str, BlockFormat | None]) -> BlockFormat:
    for pattern, found in wanted.items():
        if fnmatchcase(t.name, pattern):
            return t.format if found is None else _fitting(found, t.columns)
    if len(t.shape) < 2 or not t.name.endswith(".weight") or any(fnmatchcase(t.name, p) for p in FIXED):
        return t.format
    ends = t.name in ("output.weight", "token_embd.weight")
    return _fitting(by_name(FINER.get(main.name, main.name)) if ends else main, t.columns)


def _fitting(fmt: BlockFormat, columns: int) -> BlockFormat:
    while columns % fmt.elements:
        fmt = by_name(SHORTER.get(fmt.name, "F16"))
    return fmt


def _pieces(t: PackedTensor, fmt: BlockFormat, pool: Workers, progress: Callable[[str], None] | None) -> Iterable[Any]:
    if progress is not None:
        progress(f"{t.name}  {t.format}{list(t.shape)} -> {fmt}")
    if t.format is fmt:
        yield t.data
        return
    step = max(1, ROWS // max(1, t.columns))
    starts = range(0, t.rows, step)

    def rounded(start: int) -> Any:
        try:
            return fmt.quantize(t.format.dequantize(t.data[start : start + step]))
        except InputError as e:
            raise FormatError(f"quantize_gguf: tensor {t.name!r}: {e}") from e

    for first in range(0, len(starts), 8):
        yield from pool.map(rounded, starts[first : first + 8])


def _keys(path: Path, changed: Mapping[str, int]) -> tuple[bytes, int]:
    """The metadata as it stands in a file, but for some integers."""
    data = memoryview(np.memmap(path, np.uint8, mode="r"))  # type: ignore[arg-type]
    cursor = Cursor(data, str(path))
    cursor.at = 8
    cursor.count("tensors", 24, 16)
    count = cursor.count("metadata keys", 13, 16)
    start = cursor.at
    read_metadata(cursor, count)
    raw = bytearray(data[start : cursor.at])
    for key, value in changed.items():
        at = raw.find(struct.pack("<Q", len(key)) + key.encode())
        if at >= 0:
            at += 8 + len(key)
            kind = {2: "<H", 4: "<I", 5: "<i", 10: "<Q"}.get(struct.unpack_from("<I", raw, at)[0])
            if kind is not None:
                struct.pack_into(kind, raw, at + 4, value)
    return bytes(raw), count


def write_gguf(out: BinaryIO, keys: bytes, count: int, tensors: Mapping[str, Entry]) -> None:
    """A GGUF file, version 3: metadata as it stands in files, then tensors, made as they are written."""
    head, at = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), count), keys], 0
    for name, (shape, kind, size, _) in tensors.items():
        raw = name.encode()
        head.append(struct.pack("<Q", len(raw)) + raw + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, at))
        at += -(-size // ALIGNMENT) * ALIGNMENT
    whole = b"".join(head)
    out.write(whole + bytes(-len(whole) % ALIGNMENT))
    for _, _, size, pieces in tensors.values():
        for piece in pieces:
            out.write(np.ascontiguousarray(piece).data)
        out.write(bytes(-size % ALIGNMENT))
