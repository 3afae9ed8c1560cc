"""Arrays as text, and what they do for NumPy's protocols and DLPack."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core import dtypes as dt
from .arrays import Array, device_calls, host, own, plain, ready, wrap, wrapped

_WRITES = {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"}  # NumPy's functions that write their first argument


def text(x: Array) -> str:
    """`repr(x)`."""
    a, where = (ready(x), "") if x.device == "cpu" else (device_calls().summary(x), f", device={x.device!r}")
    limit = 0 if a.size < x.size else None  # a large Array on a GPU: only what is shown was copied
    body = np.array2string(a, separator=", ", prefix="Array(", suffix=")", threshold=limit)
    plain = a.size and (a.dtype in (np.float32, np.int64, np.bool_, np.complex64))
    tail = "" if plain else f", dtype={a.dtype.name}"
    if (not a.size and a.ndim > 1) or x.size > np.get_printoptions()["threshold"]:
        tail = f", shape={x.shape}{tail}"
    return f"Array({body}{tail}{where})"


def refuse_buffer(x: Array) -> None:
    """Consumers that write, and those that take any memory for bytes: `torch.asarray(x)` would see them as floats, in one axis."""
    raise BufferError("Array: its buffer is read-only and has a dtype and a shape; write with x[...] = value, take x.numpy(), x.torch() or "
                      "torch.from_dlpack(x) for a library, and x.tobytes() for the bytes")


def html(x: Array) -> str:
    """A table of the first two axes, with the dtype and shape above it."""
    from html import escape

    a = host(x)
    head = f"<code>Array {a.dtype.name}{list(a.shape)}</code>"
    if a.ndim not in (1, 2) or not a.size:
        return f"<div>{head}<pre>{escape(str(a))}</pre></div>"
    rows, cols = _shown_of(np.atleast_2d(a).shape[0]), _shown_of(np.atleast_2d(a).shape[1])
    body = []
    for r in rows:
        cells = ["…" if r is None or c is None else np.array2string(np.atleast_2d(a)[r, c]) for c in cols]
        body.append("<tr>" + "".join(f"<td style='text-align:right'>{escape(c)}</td>" for c in cells) + "</tr>")
    return f"<div>{head}<table>{''.join(body)}</table></div>"


def ufunc(ufunc: Any, method: str, inputs: Any, kwargs: dict[str, Any]) -> Any:
    """`np.exp(x)` and `ndarray + x` are Tilewright's functions of that name; other ufuncs run in NumPy and give an Array."""
    from . import functions

    out = kwargs.pop("out", None)
    if out is not None and "where" in kwargs:  # elements of `out` stay where the mask is False
        given = [x.__array__() if isinstance(x, Array) else x for x in inputs]
        targets = tuple(own(x) if type(x) is Array else x for x in out)
        getattr(ufunc, method)(*given, out=targets, **plain(kwargs))
        return out[0] if len(out) == 1 else out
    found = getattr(functions, ufunc.__name__, None) if method == "__call__" and not kwargs else None
    if found is not None:
        made = found(*(wrap(x) if type(x) is np.ndarray else x for x in inputs))
    else:
        given = [x.__array__() if isinstance(x, Array) else x for x in inputs]
        if method == "at" and type(inputs[0]) is Array:
            del given[0]
            given.insert(0, own(inputs[0]))
        got = getattr(ufunc, method)(*given, **plain(kwargs))
        made = tuple(map(wrapped, got)) if isinstance(got, tuple) else wrapped(got)
    if out is None:
        return made
    return functions.written(out[0], made)


def function(function: Any, args: Any, kwargs: Any) -> Any:
    """NumPy's functions of Arrays are Tilewright's of that name; others run in NumPy and give Arrays."""
    from . import arguments, functions

    if function.__name__ in _WRITES and args and type(args[0]) is Array:
        return function(own(args[0]), *plain(args[1:]), **plain(kwargs))
    found = getattr(functions, function.__name__, None) if function.__name__ not in arguments.OTHERS else None
    module = getattr(function, "__module__", "")
    if module in ("numpy.linalg", "numpy.fft"):
        from . import fft, linalg

        found = getattr(linalg if module == "numpy.linalg" else fft, function.__name__, None)
    given = None if found is None else arguments.translated(function, found, args, kwargs, ("out",))
    if found is not None and given is not None:
        return found(*given[0], **given[1])
    return arguments.by_numpy(function.__name__, function, args, kwargs)


def dlpack(x: Array, stream: Any, max_version: tuple[int, int] | None, dl_device: Any, copy: bool | None) -> Any:
    """A capsule of the memory."""
    if x.device != "cpu":
        from .cuda import placed

        return placed.exported(x, stream, dl_device, copy)
    if stream is not None:
        raise BufferError(f"Array: a CPU has no streams, got stream={stream!r}")
    if dl_device is not None and tuple(map(int, dl_device)) != (1, 0):
        raise BufferError(f"Array: lies on the CPU (1, 0), asked for {tuple(dl_device)}")
    a = ready(x)
    if any(s < 0 for s in a.strides):  # PyTorch ends the process when it is given such
        if copy is False:
            raise BufferError(f"Array: negative strides cannot be exported without a copy, got strides={a.strides}")
        a, copy = a.copy(), None
    if a.dtype.kind == "V" or a.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        from ..runtime.dlpack import export

        tight = np.ascontiguousarray(a).reshape(a.shape)
        if copy is False and tight is not a and not a.flags.c_contiguous:
            raise BufferError(f"Array: {a.dtype.name} must be contiguous to be exported without a copy")
        return export(tight.ctypes.data, a.shape, dt.dtype(a.dtype), (1, 0), tight.copy() if copy else tight)
    if not a.flags.writeable:  # a broadcast view, or memory of others
        if copy is False and max_version is None:
            raise BufferError("Array: read-only memory cannot be exported without a copy to a consumer of DLPack before 1.0")
        a = a if max_version is not None and max_version >= (1, 0) and not copy else a.copy()
    return a.__dlpack__(max_version=max_version, copy=copy)


def _shown_of(n: int) -> list[int | None]:
    return [*range(n)] if n <= 12 else [*range(6), None, *range(n - 5, n)]
