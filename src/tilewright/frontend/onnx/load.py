"""Reading ONNX files: the protocol buffer, its checks, and tensors that lie in other files.

A file is untrusted input. Sizes are checked before anything is allocated, data in other files must lie in the model's folder or below it
and is mapped rather than read, and whatever the protocol buffer library or the checker says becomes one `FormatError`.
"""
from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from functools import cached_property
from typing import Any

import numpy as np

from ...core.errors import FormatError, MissingFileError, UnsupportedError
from ...core.extras import need
from ...core.files import open_file

LARGEST = 1 << 40  # elements of one tensor
SMALL = 1 << 20  # bytes of a file that is read at once
NAMES = {"": "ai.onnx"}


def onnx_library() -> Any:
    need("onnx", "onnx")
    import onnx

    return onnx


def is_onnx(model: Any) -> bool:
    """Whether `tw.compile` should read this as an ONNX model: a ModelProto, its bytes, or a path that ends in .onnx."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return True
    if isinstance(model, (str, os.PathLike)):
        return str(os.fspath(model)).endswith(".onnx")
    return isinstance(model, Source) or (type(model).__name__ == "ModelProto" and hasattr(model, "SerializeToString"))


def on_host(a: Any) -> Any:
    """A result of a session as an array of NumPy, copied where it lies on a GPU."""
    return a if type(a) is np.ndarray else a.numpy() if hasattr(a, "numpy") else np.asarray(a)


class LargeFile:
    """A file that stays open, so that what is read later is what was found at first or an error."""

    def __init__(self, descriptor: int, what: str) -> None:
        self._descriptor, self._what, self.stamp = descriptor, what, _stamp(descriptor)
        weakref.finalize(self, os.close, descriptor)

    def read(self) -> bytes:
        parts, done = list[bytes](), 0
        while done < self.stamp[2] and (part := os.pread(self._descriptor, self.stamp[2] - done, done)):
            parts.append(part)
            done += len(part)
        self.check()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def check(self) -> None:
        """What has been read by now is of the file that was opened. It may have been moved or deleted meanwhile."""
        if _stamp(self._descriptor)[:4] != self.stamp[:4]:
            raise FormatError(f"onnx: {self._what} has changed since it was opened; compile it again")

    def mapped(self) -> mmap.mmap:
        return mmap.mmap(self._descriptor, self.stamp[2], access=mmap.ACCESS_READ)


def _stamp(descriptor: int) -> tuple[int, ...]:
    """What changes when a file does: which one it is, its size, and the times of the last changes of its content and of its inode."""
    s = os.fstat(descriptor)
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


class Source:
    """A model and the folder that its external data may lie in. It is parsed when `proto` is asked for, a large file not read before."""

    def __init__(self, model: Any) -> None:
        self.folder: str | None = None  # resolved
        self.file: LargeFile | None = None
        self._data: bytes | None = None
        self._name, self._what, self._given = "", "the given bytes", model
        if isinstance(model, (str, os.PathLike)):
            path = self._what = os.fspath(model)
            self.file = LargeFile(open_file(path, subject="onnx"), self._what)
            self.folder, self._name = os.path.dirname(os.path.realpath(path)), os.path.splitext(os.path.basename(path))[0]
            if self.file.stamp[2] < SMALL:
                self._data, self.file = self.file.read(), None
        elif isinstance(model, (bytes, bytearray, memoryview)):
            self._data = bytes(model)
        elif type(model).__name__ == "ModelProto":
            with contextlib.suppress(Exception):  # protocol buffers end at 2 GiB: such a model is never in the cache
                self._data = model.SerializeToString()
        else:
            raise FormatError(f"onnx: a model is a path, bytes or a ModelProto, got a {type(model).__name__}")
        self.expanded = 0  # nodes that functions have been replaced by
        self._maps: dict[str, np.memmap[Any, Any]] = {}

    @property
    def data(self) -> bytes | None:
        """The bytes of the model, where it has any."""
        return self._data if self.file is None else self.file.read()

    def content(self) -> memoryview:
        """The same for a look at parts of it: a large file is mapped as long as somebody has a view of it."""
        return memoryview(self._data or b"") if self.file is None else memoryview(self.file.mapped())

    @cached_property
    def proto(self) -> Any:
        """The parsed model."""
        found = self._given if type(self._given).__name__ == "ModelProto" else parsed(self.data or b"", self._what)
        self._check(found)
        return found

    @cached_property
    def name(self) -> str:
        return self._name or str(self.proto.graph.name) or "onnx"

    @cached_property
    def opsets(self) -> dict[str, int]:
        return _opsets(self.proto)

    @cached_property
    def functions(self) -> dict[tuple[str, str, str], Any]:
        return {(f.domain, f.name, getattr(f, "overload", "")): f for f in self.proto.functions}

    @property
    def locations(self) -> list[str]:
        """Files of the model's folder that data was read from so far."""
        return [] if self.folder is None else [os.path.relpath(p, self.folder) for p in self._maps]

    def _check(self, proto: Any) -> None:
        newest, name = onnx_library().defs.onnx_opset_version(), self._name or proto.graph.name or "onnx"
        version = _opsets(proto).get("", newest)
        if version < 1 or version > newest:
            raise UnsupportedError(f"onnx: {name} uses opset {version} of ai.onnx; the installed package onnx knows 1 to {newest}")
        if not proto.graph.node and not proto.graph.output:
            raise FormatError(f"onnx: {name} has no nodes and no outputs; the file is no ONNX model or is cut off")

    def array(self, tensor: Any) -> Any:
        """The elements of a TensorProto as NumPy holds them (strings as objects)."""
        from .elements import STRING, elem

        onnx = onnx_library()
        count = 1
        for n in tensor.dims:
            if n < 0:
                raise FormatError(f"onnx: tensor {tensor.name!r} has a negative size: {list(tensor.dims)}")
            count *= n
        if count > LARGEST:
            raise FormatError(f"onnx: tensor {tensor.name!r} would have {count} elements, more than any machine holds")
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return self._external(tensor, count)
        if tensor.data_type != STRING:
            e = elem(tensor.data_type)
            bits = {"u4": 4, "i4": 4, "f4e2m1": 4, "u2": 2, "i2": 2}.get(e.name, 8 * e.held.itemsize)
            if tensor.HasField("raw_data"):
                have, want = len(tensor.raw_data), (count * bits + 7) // 8
                if have != want:
                    raise FormatError(f"onnx: tensor {tensor.name!r} of shape {list(tensor.dims)} needs {want} bytes, the file has {have}")
                if e.kind == "plain":
                    return np.frombuffer(tensor.raw_data, e.np).reshape(tuple(tensor.dims))
        try:
            return onnx.numpy_helper.to_array(tensor)
        except Exception as e:
            raise FormatError(f"onnx: tensor {tensor.name!r} cannot be read: {e}") from None

    def path_of(self, location: str, tensor: str) -> str:
        """A file that external data lies in, which must be in the model's folder or below."""
        if self.folder is None:
            raise FormatError(f"onnx: tensor {tensor!r} lies in the file {location!r}; give the model as a path, not as bytes")
        path = os.path.realpath(os.path.join(self.folder, location))
        if not location or os.path.isabs(location) or os.path.commonpath([path, self.folder]) != self.folder:
            raise FormatError(f"onnx: tensor {tensor!r} lies at {location!r}, outside the model's folder; that is refused")
        if not os.path.isfile(path):
            raise MissingFileError(f"onnx: tensor {tensor!r} lies in {path}, and there is no such file")
        return path

    def mapped(self, path: str) -> np.ndarray[Any, Any]:
        if path not in self._maps:
            self._maps[path] = np.memmap(path, np.uint8, "r")
        return np.asarray(self._maps[path])

    def _external(self, tensor: Any, count: int) -> Any:
        from .elements import elem

        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        path = self.path_of(location, tensor.name)
        e = elem(tensor.data_type)
        bits = {"u4": 4, "i4": 4, "f4e2m1": 4, "u2": 2, "i2": 2}.get(e.name, 8 * e.held.itemsize)
        try:
            offset = int(entries.get("offset", "0"))
            length = int(entries.get("length", str((count * bits + 7) // 8)))
        except ValueError:
            raise FormatError(f"onnx: tensor {tensor.name!r} has no valid offset and length: {entries}") from None
        size = os.stat(path).st_size
        if offset < 0 or length != (count * bits + 7) // 8 or offset + length > size:
            raise FormatError(f"onnx: tensor {tensor.name!r} of shape {list(tensor.dims)} lies at bytes {offset} to {offset + length} of "
                              f"{os.path.basename(path)}, which has {size}")
        if count == 0:
            return np.zeros(tuple(tensor.dims), e.np)
        raw = self.mapped(path)[offset : offset + length]
        if e.kind != "plain":
            copy = type(tensor)(dims=tensor.dims, data_type=tensor.data_type, raw_data=raw.tobytes())
            return onnx_library().numpy_helper.to_array(copy)
        if offset % e.held.itemsize:
            raw = raw.copy()
        return raw.view(e.np).reshape(tuple(tensor.dims))


def _opsets(proto: Any) -> dict[str, int]:
    return {o.domain if o.domain != "ai.onnx" else "": o.version for o in proto.opset_import}


def parsed(data: bytes, what: str) -> Any:
    onnx = onnx_library()
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as e:
        raise FormatError(f"onnx: {what} is no ONNX model or is cut off: {e}") from None
    return model
