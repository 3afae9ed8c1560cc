"""A position in untrusted bytes: every read is checked against the end before it happens, every count before it is believed."""

from __future__ import annotations

import struct

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
