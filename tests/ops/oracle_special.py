"""PyTorch's meaning of special functions, inverse and hyperbolic functions, and writes at indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import torch

Oracle = Callable[..., Any]


def plain(fn: Any) -> Oracle:
    return lambda a, *x: fn(*x)


def in_f32(fn: Any) -> Oracle:
    """Some functions have no form for small floats."""
    return lambda a, *x: fn(*(v.float() if v.dtype in (torch.bfloat16, torch.float16) else v for v in x)).to(x[0].dtype)


def in_f64(fn: Any) -> Oracle:
    """PyTorch's f32 kernels of these overflow too early."""
    return lambda a, *x: fn(*(v.double() for v in x)).to(x[0].dtype)


def zeta(a: dict[str, Any], s: Any, q: Any) -> Any:
    """For q > 0, with the limits far out, where PyTorch's loops give NaN."""
    nan, inf = (torch.full((), v, dtype=s.dtype) for v in (float("nan"), float("inf")))
    out = torch.special.zeta(s, q)
    out = torch.where((s > 1e10) & (q > 0), torch.where(q == 1, 1.0, torch.where(q < 1, inf, 0.0)), out)
    out = torch.where((q == inf) & (s > 1), torch.zeros((), dtype=s.dtype), out)
    return torch.where((s > 1) & (q < 0) & (q != torch.floor(q)), nan, out)


def polygamma(a: dict[str, Any], x: Any) -> Any:
    """Through zeta: PyTorch's trigamma has 9 digits."""
    n = a.get("n", 1)
    wide = x.double()
    scale = float((-1) ** (n + 1) * math.factorial(n))
    found = torch.where(wide == float("inf"), torch.zeros_like(wide), torch.special.zeta(torch.full_like(wide, n + 1), wide))
    return (found * scale).to(x.dtype)


def no_slope(fn: Oracle) -> Oracle:
    """PyTorch gives these no derivative: as an error, which the tests of derivatives skip."""

    def call(a: dict[str, Any], *x: Any) -> Any:
        if any(v.requires_grad for v in x):
            raise RuntimeError("has no derivative")
        return fn(a, *x)

    return call


def exact(name: str, fn: Callable[[float], Any]) -> Oracle:
    """mpmath's value: PyTorch's have 9 digits near 8. Where PyTorch's is infinite or NaN, or the argument is huge, PyTorch's."""

    def call(a: dict[str, Any], x: Any) -> Any:
        wide = x.detach().double()
        rough = getattr(torch.special, name)(wide)
        pairs = zip(wide.reshape(-1).tolist(), rough.reshape(-1).tolist(), strict=True)
        best = [float(fn(v)) if math.isfinite(r) and abs(v) < 1e6 else r for v, r in pairs]
        return torch.tensor(best, dtype=torch.float64).reshape(x.shape).to(x.dtype)

    return no_slope(call)


def gamma_parts(a: float, x: float) -> tuple[float, float]:
    """P and Q of ordinary numbers with all digits: the power series below a, mpmath's own above."""
    with mpmath.workdps(40):
        if x >= a:
            above = mpmath.gammainc(a, x, mpmath.inf, regularized=True)
            return float(1 - above), float(above)
        total = term = mpmath.mpf(1)
        n = 0
        while term > total * 1e-25:
            n += 1
            term *= mpmath.mpf(x) / (a + mpmath.mpf(n))
            total += term
        below = total * mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(a + mpmath.mpf(1)))
        return float(below), float(1 - below)


def incomplete_gamma(theirs: Any, part: int) -> Oracle:
    """mpmath's value for numbers of ordinary size: PyTorch's have 9 digits near 100, and less far out. PyTorch's for all others, but for
    NaN, which it takes for a number beside 0 and infinity."""

    def call(_: dict[str, Any], a: Any, x: Any) -> Any:
        shape, limit = (a + x).shape, 1e3
        wide = [v.detach().double().expand(shape).reshape(-1).tolist() for v in (a, x)]
        best = [gamma_parts(s, v)[part] if 0 < s < limit and 0 < v < limit else
                math.nan if math.isnan(s + v) else float(theirs(*torch.tensor([s, v], dtype=torch.float64)))
                for s, v in zip(*wide, strict=True)]
        return torch.tensor(best, dtype=torch.float64).reshape(shape).to(a.dtype)

    return no_slope(call)


def airy_ai(a: dict[str, Any], x: Any) -> Any:
    """mpmath's: PyTorch's has 7 digits below -2."""
    found = [math.nan if not math.isfinite(v) else mpmath.airyai(v) if v >= -1e10 else 0.0 for v in x.double().reshape(-1).tolist()]
    return torch.tensor([float(v) for v in found], dtype=torch.float64).reshape(x.shape).to(x.dtype)


def scatter_along(a: dict[str, Any], x: Any, ids: Any, updates: Any) -> Any:
    if a.get("mode", "add") == "add":
        return torch.scatter_add(x, a["axis"], ids.long(), updates)
    out = x.clone()
    for at in np.ndindex(*ids.shape):
        out[(*at[: a["axis"]], ids[at], *at[a["axis"] + 1 :])] = updates[at]
    return out


def scatter(a: dict[str, Any], x: Any, ids: Any, updates: Any) -> Any:
    """One update after the other, so that autograd knows who was overwritten."""
    axis, mode = a.get("axis", 0), a.get("mode", "set")
    combine: Any = {"set": lambda old, new: new, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum}[mode]
    rows = list(x.unbind(axis))
    flat = updates.reshape((*x.shape[:axis], ids.numel(), *x.shape[axis + 1 :]))
    for n, i in enumerate(ids.reshape(-1).tolist()):
        rows[i] = combine(rows[i], flat.select(axis, n))
    return torch.stack(rows, axis)


def index_order(a: dict[str, Any], ids: Any) -> Any:
    named = ids.long()
    if a.get("steps"):  # places in a tensor whose elements are its own places
        x = torch.arange(1 << 10).as_strided((*ids.shape[: a["axis"]], a["rows"], *ids.shape[a["axis"] + 1 :]), a["steps"])
        named = torch.gather(x, a["axis"], named)
    rows, places = torch.sort(named.reshape(-1), stable=True)
    return rows << 32 | places


def scatter_ordered(a: dict[str, Any], x: Any, words: Any, updates: Any, ids: Any = None, factor: Any = 1) -> Any:
    updates = (updates if ids is None else updates[ids.long()]) * factor
    rows, updates = words >> 32, updates[words & 0xFFFFFFFF]
    return torch.index_add(x, 0, rows, updates) if a.get("mode", "add") == "add" else scatter({"mode": a["mode"]}, x, rows, updates)


def polynomial(a: dict[str, Any], x: Any, n: Any) -> Any:
    """In f64: the op's recurrence is."""
    kind, _, letter = a["kind"].partition("_")
    letter = letter or {"laguerre": "l", "legendre": "p"}[kind]
    shifted = "shifted_" if a.get("shifted") else ""
    return getattr(torch.special, f"{shifted}{kind}_polynomial_{letter}")(x.double(), n).to(x.dtype)


SMALL = {"erfc": torch.erfc, "erfinv": torch.erfinv, "lgamma": torch.lgamma, "digamma": torch.digamma, "hypot": torch.hypot,
         "nextafter": torch.nextafter}
BESSEL = """modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0
scaled_modified_bessel_k1 spherical_bessel_j0"""
WIDE = {"sinh": torch.sinh, "cosh": torch.cosh, "i0": torch.i0, "i1": torch.special.i1}
PREFIXED = "erfcx ndtri log_ndtr i0e i1e"
SPECIAL: dict[str, Oracle] = {
    "signbit": plain(torch.signbit),
    **{name: in_f32(fn) for name, fn in SMALL.items()},
    **{name: in_f64(fn) for name, fn in WIDE.items()},
    **{name: in_f32(getattr(torch.special, name)) for name in PREFIXED.split()},
    **{name: no_slope(in_f64(getattr(torch.special, name))) for name in BESSEL.split()},
    "airy_ai": airy_ai,
    "bessel_j0": exact("bessel_j0", lambda x: mpmath.besselj(0, x)),
    "bessel_j1": exact("bessel_j1", lambda x: mpmath.besselj(1, x)),
    "bessel_y0": exact("bessel_y0", lambda x: mpmath.bessely(0, x)),
    "bessel_y1": exact("bessel_y1", lambda x: mpmath.bessely(1, x)),
    "orthogonal_polynomial": polynomial,
    "polygamma": polygamma,
    "zeta": zeta,
    "igamma": incomplete_gamma(torch.special.gammainc, 0),
    "igammac": incomplete_gamma(torch.special.gammaincc, 1),
    "index_order": index_order,
    "scatter": scatter,
    "scatter_ordered": scatter_ordered,
    "scatter_along": scatter_along,
}
