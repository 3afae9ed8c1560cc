"""Calls with Arrays on a GPU that host code makes by itself (`runtime/eager_device.py`). The Python form of a function runs such a call
first and notes its launches (`note`); they are written down as words, and the next call that is alike only fills in addresses.
"""
from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.layout import row_major
from ...runtime import eager_device as D
from ...runtime import eager_host as H
from ...runtime.cuda import array as cuda_array
from ...runtime.cuda import driver as gpu
from ...runtime.cuda import launch as cuda_launch
from ...runtime.cuda.executable import ERROR_WORDS
from ...runtime.dlpack import SPECIAL
from ..api.elementwise import ALIASES
from ..arrays import Array
from ..machine import machine
from ..native import _BYTES, _tables
from .placed import Key, Placed, key_of

if TYPE_CHECKING:
    from .elementwise import Bound
    from .placed import _State

Fn = Callable[..., Any]
STATICS = (type(None), bool, str, np.dtype, type, type(...))  # arguments that are known by their identity, beside tuples of integers
PLANS = 2048


class _Here(threading.local):
    waits = False  # whether host code has asked for the call that runs now
    noted: tuple[str, Sequence[Any], dict[str, Any], Plan] | None = None


_here = _Here()
_objects: dict[str, Any] = {}  # what `state` has addresses of
_plans: dict[int, Any] = {}  # what `known` has addresses of
_retired: list[Any] = []  # the plans that were forgotten last


@dataclass(frozen=True)
class Start:
    """A kernel's launch. `moved`: words that are addresses, the operand (or, behind those, the buffer) that they are of, and bytes to add;
    `faults`: where the kernel names errors on the host."""

    function: int
    grid: int
    block: int
    shared: int
    words: Sequence[int]
    moved: Sequence[tuple[int, int, int]]
    faults: int
    keep: Any

    @staticmethod
    def of(bound: Bound, places: Sequence[tuple[int, int]]) -> Start:
        """`places`: for every address of a kernel the operand or buffer, and the byte from which on."""
        moved = [(i, places[k][0], base + places[k][1]) for i, k, base in bound.places]
        faults = 0 if bound.errors is None else bound.errors.host
        return Start(int(bound.function), bound.grid, bound.kernel.block, bound.kernel.shared, bound.words, moved, faults, bound)


class Plan:
    """The launches of a call over its operands and buffers, the last of which is the result."""

    def __init__(self, name: str, operands: Sequence[Placed | None], buffers: Sequence[int], result: Key | None,
                 launches: Sequence[Start], *, any_stream: bool = True) -> None:
        """`operands`: the numbers among the arguments; `buffers`: their bytes. A write has no result. `any_stream`: the launches need
        nothing that belongs to the default one."""
        self.keep: list[Any] = [operands, result, launches, name]
        rooms = [(cuda_array.small(n)[1], cuda_array.rounded(n)) for n in buffers]
        free = cuda_array.small(0)[0]
        self.keep += [rooms, free]
        rows = []
        for x in launches:
            config = cuda_launch.LaunchConfig((x.grid, 1, 1), (x.block, 1, 1), x.shared, None, None, 0)
            self.keep.append(config)
            rows += [x.function, ctypes.addressof(config), self._words(x.words), len(x.words), self._words([v for m in x.moved for v in m]),
                     len(x.moved), x.faults]
        constants = self._words([0 if p is None else p.address for p in operands])
        room_rows = self._words([v for kept, size in rooms for v in (id(kept), id(size))])
        self.address = self._words([constants, self._words(rows), len(launches), room_rows, len(rooms), id(result), id(free), id(name),
                                    int(any_stream)])

    def _words(self, values: Sequence[int]) -> int:
        made = (ctypes.c_int64 * max(1, len(values)))(*values)
        self.keep.append(made)
        return ctypes.addressof(made)


def note(name: str, args: Sequence[Any], kwargs: dict[str, Any], make: Callable[[], Plan | None]) -> None:
    """The call that runs now can be made by host code next time."""
    if _here.waits and (plan := make()) is not None:
        _here.noted = name, args, kwargs, plan


def note_session(name: str, args: Sequence[Any], kwargs: dict[str, Any], given: Sequence[Any], session: Callable[[], Any]) -> None:
    """The same for a call that `session()` serves: one result, kernels that take words, and no memory in between. `given` are the
    arguments that the session got."""
    from . import placed as P
    from .elementwise import copies

    def make() -> Plan | None:
        arrays = [i for i, x in enumerate(args) if type(x) is Array and x.device != "cpu"]
        found, every = session(), len(args) + len(kwargs)
        interface, executable = found.interface, found.executable
        fixed = not interface.symbols and not interface.donated and not found.model.signature.updates and len(interface.outputs) == 1
        if not fixed or len(arrays) != len(interface.inputs) or any(given[i] is not args[i] for i in arrays) or found.last_stream:
            return None
        schedule, out = found.schedule({}), interface.outputs[0]
        steps = getattr(schedule, "steps", None)
        launches: list[Start] = []
        buffers, at = list[int](), list[int]()  # at: what the slots of inputs and of the output are
        for i in arrays:
            p = args[i]._node
            if p.key.shift or not p.key.contiguous:  # it is copied first
                if not 1 <= p.nbytes <= cuda_array.SMALL or (copying := copies(P.empty(p.shape, p.dtype), p)) is None or len(copying) > 1:
                    return None
                launches.append(Start.of(copying[0][0], [(i, 0), (every + len(buffers), 0)]))
                at.append(every + len(buffers))
                buffers.append(p.nbytes)
            else:
                at.append(i)
        at.append(every + len(buffers))
        if steps is None or not 1 <= out.nbytes <= cuda_array.SMALL or out.dtype in SPECIAL or len(buffers) >= D.BUFFERS:
            return None
        for s in steps:
            temps = any(getattr(getattr(a, "buffer", None), "kind", "") == "temp" for a in s.arguments)
            late = s.maps or s.following or getattr(s.launch.kernel, "indirect", ())
            if late or temps or s.launch.error_blocks > 1 or len(s.words) > D.WORDS:
                return None
            number = executable.program.launches.index(s.launch)
            faults = executable.errors.host + 8 * ERROR_WORDS * executable.error_launches.index(number) \
                if number in executable.error_launches else 0
            moved = [(w, at[slot], offset) for w, slot, offset in s.moving]
            launches.append(Start(int(s.function), s.grid, s.block, s.shared, [int(w) for w in s.words], moved, faults, (found, schedule)))
        shape = tuple(int(n) for n in out.shape)
        key = key_of(out.dtype.np, shape, tuple(int(n) * out.dtype.itemsize for n in row_major(shape)))
        return Plan(name, [None] * every, [*buffers, out.nbytes], key, launches, any_stream=False)

    note(name, args, kwargs, make)


def missed(table: int, form: Fn, names: Any, *args: Any) -> Any:
    """A call that host code does not know."""
    given, options = (args, {}) if not names else (args[: -len(names)], dict(zip(names, args[-len(names) :], strict=True)))
    _here.waits, _here.noted = True, None
    try:
        made = form(*given, **options)
        if _here.noted is not None and made is not NotImplemented:
            _learn(table, names or None, args, len(given), options)
        return made
    finally:
        _here.waits, _here.noted = False, None


def _learn(table: int, names: Any, args: Sequence[Any], count: int, options: dict[str, Any]) -> None:
    assert _here.noted is not None
    name, theirs, kwargs, plan = _here.noted
    same = len(theirs) == count and all(x is y for x, y in zip(args, theirs, strict=False)) and kwargs == options
    own = id(written), id(_tables.get(name, b"")) + _BYTES, id(_tables.get(ALIASES.get(name, name), b"")) + _BYTES
    plain = all(type(x) in (Array, int, float) or isinstance(x, STATICS) or (type(x) is tuple and all(type(i) is int for i in x))
                for x in args)
    if not same or table not in own or not plain or len(args) > D.ARGUMENTS:
        return
    if len(_plans) >= PLANS:
        forget()
    given = (ctypes.c_int64 * max(1, len(args)))(*map(id, args))
    if _entry(table, ctypes.addressof(given), count, 0 if names is None else id(names), plan.address):
        _plans[len(_plans)] = plan, [x for x in args if type(x) is not Array], [x._node.key for x in args if hasattr(x, "_node")], names


def _entry(*words: int) -> int:
    native = machine()
    assert native is not None
    learn: Any = ctypes.PYFUNCTYPE(ctypes.c_ssize_t, *[ctypes.c_void_p] * 5)(native.library.address("tw_device_learn"))
    return int(learn(*words))


def forget() -> None:
    """Host code knows no call any more."""
    if _objects:
        ctypes.memset(_objects["KNOWN"], 0, ctypes.sizeof(_objects["KNOWN"]))
        _retired[:] = _plans.values()  # another thread may be launching one of them
        _plans.clear()


def streams(change: int) -> None:
    """Blocks of `tw.stream` begin and end: inside them Python chooses the stream."""
    native = machine()
    if native is not None:
        native.state[H.STATE.index("STREAMS")] += change


def _current(_: int) -> int:
    """The stream of a call while PyTorch does not run on the GPU. When it has begun, memory comes from its allocator: all plans are old."""
    torch = gpu.pytorch_runs()
    if torch is None:
        return 0
    from .placed import raw_stream

    forget()
    _set("CURRENT", raw_stream(torch))
    return -1


def _more(size: int, stream: int) -> int:
    """The address of a new small block."""
    return cuda_array._allocated(size, stream)[0]


def _less(address: int, stream: int) -> None:
    """A small block of a stream goes back."""
    cuda_array.small(0)[0](address, stream)


def _chosen(_: int) -> int:
    """The stream of a call inside `tw.stream`."""
    from . import placed as P

    return P.current()


def created(table: int, form: Fn, names: Any, *args: Any) -> Any:
    """A call of a function that makes Arrays, which host code does not know: it takes a shape by its sizes."""
    _here.waits, _here.noted = True, None
    try:
        made = form(*args[: -len(names)], **dict(zip(names, args[-len(names) :], strict=True)))
        if _here.noted is not None:
            flat = (*args[0], *args[1:]) if type(args[0]) is tuple else args
            _learn(table, names, flat, len(flat) - len(names), dict(zip(names, args[-len(names) :], strict=True)))
        return made
    finally:
        _here.waits, _here.noted = False, None


def written(x: Array, key: Any, value: Any) -> None:
    """`x[key] = value` that host code does not know."""
    from .calls import put

    _here.waits, _here.noted = True, None
    try:
        put(x, key, value)
        if _here.noted is not None:
            args = (x, key.start, key.stop, key.step, value) if type(key) is slice else (x, key, value)
            _learn(id(written), None, args, len(args), {})
    finally:
        _here.waits, _here.noted = False, None


def _set(name: str, value: Any, *, word: bool = False) -> None:
    native = machine()
    assert native is not None
    if not word:
        _objects[name] = value
    native.state[H.STATE.index(name)] = value if word else id(value)


def _field(thing: Any, name: str, value: Any) -> int:
    """Where an object keeps a slot."""
    setattr(thing, name, value)
    word = ctypes.c_int64.from_address
    return next(k for k in range(16, type(thing).__basicsize__, 8) if word(id(thing) + k).value == id(value))


def begin(state: _State) -> None:
    """Tell host code of a driver; it knows no calls of another one."""
    native = machine()
    if native is None or state.strict:
        return
    from . import placed as P

    known = (ctypes.c_int64 * (D.ENTRY * D.PLACES // 8))()
    _plans.clear()
    _objects["KNOWN"] = known
    probe = object()
    for prefix, cls, names in (("P", P.Placed, ("_key", "_address", "stream", "_home", "keep", "_header")),
                               ("B", cuda_array.Block, ("address", "stream", "_free", "kept"))):
        for name in names:
            thing = object.__new__(cls)
            _set(f"{prefix}_{name.strip('_').upper()}", _field(thing, name, probe), word=True)
            delattr(thing, name)
    for name, value in {"BLOCK": cuda_array.Block, "PLACED": P.Placed, "ZERO": 0, "CURRENT": _current, "MISSED": missed, "MORE": _more,
                        "LESS": _less, "KEYED": P.keyed, "HEADED": P.headed, "NOTED": state.started.append, "BEGUN": P.started,
                        "CHOSEN": _chosen, "STORAGE": P.Storage, "TRUE": True, "WRITTEN": written,
                        "CREATED": created, "RESHAPE": sys.intern("reshape"),
                        "DEVICE": sys.intern("device")}.items():
        _set(name, value)
    _set("STORED_OWN", _field(object.__new__(P.Storage), "own", probe), word=True)
    _set("START", cuda_launch.address_of("cuLaunchKernelEx"), word=True)
    _set("KNOWN", ctypes.addressof(known), word=True)
