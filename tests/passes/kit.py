"""What the probes of rewrite rules are made of: graphs over named sizes, special values, and what "the same result" means.

A probe is a function of a `Kit` that builds one instance of a rule's pattern. The kit's dtype, its sizes and the shapes of its inputs
vary, so that one line gives the rule in every dtype, with sizes of 0 and 1, and with scalars where the pattern takes them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.core import dtypes as dt
from tilewright.core.dims import evaluate
from tilewright.core.dtypes import DType
from tilewright.core.errors import ConfigError, ShapeError
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.rewrite import Changes
from tilewright.ir.types import TensorType
from tilewright.passes.convert_dtype import convert_dtype

FLOATS = tuple(d for d in dt.ALL if d.is_float)
INTEGERS = (dt.i8, dt.u8, dt.i32, dt.i64)
DTYPES = (*FLOATS, *INTEGERS, dt.bool_)
Array = np.ndarray[Any, Any]
Probe = Callable[["Kit"], Any]


@dataclass
class Kit:
    """One graph in the making. `plain` makes input number n a scalar, `ones` one of size 1 along every axis."""

    dtype: DType
    b: int = 2
    s: int = 3
    d: int = 4
    plain: int | None = None
    ones: int | None = None
    graph: Graph = field(default_factory=Graph)
    tame: list[bool] = field(default_factory=list)  # whether each input is tame: no infinities, NaN or numbers at the ends of the range

    def x(self, *shape: Any, dtype: DType | None = None, tame: bool = False) -> Value:
        """A new input; [b, d] where no shape is given."""
        n, shape = len(self.tame), shape or (self.b, self.d)
        shape = () if n == self.plain else (1,) * len(shape) if n == self.ones else shape
        self.tame.append(tame)
        return self.graph.input(TensorType(dtype or self.dtype, shape), f"x{n}")

    def scalar(self) -> Value:
        self.tame.append(False)
        return self.graph.input(TensorType(self.dtype, ()), "scalar")

    def c(self, value: Any, dtype: DType | None = None) -> Value:
        """A constant; of a float dtype it is rounded."""
        to = dtype or self.dtype
        with np.errstate(all="ignore"):
            return self.graph.constant(np.asarray(value).astype(to.np))

    def weights(self, *shape: int, low: float = 0.25, high: float = 2.0) -> Value:
        rng = np.random.default_rng(7)
        return self.c(rng.uniform(low, high, shape) * rng.choice([-1.0, 1.0], shape))


def variants(dtype: DType) -> Iterator[dict[str, Any]]:
    yield {"dtype": dtype}
    for name in "bsd":
        for size in (0, 1):
            yield {"dtype": dtype, name: size}
    for n in range(3):
        yield {"dtype": dtype, "plain": n}
        yield {"dtype": dtype, "ones": n}


def built(probe: Probe, options: dict[str, Any]) -> Kit | None:
    """The probe's graph; None where an op does not take the dtype or the shapes."""
    kit = Kit(**options)
    try:
        out = probe(kit)
    except ShapeError:
        return None
    except (IndexError, ValueError, OverflowError):
        if options.get("plain") is not None or options.get("ones") is not None or 0 in options.values():
            return None  # the probe itself cannot be written down so
        raise
    kit.graph.outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    return kit


def specials(dtype: DType, reach: int = 0) -> Array:
    """Every kind of number that a dtype has. `reach`: instead of the ends of its range, 2 to this power."""
    if dtype.is_bool:
        return np.array([True, False])
    if dtype.is_int:
        info = np.iinfo(dtype.np)
        return np.array([info.min, info.max, info.min + 1, info.max - 1, 0, 1, 2, 3, info.max // 2], dtype.np)
    import ml_dtypes

    info_ = ml_dtypes.finfo(dtype.np)
    small = float(info_.smallest_subnormal)
    most, least = (2.0**reach, 2.0**-reach) if reach else (float(info_.max), float(info_.tiny))
    found = [0.0, -0.0, np.nan, np.inf, -np.inf, most, -most, least, -least, 1.0, -1.0, 0.5, 2.0, 1e-6]
    found += [x for x in (-1e9, -1e30, 3e4) if abs(x) < most] + ([small, -small * 3] if not reach or dtype is not dt.f64 else [])
    with np.errstate(all="ignore"):
        return np.array(found).astype(dtype.np)


def moderate(dtype: DType, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers whose products and sums stay in range, some of them zeros of either sign, very small, or large."""
    if dtype.is_bool:
        return rng.random(shape) < 0.5
    if dtype.is_int:
        return rng.integers(-3 if dtype.kind == "i" else 0, 4, shape).astype(dtype.np)
    a = rng.standard_normal(shape)
    reach = {"f64": 60, "f32": 30, "bf16": 20}.get(dtype.name, 2)
    kinds = rng.random(shape)
    a = np.where(kinds < 0.08, np.copysign(0.0, a), np.where(kinds < 0.14, a * 2.0**-reach, np.where(kinds < 0.2, a * 2.0**reach, a)))
    return a.astype(dtype.np)


PRODUCTS = {"f64": 200, "f32": 40, "bf16": 40, "f16": 4}  # powers of two of which products and sums of products stay in range


def reach_of(kit: Kit, changes: Changes) -> int:
    """How far special values go: to the ends of the range where each is used by itself. Scores of attention stay small, because a softmax
    of large ones picks one of them by the last digit."""
    ops = [n.op for n in kit.graph.nodes]
    if any(op.name in ("attention", "softmax") for op in ops) and any(op.traits.contraction or op.name == "attention" for op in ops):
        return 2
    if any(op.traits.contraction for op in ops):
        return PRODUCTS.get(kit.dtype.name, 2)
    return 1020 if changes != "nothing" and kit.dtype is dt.f64 else 0  # there is no wider dtype to compare with


def draws(kit: Kit, rng: np.random.Generator, count: int, changes: Changes, reach: int | None = None) -> Iterator[list[Array]]:
    """Inputs for a graph: specials everywhere, specials here and there, and none."""
    reach = reach_of(kit, changes) if reach is None else reach
    for n in range(count):
        share = (1.0, 0.25, 0.06, 0.0)[n % 4]
        found = []
        for v, tame in zip(kit.graph.inputs, kit.tame, strict=True):
            shape = tuple(evaluate(size, {"N": 5}) for size in v.shape)
            a = moderate(v.dtype, rng, shape) if reach != 2 or not v.dtype.is_float else rng.standard_normal(shape).astype(v.dtype.np)
            odd = rng.choice(specials(v.dtype, reach), shape)
            if (tame or changes == "hidden") and v.dtype.is_float:
                odd = np.where(np.isfinite(wide(odd)) & (np.abs(wide(odd)) < 100), odd, a)
            found.append(np.where(rng.random(shape) < share, odd, a).astype(v.dtype.np))
        yield found


def wide(a: Array) -> Array:
    return np.asarray(a).astype(np.float64)


def same_bits(got: Array, want: Array) -> Array:
    """Equal element for element: NaN is NaN, whatever its bits, and -0.0 is not 0.0."""
    if want.dtype.kind in "biu":
        return np.asarray(got == want)
    a, b = wide(got), wide(want)
    return (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))


DIGITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4,
          "float8_e5m2": 2.0**-3}
ULPS = {"float64": 2.0**12}  # where the graph before cancels, and there is no wider dtype to compare with; of others 24


def near(got: Array, want: Array, slack: Array, dtype: Any) -> Array:
    """Equal up to rounding; infinities and NaN are where they were. `slack`: what rounding of the inputs would do to the result."""
    a, b = wide(got), wide(want)
    import ml_dtypes

    absolute = 4 * np.nan_to_num(slack, posinf=0.0) + float(ml_dtypes.finfo(dtype).tiny) * 4
    with np.errstate(invalid="ignore", over="ignore"):
        relative = ULPS.get(str(dtype), 24.0) * DIGITS[str(dtype)] * np.maximum(np.abs(a), np.abs(b))
        close = np.abs(a - b) <= relative + absolute
    return (np.isnan(a) & np.isnan(b)) | (a == b) | (np.isfinite(a) & np.isfinite(b) & close)


def in_doubles(graph: Graph, inputs: Sequence[Array]) -> list[Array] | None:
    """The graph's results if every float in it were f64; None where it cannot be written so."""
    if all(v.dtype is dt.f64 for v in (*graph.inputs, *graph.outputs) if v.dtype.is_float):
        return None
    try:
        return run(convert_dtype(graph, dt.f64), inputs)
    except (ShapeError, ConfigError):
        return None


def slack_of(graph: Graph, inputs: Sequence[Array], rng: np.random.Generator, count: int) -> list[Array]:
    """How far the results move when every input moves by a unit of its last place, in `count` ways."""
    base = run(graph, inputs)
    moved = [np.zeros(a.shape) for a in base]
    for _ in range(count):
        other = [a if a.dtype.kind in "biu" else (wide(a) * (1 + DIGITS[str(a.dtype)] * rng.choice([-2.0, 2.0], a.shape))).astype(a.dtype)
                 for a in inputs]
        with np.errstate(invalid="ignore"):
            moved = [np.fmax(m, np.abs(wide(x) - wide(y))) for m, x, y in zip(moved, base, run(graph, other), strict=True)]
    return moved


def differences(before: Graph, after: Graph, inputs: Sequence[Array], changes: Changes, rng: np.random.Generator) -> list[str]:
    """What of the results is not as `changes` allows."""
    with np.errstate(all="ignore"):
        want, got = run(before, inputs), run(after, inputs)
        if changes == "nothing":
            right = [same_bits(a, b) for a, b in zip(got, want, strict=True)]
        else:
            exact = in_doubles(before, inputs)
            for count in (3, 40):  # few ways: none may move what cancels
                slack, right = slack_of(before, inputs, rng, count), []
                for k, (a, b) in enumerate(zip(got, want, strict=True)):
                    if b.dtype.kind in "biu":
                        right.append(same_bits(a, b))
                        continue
                    ok = near(a, b, slack[k], b.dtype)
                    if exact is not None:
                        ok |= near(a, exact[k], slack[k], b.dtype)
                    right.append(ok)
                if all(ok.all() for ok in right):
                    break
    out = []
    for k, (ok, a, b) in enumerate(zip(right, got, want, strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            out.append(f"output {k} is {a.dtype}{a.shape}, was {b.dtype}{b.shape}")
        elif not ok.all():
            at = tuple(np.argwhere(~ok)[0].tolist())
            out.append(f"output {k} at {at}: {a[at]}, was {b[at]}")
    return out
