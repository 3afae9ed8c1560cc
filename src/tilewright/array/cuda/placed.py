"""Where an Array on a GPU lies. Its header is NumPy's, over an address of the device: views of it are NumPy's views, and no code of the
host may read through it. Arrays hold it inside a `Placed`, behind which nothing of the CPU looks: `ready` raises `OnDevice` there.

Work is started on the current stream (`tw.stream`, else PyTorch's where PyTorch runs on the GPU, else the default one). A stream that uses
memory last written on another one waits for it, and the stream that the memory goes back to waits for every use.
"""
from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any
from weakref import finalize, ref

import numpy as np

from ...compile import target_spec
from ...core import dtypes as dt
from ...core.config import load as load_config
from ...core.dtypes import DType
from ...core.errors import ArgumentError, ExecutionError
from ...core.target_spec import TargetSpec
from ...ir.layout import row_major
from ...runtime import dlpack
from ...runtime.cuda import array as cuda_array
from ...runtime.cuda import driver as gpu
from ...runtime.cuda import launch as cuda_launch
from ...runtime.cuda.array import CUDA, LEGACY, Block, DeviceArray
from ...runtime.cuda.memory import ALIGNMENT, look
from ..arrays import ALONE, Array, Node, OnDevice, shown
from ..machine import is_supported

Header = np.ndarray[Any, Any]
NAMES = ("cuda", "cuda:0")
KEYS = 1 << 14  # layouts that are remembered
REMEMBERED = 8  # names of functions that may have failed, for a fault that the driver reports later
NUMBERS = 256  # Python numbers that are kept in device memory
_refs = sys.getrefcount


class Storage:
    """Device memory, what keeps it, and the stream it goes back to. NumPy makes headers of it."""

    __slots__ = ("__array_interface__", "__weakref__", "home", "keep", "own")

    def __init__(self, address: int, shape: Sequence[int], strides: Sequence[int] | None, dtype: np.dtype[Any], keep: Any, home: int, *,
                 own: bool) -> None:
        self.keep, self.home, self.own = keep, home, own
        steps = None if strides is None else tuple(strides)
        self.__array_interface__ = {"version": 3, "shape": tuple(shape), "typestr": dtype.str, "data": (address, False), "strides": steps}


class Key:
    """How an Array on a GPU lies: what launches depend on. Equal ones are one object, so that calls are found by identity."""

    __slots__ = ("contiguous", "dtype", "nbytes", "shape", "shift", "size", "strides")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], shift: int) -> None:
        self.dtype, self.shape, self.strides, self.shift = dtype, shape, strides, shift  # shift: of the address beyond ALIGNMENT
        self.size = prod(shape)
        self.nbytes = self.size * dtype.itemsize
        steps = (int(n) * dtype.itemsize for n in row_major(shape))
        self.contiguous = not self.size or all(n == 1 or s == t for n, s, t in zip(shape, strides, steps, strict=True))


_keys: dict[Any, Key] = {}


def key_of(dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], shift: int = 0) -> Key:
    given = dtype, shape, strides, shift
    found = _keys.get(given)
    if found is None:
        if len(_keys) >= KEYS:
            _keys.clear()
        found = _keys[given] = Key(*given)
    return found


_word = ctypes.c_int64.from_address


def _data(header: Header) -> int:
    """The address. NumPy's own way to it takes a microsecond; its headers lie as host code reads them, or there is no host code."""
    return _word(id(header) + 16).value if is_supported() else int(header.__array_interface__["data"][0])


class Placed(Node):
    """The value of an Array on a GPU: a header of NumPy's, or (of a result) its key and memory, from which the header is made when somebody
    asks for it. `stream` is the one that wrote it last, `home` the one that its memory goes back to. Host code knows the fields."""

    __slots__ = ("_address", "_header", "_home", "_key", "keep", "stream")
    device = "cuda"
    _address: int
    _header: Header
    _home: int
    _key: Key
    keep: Block  # the memory of a result that has no header yet

    def __init__(self, header: Header, stream: int, address: int | None = None) -> None:
        self._header, self.stream = header, stream
        if address is not None:
            self._address = address

    @property
    def header(self) -> Header:
        try:
            return self._header
        except AttributeError:
            k = self._key
            self._header = header_over(self._address, k.shape, k.strides, _known(k.dtype), self.keep, self._home, own=True)
            del self.keep
            return self._header

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.key.shape

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        return self.key.dtype

    @property
    def nbytes(self) -> int:
        return self.key.nbytes

    @property
    def home(self) -> int:
        try:
            return self._home
        except AttributeError:
            found: Any = self._header.base
            while type(found) is not Storage:  # windows and broadcast views keep the array they are of
                found = found.base
            self._home = found.home
            return self._home

    @property
    def address(self) -> int:
        try:
            return self._address
        except AttributeError:
            self._address = _data(self._header)
            return self._address

    @property
    def key(self) -> Key:
        try:
            return self._key
        except AttributeError:
            h = self._header
            self._key = key_of(h.dtype, h.shape, h.strides, self.address % ALIGNMENT)
            return self._key

    def value(self) -> Header:
        raise refused(self)


def keyed(p: Placed) -> None:
    """Set what host code reads of a view."""
    p.key, p.home  # noqa: B018


def headed(p: Placed) -> None:
    """Make the header of a result, for a view of it."""
    p.header  # noqa: B018


def refused(node: Node) -> OnDevice:
    return OnDevice(f"Array: {shown(node)} lies on cuda, and this needs it in the memory of the host; use x.to('cpu') or x.numpy()")


class _State:
    """What belongs to one driver."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.target: TargetSpec = target_spec("cuda")
        self.strict = load_config().validation == "strict"  # wait for each kernel, so that a fault names its function
        self.functions: dict[str, Any] = {}  # loaded kernels by name
        self.plans: dict[Any, Any] = {}  # plans of launches, by function and layouts
        self.calls: dict[Any, Any] = {}  # plans of elementwise functions, by their arguments
        self.copies: dict[Any, Any] = {}  # kernels of copies, by the keys of target and source
        self.created: dict[Any, Any] = {}  # keys and numbers of new arrays, by their arguments
        self.numbers: dict[Any, Placed] = {}
        self.failing: dict[int, Callable[[], None]] = {}  # what raises errors that kernels have found, by kernel or session
        self.started: deque[str] = deque(maxlen=REMEMBERED)  # since the last wait
        self.streams: set[int] = set()  # with work since the last wait


class _Here(threading.local):
    driver: Any = None  # whose context the thread has
    stream: int | None = None  # the stream of `with tw.stream(...)`


_state: _State | None = None
_here = _Here()


def state() -> _State:
    global _state
    driver = gpu.driver()
    if _state is None or _state.driver is not driver:
        from . import direct

        _state = _State(driver)
        direct.begin(_state)
    return _state


def enter() -> None:
    """Give the thread the context, once."""
    driver = gpu.driver()
    if _here.driver is not driver:
        gpu.enter()
        _here.driver = driver
        state()


# ---- streams

def chosen() -> int | None:
    """The stream of `with tw.stream(...)`, or PyTorch's current one where it runs on the GPU; None: nobody chose one."""
    found = _here.stream
    if found is None and (torch := gpu.pytorch_runs()) is not None:
        found = raw_stream(torch)(0)
    return found


@cache
def raw_stream(torch: Any) -> Callable[[int], int]:
    """PyTorch's function of a device's current stream, without an object for the stream."""
    raw: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def current() -> int:
    return chosen() or 0


@contextmanager
def stream(given: Any) -> Iterator[None]:
    """`with tw.stream(s):` functions of Arrays on a GPU start their work on this stream: a number, or an object with `__cuda_stream__`
    (PyTorch's, CuPy's and cuda.core's streams)."""
    from . import direct

    number = stream_number(given)
    before, _here.stream = _here.stream, number
    direct.streams(1)
    try:
        yield
    finally:
        _here.stream = before
        direct.streams(-1)


def stream_number(given: Any) -> int:
    """A stream as the driver knows it, also of PyTorch (`cuda_stream`) and CuPy (`ptr`)."""
    for name in ("cuda_stream", "ptr"):
        if not isinstance(given, int) and isinstance(getattr(given, name, None), int):
            found = cuda_array.Stream(getattr(given, name))
            found.owner = given
            return found
    return cuda_array.stream_handle(given)


def before_use(operands: Sequence[Placed], stream: int) -> None:
    for p in operands:
        if p.stream != stream:
            cuda_launch.follow(stream, p.stream)


def after_use(operands: Sequence[Placed], stream: int) -> None:
    for p in operands:
        if (home := p.home) != stream:
            cuda_launch.follow(home, stream)


def started(name: str, stream: int) -> None:
    """Remember what may fail, for the next wait."""
    s = state()
    s.started.append(name)
    s.streams.add(stream)


def synchronize() -> None:
    """Wait for all work that functions of Arrays have started on the GPU, and raise what it found."""
    enter()
    s = state()
    for each in sorted(s.streams | {0, current()}):  # host code notes no streams: it uses the default one
        wait(each)
    s.streams.clear()


def wait(stream: int) -> None:
    s = state()
    status = cuda_launch.library().cuStreamSynchronize(stream)
    if status:
        names = ", ".join(dict.fromkeys(s.started)) or "work of another library"
        cuda_launch.check(status, "cuStreamSynchronize", f"the last functions that were started: {names}")
    s.started.clear()
    for check in list(s.failing.values()):
        check()


def before_session(session: Any, given: Sequence[Any]) -> None:
    """A compiled function of arrays of ours runs on the stream that was chosen, where one was."""
    wanted = chosen()
    if wanted is not None and session.stream != wanted and all(isinstance(x, (DeviceArray, np.ndarray)) for x in given):
        session.on(wanted)


def after_session(session: Any) -> None:
    """Later waits are for this session, too, and raise what its kernels have found."""
    known = ref(session)

    def check() -> None:
        found = known()
        if found is not None:
            found._raise_errors()

    s = state()
    s.started.append(session.name)
    s.streams.add(session.last_stream)
    if session.executable.error_launches:
        s.failing[id(session)] = check
        finalize(session, s.failing.pop, id(session), None)


# ---- memory

@cache
def plain_dtype(dtype: DType) -> np.dtype[Any]:
    """A dtype that NumPy's protocol names: of bf16 and fp8, the bits."""
    return dtype.np if dtype not in dlpack.SPECIAL else np.dtype(f"u{dtype.itemsize}")


def header_over(address: int, shape: Sequence[int], strides: Sequence[int] | None, dtype: DType, keep: Any, home: int, *,
                own: bool = False) -> Header:
    """A header of device memory; strides are of bytes."""
    plain = plain_dtype(dtype)
    made = np.asarray(Storage(address, shape, strides, plain, keep, home, own=own))
    return made if plain == dtype.np else made.view(dtype.np)


def empty(shape: Sequence[int], dtype: Any, stream: int | None = None) -> Placed:
    enter()
    d, stream = _known(dtype), current() if stream is None else stream
    return made(key_of(d.np, tuple(shape), tuple(int(n) * d.itemsize for n in row_major(tuple(shape)))), stream)


def made(key: Key, stream: int) -> Placed:
    """New memory that lies so."""
    p: Placed = object.__new__(Placed)
    p.keep = block = Block(key.nbytes, stream, keep=True)
    p._key, p._address, p.stream, p._home = key, block.address, stream, stream
    return p


def clear(p: Placed) -> None:
    """Zeros into new memory."""
    if p.nbytes:
        cuda_launch.check(cuda_launch.library().cuMemsetD8Async(p.address, 0, p.nbytes, p.stream), "cuMemsetD8Async", f"{p.nbytes} bytes")
        started("zeros", p.stream)


_known = cache(dt.dtype)


def uploaded(a: Header) -> Placed:
    """A copy of an array of the host."""
    enter()
    return of_device_array(cuda_array.upload(a, dt.dtype(a.dtype), current()))


def number(value: Any, dtype: np.dtype[Any]) -> Placed:
    """A number in device memory, kept for the next use: the same few come again and again."""
    known = state().numbers
    quick = (dtype, type(value), value) if type(value) in (int, float) and value else None  # -0.0 is another number than 0.0
    if quick in known:
        return known[quick]
    made = np.array(value, dtype)
    key = (dtype, made.tobytes()) if quick is None else quick
    found = known.get(key)
    if found is None:
        if len(known) >= NUMBERS:
            known.pop(next(iter(known)))
        found = known[key] = uploaded(made)
        status = cuda_launch.library().cuStreamSynchronize(found.stream)  # host code uses it on all streams
        cuda_launch.check(status, "cuStreamSynchronize", "a number's copy")
    return found


def of_device_array(d: DeviceArray) -> Placed:
    """The result of a session, without a copy."""
    if isinstance(d._owner, np.ndarray):  # an Array's own memory, which was donated
        return Placed(d._owner, d.stream)
    return Placed(header_over(d.address, d.shape, None, d.dtype, d._owner, d.stream, own=isinstance(d._owner, Block)), d.stream)


def as_device_array(p: Placed) -> DeviceArray:
    """What sessions take: contiguous and aligned memory, that of the Array where it is so."""
    from .elementwise import contiguous

    p = contiguous(p, aligned=True)
    home = p.home
    cuda_launch.follow(home, p.stream)  # the session waits for this one, and this one for the session
    return DeviceArray(p.shape, dt.dtype(p.dtype), p.header, home, p.address)


def downloaded(p: Placed) -> Header:
    """A copy on the host, once the work that makes it has ended; what that found wrong is raised."""
    from .elementwise import contiguous

    enter()
    p = contiguous(p)
    made = np.empty(p.shape, p.dtype)
    if made.size:
        status = cuda_launch.library().cuMemcpyDtoHAsync_v2(made.ctypes.data, p.address, made.nbytes, p.stream)
        cuda_launch.check(status, "cuMemcpyDtoHAsync", f"{shown(p)}; the last functions that were started: {', '.join(state().started)}")
    wait(p.stream)
    return made


def foreign(value: Any, what: str) -> Placed:
    """The memory of an array of another library on the GPU, through DLPack or the CUDA array interface."""
    enter()
    if isinstance(value, DeviceArray):
        return of_device_array(value)
    here = current()
    seen, keep = look(value, here) or (None, None)
    if seen is None or seen.dtype is None:
        known = " ".join(d.name for d in dt.ALL)
        raise ArgumentError(f"{what}: needs an array of one of {known}, got {type(value).__name__ if seen is None else seen.shown}")
    if seen.device != (CUDA, 0):
        raise ArgumentError(f"{what}: an Array lies on the CPU or the first GPU, got an array on device {seen.device} of DLPack")
    strides = None if seen.strides is None else tuple(s * seen.dtype.itemsize for s in seen.strides)
    return Placed(header_over(seen.address or 1, seen.shape, strides, seen.dtype, keep, here), here)


# ---- Arrays

def wrap(p: Placed) -> Array:
    x: Array = object.__new__(Array)
    x._node = p
    return x


def of(x: Any) -> Placed | None:
    """The place of an Array on a GPU, which is computed first where it is lazy; None for anything else."""
    if type(x) is not Array:
        return None
    node = getattr(x, "_node", None)
    if node is None or isinstance(node, Placed):
        return node
    from .lazy import DeviceExpression

    if not isinstance(node, DeviceExpression):
        return None
    found: Placed = node.result()
    x._node = found
    return found


def is_alone(x: Array) -> bool:
    """Whether nobody else holds the memory, so that it may be written."""
    p = of(x)
    assert p is not None
    if hasattr(p, "keep"):
        return _refs(p) == ALONE and _refs(p.keep) == ALONE - 1
    header = p.header
    storage: Any = header.base
    held = type(storage) is Storage and _refs(p) == ALONE and _refs(header) == ALONE and _refs(storage) == ALONE
    return held and storage.own and bool(header.flags.writeable)


def own(x: Array) -> Placed:
    """The place of an Array that may be written: where others hold the memory, a copy."""
    from .elementwise import contiguous

    if not is_alone(x):
        shared = of(x)
        assert shared is not None
        x._node = contiguous(shared, copy=True)
    found: Placed = x._node
    return found


def as_view(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """fn, which only makes views, of Arrays whose headers are those of the device; its results lie there."""
    from ..arrays import wrap as of_header

    places = [p for p in map(of, args) if p is not None]
    stream = places[0].stream
    before_use(places, stream)
    made = fn(*(x if p is None else of_header(p.header) for x, p in zip(args, map(of, args), strict=True)), **kwargs)

    def back(x: Any) -> Any:
        if type(x) in (list, tuple):
            return type(x)(map(back, x))
        return wrap(Placed(x._a, stream))

    return back(made)


def to(x: Array, device: Any, stream: Any, what: str) -> Array:
    """x on a device; itself where it lies there."""
    p = of(x)
    if device in (None, "cpu"):
        from ..arrays import ready
        from ..arrays import wrap as of_header

        if p is None:
            if stream is not None:
                raise ArgumentError(f"{what}: a CPU has no streams, got {stream!r}")
            ready(x)
            return x
        return of_header(downloaded(p))
    check_name(device, what)
    if stream is None and p is not None:
        return x
    if p is None:
        from ..arrays import ready

        if stream is None:
            return wrap(uploaded(ready(x)))
        with _on(stream):
            return wrap(uploaded(ready(x)))
    enter()
    number = stream_number(stream)
    before_use([p], number)
    return wrap(Placed(p.header, number))


_on = stream


def check_name(device: Any, what: str) -> None:
    if device not in NAMES:
        raise ArgumentError(f"{what}: the devices are 'cpu' and 'cuda' (the first GPU), got {device!r}")
    if problem := gpu.available():
        raise ExecutionError(f"{what}: there is no device 'cuda' here ({problem})")


# ---- protocols

def exported(x: Array, stream: Any, dl_device: Any, copy: bool | None) -> Any:
    """A DLPack capsule. The consumer's stream waits for ours, and the memory goes back after what the consumer has started."""
    from functools import partial

    from .elementwise import contiguous

    p = of(x)
    assert p is not None
    if dl_device is not None and tuple(map(int, dl_device)) != (CUDA, 0):
        raise BufferError(f"Array: lies on the GPU (2, 0), asked for {tuple(dl_device)}; use x.to('cpu')")
    enter()
    unfit = not p.header.flags.writeable or any(s < 0 for s in p.header.strides)  # a broadcast view, or one that PyTorch cannot have
    if copy is False and unfit:
        raise BufferError(f"Array: read-only memory and negative strides need a copy, got strides={p.header.strides}")
    if copy or unfit:
        p = contiguous(p, copy=True)
    mine, theirs = p.stream or LEGACY, LEGACY if stream is None else int(stream)
    back = None
    if stream != -1 and theirs != mine:
        cuda_launch.follow(theirs, mine)
    if stream != -1 and theirs != (p.home or LEGACY):
        back = partial(cuda_array._given_back, p.home or LEGACY, theirs)
    d = dt.dtype(p.dtype)
    steps = tuple(s // d.itemsize for s in p.header.strides)
    return dlpack.export(p.address if p.header.size else 0, p.shape, d, (CUDA, 0), p.header, back, steps)


def interface(x: Array) -> dict[str, Any]:
    """The CUDA array interface."""
    p = of(x)
    if p is None:
        raise AttributeError("Array: only an Array on a GPU has __cuda_array_interface__")
    d = dt.dtype(p.dtype)
    return {"shape": p.shape, "typestr": plain_dtype(d).str, "data": (p.address if p.header.size else 0, not p.header.flags.writeable),
            "strides": None if p.header.flags.c_contiguous else p.header.strides, "version": 3, "stream": p.stream or LEGACY}
