"""Adam and its kin. Numbers of a step (bias corrections) are computed in f64; each parameter is one fused elementwise kernel."""
from __future__ import annotations

from typing import Any

from .base import Optimizer, Rate, as_f32, by_parameter, power, tw, zeros_like


def _adam(name: str, rate: Rate, betas: tuple[float, float], eps: float, weight_decay: float, decoupled: bool) -> Optimizer:
    b1, b2 = betas

    def rule(lr: Any, step: Any) -> Any:
        size = as_f32(lr / (1 - power(b1, step)))
        root = as_f32(tw.sqrt(1 - power(b2, step)))

        def one(p: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
            if weight_decay and not decoupled:
                g = g + weight_decay * p
            m = m + (g - m) * (1 - b1)
            v = b2 * v + (1 - b2) * (g * g)
            kept = p * (1 - lr * weight_decay) if weight_decay and decoupled else p
            return kept - size * (m / (tw.sqrt(v) / root + eps)), m, v

        return one

    return by_parameter(name, rate, {"m": zeros_like, "v": zeros_like}, rule)


def adam(rate: Rate, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0) -> Optimizer:
    """Adam; weight decay is added to the gradient."""
    return _adam("adam", rate, betas, eps, weight_decay, decoupled=False)


def adamw(rate: Rate, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01) -> Optimizer:
    """Adam with decoupled weight decay.

    >>> import tilewright as tw
    >>> opt, w = tw.optim.adamw(0.1, weight_decay=0.0), tw.asarray([1.0, -2.0])
    >>> w, state = opt.update(w, 2 * w, opt.init(w))
    >>> tw.round(w, decimals=1)
    Array([ 0.9, -1.9])
    """
    return _adam("adamw", rate, betas, eps, weight_decay, decoupled=True)


def lion(rate: Rate, *, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> Optimizer:
    """Lion: the sign of an interpolated momentum."""
    b1, b2 = betas

    def rule(lr: Any, step: Any) -> Any:
        def one(p: Any, g: Any, m: Any) -> tuple[Any, Any]:
            step = tw.sign(b1 * m + (1 - b1) * g)
            return p * (1 - lr * weight_decay) - lr * step, b2 * m + (1 - b2) * g

        return one

    return by_parameter("lion", rate, {"m": zeros_like}, rule)


def lamb(rate: Rate, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.0) -> Optimizer:
    """LAMB: Adam's step scaled per parameter to the ratio of the norms of parameter and step."""
    b1, b2 = betas

    def rule(lr: Any, step: Any) -> Any:
        c1, c2 = as_f32(1 - power(b1, step)), as_f32(1 - power(b2, step))

        def one(p: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * (g * g)
            d = (m / c1) / (tw.sqrt(v / c2) + eps) + weight_decay * p
            weight, size = tw.sqrt((p * p).sum()), tw.sqrt((d * d).sum())
            trust = tw.where(tw.logical_and(weight > 0, size > 0), weight / tw.where(size > 0, size, 1.0), 1.0)
            return p - lr * trust * d, m, v

        return one

    return by_parameter("lamb", rate, {"m": zeros_like, "v": zeros_like}, rule)


def adafactor(rate: Rate, *, decay: float = 0.8, eps: float = 1e-30, clip: float = 1.0, weight_decay: float = 0.0,
              smallest: int = 2) -> Optimizer:
    """Adafactor: second moments of matrices kept as one number a row and a column; updates clipped by their root mean square."""

    def factored(p: Any) -> bool:
        return bool(p.ndim >= 2 and min(p.shape[-2:]) >= smallest)

    def rows(p: Any) -> Any:
        return zeros_like(p if not factored(p) else p[..., 0])

    def columns(p: Any) -> Any:
        return zeros_like(p.ravel()[:1] if not factored(p) else p[..., 0, :])

    def rule(lr: Any, step: Any) -> Any:
        keep = as_f32(1 - tw.pow(tw.astype(step, "f64"), -decay))

        def one(p: Any, g: Any, r: Any, c: Any) -> tuple[Any, Any, Any]:
            square = g * g + eps
            if factored(p):
                r = keep * r + (1 - keep) * square.mean(axis=-1)
                c = keep * c + (1 - keep) * square.mean(axis=-2)
                row = tw.rsqrt(r / r.mean(axis=-1, keepdims=True))
                d = g * tw.expand_dims(row, -1) * tw.expand_dims(tw.rsqrt(c), -2)
            else:
                r = keep * r + (1 - keep) * square
                d = g * tw.rsqrt(r)
            rms = tw.sqrt((d * d).mean())
            d = d / tw.maximum(rms / clip, 1.0)
            return p * (1 - lr * weight_decay) - lr * d, r, c

        return one

    return by_parameter("adafactor", rate, {"rows": rows, "columns": columns}, rule)
