"""Recurrences with a kernel of their own: the selective scan and the gated delta rule."""
from __future__ import annotations

from typing import Any

from ...ops import GatedDeltaRule, SelectiveScan
from ..promote import as_tracer, meet
from ..trace import Functions, apply
from .creation import zeros

public = FUNCTIONS = Functions()


@public
def selective_scan(x: Any, delta: Any, a: Any, b: Any, c: Any, d: Any = None, z: Any = None, state: Any = None) -> Any:
    """Mamba's recurrence h = exp(delta a) h + delta x b, y = (c · h + d x) silu(z) over time: (y, last state).

    Shapes: x, delta, z [B,L,D] · a [D,N] · b, c [B,L,N] · d [D] · state [B,D,N]. Without d and state they are zero, without z there is no
    gate. States are computed again for the derivative, not kept.
    """
    x, delta, a, b, c, *rest = meet(x, delta, a, b, c, *(v for v in (d, z, state) if v is not None))
    given = iter(rest)
    batch, _, channels = x.shape if x.ndim == 3 else (0, 0, 0)
    size = a.shape[1] if a.ndim == 2 else 0
    dtype = x.value.dtype.name
    skip = next(given) if d is not None else zeros((channels,), dtype)
    gate = [next(given)] if z is not None else []
    first = next(given) if state is not None else zeros((batch, channels, size), dtype)
    return apply(SelectiveScan(gated=z is not None), x, delta, a, b, c, skip, *gate, first)


@public
def gated_delta_rule(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any = None, *, scale: float | None = None,
                     delta: bool = True) -> Any:
    """The gated delta rule S = exp(g) S, S += k (beta (v - k · S))^T, o = scale q · S over time: (o, last state).

    Shapes: q, k [B,G,L,K] · v [B,H,L,V] · g, beta [B,H,L] · state [B,H,K,V] (zeros without one). The scale is K**-0.5 unless given.
    H/G heads share the queries and keys of a group. With `delta=False` there is no correction, S += k (beta v)^T: Mamba-2's recurrence.
    """
    q, k, v, g, beta, *rest = meet(q, k, v, g, beta, *(() if state is None else (state,)))
    if not rest and q.ndim == 4 and v.ndim == 4:
        rest = [zeros((*v.shape[:2], q.shape[-1], v.shape[-1]), q.value.dtype.name)]
    factor = q.shape[-1] ** -0.5 if scale is None and q.ndim else 1.0 if scale is None else scale
    return apply(GatedDeltaRule(scale=factor, delta=delta), q, k, v, g, beta, *(as_tracer(s) for s in rest))
