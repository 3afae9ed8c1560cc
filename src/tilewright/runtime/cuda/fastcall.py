"""The fast path into a session on a GPU: one generated function that checks, allocates, writes the addresses and launches.

It takes contiguous arrays of exactly the compiled types that lie on the GPU already. Everything else is handed back (`MISSED`) to the
complete way, which copies, explains and binds. A call costs what its checks and the memory of its results cost. Names never reach the
text: it holds numbers and our own identifiers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ...core.dims import Dim
from ...core.signature import Slot
from ...core.torch_context import modes
from ...ir.types import TensorType
from ...plan.values import dim_source
from ..arguments import from_dtype
from ..fastcall import GENERATED, result_source, symbol_positions
from . import driver as gpu
from .array import Block, DeviceArray

if TYPE_CHECKING:
    from .session import CudaSession

MISSED = object()
NOTHING: Mapping[str, int] = {}
FEW = 8  # words that are looked at one by one
MISS = "return MISSED"


def _sizes(shape: Sequence[Dim]) -> tuple[int, ...]:
    return tuple(d for d in shape if isinstance(d, int))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))


class TorchPlace:
    """PyTorch's tensors: its allocator, its current stream."""

    stream = "stream_of(index)"
    address = "{}.data_ptr()"

    def __init__(self, device: Any, index: int, stream_of: Any, current: Any) -> None:
        import torch
        from torch._C._dynamo.guards import _empty_strided_cuda  # type: ignore[attr-defined]

        self.device, self.empty = device, torch.empty
        self.alloc: Any = _empty_strided_cuda  # the fastest way to a new tensor; it takes the current GPU
        self.scope: dict[str, Any] = {
            "Tensor": torch.Tensor, "Parameter": torch.nn.Parameter, "device": device, "index": index, "stream_of": stream_of,
            "empty": torch.empty, "current": current, **modes(),
        }  # fmt: skip

    def exchange(self) -> tuple[int, int] | None:
        """What machine code asks about tensors and streams."""
        from ..torch_calls import exchange

        return exchange()

    def dtype(self, type_: TensorType) -> Any:
        return from_dtype()[type_.dtype]

    def like(self, type_: TensorType) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        """The arguments of `alloc`."""
        return (sizes := _sizes(type_.shape)), _strides(sizes), self.dtype(type_)

    def new(self, shape: Sequence[int], dtype: Any) -> Any:
        return self.empty(shape, dtype=dtype, device=self.device)

    def refuse(self, x: str, type_: TensorType) -> str:
        lazy = f"{x}.is_neg()" + (f" or {x}.is_conj()" if type_.dtype.kind == "c" else "")  # signs that are not in the memory
        lazy += f" or {x}.requires_grad and recorded()"
        kind = f"(type({x}) is not Tensor and type({x}) is not Parameter)"
        return f"{kind} or {x}.dtype is not D{x} or {x}.get_device() != index or not {x}.is_contiguous() or {lazy}"

    def make(self, y: str, type_: TensorType, shape: str) -> list[str]:
        if not type_.is_static:
            return [f"if dispatching() or overriding(): {MISS}", f"{y} = empty({shape}, dtype=D{y}, device=device)"]
        self.scope |= {"alloc": self.alloc, f"S{y}": self.like(type_)[1]}
        return [f"{y} = alloc(H{y}, S{y}, D{y})", f"if {y}.get_device() != index: {MISS}"]


class OwnPlace:
    """Our own arrays: the pool, the session's stream."""

    stream = "session.stream"
    address = "{}.address"

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"DeviceArray": DeviceArray, "Block": Block}

    def dtype(self, type_: TensorType) -> Any:
        return type_.dtype

    def refuse(self, x: str, type_: TensorType) -> str:
        return f"type({x}) is not DeviceArray or {x}.dtype is not D{x} or {x}.stream != session.stream"

    def make(self, y: str, type_: TensorType, shape: str) -> list[str]:
        if type_.is_static:
            nbytes = prod(_sizes(type_.shape)) * type_.dtype.itemsize
            return [f"{y} = DeviceArray(H{y}, D{y}, Block({nbytes}, session.stream), session.stream)"]
        return [f"{y} = DeviceArray.empty({shape}, D{y}, session.stream)"]


def torch_place(device: Any) -> TorchPlace | None:
    import torch

    if device.index is None:
        return None
    return TorchPlace(device, device.index, torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice)


def never(args: tuple[Any, ...], env: Mapping[str, int] = NOTHING, keep: bool = True) -> Any:
    """The fast path where there is none."""
    return MISSED


def fast_call(session: CudaSession, place: TorchPlace | OwnPlace | None) -> Callable[..., Any]:
    """`call(args, env, keep)`, or `never` where arguments are nested or symbols hidden. `keep`: donated inputs are to
    stay as they are, which means a copy, which is not done here."""
    interface, signature = session.interface, session.model.signature
    called = [s for s in interface.symbols if s.name in interface.called]
    where = symbol_positions(interface, {s.name for s in called})
    plain = signature.simple and not signature.updates and session.model.validation != "strict" and where is not None
    plain = plain and (not called or session.executable.rebinds) and all(isinstance(x, Slot) for x in signature.outputs)
    if place is None or where is None or not plain:
        return never
    text, scope = _generate(session, place, where)
    exec(compile(text, GENERATED, "exec"), scope)
    found: Callable[..., Any] = scope["call"]
    if isinstance(place, OwnPlace):
        return found
    from .native import native_call

    return native_call(session, place, found) or found


def _generate(session: CudaSession, place: TorchPlace | OwnPlace, where: dict[str, tuple[int, int]]) -> tuple[str, dict[str, Any]]:
    interface = session.interface
    called = [s for s in interface.symbols if s.name in interface.called]
    takes = {k: i for i, k in interface.donated}
    names = {s.name: f"s{k}" for k, s in enumerate(interface.symbols)}
    n = len(interface.inputs)
    here = threading.local()  # a thread that has the context has `here.known`
    here.known = True

    def join() -> None:
        gpu.enter()
        here.known = True

    scope: dict[str, Any] = {
        **place.scope, "MISSED": MISSED, "NOTHING": NOTHING, "session": session, "lock": session._lock, "here": here, "join": join,
        "follow": session._follow, "raise_errors": session._raise_errors, "schedules": session._schedules,
    }  # fmt: skip
    for i, t in enumerate(interface.inputs):
        scope[f"Dx{i}"], scope[f"Hx{i}"] = place.dtype(t), t.shape
    for k, t in enumerate(interface.outputs):
        scope[f"Dy{k}"], scope[f"Hy{k}"] = place.dtype(t), t.shape
    body = [f"if len(args) != {n}{' or keep' if takes else ''} or len(env) != {len(called)}: {MISS}"]
    if n:
        body.append(f"{''.join(f'x{i}, ' for i in range(n))}= args")
    scope |= {f"N{short}": name for name, short in names.items()}
    for s in called:
        body.append(f"{names[s.name]} = env.get(N{names[s.name]}, {s.lo - 1})")
        body.append(f"if not {s.lo} <= {names[s.name]} <= {s.hi}: {MISS}")
    body += [f"if {place.refuse(f'x{i}', t)}: {MISS}" for i, t in enumerate(interface.inputs)]
    body += _shapes(session, where, names)
    rooms = [room for room, _, _ in interface.needs] + [room for room, _ in interface.windows]
    body += [f"if {dim_source(room, names)} < 0: {MISS}" for room in rooms]
    body += [f"a{i} = {place.address.format(f'x{i}')}" for i in range(n)]
    if n:
        body.append(f"if ({' | '.join(f'a{i}' for i in range(n))}) & 15: {MISS}")
    if named := [f"a{i}" for i, t in enumerate(interface.inputs) if t.nbytes != 0]:  # a tensor of functionalize has none
        body.append(f"if not ({' and '.join(named)}): {MISS}")
    body += ["try: here.known", "except AttributeError: join()"]
    if isinstance(place, TorchPlace) and not any(t.is_static for k, t in enumerate(interface.outputs) if k not in takes):
        body.append(f"if current() != index: {MISS}")  # the thread has turned to another GPU, which new tensors of fixed shapes show
    body += _errors(session, scope)
    for k, t in enumerate(interface.outputs):
        shape = "(" + "".join(dim_source(d, names) + ", " for d in t.shape) + ")"
        body += [f"y{k} = x{takes[k]}"] if k in takes else place.make(f"y{k}", t, shape)
        body.append(f"b{k} = a{takes[k]}" if k in takes else f"b{k} = {place.address.format(f'y{k}')}")
    scope |= place.scope  # with what the results added
    body += [f"stream = {place.stream}", "with lock:"]
    body += [f"    {line}" for line in _launch(session, scope, names, called)]
    body.append(f"return {result_source(session.model.signature, interface.symbols, scope)}")
    return "def call(args, env=NOTHING, keep=True):\n" + "".join(f"    {line}\n" for line in body), scope


def _shapes(session: CudaSession, where: dict[str, tuple[int, int]], names: dict[str, str]) -> list[str]:
    """Lines that refuse every shape but the compiled ones, and set one variable per symbol that a shape shows."""
    lines, later = [], []
    for i, t in enumerate(session.interface.inputs):
        if t.is_static:
            lines.append(f"if x{i}.shape != Hx{i}: {MISS}")
            continue
        lines += [f"h{i} = x{i}.shape", f"if len(h{i}) != {t.ndim}: {MISS}"]
        for axis, d in enumerate(t.shape):
            symbol = next((s for s in session.interface.symbols if where.get(s.name) == (i, axis)), None)
            if symbol is not None:
                lines.append(f"{names[symbol.name]} = h{i}[{axis}]")
                lines.append(f"if not {symbol.lo} <= {names[symbol.name]} <= {symbol.hi}: {MISS}")
            else:
                later.append(f"if h{i}[{axis}] != {dim_source(d, names)}: {MISS}")
    return lines + later


def _errors(session: CudaSession, scope: dict[str, Any]) -> list[str]:
    """A line that raises what kernels of earlier calls found."""
    found = session.executable.errors
    count = len(session.executable.error_launches)
    if found is None or not count:
        return []
    if count > FEW:
        return ["raise_errors()"]
    scope["E"] = found.words
    each = found.count // count
    return [f"if {' or '.join(f'E[{each * i}]' for i in range(count))}: raise_errors()"]


def _launch(session: CudaSession, scope: dict[str, Any], names: dict[str, str], called: Sequence[Any]) -> list[str]:
    """Under the session's lock: the schedule gets the addresses and starts."""
    interface = session.interface
    lines = ["if stream or session._stream != stream:", "    follow(stream)"]  # another one than the default may be captured
    addresses = [f"a{i}" for i in range(len(interface.inputs))] + [f"b{k}" for k in range(len(interface.outputs))]
    scope["apart"] = session.apart
    free = [s for s in interface.symbols if s not in called]
    tables = any(getattr(x.kernel, "table", False) for x in session.executable.program.launches)  # addresses that kernels read from memory
    if free:
        key = "".join(f"{names[s.name]}, " for s in free)
        lines += [f"schedule = schedules.get(({key}))", f"if schedule is None: {MISS}"]  # the complete way makes it
    else:
        scope["schedule"] = session.schedule({s.name: s.lo for s in called})
    lines.append(f"addresses = [{', '.join(addresses)}]")
    if session.apart is not None:
        lines.append("if addresses != schedule.addresses: apart(addresses)")
    lines.append("schedule.bind(addresses)")
    if called:
        sizes = ", ".join(f"N{short}: {short}" for short in names.values())
        lines += [f"session._env = {{{sizes}}}", "schedule.follow(session._env, addresses, stream)"]
    elif free:
        lines.append("session._env = schedule.env")
    if tables and not called:
        lines.append("schedule.follow(schedule.env, addresses, stream)")
    return [*lines, "schedule.run(stream)"]
