"""Short-time Fourier transforms: windows of a signal gathered through a table of places, and overlapping windows added back."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import product
from ...core.errors import ShapeError
from ...ir.graph import Value
from ...ops import functions as F
from ...ops.fourier import functions as T
from ..promote import as_float, as_tracer
from ..trace import built, user_place
from .complex import as_complex

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def _window(name: str, window: Any, n_fft: int, dtype: Any) -> Any:
    found = as_tracer(np.ones(n_fft) if window is None else window, dtype)
    if found.ndim != 1 or not isinstance(found.shape[0], int) or found.shape[0] > n_fft:
        raise ShapeError(f"{name}: needs a window of at most {n_fft} elements, got {found.type} ({user_place()})")
    return found


def _filled(w: Value, n_fft: int) -> Value:
    """A shorter window stands in the middle."""
    n = w.shape[0]
    assert isinstance(n, int)
    before = (n_fft - n) // 2
    return w if n == n_fft else F.pad(w, (before,), (n_fft - n - before,))


def stft(x: Any, n_fft: int, *, hop: int | None = None, window: Any = None, center: bool = True, normalized: bool = False) -> Any:
    """Transforms of windows of a real signal [..., T], every `hop` (n_fft // 4) elements: complex [..., n_fft // 2 + 1, frames]. With
    `center` window k lies around element k * hop, and the signal goes on mirrored at its ends; `normalized` divides by sqrt(n_fft)."""
    x = as_float(x)
    step = n_fft // 4 if hop is None else hop
    size = x.shape[-1] if x.ndim else 0
    edge = n_fft // 2 if center else 0
    if not isinstance(size, int) or n_fft < 1 or step < 1 or size + 2 * edge < n_fft or size <= edge:
        rule = f"needs a signal longer than a window and a positive hop, got {x.type}, n_fft={n_fft}, hop={step}"
        raise ShapeError(f"stft: {rule} ({user_place()})")
    frames = 1 + (size + 2 * edge - n_fft) // step
    places = np.arange(frames)[:, None] * step + np.arange(n_fft) - edge
    places = np.where(places < 0, -places, places)
    places = np.where(places >= size, 2 * (size - 1) - places, places)

    def build(v: Value, w: Value) -> Value:
        cut = F.mul(F.gather(v, v.node.graph.constant(places), len(v.shape) - 1), _filled(w, n_fft))
        z = T.half_forward(cut, len(cut.shape) - 1, n_fft**-0.5 if normalized else 1.0)
        rank = len(z.shape)
        return F.transpose(z, (*range(rank - 2), rank - 1, rank - 2))

    return built(build, x, _window("stft", window, n_fft, x.value.dtype))


def istft(z: Any, n_fft: int, *, hop: int | None = None, window: Any = None, center: bool = True, normalized: bool = False,
          length: int | None = None) -> Any:
    """The signal [..., T] of which this is the `stft`, by least squares: windows are added where they overlap and divided by the sum of
    the squares of the window. `length` cuts it or fills it with zeros."""
    z = as_complex(z)
    step = n_fft // 4 if hop is None else hop
    if z.ndim < 2 or z.shape[-2] != n_fft // 2 + 1 or not isinstance(z.shape[-1], int) or step < 1:
        raise ShapeError(f"istft: needs a spectrum [..., {n_fft // 2 + 1}, frames], got {z.type} ({user_place()})")
    frames = z.shape[-1]
    total = n_fft + step * (frames - 1)
    ids = (np.arange(frames)[:, None] * step + np.arange(n_fft)).reshape(-1)
    start = n_fft // 2 if center else 0
    end = total - start if length is None else min(start + length, total)

    def build(v: Value, w: Value) -> Value:
        rank, lead = len(v.shape), v.shape[:-2]
        count = product(lead)
        transposed = F.transpose(v, (*range(rank - 2), rank - 1, rank - 2))
        cut = T.half_backward(transposed, n_fft, rank - 1, (n_fft**0.5 if normalized else 1.0) / n_fft)
        full = _filled(w, n_fft)
        rows = F.transpose(F.reshape(F.mul(cut, full), (count, frames * n_fft)), (1, 0))
        graph = v.node.graph
        numbers = graph.constant(ids)
        out = F.scatter_add(F.full(graph, (total, count), 0, full.dtype), numbers, rows)
        weight = F.reshape(F.expand(F.square(full), (frames, n_fft)), (frames * n_fft,))
        sums = F.scatter_add(F.full(graph, (total,), 0, full.dtype), numbers, weight)
        out = F.div(out, F.reshape(F.where(F.less(sums, 1e-11), 1, sums), (total, 1)))
        signal = F.transpose(F.slice_(out, 0, start, end - start), (1, 0))
        if length is not None and length > end - start:
            signal = F.pad(signal, (0, 0), (0, length - (end - start)))
        return F.reshape(signal, (*lead, signal.shape[1]))

    real = dt.f64 if z.value.dtype.name == "c128" else dt.f32
    return built(build, z, _window("istft", window, n_fft, real))


FUNCTIONS |= {"stft": stft, "istft": istft}
