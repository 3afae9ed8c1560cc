"""The short way into a session on a GPU: contiguous torch tensors of exactly the compiled types, results of known shapes.

Everything else is handed back (`MISSED`) to the complete way, which copies, explains and binds the symbols of shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ..core.dims import Dim, evaluate
from ..core.signature import Slot
from . import cuda_driver as gpu
from .arguments import from_dtype

if TYPE_CHECKING:
    from .cuda_session import CudaSession

MISSED = object()
NOTHING: Mapping[str, int] = {}


def _sizes(shape: Sequence[Dim]) -> tuple[int, ...]:
    return tuple(d for d in shape if isinstance(d, int))


def fast_call(session: CudaSession, device: Any) -> Callable[..., Any]:
    """`call(args, env, keep)`, or a function that always misses where arguments are nested or shapes vary. `keep`: donated inputs are to
    stay as they are, which means a copy, which is not done here."""
    import torch

    interface, signature = session.interface, session.model.signature
    called = {s.name: (s.lo, s.hi) for s in interface.symbols if s.name in interface.called}
    static = all(t.is_static for t in (*interface.inputs, *interface.outputs)) and len(called) == len(interface.symbols)
    plain = signature.simple and static and not signature.updates and session.model.validation != "strict"
    plain = plain and (not called or session.executable.rebinds) and all(isinstance(x, Slot) for x in signature.outputs)
    if not plain or device.type != "cuda" or device.index is None:
        return lambda args, env=NOTHING, keep=True: MISSED
    index, kinds = device.index, (torch.Tensor, torch.nn.Parameter)
    wanted = [(from_dtype()[t.dtype], torch.Size(_sizes(t.shape))) for t in interface.inputs]
    takes = {k: i for i, k in interface.donated}
    made = [(takes.get(k), _sizes(t.shape), from_dtype()[t.dtype]) for k, t in enumerate(interface.outputs)]
    schedule = session.schedule({name: low for name, (low, _) in called.items()})
    count, empty, lock, run, late = len(wanted), torch.empty, session._lock, schedule.run, schedule.late if called else None
    stream_of: Any = torch._C._cuda_getCurrentRawStream
    checked = bool(session.executable.error_launches)
    first = signature.outputs[0] if signature.out_spec.type == "leaf" else None
    only = first.index if isinstance(first, Slot) else None
    rooms = [need[0] for need in interface.needs] + [window[0] for window in interface.windows]
    threads = {get_ident()}  # that have the context

    def call(args: tuple[Any, ...], env: Mapping[str, int] = NOTHING, keep: bool = True) -> Any:
        if len(args) != count or (keep and takes) or len(env) != len(called):
            return MISSED
        for name, value in env.items():
            low, high = called.get(name, (1, 0))
            if not low <= value <= high:
                return MISSED
        if env and any(evaluate(room, env) < 0 for room in rooms):
            return MISSED
        if get_ident() not in threads:
            gpu.enter()
            threads.add(get_ident())
        addresses = []
        for x, (dtype, shape) in zip(args, wanted, strict=True):
            if type(x) not in kinds or x.dtype is not dtype or x.shape != shape or x.get_device() != index or not x.is_contiguous():
                return MISSED
            at = x.data_ptr()
            if at & 15:
                return MISSED
            addresses.append(at)
        if checked:
            session._raise_errors()
        outs = [args[i] if i is not None else empty(shape, dtype=dtype, device=device) for i, shape, dtype in made]
        for y in outs:
            addresses.append(y.data_ptr())
        stream = stream_of(index)
        with lock:
            if session._stream != stream:
                if session._stream is not None:
                    session._follow(stream)
                session._stream = stream
            if addresses != schedule.addresses:
                schedule.bind(addresses)
            if late is not None:
                late.write(env, addresses, stream)
            run(stream)
        return outs[only] if only is not None else signature.unflatten(outs)

    return call
