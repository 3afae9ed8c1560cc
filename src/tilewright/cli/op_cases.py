"""The ops that `tilewright bench ops` times: each a PyTorch function and inputs of about a million elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Case = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
SIDE = 1024
# Why PyTorch is ahead where it is: shown beside the rows that come out below 1.
WHY = {
    "sin": "bound by arithmetic in f32 that carries what it rounds away: 0.52 units of error, PyTorch 0.60",
    "cos": "bound by arithmetic in f32 that carries what it rounds away: 0.52 units of error, PyTorch 0.60",
    "tan": "bound by arithmetic: three steps to take pi/2 away, a polynomial of degree 6 and a reciprocal",
    "erfc": "bound by arithmetic: an exponential, a quotient and a polynomial of degree 10",
    "matmul 1024": "the product runs at 85 to 100 % of PyTorch's rate, and packing the right operand takes another 3 % of a call",
}


def why(name: str, bound: str, roofline: float) -> str:
    """Why a case is not ahead: a reason found for it, or else how near it is to what bounds it."""
    return WHY.get(name) or f"reaches {roofline:.0%} of what {'the arithmetic units' if bound == 'flops' else bound} would allow"


def cases() -> dict[str, Case]:
    """Name -> (function, inputs), made when the case is timed."""
    import torch
    import torch.nn.functional as F

    def square(low: float = -3.0, high: float = 3.0, *shape: int) -> Any:
        return torch.rand(*(shape or (SIDE, SIDE))) * (high - low) + low

    def ints(high: int = 1000) -> Any:
        return torch.randint(-high, high, (SIDE, SIDE), dtype=torch.int32)

    def projected(found: Any) -> Any:  # vectors have no sign: the matrix that they and the values stand for
        return (found[1] * found[0]) @ found[1].mT

    def rebuilt(u: Any, s: Any, vh: Any) -> Any:
        return (u * s) @ vh

    def numbers(*shape: int) -> Any:
        return torch.complex(square(-3.0, 3.0, *shape), square(-3.0, 3.0, *shape))

    table: dict[str, Case] = {}

    def add(name: str, fn: Any, *inputs: Callable[[], Any]) -> None:
        table[name] = lambda: (fn, tuple(make() for make in inputs))

    plain = {
        "relu": F.relu, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "sigmoid": torch.sigmoid,
        "tanh": torch.tanh, "exp": torch.exp, "expm1": torch.expm1, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
        "erf": torch.erf, "erfc": torch.erfc, "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh, "atan": torch.atan,
        "elu": F.elu, "mish": F.mish, "softplus": F.softplus, "hardswish": F.hardswish, "leaky relu": F.leaky_relu, "abs": torch.abs,
        "round": torch.round, "floor": torch.floor, "square": torch.square, "sign": torch.sign, "i0": torch.special.i0,
    }
    for name, fn in plain.items():
        add(name, fn, square)
    for name, fn in {"log": torch.log, "log1p": torch.log1p, "log2": torch.log2, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
                     "reciprocal": torch.reciprocal, "lgamma": torch.lgamma, "digamma": torch.digamma}.items():
        add(name, fn, lambda: square(0.1, 4.0))
    for name, fn in {"asin": torch.asin, "acos": torch.acos, "atanh": torch.atanh, "erfinv": torch.erfinv}.items():
        add(name, fn, lambda: square(-0.9, 0.9))
    for name, fn in {"add": torch.add, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum, "atan2": torch.atan2,
                     "remainder": torch.remainder, "less": torch.lt}.items():
        add(name, fn, square, lambda: square(0.5, 3.0))
    add("pow", torch.pow, lambda: square(0.1, 3.0), square)
    add("where", lambda x, y: torch.where(x > 0, x, y), square, square)
    add("bitwise and", torch.bitwise_and, ints, ints)
    add("cast to bf16", lambda x: x.to(torch.bfloat16), square)
    for name, fn in {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "var": torch.var}.items():
        add(f"{name} of all", fn, square)
        add(f"{name} of rows", lambda x, fn=fn: fn(x, dim=1), square)
        add(f"{name} of columns", lambda x, fn=fn: fn(x, dim=0), square)
    add("prod of rows", lambda x: torch.prod(x, 1), lambda: square(0.99, 1.01))
    add("prod of all", torch.prod, lambda: torch.sign(square()))  # exact: rounding would drown in a million factors
    add("argmax of rows", lambda x: torch.argmax(x, 1), square)
    add("logsumexp of rows", lambda x: torch.logsumexp(x, 1), square)
    add("softmax", lambda x: torch.softmax(x, -1), square)
    add("log softmax", lambda x: torch.log_softmax(x, -1), square)
    add("softmax of columns", lambda x: torch.softmax(x, 0), square)
    add("layer norm", lambda x: F.layer_norm(x, (SIDE,)), square)
    add("rms norm", lambda x: F.rms_norm(x, (SIDE,)), square)
    add("group norm", lambda x: F.group_norm(x, 8), lambda: square(-1, 1, 4, 64, 64, 64))
    add("batch norm", lambda x, m, v: F.batch_norm(x, m, v), lambda: square(-1, 1, 4, 64, 64, 64), lambda: square(-1, 1, 64),
        lambda: square(0.5, 1, 64))
    add("cross entropy", F.cross_entropy, square, lambda: torch.randint(0, SIDE, (SIDE,)))
    add("cumsum of rows", lambda x: torch.cumsum(x, 1), square)
    add("cumprod of rows", lambda x: torch.cumprod(x, 1), lambda: square(0.99, 1.01))
    add("sort rows", lambda x: torch.sort(x, 1)[0], square)
    add("argsort rows", lambda x: torch.argsort(x, dim=1, stable=True), square)
    add("sort all", lambda x: torch.sort(x)[0], lambda: square(-1, 1, SIDE * SIDE))
    add("topk 10 of rows", lambda x: torch.topk(x, 10, 1)[0], square)
    add("transpose", lambda x: x.t().contiguous(), square)
    add("concat", lambda x, y: torch.cat([x, y], 1), square, square)
    add("flip", lambda x: torch.flip(x, (1,)), square)
    add("pad", lambda x: F.pad(x, (3, 3, 3, 3)), square)
    add("embedding", lambda w, i: F.embedding(i, w), square, lambda: torch.randint(0, SIDE, (SIDE,)))
    add("gather", lambda x, i: torch.gather(x, 1, i), square, lambda: torch.randint(0, SIDE, (SIDE, SIDE)))
    add("scatter add", lambda x, i, y: torch.scatter_add(x, 1, i, y), square, lambda: torch.randint(0, SIDE, (SIDE, SIDE)), square)
    add("matmul 1024", torch.matmul, square, square)
    add("matmul batch 16x256", torch.matmul, lambda: square(-1, 1, 16, 256, 256), lambda: square(-1, 1, 16, 256, 256))
    add("attention 1x8x512x64", F.scaled_dot_product_attention, *[lambda: square(-1, 1, 1, 8, 512, 64)] * 3)
    add("conv 3x3 64", lambda x, w: F.conv2d(x, w, padding=1), lambda: square(-1, 1, 4, 64, 64, 64),
        lambda: square(-0.1, 0.1, 64, 64, 3, 3))
    add("conv depthwise 3x3", lambda x, w: F.conv2d(x, w, padding=1, groups=64), lambda: square(-1, 1, 4, 64, 64, 64),
        lambda: square(-0.1, 0.1, 64, 1, 3, 3))
    add("conv transposed 2x2", lambda x, w: F.conv_transpose2d(x, w, stride=2), lambda: square(-1, 1, 4, 64, 32, 32),
        lambda: square(-0.1, 0.1, 64, 64, 2, 2))
    add("conv 1-D 5", lambda x, w: F.conv1d(x, w, padding=2), lambda: square(-1, 1, 4, 64, 4096), lambda: square(-0.1, 0.1, 64, 64, 5))
    add("max pool 2x2", lambda x: F.max_pool2d(x, 2), lambda: square(-1, 1, 4, 64, 64, 64))
    add("avg pool 2x2", lambda x: F.avg_pool2d(x, 2), lambda: square(-1, 1, 4, 64, 64, 64))
    add("resize bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: square(-1, 1, 4, 64, 32, 32))
    add("resize nearest", lambda x: F.interpolate(x, scale_factor=2), lambda: square(-1, 1, 4, 64, 32, 32))
    add("fft rows", lambda x: torch.view_as_real(torch.fft.fft(x)), square)
    add("rfft rows", lambda x: torch.view_as_real(torch.fft.rfft(x)), square)
    add("irfft rows", torch.fft.irfft, lambda: numbers(SIDE, SIDE // 2 + 1))
    add("fft complex rows", lambda x: torch.view_as_real(torch.fft.fft(x)), numbers)
    for name, fn in {"add": torch.add, "mul": torch.mul}.items():
        add(f"complex {name}", lambda x, y, fn=fn: torch.view_as_real(fn(x, y)), numbers, numbers)
    add("complex exp", lambda x: torch.view_as_real(torch.exp(x)), numbers)
    add("complex abs", torch.abs, numbers)
    add("fft 2^20", lambda x: torch.view_as_real(torch.fft.fft(x)), lambda: square(-1, 1, SIDE * SIDE))
    add("solve 256", torch.linalg.solve, lambda: square(-1, 1, 16, 256, 256) + 20 * torch.eye(256), lambda: square(-1, 1, 16, 256, 4))
    add("cholesky 256", lambda x: torch.linalg.cholesky(x @ x.mT + 256 * torch.eye(256)), lambda: square(-1, 1, 16, 256, 256))
    add("inverse 64", torch.linalg.inv, lambda: square(-1, 1, 256, 64, 64) + 10 * torch.eye(64))
    add("solve 1024", torch.linalg.solve, lambda: square(-1, 1) + 40 * torch.eye(SIDE), lambda: square(-1, 1, SIDE, 16))
    add("inverse 512", torch.linalg.inv, lambda: square(-1, 1, 512, 512) + 30 * torch.eye(512))
    add("qr 256", lambda x: torch.linalg.qr(x), lambda: square(-1, 1, 256, 256))
    for n in (128, 256):
        add(f"eigh {n}", lambda x: projected(torch.linalg.eigh(x + x.mT)), partial(square, -1, 1, n, n))
    add("svd 128", lambda x: rebuilt(*torch.linalg.svd(x, full_matrices=False)), lambda: square(-1, 1, 128, 128))
    return table
