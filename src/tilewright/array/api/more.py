"""Files of Arrays, and the last of NumPy's commonly used functions."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ...core.errors import ArgumentError, FormatError
from ..arrays import Array, wrap
from ..machine import tight
from .base import Header, give, header, known

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def public(fn: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[fn.__name__.rstrip("_")] = fn
    return fn


@public
def copy(x: Any, /) -> Array:
    """x in memory of its own."""
    return wrap(header(x, "copy")).copy()


@public
def ascontiguousarray(x: Any, /) -> Array:
    """x with its elements in order in memory, copied only where they are not."""
    a = header(x, "ascontiguousarray")
    return wrap(a if a.flags.c_contiguous else tight(a))


@public
def shape(x: Any, /) -> tuple[int, ...]:
    """The shape."""
    return tuple(header(x, "shape").shape)


@public
def ndim(x: Any, /) -> int:
    """The number of axes."""
    return header(x, "ndim").ndim


@public
def size(x: Any, /) -> int:
    """The number of elements."""
    return header(x, "size").size


@public
def nan_to_num(x: Any, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Array:
    """NaN and infinities replaced by numbers."""
    return give(np.nan_to_num(header(x, "nan_to_num"), nan=nan, posinf=posinf, neginf=neginf))


@public
def vander(x: Any, n: int | None = None, increasing: bool = False) -> Array:
    """The Vandermonde matrix."""
    return give(np.vander(header(x, "vander"), n, increasing))


@public
def select(conditions: Any, choices: Any, default: Any = 0) -> Array:
    """Elements of the first choice whose condition holds."""
    return give(np.select([header(c) for c in conditions], [header(c) for c in choices], default))


@public
def apply_along_axis(fn: Callable[..., Any], axis: int, x: Any) -> Array:
    """fn of every vector along an axis."""
    return give(np.apply_along_axis(lambda v: header(fn(wrap(v))), axis, header(x)))


@public
def unravel_index(indices: Any, shape: Any) -> tuple[Array, ...]:
    """The indices of positions in a shape."""
    return tuple(give(np.asarray(i, np.int64)) for i in np.unravel_index(header(indices), shape))


@public
def ravel_multi_index(indices: Any, shape: Any) -> Array:
    """The positions of indices in a shape."""
    return give(np.asarray(np.ravel_multi_index(tuple(header(i) for i in indices), shape), np.int64))


@public
def polyval(p: Any, x: Any) -> Array:
    """A polynomial, its highest coefficient first, at x."""
    return give(np.polyval(header(p), header(x)))


@public
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """The indices of a lower triangle."""
    return tuple(map(give, np.tril_indices(n, k, m)))


@public
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """The indices of an upper triangle."""
    return tuple(map(give, np.triu_indices(n, k, m)))


# ---- files


@public
def save(path: Any, x: Any) -> None:
    """Write an Array to an `.npy` file; several of them, given as a dict, to an `.npz` or `.safetensors` file, by the name's ending."""
    path = Path(path)
    if path.suffix == ".npy":
        np.save(path, _numpy_file(header(x, "save"), path))
    elif path.suffix in (".npz", ".safetensors"):
        if not isinstance(x, dict):
            raise ArgumentError(f"save: a {path.suffix} file holds a dict of Arrays, got a {type(x).__name__}")
        arrays = {str(k): header(v, "save") for k, v in x.items()}
        if path.suffix == ".npz":
            np.savez(path, allow_pickle=False, **{k: _numpy_file(a, path) for k, a in arrays.items()})
        else:
            _save_safetensors(path, arrays)
    else:
        raise ArgumentError(f"save: the name must end in .npy, .npz or .safetensors, got {path.name!r}")


@public
def load_arrays(path: Any) -> Any:
    """The Array of an `.npy` file, or the dict of Arrays of an `.npz` or `.safetensors` file. Files are mapped where they can be: elements
    are read when they are used."""
    path = Path(path)
    try:
        if path.suffix == ".npy":
            return wrap(_number_file(np.load(path, mmap_mode="r", allow_pickle=False), path))
        if path.suffix == ".npz":
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return {k: wrap(_number_file(file[k], path)) for k in file.files}
    except (ValueError, EOFError, BadZipFile) as e:
        raise FormatError(f"load_arrays: {path.name}: {e}") from None
    if path.suffix == ".safetensors":
        return _load_safetensors(path)
    raise ArgumentError(f"load_arrays: the name must end in .npy, .npz or .safetensors, got {path.name!r}")


def _number_file(a: Header, path: Path) -> Header:
    """An array of a file in native byte order; a mapped one stays mapped where it is."""
    if a.dtype.kind in "OSUMmV":
        raise FormatError(f"load_arrays: {path.name} must hold numbers, got {a.dtype}" + (
            "; NumPy's files do not say which 16-bit or 8-bit float they hold, use .safetensors" if a.dtype.kind == "V" else ""))
    return np.asarray(a, a.dtype.newbyteorder("="))


def _numpy_file(a: Header, path: Path) -> Header:
    """What NumPy's file formats can hold."""
    if a.dtype.isbuiltin != 1:
        raise ArgumentError(f"save: a {path.suffix} file cannot hold {a.dtype.name}; use .safetensors")
    return a


_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
          "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
          "BOOL": "bool", "C64": "complex64"}


def _save_safetensors(path: Path, arrays: dict[str, Header]) -> None:
    import json

    names = {v: k for k, v in _TYPES.items()}
    entries, at = {}, 0
    for key, a in arrays.items():
        if a.dtype.name not in names:
            raise ArgumentError(f"save: a .safetensors file cannot hold {a.dtype}, got it for {key!r}")
        entries[key] = {"dtype": names[a.dtype.name], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for a in arrays.values():
            file.write(np.ascontiguousarray(a).tobytes())


def _load_safetensors(path: Path) -> dict[str, Array]:
    import json

    data = np.memmap(path, np.uint8, "r")
    size = int.from_bytes(data[:8].tobytes(), "little")
    if size > len(data) - 8:
        raise FormatError(f"load_arrays: {path.name}: the header is longer than the file")
    try:
        entries = json.loads(data[8:8 + size].tobytes())
    except ValueError as e:
        raise FormatError(f"load_arrays: {path.name}: the header is no JSON ({e})") from None
    body, found = data[8 + size:].view(np.ndarray), {}
    for key, entry in entries.items():
        if key == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        dtype = known(_TYPES.get(entry["dtype"], entry["dtype"]), f"load_arrays: {key}")
        count = int(np.prod(entry["shape"], dtype=np.int64))
        if not 0 <= first <= end <= len(body) or end - first != count * dtype.itemsize:
            raise FormatError(f"load_arrays: {path.name}: {key!r} does not lie within the file, or its size is wrong")
        found[key] = wrap(body[first:end].view(dtype).reshape(entry["shape"]))
    return found
