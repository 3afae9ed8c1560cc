"""Small functions such as people compile, by kind: what PyTorch's own tests of compilers try, in our words.

A row is a function, a maker of its arguments, and what differs from the default: tolerances, expected splits, whether it is differentiated.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

aten, prims = torch.ops.aten, torch.ops.prims
inf, nan = float("inf"), float("nan")
f16, bf16, f32, f64, c64 = torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64
i8, i16, i32, i64, u8 = torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8
r, u, z = torch.randn, torch.rand, torch.zeros
CL, CL3 = torch.channels_last, torch.channels_last_3d


@dataclass(frozen=True)
class Row:
    fn: Callable[..., Any]
    make: Callable[[], Any]
    rtol: float | None = None  # None: what torch.testing allows for the dtype
    atol: float | None = None
    splits: int = 0  # parts that PyTorch runs, forward
    grad: bool = True  # differentiated too, where an argument and a result are floats
    dynamic: bool = True  # also compiled with symbolic sizes
    random: bool = False  # shapes and dtypes alone are compared


ROWS: dict[str, dict[str, Row]] = {}


def row(kind: str, name: str, fn: Callable[..., Any], make: Callable[[], Any], **about: Any) -> None:
    rows = ROWS.setdefault(kind, {})
    assert name not in rows, name
    rows[name] = Row(fn, make, **about)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: torch.dtype = i64) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=dtype)


def strided(shape: Any, strides: Any, dtype: torch.dtype = f32) -> torch.Tensor:
    """A tensor of any strides: gaps are filled too."""
    size = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    data = r(max(size, 1)) * 3
    return torch.as_strided(data.to(dtype), shape, strides)


def inside(*statements: Callable[..., Any]) -> Callable[..., Any]:
    """Statements one after the other; the last one is the result."""

    def run(*args: Any) -> Any:
        out = None
        for s in statements:
            out = s(*args)
        return out

    return run


# ---- elementwise, promotion, constants
def dividing(a: Any, b: Any) -> Any:
    return [aten.div(a, b, rounding_mode=m) for m in (None, "floor", "trunc")] + [a / b, a // b]


row("elementwise", "int constants", lambda a: (a + 1, torch.add(a, 1, alpha=2)), lambda: (torch.arange(32),))
row("elementwise", "int constants i32", lambda a: (a + 1, torch.add(a, 1, alpha=2)), lambda: (torch.arange(32, dtype=i32),))
row("elementwise", "permuted in place", lambda x, y: x.add_(y), lambda: (torch.ones(2, 12, 13, 17).transpose(1, 2), r(2, 13, 1, 17)),
    grad=False)
row("elementwise", "cat in place", lambda x, y, t: torch.cat([x, y], 1).add_(t), lambda: (r(2, 3, 4), r(2, 3, 4), r(2, 6, 4)))
row("elementwise", "angle", lambda a, b, c: (a.angle(), b.angle(), c.angle()),
    lambda: (torch.tensor([1 + 1j, -1 + 1j, 3 - 3j, 0, 1j, 1, -1, nan]), torch.tensor([-1.0, 0.0, 1.0, nan]), torch.tensor([-1, 0, 1])))
row("elementwise", "sgn", lambda a: (torch.sgn(a), torch.sgn(a + 1) - 1), lambda: (torch.linspace(-10, 10, 41),))
row("elementwise", "sgn of infinities", lambda a: torch.sgn(a), lambda: (torch.tensor([nan, inf, -inf, 0]),))
row("elementwise", "maximum with nan", lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), torch.fmin(a, b), torch.fmax(a, b)),
    lambda: (torch.tensor([nan, 1.0, 2, 3]), torch.tensor([1.0, nan, 3, 2])))
row("elementwise", "neg of u8", lambda a, b: torch.maximum(b, -a), lambda: (ints(1, low=0, high=256, dtype=u8), ints(839, low=0, high=256,
    dtype=u8)))
row("elementwise", "compare with floats", lambda x: (x.gt(3.5), x.ge(3.5), x.eq(3.5), x.le(2.5), x.lt(3.5), x.ne(3.5)),
    lambda: (torch.tensor([3, 4]),))
row("elementwise", "tiny coefficients", lambda s, c, p: 1.0 / (q := -3.1e-7 + c * (-2e-8 + -1.1e-11 * c) + 1.6e-10 * s) + q * p,
    lambda: (r(20, 24, 26), r(20, 24, 26), r(26)))
row("elementwise", "clamp", lambda a, b: (a.clamp(-0.1, 0.1), b.clamp(0), torch.clamp(a + b, max=0)), lambda: (r(8, 8), r(8, 8)))
row("elementwise", "clamp promotes", lambda a: a.clamp(min=torch.tensor(1.0, dtype=f64), max=torch.full((4,), 2)), lambda: (ints(4, low=0,
    high=4),))
row("elementwise", "round", lambda a, b: (torch.round(a), torch.round(b + 1), torch.round(a, decimals=2)), lambda: (r(8, 8) * 100, r(8,
    8) * 10))
row("elementwise", "round halves", torch.round, lambda: (torch.arange(-10, 10, 0.5, dtype=f64),))
row("elementwise", "nan_to_num", lambda a: [torch.nan_to_num(a, *v) for v in ((), (3.0,), (None,), (0.0, 4.0), (0.0, None, 5.0), (3.0, 4.0,
    5.0))],
    lambda: (torch.tensor([nan, inf, -inf, 1.0]),))
row("elementwise", "nan_to_num f16", lambda a: torch.nan_to_num(a), lambda: (torch.tensor([nan, inf, -inf, 1.0], dtype=f16),))
for _name, _a, _b in (("floats", lambda: r(8, 8) * 100, lambda: r(8, 8) * 100), ("int by float", lambda: ints(8, 8, low=-100, high=100),
    lambda: 100 * r(8, 8)),
                      ("ints", lambda: ints(8, 8, low=-100, high=0), lambda: ints(8, 8, low=1, high=10)), ("a number", lambda: ints(8, 8,
                          low=-100, high=0), lambda: 16),
                      ("bool by int", lambda: torch.ones(8, 8, dtype=torch.bool), lambda: ints(8, 8, low=-100, high=-1)),
                      ("large ints", lambda: torch.randint(2**32, 2**40, (50, 50)), lambda: ints(50, 50, low=-10, high=-1)),
                      ("rank 0", lambda: r(10), lambda: r(())), ("rank 0 above", lambda: ints(), lambda: ints(10, low=1))):
    row("elementwise", f"div {_name}", dividing, lambda a=_a, b=_b: (a(), b()), grad=False)
row("elementwise", "div of numbers", lambda a, b: (aten.div(a, b), aten.div(a * 0.5, b), aten.div(a, b, rounding_mode="floor"), aten.add(a,
    b), aten.mul(b, a)),
    lambda: (1024, 100), dynamic=False)
row("elementwise", "both numbers", lambda a, b: (aten.add(a, b), aten.sub(b, a), aten.mul(a, b)), lambda: (4, 3.3), dynamic=False)
row("elementwise", "number by tensor", lambda x: (torch.div(42, x), aten.true_divide(42, x), 42 // x), lambda: (r(8) + 3,), grad=False)
row("elementwise", "prims.div", lambda a, b: prims.div(a, b), lambda: (r(100), r(100)), grad=False)
row("elementwise", "prims.div of ints", lambda a, b: prims.div(a, b), lambda: (ints(100), ints(100, low=1)))
row("elementwise", "div by a tiny number", lambda x, y: F.softmax(x.div(y), -1), lambda: (r(1, 10, 2), 1e-6))
row("elementwise", "division by zero", lambda x, a, b: (o := torch.zeros_like(x), (x / 0.0, x / -0.0, o / 0.0, x / o, x / -o, o / o, x / a,
    x / b, a / b))[1],
    lambda: (r(10), z(10), -z(10)), grad=False)
row("elementwise", "infinities", lambda a: (a + inf, a - inf, a * -inf), lambda: (r(8),))
row("elementwise", "pow", lambda x: [aten.pow(x, e) for e in range(-8, 9)], lambda: (r(16, 16),), rtol=3e-6)
row("elementwise", "large powers", lambda x: (aten.pow(1000, x), aten.pow(x, 1000)), lambda: (r(16, 16),), rtol=3e-5)
row("elementwise", "pow of rank 0", lambda x: torch.pow(torch.tensor(0.123) + x, 0.5), lambda: (u(()),))
for _d in (u8, i8, i16, i32, i64):
    row("elementwise", f"pow {_d}", lambda x, y: (torch.pow(x, 0x57), torch.pow(x, y)),
        lambda d=_d: (torch.testing.make_tensor(16, 16, dtype=d, device="cpu"), torch.testing.make_tensor(16, 16, dtype=d, device="cpu",
            low=0, high=torch.iinfo(d).max)))
row("elementwise", "remainder and fmod", lambda a, b: (torch.remainder(a, b), torch.remainder(a - 1, b + 1), torch.fmod(a, b),
    torch.fmod(3.0 * a, b) - 2),
    lambda: (r(64), r(64)), grad=False)
row("elementwise", "expm1 and log1p", lambda x: (torch.expm1(x), torch.log1p(x) * 2), lambda: (torch.arange(-1e-5, 1e-5, 1e-7),))
row("elementwise", "expm1 of ints", lambda x: (torch.expm1(x), torch.log1p(x.abs())), lambda: (ints(64, dtype=i32),))
row("elementwise", "expm1 f16", lambda x: (torch.expm1(x), torch.log1p(x.abs())), lambda: (r(64).half(),))
row("elementwise", "log f64", lambda x: (torch.log(x), torch.log2(x), torch.log10(x)), lambda: (r(1024, dtype=f64).abs() + 10,))
row("elementwise", "signbit", lambda x: (torch.signbit(x), ~torch.signbit(-x) & 1), lambda: (r(2, 6, 6),))
row("elementwise", "bitwise", lambda x, y: (~x, x | y, x ^ y, x & y, x << 2, x >> 1), lambda: (ints(64, low=0, high=2**30, dtype=i32),
    ints(64, low=0, high=2**30, dtype=i32)))
row("elementwise", "bitwise bool", lambda x, y: (~x, x | y, x ^ y, x & y), lambda: (r(2, 20) > 0, r(2, 20) > 0))
row("elementwise", "bitwise i8", lambda x, y: (torch.max(x & y, y), torch.clamp_max(x | y, y), torch.clamp_min(x ^ y, y)),
    lambda: (ints(5, 10, 1, dtype=i8), ints(10, 1, dtype=i8)))
row("elementwise", "activations", lambda x: [f(x + 1) for f in (F.hardswish, F.hardtanh, F.leaky_relu, F.silu, F.gelu, F.elu, F.hardsigmoid,
    F.mish, F.selu, F.softplus)],
    lambda: (r(64) * 3,))
row("elementwise", "activations in place", lambda x: [f(x + 1) for f in (aten.hardswish_, aten.hardtanh_, aten.leaky_relu_, aten.silu_)]
    + [aten.masked_fill_(x + 1, torch.zeros_like(x, dtype=torch.bool), 99.0), aten.masked_fill_(x + 1, torch.ones_like(x, dtype=torch.bool),
        99.0)], lambda: (r(64) * 10,))
row("elementwise", "elu with factors", lambda x: (aten.elu(x, 1.67, 1.05) + 2, aten.elu(x + 1, 2, 3, 4)), lambda: (r(16, 16),))
row("elementwise", "glu", lambda x: (F.glu(x, -1), F.glu(x, 1), F.glu(x, 2)), lambda: (r(4, 6, 8, 2),))
row("elementwise", "erf and others", lambda x: (torch.erfc(x), torch.erfinv(x), torch.lgamma(x + 2), torch.tan(x), torch.asinh(x)),
    lambda: (u(8, 8) * 1.8 - 0.9,))
row("elementwise", "full truncates", lambda a: a + torch.full_like(a, 7.777), lambda: (ints(8),))
row("elementwise", "full of a bool", lambda n: (x := torch.full((1,), n >= 1024), x + 1), lambda: (1024,), dynamic=False)
row("elementwise", "isinf, isnan", lambda x: (x.isinf(), x.isnan(), x == torch.tensor([1, inf, 2, -inf, nan]), x.isfinite()),
    lambda: (torch.tensor([1, inf, 2, -inf, nan]),))
row("elementwise", "lerp", lambda a, b: (torch.lerp(b, a.transpose(-2, -3), 70000), torch.lerp(b, b + 1, 0.3)), lambda: (u(10, 3, 10), u(3,
    10, 10)))
row("elementwise", "where with numbers", lambda x, y: (torch.where(torch.logical_and(x, y), 1.0, 0.0), torch.where(torch.logical_or(x, y),
    x, 0)), lambda: (r(32), r(32)))
row("elementwise", "where broadcasts", torch.where, lambda: (torch.tensor([[True]]), u(13, 7, 3), u(1, 1)))
row("elementwise", "where promotes", lambda c, a, b: torch.where(c, a, b), lambda: (r(4) > 0, ints(4), r(4)))
row("elementwise", "masked_fill promotes", lambda m, v: aten.masked_fill(v, m, torch.tensor(3.5)), lambda: (r(1, 16) > 0, ints(16, 16)))
row("elementwise", "float index promotes", lambda x: x + 1.0 / x.size(0), lambda: (torch.arange(10),))
row("elementwise", "float16 mix", lambda x, y: (x + y, x * 2.5, x / y, torch.where(x > 0, x, y)), lambda: (r(9).half(), r(9)))
row("elementwise", "bf16 chain", lambda x, y: (x + y) * x - y / 3, lambda: (r(64).bfloat16(), r(64).bfloat16()), rtol=2e-2, atol=2e-2)
row("elementwise", "in place, mixed dtypes", lambda x, y: (x + y.float()).add_(y).mul_(y), lambda: (r(4, 4), r(4, 4, dtype=f64)))
row("elementwise", "to dtypes", lambda a, b: (aten._to_copy(a, dtype=f32), b.to(f64), b.to(torch.bool), b.to(i32), a.to(bf16), b.to(f16)),
    lambda: (r(2, 2, 10), r(2, 2, 10, dtype=f64)))
row("elementwise", "numbers as tensors", lambda a: (torch.LongTensor([294]) - a, torch.as_tensor([295]) + a, torch.tensor(5),
    torch.tensor([]), torch.tensor([1, 2]) + 1), lambda: (ints(8, 8),))
row("elementwise", "arange", lambda x: (torch.arange(64, dtype=f32).view(8, 8) * x, torch.arange(10, 18) + x, torch.arange(512, -512,
    -128.0) - x), lambda: (r(8, 8),))
row("elementwise", "arange of fractions", lambda x: (torch.arange(0.1, 8.0001, 1, dtype=x.dtype), aten.arange.start_step(0, 53, 4)),
    lambda: (ints(1),))
row("elementwise", "arange f32 fractions", lambda x: torch.arange(0.1, 8.0001, 1, dtype=x.dtype), lambda: (r(1),))
row("elementwise", "linspace", lambda x: (torch.linspace(0.125, 0.875, 7) + x, torch.linspace(0, 2, 1), torch.linspace(0, 2, 0),
    torch.linspace(3, -2, 9, dtype=f64)), lambda: (r(1, 7),))
row("elementwise", "special functions", lambda x: [getattr(torch.special, n)(x) for n in ("i0", "i0e", "i1", "i1e", "erfcx", "ndtr",
    "log_ndtr", "entr", "digamma", "expit", "sinc",
    "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_k0", "scaled_modified_bessel_k1",
        "spherical_bessel_j0", "airy_ai")],
    lambda: (u(8, 8) * 3 + 0.1,), rtol=1e-4, atol=1e-4, grad=False)
row("elementwise", "polynomials", lambda x: [getattr(torch.special, n)(x, 2) for n in ("chebyshev_polynomial_t", "hermite_polynomial_h",
    "laguerre_polynomial_l", "legendre_polynomial_p",
    "shifted_chebyshev_polynomial_w")], lambda: (r(8, 8),), rtol=1e-4, atol=1e-4, grad=False)
row("elementwise", "two-argument functions", lambda x, y: (torch.special.xlog1py(x, y), torch.xlogy(x, y), torch.special.zeta(y + 1, y),
    torch.special.gammainc(y, y), torch.polygamma(1, y),
    torch.special.multigammaln(y, 2)), lambda: (r(8, 8), u(8, 8) + 1), rtol=1e-4, atol=1e-4, grad=False)
row("elementwise", "copysign, hypot, atan2", lambda x, y: (torch.copysign(x, y), torch.hypot(x, y), torch.atan2(x, y), torch.nextafter(x,
    y), torch.heaviside(x, y)), lambda: (r(8), r(8)), grad=False)
row("elementwise", "gcd, lcm, shifts of i16", lambda x, y: (torch.gcd(x, y), torch.lcm(x, y), x << 1, x // 3, x % 5), lambda: (ints(30,
    dtype=i16), ints(30, low=1, dtype=i16)))
row("elementwise", "logical ops of numbers", lambda x, y: (torch.logical_not(x), torch.logical_xor(x, y), x.bool() & y.bool()),
    lambda: (ints(9, low=0, high=2), r(9)))
row("elementwise", "rank 0 mix", lambda x, y: (x + y, x * y, y / x), lambda: (r(3), torch.tensor(2, dtype=f64)))
row("elementwise", "rank 0 i64 and i32", lambda x, y: (x + y, x * y, x > y), lambda: (ints(3, dtype=i32), torch.tensor(2**40)))
row("elementwise", "many operands", lambda *a: sum(a), lambda: tuple(r(64) for _ in range(50)))
row("elementwise", "frexp, ldexp", lambda x: (torch.frexp(x), torch.ldexp(x, torch.tensor([3]))), lambda: (r(9),), grad=False)
row("elementwise", "float8", lambda x: (x.to(torch.float8_e4m3fn).float(), x.to(torch.float8_e5m2).float()), lambda: (r(50) * 9,),
    grad=False)

row("elementwise", "step functions of f16", lambda x: (torch.ceil(x * 64.125), (x * 3.125).long(), (x * 3.125) > 1, x * 3.125 // 0.5,
    torch.sign(x * 3.125 - 3.125)), lambda: (r(64).half(),), grad=False)
row("elementwise", "copysign selected, bf16", lambda x: (torch.where(x > 0, torch.copysign(x + 1, x), x), torch.frexp(x)),
    lambda: (r(64).bfloat16(),), grad=False)
row("elementwise", "bits selected", lambda a, b: (torch.where(a > 3, (a & 7) | (b & ~7), a), torch.where(a > 3, b, (a & 7) | (b & ~7))),
    lambda: (ints(64, dtype=i32), ints(64, dtype=i32)))

# ---- reductions
row("reductions", "of infinities", lambda a: (a.sum(), a.max(), a.min(), a.argmax(), a.argmin()), lambda: (torch.tensor([-inf, 0.0, inf]),),
    grad=False)
row("reductions", "all infinite", lambda a: (a.sum(), a.max(), a.min(), a.argmin(), a.argmax()), lambda: (torch.full((4,), inf),),
    grad=False)
row("reductions", "all -infinite", lambda a: (a.sum(), a.max(), a.min(), a.argmax(), a.logsumexp(0), a.softmax(0)),
    lambda: (torch.full((4,), -inf),), grad=False)
row("reductions", "prod", lambda a: (a.prod(0), a.prod(1), a.prod()), lambda: (u(10, 10) + 0.5,), rtol=1e-5)
row("reductions", "prod of many", lambda a: (a.prod(0), a.prod(1), a.prod()), lambda: (u(1, 2050),), grad=False)
row("reductions", "short axis", lambda x: (x.min(-1), x.max(-1), x.sum(-1), (x > 1).any(-1), (x > 0).all(-1), x.argmin(-1), x.amax(-1),
    x.aminmax()), lambda: (r(8, 3),))
row("reductions", "large ints", lambda a: (a.max(), a.sum()), lambda: (torch.cat([z(39997, dtype=i64), torch.ones(1, dtype=i64)]),))
row("reductions", "var of many", torch.var, lambda: (u(300, 352),), rtol=1e-3, atol=1e-3)
row("reductions", "var f16", torch.var, lambda: (u(14923).half(),))
row("reductions", "min, max with nan", lambda a: (a.max(), a.min(), a.amax(), a.argmax(), a.max(0)), lambda: (r(32).index_fill(0,
    torch.tensor([16]), nan),), grad=False)
row("reductions", "argmax with nan", lambda x: (x.argmax(0), x.argmin(0), x.argmax(1), x.argmin(1)), lambda: (r(32, 32).index_fill(1,
    torch.tensor([4, 8]), nan),))
row("reductions", "argmax of equals", lambda x: (x.argmax(0), x.argmin(0), x.argmax(1), x.argmin(1)), lambda: (ints(32, 32, low=0,
    high=8),))
row("reductions", "argmax of large", lambda x: (x.argmax(), x.argmin()), lambda: (r(8, 56, 56),))
row("reductions", "argmax and min of i32", lambda a, b: torch.min(b, a.argmax(3)), lambda: (u(3, 4, 2, 1).int(), u(2, 2, 1, 4, 1).int()))
row("reductions", "f16 and bf16", lambda a, b: ((a + b).max(), (a + b).min(), torch.amax(a + 1, keepdim=True), b.bfloat16().amin()),
    lambda: (r(8, 8).half(), r(8, 8).half()))
row("reductions", "sums of bool and u8", lambda a, b: (2 * a.sum(-1) + a.sum(), 2 * b.sum(-1) + b.sum(), b.prod(), a.float().mean()),
    lambda: (r(64) > 0, ints(64, low=0, high=255, dtype=u8)))
row("reductions", "sum dtype", lambda x: x * x.sum(-1, dtype=f64) + x.sum(dtype=f64), lambda: (torch.ones(32, 32) * 70,))
row("reductions", "sum i32 dtype", lambda x: (x.sum(dtype=i32), x.sum(0, dtype=f32), x.mean(dtype=f32)), lambda: (ints(5, 6),))
row("reductions", "chained", lambda a: (b := a + 1, c := b.sum(-1), d := c + 3, e := d.sum(-1), e + 5), lambda: (r(1, 16, 8, 8),))
row("reductions", "axes", lambda a, b: ((a + b).sum([1, 2]), (a + b).sum(-1), a.sum((-1, 0), keepdim=True), a.mean([0, 3]), a.sum([])),
    lambda: (r(8, 9, 3, 21), r(8, 9, 3, 21)))
row("reductions", "expanded", lambda x, y: (x * y).sum((0, 1)), lambda: (r(2, 97, 56), r(2, 1, 56)))
row("reductions", "nothing to reduce", lambda a: (a.sum(-1), torch.amax(a + 1, 1, keepdim=True), a.mean(1), a.var(1, correction=0)),
    lambda: (r(8, 1, 1),))
row("reductions", "zero sizes", lambda x: (x.sum(1), x.prod(1), x.any(1), x.all(1), x.sum(), x.mean(1), x.std(1), x.logsumexp(1)),
    lambda: (z(2, 0),), grad=False)
row("reductions", "zero sizes f16", lambda x: (x.sum(1, keepdim=True), x.prod(1), x.any(1), x.all(1)), lambda: (z(2, 0, dtype=f16),),
    grad=False)
row("reductions", "rank 0", lambda x: (x.mean(0), x.sum(), x.max(), x.argmax(), x.cumsum(0), x.cumprod(-1), x.logcumsumexp(0), x.softmax(0),
    x.sort(), x.std(correction=0)), lambda: (u(()),))
row("reductions", "var corrections", lambda x: [torch.var(x, dim=-1, correction=c) for c in (0, 1, 1.3, 3, 10)], lambda: (r(2, 8),),
    grad=False)
row("reductions", "std forms", lambda x: (torch.var(x, True), torch.var(x, False), torch.var(x, -1, True), torch.std(x, False), torch.std(x,
    [0, 1], True), torch.std(x, -2, True, keepdim=True)),
    lambda: (r(2, 4, 4, 8),))
row("reductions", "var_mean", lambda x: (*torch.var_mean(x, -1), *torch.std_mean(x, [1, 3])), lambda: (r(1, 2, 4, 8),))
row("reductions", "dist", lambda a, b: (torch.dist(a, b), torch.dist(a, b, p=1.2), torch.dist(a, b, p=inf), torch.dist(a, b, p=0)),
    lambda: (r(4, 4), r(4, 4)), grad=False)
row("reductions", "norms", lambda x: [torch.linalg.vector_norm(x, p, d) for p in (0, 1, 2, 3.5, inf, -inf) for d in (None, 1, (0, 2))],
    lambda: (r(3, 4, 5),), grad=False)
row("reductions", "any and all", lambda x: (x.any(-1), x.isinf().any(), torch.all(x.isinf(), dim=0),
    torch.all(torch.logical_not(x.isinf())), x.count_nonzero(0)), lambda: (r(16, 8),))
row("reductions", "logsumexp", lambda x: (x.logsumexp(-1), x.logsumexp(0) - 2, x.logsumexp((0, 1))), lambda: (r(8, 8) + 10,))
row("reductions", "median, mode, kthvalue", lambda x: (x.median(), x.median(1), x.nanmedian(), x.kthvalue(3, 1)), lambda: (r(7, 9),))
row("reductions", "quantile", lambda x: (x.quantile(0.3), x.quantile(torch.tensor([0.1, 0.5]), 1), x.nanquantile(0.5, 0)), lambda: (r(7,
    9),))
row("reductions", "trace, cross, cov", lambda x: (x.trace(), torch.cross(x[:, :3], x[:, 1:4], dim=1), x.cov(), x.corrcoef()), lambda: (r(5,
    5),))
row("reductions", "softmaxes", lambda a, b: (torch.softmax(a + b, -1), torch.softmax(a, 0), F.log_softmax(a + b, -1), F.log_softmax(b, 1),
    F.softmin(a, 0), a.softmax(1, dtype=f64)), lambda: (r(8, 8), r(8, 8)))
row("reductions", "softmax of a masked row", lambda x, m: x.masked_fill(m, -inf).softmax(-1), lambda: (r(3, 5), torch.tensor([[True] * 5,
    [False] * 5, [True, False] * 2 + [True]])), grad=False)
row("reductions", "cauchy", lambda x, y: torch.sum(1 / (x.unsqueeze(-1) - y)), lambda: (r(32), r(32)), rtol=5e-5, atol=5e-3, grad=False)
row("reductions", "unsafe softmax by hand", lambda x: (e := torch.exp(x - x.amax(1, keepdim=True))) / e.sum(1, keepdim=True), lambda: (r(16,
    32),))
row("reductions", "bincount, histc", lambda x: (torch.histc(x, 7, -2, 2), torch.bucketize(x, torch.tensor([-1.0, 0, 1])), torch.bucketize(x,
    torch.tensor([-1.0, 0, 1]), out_int32=True, right=True)), lambda: (r(50),))
row("reductions", "bucketize ints", lambda x, o: (torch.bucketize(x, o, right=True), torch.bucketize(x, o, out_int32=True)),
    lambda: (ints(64, low=0, high=102), torch.arange(10, dtype=i32) ** 2 + 1))
row("reductions", "searchsorted", lambda s, v: (torch.searchsorted(s, v), torch.searchsorted(s, v, right=True, out_int32=True)),
    lambda: (r(3, 9).sort(-1).values, r(3, 4)))
row("reductions", "histogramdd", lambda x, y: torch.histogramdd(x, bins=[3, 3], weight=y), lambda: (r(4, 2), r(4)), grad=False)
row("reductions", "extremes of bools", lambda x: (x.amax(1), x.amin(0), x.max(), x.min(), torch.amax(x, (),
    keepdim=True)), lambda: (r(5, 3) > 0,))
row("reductions", "count of rows", lambda x: (x > 0).sum(-1) - 1, lambda: (r(4, 100),))

# ---- cumulative, sorting
row("scans", "cumsum", lambda x: (x.cumsum(0), x.cumsum(1)), lambda: (u(20, 400),), rtol=1e-5, atol=1e-5)
row("scans", "cumsum of ints and bools", lambda a, b, c: (a.cumsum(-1), b.cumsum(-1), c.cumsum(0), a.cumsum(0, dtype=f32)), lambda: (ints(4,
    50, dtype=i32), r(60) > 0, ints(60, dtype=u8, low=0)))
row("scans", "cumsum of infinities", lambda x: x.cumsum(-1), lambda: (torch.full((2, 30), inf, dtype=f64),), grad=False)
row("scans", "cumsum f16", lambda x: (x.cumsum(0), x.cumprod(0)), lambda: (u(40).half(),), rtol=4e-3)
row("scans", "cumsum of ones", lambda x: torch.cumsum(torch.ones(2, x.shape[1]).long(), 1), lambda: (r(2, 7),))
row("scans", "cumprod", lambda x: (x.cumprod(0), x.cumprod(1)), lambda: (u(5, 60) + 0.5,), rtol=1e-5)
row("scans", "cumprod with zeros", lambda x: x.cumprod(0), lambda: (torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0]),))
row("scans", "logcumsumexp", lambda x: (x.logcumsumexp(0), x.logcumsumexp(1)), lambda: (u(20, 300),), rtol=1e-5, atol=1e-5)
row("scans", "cummax, cummin", lambda x: (x.cummax(0), x.cummin(1)), lambda: (r(6, 9),))
row("scans", "cummax with nan", lambda x: (x.cummax(0), x.cummin(0)), lambda: (torch.tensor([1.0, nan, 3, 2, nan, 9]),), grad=False)
row("scans", "offsets index data", lambda n, x: x[torch.cumsum(n, 0)], lambda: (torch.full((64,), 4), r(512)))
row("scans", "sort", lambda a: (torch.sort(a), torch.sort(a, descending=True), a.sort(0)), lambda: (torch.randperm(128).view(8,
    16).float(),))
row("scans", "stable sort", lambda a: (a.sort(dim=-1, stable=True), a.sort(dim=-1, stable=True, descending=True)), lambda: (ints(10, 120,
    low=0, high=5).float(),))
row("scans", "sort bools and i8", lambda a: (torch.sort(a.to(i8), stable=True), torch.sort(a.to(i8), stable=True, descending=True),
    torch.sort(a, stable=True)), lambda: (r(10, 33) > 0,))
row("scans", "sort transposed", lambda a: torch.sort(a, stable=True), lambda: (r(128, 10).t(),))
row("scans", "sort with nan", lambda a: (a.sort(), a.sort(descending=True), a.argsort(), a.msort()), lambda: (torch.tensor([3.0, nan, -inf,
    1, inf]),), grad=False)
row("scans", "topk", lambda a: (a.topk(2, -1), a.topk(3, 0, largest=False), a.topk(0)), lambda: (torch.randperm(64).view(8, 8).float(),))
row("scans", "sort f16", lambda a: (a.sort(0).values, a.topk(3, 0).values), lambda: (r(20, 3).half(),))
row("scans", "sort zero sizes", lambda a: (a.sort(), a.sort(0), a.topk(0, 0)), lambda: (r(0, 3),))
row("scans", "unique_consecutive of sizes", lambda a: a.diff(), lambda: (ints(20).sort().values,))

# ---- indexing and scatters
i_ = lambda n, *s: torch.randint(n, s)
row("indexing", "arange index", lambda x: (x[torch.arange(x.size(0))], x[torch.arange(x.size(0) - 1, -1, -1)],
    x[(torch.arange(x.size(0)) - 3).abs()]), lambda: (r(8),))
row("indexing", "interleave by index", lambda x: (x[torch.arange(24) // 3], x[torch.arange(24) % 8]), lambda: (r(8, 16),))
row("indexing", "negative", lambda a, b: (a[b - 1], a[-1], a[torch.tensor([-2])], a[:, -1], aten._unsafe_index(a, (b,))), lambda: (u(24, 3),
    z(6, dtype=i64)))
row("indexing", "negative arange", lambda a: a[torch.arange(-1, -a.numel() - 1, -1)], lambda: (u(24),))
row("indexing", "float arange to int", lambda a: a[(1.0 * torch.arange(-1, -a.numel() - 1, -1)).int()], lambda: (u(24),))
row("indexing", "padded index", lambda a: a[torch.constant_pad_nd(torch.arange(a.size(0)), (10, 0))], lambda: (r(24),))
row("indexing", "masked index", lambda a, m, i: aten._unsafe_masked_index(a, m, [i], 1), lambda: (r(8), torch.tensor([True, False, True]),
    torch.tensor([3, 9, -2])), grad=False)
row("indexing", "masked index put", lambda a, m, i, v: aten._unsafe_masked_index_put_accumulate(a, m, [i], v), lambda: (r(8),
    torch.tensor([True, False, True]), torch.tensor([3, 9, -2]), r(3)), grad=False)
row("indexing", "masked index of a row", lambda x: aten._unsafe_masked_index(x, torch.arange(64).view(1, 1, 64) < 63, [None, None,
    torch.arange(64)], 7), lambda: (u(12, 3, 63),))
row("indexing", "two indices", lambda a, b, c: aten.index(a, [b, c]), lambda: (r(8, 8, 12), torch.tensor([[0, 0, 2, 2]]), torch.tensor([[3],
    [4], [4], [3]])))
row("indexing", "None between", lambda a, b: (aten.index(a, [b]), aten.index(a, [None, b])), lambda: (r(8, 8, 8), torch.tensor([[0, 0, 2,
    2]])))
row("indexing", "mixed with slices", lambda x, a, b: x[:, a, None, b, 0], lambda: (r(3, 4, 4, 4, 3), torch.tensor([0, 2, 1]),
    torch.tensor([0, 2, 1])))
_x, _y, _xx, _yy = torch.tensor([1, 2]), torch.tensor([2, 3]), torch.tensor([[1, 2]]), torch.tensor([[1], [2], [3]])
_PLACES = ((_x, _y), (slice(None), _x, _y), (_x, slice(None), _y), (slice(None), _x, slice(None), _y, slice(None)), (_xx, _yy),
    (slice(None), _xx, _yy), (_xx, slice(None), _yy),
           (slice(None), _xx, slice(None), _yy))
row("indexing", "tensors and slices", lambda a: [a[p] for p in _PLACES], lambda: (torch.arange(3 * 4 * 5 * 6 * 2).view(3, 4, 5, 6, 2),))
for _k, _p in enumerate(_PLACES):
    row("indexing", f"put at tensors and slices {_k}", lambda a, p=_p: inside(lambda a: a.__setitem__(p, torch.zeros_like(a[p])),
        lambda a: a + 0)(a),
        lambda: (torch.arange(3 * 4 * 5 * 6 * 2, dtype=i32).view(3, 4, 5, 6, 2),), dynamic=False)
row("indexing", "index_select", lambda a, b: (a.index_select(0, b), a.index_select(1, b), a.index_select(2, b).index_select(1, b)),
    lambda: (r(8, 8, 8), torch.tensor([0, 0, 2, 1], dtype=i32)))
row("indexing", "gather", lambda a, b: (torch.gather(a.expand(4, 5, 10, 6), 3, b + 1), torch.gather(a.expand(4, 5, 10, 6), -1, b)),
    lambda: (r(1, 1, 10, 6), i_(5, 4, 5, 10, 1)))
row("indexing", "gather rank 0", lambda a, b: torch.gather(a, 0, b) + torch.gather(a, -1, b), lambda: (torch.tensor(123.0),
    torch.tensor(0)))
row("indexing", "gather transposed index", lambda a, b, c: torch.gather(b, 0, c) + a, lambda: (r(32, 1), r(51, 21), i_(51, 21, 32).t()))
row("indexing", "take, take_along_dim", lambda a, i: (a.take(i), torch.take_along_dim(a, i[:, :1] % 3, 0), a.put(i, a[:4, :3])),
    lambda: (r(5, 6), torch.randperm(30)[:12].view(4, 3)), grad=False)
row("indexing", "gather and scatter of edges", lambda x, e: torch.zeros_like(x).scatter_add_(0, e[1].unsqueeze(-1).expand(-1, x.shape[1]),
    x[e[0]] - x[e[1]] + 1), lambda: (r(16, 32), i_(16, 2, 80)))
row("indexing", "bool index", lambda a, m: inside(lambda a, m: a.__setitem__(m, -1.0), lambda a, m: a * 2)(a, m), lambda: (r(4, 5), r(4,
    5) > 0), dynamic=False, grad=False)
row("indexing", "index_put", lambda a, b, c: (torch.index_put(a, [b], c), torch.index_put_(a + 1, [b + 1], c + 1) + 1), lambda: (r(80, 25,
    7), torch.randperm(60), r(60, 25, 7)))
row("indexing", "index_put broadcast", lambda a, b, c: torch.index_put(a, [b], c), lambda: (r(24, 4, 2), torch.arange(4), r(4, 1, 1)))
row("indexing", "index_put accumulate", lambda a, b, c: torch.index_put(a, [b], c, True), lambda: (r(10, 25, 7), i_(10, 60), r(60, 25, 7)),
    rtol=1e-5)
row("indexing", "index_put with None", lambda a, b, c: inside(lambda a, b, c: aten.index_put_(a, (None, b, None), c), lambda a, b, c: (a,
    aten.index_put_(a + 1, (None, b + 1, None), c + 1)))(a, b, c),
    lambda: (r(24, 4, 2), torch.arange(3), r(24, 1, 2)), grad=False)
row("indexing", "index_put by row mask", lambda a, b, c: torch.index_put(a, [b], c), lambda: (u(8, 2), u(8) > 0.5, u(())), grad=False)
row("indexing", "index_put by mask", lambda a, b, c: (aten.index_put_(a.clone(), [b], c, False), aten.index_put_(a.clone(), [b], c, True)),
    lambda: (r(24, 4, 2), r(24, 4, 2) > 0, r(())), grad=False)
row("indexing", "index_put mask with values", lambda a, b, c: (aten.index_put_(a.clone(), [b], c), aten.index_put_(a.clone(), [b], c,
    True)), lambda: (r(3), torch.tensor([True, True, False]), r(2)), dynamic=False, grad=False)
row("indexing", "index_put index and mask", lambda a, b, c, d: (aten.index_put_(a.clone(), [None, b, c], d), aten.index_put_(a.clone(),
    [None, b, c], d, True)),
    lambda: (r(1, 2, 3), torch.tensor([0, 1]), torch.tensor([True, True, False]), r(())), dynamic=False, grad=False, splits=1)
row("indexing", "index_put then index", lambda i, x, s: aten.index.Tensor(aten.index_put.default(x, [i], s), [i]),
    lambda: (torch.tensor([1]), r(8, 4), r(4)))
row("indexing", "index_put into an argument", lambda x, i: x.index_put_((i,), torch.ones(i.size(0))).expand(2, x.shape[0]), lambda: (r(24),
    torch.arange(10)), grad=False)
row("indexing", "index_add", lambda t, i, s: (t.index_add(0, i, s, alpha=2.0) / 2, t.index_copy(0, i, s), t.index_fill(0, i, 7)),
    lambda: (u(5, 3, dtype=f64), torch.tensor([3, 0]), u(2, 3, dtype=f64)))
row("indexing", "index_reduce", lambda t, i, s: [t.index_reduce(0, i, s, k, include_self=b) for k in ("prod", "mean", "amax",
    "amin") for b in (True, False)], lambda: (r(5, 3), torch.tensor([3, 0, 3]), r(3, 3)), grad=False)
row("indexing", "scatter, short index", lambda a, i, b: aten.scatter(a, -1, i, b), lambda: (z(2, 3), torch.tensor([[0]]), torch.ones(2, 3)),
    grad=False)
row("indexing", "scatter a number", lambda a, i: (aten.scatter(a, 2, i, 0.8), aten.scatter(a, 2, i, 0.8, reduce="add"), aten.scatter(a, 2,
    i, 0.8, reduce="multiply")), lambda: (r(5, 8, 13), torch.tensor([[[3, 5, 7, 9]]])), grad=False)
row("indexing", "scatter reduce=", lambda a, i, b: [inside(lambda c, k=k: c.scatter_(0, i, b, reduce=k), lambda c: (c,
    c + 1.0))(a.clone()) for k in ("add", "multiply")], lambda: (torch.ones(4, 5), torch.tensor([[1], [2], [3]]), r(4, 5)), grad=False)
row("indexing", "scatter rows", lambda x, i, s: torch.scatter(x, 0, i, s), lambda: (r(19, 92), i_(19, 1, 92), r(1, 92)))
row("indexing", "scatter all to one", lambda a, i, b: (aten.scatter.reduce(a, 0, i, b, reduce="add"), a.scatter_add(0, i, b)), lambda: (z(6,
    51), z(6, 51, dtype=i64), torch.ones(6, 51)), grad=False)
row("indexing", "scatter_add", lambda a, i, b: (aten.scatter_add(a, 0, i, b), a.scatter_add(1, i, b)), lambda: (r(2, 3), torch.tensor([[0,
    0, 0], [1, 1, 1]]), r(2, 3)))
row("indexing", "scatter_add short", lambda a, i, b: aten.scatter_add(a, 2, i, b), lambda: (r(5, 9, 13), torch.tensor([[[3, 5, 7, 9]]]),
    r(1, 1, 10)), grad=False)
for _d in (i64, torch.bool, bf16):
    row("indexing", f"scatter_add {_d}", lambda a, i, b: a.scatter_add(0, i, b), lambda d=_d: (z(3, 5, dtype=d), torch.tensor([[0, 1, 2, 0,
        0]]), torch.ones(2, 5, dtype=d)), grad=False)
row("indexing", "scatter_reduce", lambda a, i, b: [aten.scatter_reduce(a, 0, i, b, k, include_self=s) for k in ("sum", "prod", "mean",
    "amax", "amin") for s in (True, False)], lambda: (r(4, 5), i_(4, 3, 5), r(4, 5)), grad=False)
row("indexing", "scatter_reduce of bools", lambda a, i, b: [aten.scatter_reduce(a, 0, i, b, k, include_self=s) for k in ("sum", "prod",
    "amin", "amax") for s in (True, False)], lambda: (r(6) > 0, ints(9, low=0, high=6), r(9) > 0))
row("indexing", "scatter_reduce in place", lambda a, i, b: [a.clone().scatter_reduce_(0, i, b, reduce=k) + 1 for k in ("sum", "prod")],
    lambda: (torch.ones(4, 5), torch.tensor([[1], [2], [3]]), r(4, 5)), grad=False)
row("indexing", "masked_scatter", torch.masked_scatter, lambda: (r(10, 10), r(10, 10) > 0, r(100)))
row("indexing", "select_scatter", lambda x, a, b: (aten.select_scatter(x, a, 1, 0), aten.select_scatter(x, b, 0, 1)), lambda: (r(8, 17, 38),
    r(8, 38), r(17, 38)))
row("indexing", "slice_scatter", lambda x, a: (aten.slice_scatter(x, a, 2, 10, -10), aten.slice_scatter(x, a[:, :, :40], 2, 10, -10, 2)),
    lambda: (r(4, 8, 100), r(4, 8, 80)))
row("indexing", "slice_scatter to the end", lambda a, b: (aten.slice_scatter(a, b, 1, 1, 2**63 - 1, 2), aten.slice_scatter(a, b[:, :1], 1,
    2, 2**63 - 1, 3)), lambda: (r(1, 4), r(1, 2)))
row("indexing", "slice_scatter of nothing", lambda a, b: [aten.slice_scatter(a, b, 0, *p, 1) for p in ((2, 0), (10, 20), (-20, 0), (-20,
    -16))], lambda: (torch.arange(10.0), torch.empty(0)), grad=False)
row("indexing", "as_strided_scatter", lambda a, b: aten.as_strided_scatter(a * 8 + 10, b * 2 - 4, (10, 12), (24, 2), 0), lambda: (r(10, 24),
    r(10, 12)), dynamic=False)
row("indexing", "diagonal_scatter", lambda a, b: (a.diagonal_scatter(b), a.diagonal_scatter(b[:3], 1), torch.diagonal_copy(a),
    torch.diag_embed(b), torch.diag(b)), lambda: (r(4, 4), r(4)))
row("indexing", "embedding", lambda w, i: F.relu(F.embedding(i, w, padding_idx=0)), lambda: (r(10, 4), i_(10, 2, 8)))
row("indexing", "embedding options", lambda w, i: F.embedding(i.int(), w), lambda: (r(10, 4), i_(10, 2, 8)))
row("indexing", "embedding renorm", lambda w, i: F.embedding(i, w, max_norm=1.0), lambda: (r(10, 4), i_(10, 2, 8)), grad=False)
row("indexing", "embedding_bag op", lambda w, i, o: aten._embedding_bag(w, i, o, False, 0, False, None)[0], lambda: (r(10, 4), i_(10, 8),
    torch.tensor([0, 2, 6])), grad=False)
for _m in ("sum", "mean", "max"):
    row("indexing", f"embedding_bag {_m}", lambda w, i, o, m=_m: F.embedding_bag(i, w, o, mode=m), lambda: (r(10, 4), i_(10, 8),
        torch.tensor([0, 2, 6])))
    row("indexing", f"embedding_bag 2d {_m}", lambda w, i, m=_m: F.embedding_bag(i, w, mode=m), lambda: (r(10, 4), i_(10, 3, 5)))
row("indexing", "embedding_bag weighted", lambda w, i, o, p: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=p), lambda: (r(10, 4),
    i_(10, 8), torch.tensor([0, 2, 6]), r(8)))
row("indexing", "embedding_bag padding", lambda w, i, o: (F.embedding_bag(i, w, o, mode="mean", padding_idx=1), F.embedding_bag(i, w,
    torch.cat([o, torch.tensor([8])]), mode="sum", include_last_offset=True)),
    lambda: (r(10, 4), i_(4, 8), torch.tensor([0, 2, 2])))
row("indexing", "one_hot", lambda a: F.one_hot(a, 8) + 1, lambda: (torch.arange(100).view(4, 25) % 8,))
row("indexing", "tril_indices", lambda x: (x[torch.tril_indices(4, 4)[0]], x.tril(-1), x.triu(1), torch.ones(4, 4).tril().bool()),
    lambda: (r(4, 4),))
row("indexing", "out of range is an error elsewhere", lambda x, i: x[i.clamp(0, 3)], lambda: (r(4, 4), ints(7)))
row("indexing", "meshgrid, cartesian", lambda x, y: (torch.meshgrid(x, y, indexing="ij"), torch.cartesian_prod(x, y),
    torch.combinations(x)), lambda: (r(3), r(4)))
row("indexing", "renorm, rot90, vander", lambda x: (x.renorm(2, 0, 1.0), x.rot90(), torch.vander(x[0]), x.tensor_split(3, 1),
    torch.block_diag(x, x)), lambda: (r(4, 5),), grad=False)

# ---- shapes, views, layouts
row("views", "reshape up and down", lambda x, y: ((x.view(2, 3, 4, 5, 6) + y).view(-1), (x + 1).view(6, 4, 30) * 2), lambda: (r(720), r(2,
    3, 4, 5, 6)))
row("views", "view with ones", lambda x: ((x * 2).view(10, -1), x.view(1, 100, 1).squeeze() + 1), lambda: (r(10, 1, 10, 1, 1),))
row("views", "views of an index", lambda a, b: aten.view(aten.view(aten.index(a, [b]), [1, 32, 64]), [1, 4, 8, 64]), lambda: (r(64, 64),
    i_(64, 32)))
row("views", "empty slice viewed", lambda x: (x[:, 4:].view(4, -1, 4), F.relu(x)[:, :, :, 0:0].view(4, 2, -1) if x.shape[1] == 2 else x),
    lambda: (r(4, 4, 4, 4),), dynamic=False)
row("views", "view of a dtype", lambda x, y: ((x + 1).view(i32), (y + 1).view(f32)), lambda: (u(2, 3), ints(2, 3, low=0, dtype=i32)),
    grad=False)
row("views", "view f16 as i16", lambda x: (x.view(i16).mul(2), (x + 1).view(i16) * 2), lambda: (r(24).half(),), grad=False)
row("views", "view bf16 as i16", lambda a, b: (a + b).view(i16).mul(2), lambda: (r(4).bfloat16(), r(4).bfloat16()), grad=False)
row("views", "view u8 as wider", lambda x: [x.view(d).view(u8) for d in (i16, i32, i64)] + [x.view(i32) + 1], lambda: (ints(64, 64, low=0,
    high=16, dtype=u8),), dynamic=False)
row("views", "view i64 as smaller", lambda x: (x.view(i32) + 1, x.view(u8) + 1, x.view(f64) * 2), lambda: (ints(4, 6),), dynamic=False)
row("views", "slices", lambda a: (a[:, :10, 0] + a[:, 10:, 0], (a + 1)[:, :10, 0] * 2, a[:, -30:, 0], a[:, :-30, 0], a[:-1, ::2,
    -1] + a[-1:, 1::2, -2]), lambda: (r(2, 20, 2),))
row("views", "empty slices", lambda a: [aten.slice.Tensor(a, 0, *p, 1) + 1 for p in ((2, 0), (10, 20), (-20, 0), (-20, -16))],
    lambda: (u(10),))
row("views", "split", lambda a: ([t + 1 for t in torch.split(a * 2.0, [3, 3, 4], -1)], torch.split(a, 3, -1), (a + 1).split(4, -1),
    a.unbind(-1)), lambda: (r(2, 2, 10),))
row("views", "narrow", lambda x: (x.narrow(1, 10, 16), (x + 2).narrow(0, 10, 16) + 1, aten.narrow_copy(x, 1, 10, 16)), lambda: (r(64, 64),))
row("views", "permute", lambda a: ((a + 1).permute(2, 1, 4, 0, 3) + 2, a.permute(2, 1, 4, 0, 3) + 2), lambda: (r(2, 2, 2, 2, 2),))
row("views", "unfold", lambda a: (a.unfold(0, 2, 1).unsqueeze(1).permute(0, 2, 3, -3), a.unfold(1, 3, 2) * 2), lambda: (r(4, 7),))
row("views", "unfold of nothing", lambda x: torch.unfold_copy(x, 1, 0, 7), lambda: (u(1, 0),), dynamic=False, grad=False)
row("views", "expand", lambda a: ((a + 1).expand(3, 4, 2, 3, 2) + 2, a.expand(2, 1, 2, 3, 2) + 2, a.expand(2, -1, 3, -1)), lambda: (r(2, 3,
    2),))
row("views", "squeeze", lambda a: ((a + 1).squeeze() + 2, a.squeeze(-1).squeeze(2) + 2, a.squeeze((0, 2)).clone(), a.unsqueeze(-1) + 1),
    lambda: (r(1, 2, 1, 2, 2, 1),))
row("views", "unsqueeze_", lambda a: (aten.unsqueeze_(a + 1, 2), aten.unsqueeze_(a + 1, 0) + 2), lambda: (r(2, 2, 2, 2),))
row("views", "repeat", lambda x: (x.repeat(0, 1, 1, 1), x.repeat(2, 2, 3, 1), x.repeat(2, 1, 1, 1, 1, 1), x.tile(2)), lambda: (r(1, 2, 4,
    8),))
row("views", "repeat, as_strided", lambda x: (v := x.repeat(3, 2).as_strided((3, 2), (2, 1))) + v, lambda: (r(1, 1),), dynamic=False)
row("views", "repeat_interleave", lambda x: (x.repeat_interleave(2), x.repeat_interleave(3, dim=0), x.repeat_interleave(x.size(1), dim=1)),
    lambda: (r(1, 2, 4, 8),))
row("views", "repeat_interleave sizes", lambda x: aten.repeat_interleave.Tensor(x, output_size=12), lambda: (torch.tensor([2, 4, 6]),))
row("views", "as_strided", lambda x: (x.as_strided((8, 8, 64), (512, 64, 1), 0), (x + 1).as_strided((8, 8, 64), (512, 64, 1), 0) + 2),
    lambda: (r(64, 64),), dynamic=False)
row("views", "as_strided of channels last", lambda x: (x + 1).as_strided((2, 24, 2, 10, 5), (24 * 100, 1, 24 * 50, 24, 240), 0) + 2,
    lambda: (r(2, 24, 10, 10).to(memory_format=CL),), dynamic=False)
row("views", "as_strided overlapping", lambda x: (x.as_strided((5, 4), (2, 1), 1) * 2, (x * 3).as_strided((5, 4), (2, 1)).sum(1)),
    lambda: (r(16),), dynamic=False)
row("views", "strided result", lambda x: torch.empty_strided(x.size(), x.stride()).copy_(x + x), lambda: (r(16, 16)[:, :8],), dynamic=False,
    grad=False)
row("views", "transposed operands keep strides", lambda x, y: x + y, lambda: (r(1, 4, 5, 6).permute(0, 2, 3, 1), r(4, 5, 6).permute(1, 2,
    0)))
row("views", "permuted operand", lambda a, b: a + b, lambda: (r(2, 3, 4, 5), r(4, 2, 3, 5).permute(1, 2, 0, 3)))
row("views", "memory formats", lambda a, b: (a.to(memory_format=CL), b.contiguous(), a.contiguous(memory_format=CL) * 2,
    torch.zeros_like(b), torch.empty_like(b).fill_(1), b.clone()),
    lambda: (r(2, 2, 6, 6), r(2, 2, 6, 6).to(memory_format=CL)))
row("views", "pad and view", lambda a: (y := F.pad(a, (0, 0, 0, 1))).view(*y.size()[:-2], y.size(-1), y.size(-2)), lambda: (u(4, 3, 8, 8),))
row("views", "flip, roll", lambda x: (x.flip(-1), x.flip(0, 2) - 2, x.roll([-3, 10], [1, 2]), x.roll(5)), lambda: (r(2, 6, 6, 3),))
row("views", "insignificant strides", lambda x: (x + 1).view(-1, 1, 2), lambda: (torch.arange(8.0),))
row("views", "pixel_shuffle", lambda x: (F.relu(F.pixel_shuffle(x, 2)), F.pixel_unshuffle(x, 2), x.flatten(1)), lambda: (r(1, 16, 6,
    8).to(memory_format=CL),))
row("views", "cat", lambda a: (t := a * 2, torch.cat((a, a[:, :4] + 1, a + 2), -1), torch.cat((t, t), 0), torch.cat((t, t.double()),
    0))[1:], lambda: (r(8, 16),))
row("views", "cat channels last", lambda a: (torch.cat((a, a + 1), 1), torch.cat((a, a), -1)), lambda: (r(1, 3, 3,
    16).to(memory_format=CL),))
row("views", "cat with empty", lambda a, e, b: (torch.cat([a, e, b]), torch.cat([e, a]), torch.cat([e]), torch.cat([a, e, b], -1)),
    lambda: (r(1, 3, 6), torch.ones(0), r(1, 3, 6)))
row("views", "cat u8", lambda x: torch.cat([x.new_zeros(1).expand(3, 1), x], -1), lambda: (ints(3, 25, low=0, high=256, dtype=u8),))
row("views", "cat promotes", lambda a, b: torch.cat([a, b], 1), lambda: (r(8, 16), r(8, 20).half()))
row("views", "cat of a product", lambda a, b, c: torch.cat((torch.mm(torch.mm(b, c).narrow(1, 0, 10), a[:10]), a[:20]), 1), lambda: (r(25,
    26), r(20, 24), r(24, 16)), rtol=1e-4, atol=1e-4)
row("views", "stack", lambda a, b: (torch.stack([a.expand(12, 16), b.expand(12, 16)], 2), torch.hstack([a, a]), torch.dstack([a, a]),
    torch.column_stack([b, b])), lambda: (r(1, 16), r(12, 1)))
row("views", "aliased buffers", lambda x, y: (x := 2 * x, c := torch.cat([x, 2 * y], -1), d := 1 + c, torch.mm(d, d)[:, :2] + x)[-1],
    lambda: (r(4, 2), r(4, 2)), rtol=1e-5)
row("views", "movedim, flatten", lambda x: (x.movedim(0, 2) + 1, x.flatten(1), x.unflatten(1, (2, 3)), x.swapaxes(0, 1).reshape(-1), x.mT,
    x.ravel()), lambda: (r(4, 6, 5),))
row("views", "strided inputs", lambda x, y: x + y, lambda: (strided((8, 16), (32, 2)), strided((8, 16), (16, 1))))
row("views", "gaps and overlaps", lambda x, y: (x * 2 + y, x.sum(0), y.softmax(0)), lambda: (strided((6, 5), (3, 1)), strided((6, 5), (1,
    7))))
row("views", "zero sizes", lambda x, y: (x + 1, x @ y, torch.cat([x, x]), x.t(), x.sum(0), x.expand(2, 0, 3)), lambda: (r(0, 3), r(3, 0)),
    dynamic=False)
row("views", "negative and conjugate views", lambda x: (x.conj() * 2, x.conj().imag, torch.resolve_neg(x.conj().imag) + 1, x.mH @ x),
    lambda: (r(4, 4, dtype=c64),), grad=False)
row("views", "real and imaginary", lambda x: (torch.view_as_real(x) + 1, x.real * 2, x.imag + x.abs()), lambda: (r(4, dtype=c64),))
row("views", "view_as_complex", lambda x: (q := torch.view_as_complex(x + 1), torch.view_as_real(q) + 1, torch.view_as_real(q + 1))[1:],
    lambda: (z(4, 2),))
row("views", "view_as_complex strided", lambda x: torch.view_as_complex(x.clone(memory_format=torch.contiguous_format)),
    lambda: (strided((8, 4, 3, 2), (1, 8, 64, 32)),))
row("views", "polar, complex", lambda d, a: (torch.polar(d, a), torch.complex(d, a)), lambda: (u(5, dtype=f64), r(5, dtype=f64)))
row("views", "complex sums", lambda a, b: (torch.add(a, b, alpha=2), a * b + 10, -a, a / b, a.sum(), a.mean(0), (a + b) + (a + b), a.exp(),
    a.pow(2)), lambda: (r(4, 8, dtype=c64), r(4, 1, dtype=c64)))
row("views", "complex128", lambda a: (a.sqrt(), a.sin(), a.tanh(), a.log(), a.prod(0)), lambda: (r(4, 3, dtype=torch.complex128),))
row("views", "to complex", lambda x: (x + x + 12).to(c64), lambda: (u(1, 2, 4, 8),))
