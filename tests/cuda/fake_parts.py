"""What the stand-in for the driver (`fake_driver.py`) is made of: memory, kernels, graphs, enumerations."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.cuda.emulator import Array, Fault, Heap

_SHARED = re.compile(r"\.shared [^;]*scratch\[(\d+)\];")
_PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+\w+(\[\d+\])?")
_NAME = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)", re.S)


class Handle(int):
    """What the driver gives out; `what` is the thing itself."""

    what: Any = None


class Memory(Heap):
    """Blocks of host memory at their own addresses, full of 0xFF when new; an access outside them, or after they were freed, is a fault."""

    def __init__(self, shift: int = 0) -> None:
        """`shift`: how far from their own addresses blocks of the device seem to lie, so that the host cannot read them."""
        super().__init__()
        self.shift, self._changing = shift, threading.Lock()
        self.kept: dict[int, Array] = {}
        self.tensors: list[Any] = []  # what tests have added

    def add(self, array: Array, shift: int = 0) -> int:
        flat = array.reshape(-1).view(np.uint8)
        with self._changing:
            self.buffers.append((flat.ctypes.data + shift, flat))
        return int(flat.ctypes.data) + shift

    def allocate(self, nbytes: int, *, host: bool = False) -> int:
        raw = np.full(nbytes + 255, 0xFF, np.uint8)
        skip = -raw.ctypes.data % 256
        at = self.add(raw[skip : skip + nbytes], 0 if host else self.shift)
        self.kept[at] = raw
        return at

    def free(self, address: int) -> None:
        with self._changing:  # its memory goes last: somebody else may get the address at once
            raw = self.kept.pop(address, None)
            self.buffers = [b for b in self.buffers if b[0] != address]
        if raw is None:
            raise Fault(f"{address:#x} is freed, and is no memory")

    def view(self, address: int, nbytes: int) -> Array:
        data, at = self.find(address, nbytes)
        return data[at : at + nbytes]


class Kernel:
    """A function of a module, and with arguments a launch of it."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        found = next((m for m in _NAME.finditer(text) if m[1] == name), None)
        if found is None:
            raise Fault(f"there is no kernel {name}")
        self.params = _PARAM.findall(found[2])
        self.declared = sum(map(int, _SHARED.findall(text)))
        self.allowed = (48 << 10) - self.declared  # dynamic shared memory, until the host asks for more

    def words(self, pointers: int) -> list[int]:
        if " words[" in self.text:  # the text of several launches
            count = int(self.params[0][1].strip("[]")) // 8
            return list((ctypes.c_int64 * count).from_address(ctypes.c_void_p.from_address(pointers).value or 0))
        if any(kind != "u64" for kind, _ in self.params):
            raise Fault(f"{self.name}: the emulator knows words as parameters, no tensor maps; let the fake be an older chip")
        places = (ctypes.c_void_p * len(self.params)).from_address(pointers)
        return [ctypes.c_int64.from_address(at or 0).value for at in places]


class Enum:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        return 1 if self._name == "CUgraphDependencyType" else member

    def __call__(self, value: Any) -> Any:
        return value


class Node:
    def __init__(self, launch: tuple[Any, ...]) -> None:
        self.launch = launch


class Graph:
    def __init__(self) -> None:
        self.nodes: list[Handle] = []
        self.before: dict[Handle, list[Handle]] = {}

    def order(self) -> Iterator[Handle]:
        """Nodes after the ones they wait for; of those that wait for nothing more, the last one first, so that a missing edge shows."""
        done: set[int] = set()
        while len(done) < len(self.nodes):
            ready = [n for n in self.nodes if n not in done and all(b in done for b in self.before[n])]
            done.add(ready[-1])
            yield ready[-1]
