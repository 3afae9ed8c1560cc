"""GGUF metadata: typed values under string keys. Long arrays stay in the mapping; strings in them are decoded when asked for.

A vocabulary of 150 000 tokens must not cost start-up time, so an array of strings is a sequence over offsets.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from ...core.errors import FormatError

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
NAME_LIMIT = 65535  # bytes of a key or a tensor's name, as in the specification
OBJECTS = 1 << 22  # keys, tensors, strings and arrays of a file: each becomes a Python object, or two numbers


class Cursor:
    """Reads forward through `data` (a bytes-like object, a mapping as a rule)."""

    __slots__ = ("at", "data", "end", "objects", "source")

    def __init__(self, data: memoryview, source: str) -> None:
        self.data = data
        self.end = len(data)
        self.at = 0
        self.objects = OBJECTS
        self.source = source

    def fail(self, message: str) -> FormatError:
        return FormatError(f"gguf: {message:.600} (byte {self.at} of {self.end}, {self.source})")

    def need(self, size: int, what: str) -> int:
        """The position of the next `size` bytes, which must exist; moves behind them."""
        start = self.at
        if size > self.end - start:
            raise self.fail(f"the file ends inside {what}: {size} bytes needed, {self.end - start} left; it is truncated or damaged")
        self.at = start + size
        return start

    def u32(self, what: str) -> int:
        value: int = U32.unpack_from(self.data, self.need(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = U64.unpack_from(self.data, self.need(8, what))[0]
        return value

    def count(self, what: str, smallest: int, weight: int = 0) -> int:
        """A number of things of at least `smallest` bytes each: more than the rest of the file can hold is a lie. Things that take memory
        beside the file count `weight` times, and a file may have so many of them: it may be long without taking any room on the disk."""
        value = self.u64(what)
        if value * smallest > self.end - self.at:
            raise self.fail(f"{value} {what} declared, the rest of the file holds at most {(self.end - self.at) // smallest}")
        self.objects -= value * weight
        if self.objects < 0:
            raise self.fail(f"{value} {what} declared; {OBJECTS // weight} of such things are the most that is read")
        return value

    def string(self, what: str) -> bytes:
        size = self.u64(what)
        start = self.need(size, what)
        return bytes(self.data[start : start + size])

    def name(self, what: str) -> str:
        """A key or a tensor's name: short, UTF-8."""
        raw = self.string(what)
        if len(raw) > NAME_LIMIT:
            raise self.fail(f"{what} has {len(raw)} bytes, at most {NAME_LIMIT} are allowed")
        if not raw:
            raise self.fail(f"{what} is empty")
        try:
            return raw.decode()
        except UnicodeDecodeError as e:
            raise self.fail(f"{what} is not UTF-8: {raw[:40]!r}") from e


Scalar: TypeAlias = bool | int | float | str
SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
BOOL, STRING, ARRAY = 7, 8, 9
NAMES = {BOOL: "bool", STRING: "string", ARRAY: "array"} | {k: np.dtype(v).name for k, v in SCALARS.items() if k != BOOL}
DEPTH_LIMIT = 4  # arrays of arrays; no known file nests at all


REQUIRED: Any = object()


class StringArray(Sequence[str]):
    """Strings in the file. `raw(i)` gives the bytes; text that is not UTF-8 is shown with replacement characters."""

    __slots__ = ("_data", "_ends", "_starts")

    def __init__(self, data: memoryview, starts: array[int], ends: array[int]) -> None:
        self._data, self._starts, self._ends = data, starts, ends  # a list of ints takes five times as much

    def __len__(self) -> int:
        return len(self._starts)

    def raw(self, index: int) -> bytes:
        return bytes(self._data[self._starts[index] : self._ends[index]])

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode(errors="replace")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """All strings. One copy of the bytes and one decode each: twice as fast as going through `__getitem__`."""
        if not self._starts:
            return []
        base = self._starts[0]
        block = bytes(self._data[base : self._ends[-1]])
        return [block[s - base : e - base].decode(errors="replace") for s, e in zip(self._starts, self._ends, strict=True)]

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"

    def __eq__(self, other: object) -> bool:
        return self.tolist() == list(other) if isinstance(other, Sequence) and not isinstance(other, str) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compared by content


Value: TypeAlias = Scalar | NDArray[Any] | StringArray | list[Any]


class Metadata(Mapping[str, Value]):
    """The file's keys and values: `m["key"]`, or with the type checked: `m.integer("llama.block_count")`."""

    def __init__(self, values: dict[str, Value], source: str) -> None:
        self._values = values
        self.source = source

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metadata({len(self)} keys, {self.source})"

    def _typed(self, key: str, kinds: tuple[type, ...], what: str, default: Any) -> Any:
        if key not in self._values:
            if default is REQUIRED:
                raise FormatError(f"gguf: metadata {key!r} is missing; the model cannot be built without it ({self.source})")
            return default
        value = self._values[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise FormatError(f"gguf: metadata {key!r} must be {what}, got {_describe(value)} ({self.source})")
        return value

    def integer(self, key: str, default: int = REQUIRED) -> int:
        """An integer; FormatError when it is missing and no default is given."""
        value: int = self._typed(key, (int,), "an integer", default)
        return value

    def number(self, key: str, default: float = REQUIRED) -> float:
        """A float (or an integer as one)."""
        return float(self._typed(key, (int, float), "a number", default))

    def text(self, key: str, default: str = REQUIRED) -> str:
        value: str = self._typed(key, (str,), "a string", default)
        return value

    def flag(self, key: str, default: bool = REQUIRED) -> bool:
        value: bool = self._typed(key, (bool,), "a bool", default)
        return value

    def numbers(self, key: str, default: NDArray[Any] = REQUIRED) -> NDArray[Any]:
        """An array of numbers, a view of the file."""
        value: NDArray[Any] = self._typed(key, (np.ndarray,), "an array of numbers", default)
        return value

    def strings(self, key: str) -> StringArray:
        value: StringArray = self._typed(key, (StringArray,), "an array of strings", REQUIRED)
        return value


def _describe(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {len(value)} {value.dtype.name}"
    if isinstance(value, (StringArray, list)):
        return f"an array of {len(value)} {'strings' if isinstance(value, StringArray) else 'arrays'}"
    return f"{type(value).__name__} {value!r:.60}"


def read_metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for _ in range(count):
        key = cursor.name("a metadata key")
        if key in values:
            raise cursor.fail(f"metadata {key!r} is there twice")
        values[key] = _value(cursor, cursor.u32(f"the type of {key!r}"), key, 0)
    return values


def _value(cursor: Cursor, kind: int, key: str, depth: int) -> Value:
    if kind == STRING:
        return cursor.string(f"the string {key!r}").decode(errors="replace")
    if kind in SCALARS:
        dtype = np.dtype(SCALARS[kind])
        start = cursor.need(dtype.itemsize, f"the value of {key!r}")
        if kind == BOOL:
            return cursor.data[start] != 0
        value: int | float = np.frombuffer(cursor.data, dtype, 1, start)[0].item()
        return value
    if kind == ARRAY:
        return _array(cursor, key, depth)
    raise cursor.fail(f"metadata {key!r} has unknown type {kind}; known: 0 .. 12")


def _array(cursor: Cursor, key: str, depth: int) -> Value:
    if depth >= DEPTH_LIMIT:
        raise cursor.fail(f"metadata {key!r} nests arrays deeper than {DEPTH_LIMIT}")
    kind = cursor.u32(f"the element type of {key!r}")
    if kind == STRING:
        return _strings(cursor, cursor.count(f"strings in {key!r}", 8, 1))
    if kind == ARRAY:
        return [_array(cursor, key, depth + 1) for _ in range(cursor.count(f"arrays in {key!r}", 12, 16))]
    if kind not in SCALARS:
        raise cursor.fail(f"metadata {key!r} is an array of unknown type {kind}; known: 0 .. 12")
    dtype = np.dtype(SCALARS[kind])
    n = cursor.count(f"elements in {key!r}", dtype.itemsize)
    start = cursor.need(n * dtype.itemsize, f"the array {key!r}")
    if kind == BOOL:
        flags: NDArray[Any] = np.frombuffer(cursor.data, np.uint8, n, start) != 0
        return flags
    return np.frombuffer(cursor.data, dtype, n, start)


def _strings(cursor: Cursor, count: int) -> StringArray:
    """Only the lengths are read; one after the other, since each says where the next one stands."""
    data, end, at, unpack = cursor.data, cursor.end, cursor.at, U64.unpack_from
    starts, ends = array("q"), array("q")
    for _ in range(count):
        if end - at < 8:
            break
        at += 8
        size = unpack(data, at - 8)[0]
        if size > end - at:
            break
        starts.append(at)
        at += size
        ends.append(at)
    if len(ends) != count:
        raise cursor.fail(f"the file ends inside string {len(ends)} of an array of {count}; it is truncated or damaged")
    cursor.at = at
    return StringArray(data, starts, ends)
