"""The ops that `benchmarks/bench.py ops` times: each a PyTorch function and its inputs, which a `Draw` makes in one size and dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SIZES = ("small", "medium", "large")
PLAIN, EXACT, WHOLE = ("f32", "bf16"), ("f32", "f64"), ("i32", "i64")  # dtypes of most ops, of decompositions and transforms, of integers
# Why PyTorch is ahead where it is: shown beside the rows that come out below 1.
WHY = {
    "sin": "bound by arithmetic in f32 that carries what it rounds away: 0.52 units of error, PyTorch 0.60",
    "cos": "bound by arithmetic in f32 that carries what it rounds away: 0.52 units of error, PyTorch 0.60",
    "tan": "bound by arithmetic: three steps to take pi/2 away, a polynomial of degree 6 and a reciprocal",
    "erfc": "bound by arithmetic: an exponential, a quotient and a polynomial of degree 10",
    "matmul": "the product runs at 85 to 100 % of PyTorch's rate, and packing the right operand takes another 3 % of a call",
}


def why(name: str, bound: str, roofline: float) -> str:
    """Why a case is not ahead: a reason found for it, or else how near it is to what bounds it."""
    return WHY.get(name) or f"reaches {roofline:.0%} of what {'the arithmetic units' if bound == 'flops' else bound} would allow"


@dataclass(frozen=True)
class Draw:
    """Random inputs of one size and dtype."""

    size: str = "medium"
    dtype: str = "f32"

    def pick(self, small: Any, medium: Any, large: Any) -> Any:
        return {"small": small, "medium": medium, "large": large}[self.size]

    @property
    def side(self) -> int:
        """The side of the square matrices that most ops are given."""
        found: int = self.pick(128, 1024, 2048)
        return found

    @property
    def torch_dtype(self) -> Any:
        import torch

        return {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64}[self.dtype]

    def real(self, low: float = -3.0, high: float = 3.0, *shape: int) -> Any:
        import torch

        return (torch.rand(*(shape or (self.side, self.side))) * (high - low) + low).to(self.torch_dtype)

    def image(self, channels: int = 0) -> Any:
        n, c, side = self.pick((1, 32, 28), (4, 64, 64), (8, 64, 112))
        return self.real(-1, 1, n, channels or c, side, side)

    def ints(self, high: int = 1000, *shape: int) -> Any:
        import torch

        return torch.randint(-high, high, shape or (self.side, self.side), dtype=self.torch_dtype)

    def places(self, high: int, *shape: int) -> Any:
        import torch

        return torch.randint(0, high, shape or (self.side, self.side))

    def numbers(self, *shape: int) -> Any:
        import torch

        return torch.complex(self.real(-3, 3, *shape), self.real(-3, 3, *shape))

    def eye(self, n: int, scale: float) -> Any:
        import torch

        return scale * torch.eye(n, dtype=self.torch_dtype)


Make = Callable[[Draw], Any]


@dataclass(frozen=True)
class Case:
    fn: Callable[..., Any]
    makes: tuple[Make, ...]
    dtypes: tuple[str, str] = PLAIN

    def inputs(self, draw: Draw) -> tuple[Any, ...]:
        return tuple(make(draw) for make in self.makes)


def cases() -> dict[str, Case]:
    """Every op that is timed, by name."""
    table: dict[str, Case] = {}

    def add(name: str, fn: Any, *makes: Make, dtypes: tuple[str, str] = PLAIN) -> None:
        table[name] = Case(fn, makes, dtypes)

    for part in (_elementwise, _rows, _moves, _products, _images, _losses, _backward, _transforms):
        part(add)
    return table


def _between(low: float, high: float) -> Make:
    return lambda d: d.real(low, high)


def _elementwise(add: Any) -> None:
    import torch
    import torch.nn.functional as F

    special = torch.special
    square = _between(-3, 3)
    for name, fn in {
        "relu": F.relu, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "sigmoid": torch.sigmoid,
        "tanh": torch.tanh, "exp": torch.exp, "expm1": torch.expm1, "exp2": torch.exp2, "sin": torch.sin, "cos": torch.cos,
        "tan": torch.tan, "erf": torch.erf, "erfc": torch.erfc, "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh,
        "atan": torch.atan,
        "elu": F.elu, "mish": F.mish, "softplus": F.softplus, "hardswish": F.hardswish, "leaky relu": F.leaky_relu, "abs": torch.abs,
        "round": torch.round, "floor": torch.floor, "square": torch.square, "sign": torch.sign, "neg": torch.neg, "trunc": torch.trunc,
        "frac": torch.frac, "selu": F.selu, "celu": F.celu, "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid, "softsign": F.softsign,
        "logsigmoid": F.logsigmoid, "tanhshrink": F.tanhshrink, "softshrink": F.softshrink, "clamp": lambda x: torch.clamp(x, -1, 1),
        "isnan": torch.isnan, "nan to num": torch.nan_to_num, "glu": F.glu, "sinc": torch.sinc, "pow 3": lambda x: x**3,
        "signbit": torch.signbit,
    }.items():
        add(name, fn, square)
    for name, fn in {"log": torch.log, "log1p": torch.log1p, "log2": torch.log2, "log10": torch.log10, "sqrt": torch.sqrt,
                     "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal}.items():
        add(name, fn, _between(0.1, 4.0))
    for name, fn in {"lgamma": torch.lgamma, "digamma": torch.digamma, "entr": special.entr, "k0": special.modified_bessel_k0,
                     "trigamma": lambda x: torch.polygamma(1, x)}.items():
        add(name, fn, _between(0.1, 4.0), dtypes=EXACT)
    for name, fn in {"i0": special.i0, "i1": special.i1, "i0e": special.i0e, "erfcx": special.erfcx, "ndtr": special.ndtr,
                     "log ndtr": special.log_ndtr, "bessel j0": special.bessel_j0}.items():
        add(name, fn, square, dtypes=EXACT)
    for name, fn in {"asin": torch.asin, "acos": torch.acos, "atanh": torch.atanh}.items():
        add(name, fn, _between(-0.9, 0.9))
    add("erfinv", torch.erfinv, _between(-0.9, 0.9), dtypes=EXACT)
    add("logit", torch.logit, _between(0.1, 0.9))
    for name, fn in {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum, "fmin": torch.fmin,
                     "less": torch.lt, "equal": torch.eq, "copysign": torch.copysign, "lerp": lambda x, y: torch.lerp(x, y, 0.3),
                     "addcmul": lambda x, y: torch.addcmul(x, x, y)}.items():
        add(name, fn, square, _between(0.5, 3.0))
    for name, fn in {"atan2": torch.atan2, "remainder": torch.remainder, "fmod": torch.fmod, "floor divide": torch.floor_divide,
                     "hypot": torch.hypot, "logaddexp": torch.logaddexp, "xlogy": lambda x, y: torch.xlogy(x, y),
                     "heaviside": torch.heaviside}.items():
        add(name, fn, square, _between(0.5, 3.0), dtypes=EXACT)
    add("pow", torch.pow, _between(0.1, 3.0), square)
    add("igamma", torch.igamma, _between(0.5, 4.0), _between(0.1, 4.0), dtypes=EXACT)
    add("where", lambda x, y: torch.where(x > 0, x, y), square, square)
    add("add a row", torch.add, square, lambda d: d.real(-1, 1, d.side))
    add("add a column", torch.add, square, lambda d: d.real(-1, 1, d.side, 1))
    add("masked fill", lambda x, m: x.masked_fill(m > 500, 1.0), square, lambda d: d.places(1000))
    ints, positive = (lambda d: d.ints()), (lambda d: d.places(1000).to(d.torch_dtype) + 1)
    for name, fn in {"bitwise and": torch.bitwise_and, "integer add": torch.add, "integer multiply": torch.mul,
                     "integer maximum": torch.maximum}.items():
        add(name, fn, ints, ints, dtypes=WHOLE)
    for name, fn in {"integer divide": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "integer floor divide": torch.floor_divide,
                     "integer remainder": torch.remainder, "gcd": torch.gcd}.items():
        add(name, fn, ints, positive, dtypes=WHOLE)
    add("shift left", lambda x: x << 3, ints, dtypes=WHOLE)
    add("bitwise not", torch.bitwise_not, ints, dtypes=WHOLE)
    add("logical not", torch.logical_not, ints, dtypes=WHOLE)
    add("cast to bf16", lambda x: x.to(torch.bfloat16), square, dtypes=EXACT)
    add("cast to f16", lambda x: x.to(torch.float16), square)
    add("cast to f32", lambda x: x.to(torch.float32), square, dtypes=("f64", "bf16"))
    add("cast to i32", lambda x: x.to(torch.int32), square)
    add("cast to i64", lambda x: x.to(torch.int64), square)
    add("cast of integers", lambda x: x.to(torch.float32), ints, dtypes=WHOLE)


def _rows(add: Any) -> None:
    import torch
    import torch.nn.functional as F

    square = _between(-3, 3)
    for name, fn in {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "var": torch.var, "norm": torch.linalg.vector_norm,
                     "any": lambda x, **k: torch.any(x > 4, **k)}.items():
        add(f"{name} of all", fn, square)
        add(f"{name} of rows", lambda x, fn=fn: fn(x, dim=1), square)
        add(f"{name} of columns", lambda x, fn=fn: fn(x, dim=0), square)
    add("sum of the middle", lambda x: x.sum(1), lambda d: d.real(-1, 1, d.side // 16, 16 * d.side // 64, 64))
    add("sum of outer axes", lambda x: x.sum((0, 2)), lambda d: d.real(-1, 1, d.side // 16, 16 * d.side // 64, 64))
    add("integer sum", torch.sum, lambda d: d.ints(), dtypes=WHOLE)
    add("count nonzero", torch.count_nonzero, lambda d: d.ints(2), dtypes=WHOLE)
    add("prod of rows", lambda x: torch.prod(x, 1), _between(0.99, 1.01), dtypes=EXACT)
    add("prod of all", torch.prod, lambda d: torch.sign(d.real()), dtypes=EXACT)  # exact: rounding would drown in a million factors
    add("argmax of rows", lambda x: torch.argmax(x, 1), square)
    add("argmax of columns", lambda x: torch.argmax(x, 0), square)
    add("argmin of all", torch.argmin, square, dtypes=EXACT)
    add("max and where", lambda x: torch.max(x, 1), square)
    add("aminmax of all", torch.aminmax, square)
    add("logsumexp of rows", lambda x: torch.logsumexp(x, 1), square)
    add("softmax", lambda x: torch.softmax(x, -1), square)
    add("log softmax", lambda x: torch.log_softmax(x, -1), square)
    add("softmax of columns", lambda x: torch.softmax(x, 0), square)
    add("softmax short rows", lambda x: torch.softmax(x, -1), lambda d: d.real(-3, 3, d.side * d.side // 16, 16))
    add("layer norm", lambda x: F.layer_norm(x, x.shape[-1:]), square)
    add("layer norm of short rows", lambda x: F.layer_norm(x, (64,)), lambda d: d.real(-3, 3, d.side * d.side // 64, 64))
    add("rms norm", lambda x: F.rms_norm(x, x.shape[-1:]), square)
    add("group norm", lambda x: F.group_norm(x, 8), lambda d: d.image())
    add("instance norm", F.instance_norm, lambda d: d.image())
    add("batch norm", lambda x, m, v: F.batch_norm(x, m, v), lambda d: d.image(64), lambda d: d.real(-1, 1, 64),
        lambda d: d.real(0.5, 1, 64))
    add("batch norm training", lambda x: F.batch_norm(x, None, None, training=True), lambda d: d.image())
    add("local response norm", lambda x: F.local_response_norm(x, 5), lambda d: d.image())
    add("normalize rows", F.normalize, square)
    add("cosine similarity", F.cosine_similarity, square, square)
    for name, fn in {"cumsum": torch.cumsum, "cumprod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}.items():
        low, high = (0.99, 1.01) if name == "cumprod" else (-3, 3)
        add(f"{name} of rows", lambda x, fn=fn: fn(x, 1), _between(low, high), dtypes=EXACT)
        add(f"{name} of columns", lambda x, fn=fn: fn(x, 0), _between(low, high), dtypes=EXACT)
    add("cummax of rows", lambda x: torch.cummax(x, 1)[0], square)
    add("cumsum of all", lambda x: torch.cumsum(x, 0), lambda d: d.real(-1, 1, d.side * d.side), dtypes=EXACT)
    add("sort rows", lambda x: torch.sort(x, 1)[0], square)
    add("sort columns", lambda x: torch.sort(x, 0)[0], square)
    add("argsort rows", lambda x: torch.argsort(x, dim=1, stable=True), square)
    add("sort all", lambda x: torch.sort(x)[0], lambda d: d.real(-1, 1, d.side * d.side))
    add("sort integers", lambda x: torch.sort(x, 1)[0], lambda d: d.ints(), dtypes=WHOLE)
    add("topk 10 of rows", lambda x: torch.topk(x, 10, 1)[0], square)
    add("topk 50 of a vocabulary", lambda x: torch.topk(x, 50)[0], lambda d: d.real(-3, 3, d.pick(1, 4, 32), 50257))
    add("median of rows", lambda x: torch.median(x, 1)[0], square)
    add("kthvalue of rows", lambda x: torch.kthvalue(x, 7, 1)[0], square)
    add("quantile of rows", lambda x: torch.quantile(x, 0.9, 1), square, dtypes=EXACT)
    add("histogram", lambda x: torch.histc(x, 64, -3, 3), square, dtypes=EXACT)
    add("bucketize", lambda x, e: torch.bucketize(x, e), square, lambda d: torch.linspace(-3, 3, 64).to(d.torch_dtype), dtypes=EXACT)
    add("searchsorted", lambda e, x: torch.searchsorted(e, x), lambda d: d.real().sort(1)[0], square, dtypes=EXACT)
    add("diff", torch.diff, square)
    add("cdist", torch.cdist, lambda d: d.real(-1, 1, d.side, 64), lambda d: d.real(-1, 1, d.side, 64), dtypes=EXACT)
    add("sample of normals", lambda x: torch.std_mean(x, 1), square)


def _moves(add: Any) -> None:
    import torch
    import torch.nn.functional as F

    square = _between(-3, 3)
    along = lambda d: d.places(d.side)
    some = lambda d: d.places(d.side, d.side)
    distinct = lambda d: torch.randperm(d.side)
    add("transpose", lambda x: x.t().contiguous(), square)
    add("permute 0213", lambda x: x.permute(0, 2, 1, 3).contiguous(), lambda d: d.real(-1, 1, d.pick(1, 4, 16), 128, d.pick(4, 16, 16), 64))
    add("permute 0231", lambda x: x.permute(0, 2, 3, 1).contiguous(), lambda d: d.image())
    add("permute 0312", lambda x: x.permute(0, 3, 1, 2).contiguous(), lambda d: d.image())
    add("concat", lambda x, y: torch.cat([x, y], 1), square, square)
    add("concat of rows", lambda x, y: torch.cat([x, y], 0), square, square)
    add("stack", lambda x, y: torch.stack([x, y], -1), square, square)
    add("flip", lambda x: torch.flip(x, (1,)), square)
    add("flip rows", lambda x: torch.flip(x, (0,)), square)
    add("roll", lambda x: torch.roll(x, (3, 5), (0, 1)), square)
    add("rot90", lambda x: torch.rot90(x).contiguous(), square)
    add("tril", torch.tril, square)
    add("diagonal", lambda x: torch.diagonal(x).contiguous(), square)
    add("diag embed", torch.diag_embed, lambda d: d.real(-1, 1, d.side))
    add("expand", lambda x: x.expand(x.shape[0], x.shape[0]).contiguous(), lambda d: d.real(-1, 1, d.side, 1))
    add("repeat", lambda x: x.repeat(2, 2), square)
    add("repeat interleave", lambda x: x.repeat_interleave(2, 1), square)
    add("pad", lambda x: F.pad(x, (3, 3, 3, 3)), square)
    add("pad reflect", lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), lambda d: d.image())
    add("pad replicate", lambda x: F.pad(x, (3, 3, 3, 3), mode="replicate"), lambda d: d.image())
    add("pad circular", lambda x: F.pad(x, (3, 3, 3, 3), mode="circular"), lambda d: d.image())
    add("every second column", lambda x: x[:, ::2].contiguous(), square)
    add("unfold", lambda x: F.unfold(x, 3, padding=1), lambda d: d.image(16))
    add("fold", lambda x: F.fold(x, (32, 32), 3, padding=1), lambda d: d.real(-1, 1, d.pick(1, 4, 16), 144, 1024))
    add("pixel shuffle", lambda x: F.pixel_shuffle(x, 2), lambda d: d.image())
    add("channel shuffle", lambda x: F.channel_shuffle(x, 4), lambda d: d.image())
    add("embedding", lambda w, i: F.embedding(i, w), square, some)
    add("embedding of a vocabulary", lambda w, i: F.embedding(i, w), lambda d: d.real(-1, 1, 30000, d.pick(64, 256, 768)),
        lambda d: d.places(30000, d.pick(1, 4, 16), 128))
    add("embedding bag", lambda w, i: F.embedding_bag(i, w, mode="sum"), square, lambda d: d.places(d.side, d.side // 2, 16), dtypes=EXACT)
    add("one hot", lambda i: F.one_hot(i, 64), lambda d: d.places(64, d.side * d.side // 64), dtypes=("f32", "f32"))
    add("index select of columns", lambda x, i: torch.index_select(x, 1, i), square, some)
    add("gather", lambda x, i: torch.gather(x, 1, i), square, along)
    add("gather of columns", lambda x, i: torch.gather(x, 0, i), square, along)
    add("index by two", lambda x, i, j: x[i, j], square, along, along)
    add("take", torch.take, square, lambda d: d.places(d.side * d.side))
    add("scatter", lambda x, i, y: torch.scatter(x, 1, i, y), square, lambda d: torch.argsort(torch.rand(d.side, d.side), 1), square)
    add("scatter add", lambda x, i, y: torch.scatter_add(x, 1, i, y), square, along, square, dtypes=EXACT)
    add("scatter add of columns", lambda x, i, y: torch.scatter_add(x, 0, i, y), square, along, square, dtypes=EXACT)
    add("scatter max", lambda x, i, y: torch.scatter_reduce(x, 1, i, y, "amax"), square, along, square)
    add("index add", lambda x, i, y: torch.index_add(x, 0, i, y), square, some, square, dtypes=EXACT)
    add("index copy", lambda x, i, y: torch.index_copy(x, 0, i, y), square, distinct, square)
    add("index put", lambda x, i, y: torch.index_put(x, (i,), y), square, distinct, square)
    add("masked scatter", lambda x, y: torch.masked_scatter(x, x > 0, y), square, square)
    add("segment sum", lambda x, i: torch.zeros(64, x.shape[1], dtype=x.dtype).index_add(0, i, x), square, lambda d: d.places(64, d.side),
        dtypes=EXACT)
    add("slice scatter", lambda x, y: torch.slice_scatter(x, y, 1, 0, None, 2), square, lambda d: d.real(-1, 1, d.side, d.side // 2))
    add("meshgrid", lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij")), lambda d: d.real(0, 1, d.side),
        lambda d: d.real(0, 1, d.side))
    add("arange", lambda x: torch.arange(x.numel(), dtype=torch.float32), square, dtypes=("f32", "f32"))


def _products(add: Any) -> None:
    import torch
    import torch.nn.functional as F

    unit = _between(-1, 1)
    heads = lambda d: d.real(-1, 1, 1, d.pick(4, 8, 16), d.pick(128, 512, 1024), 64)
    batch = lambda d: d.real(-1, 1, 16, d.side // 4, d.side // 4)
    add("matmul", torch.matmul, unit, unit)
    add("matmul transposed", lambda x, y: x @ y.mT, unit, unit)
    add("matmul of the transpose", lambda x, y: x.mT @ y, unit, unit)
    add("matmul batch", torch.matmul, batch, batch)
    add("matmul small batch", torch.matmul, lambda d: d.real(-1, 1, d.side, 16, 16), lambda d: d.real(-1, 1, d.side, 16, 16))
    add("matmul narrow", torch.matmul, unit, lambda d: d.real(-1, 1, d.side, 8))
    add("matmul deep", torch.matmul, lambda d: d.real(-1, 1, 32, d.side * 16), lambda d: d.real(-1, 1, d.side * 16, 32))
    add("matrix and vector", torch.mv, unit, lambda d: d.real(-1, 1, d.side))
    add("vector and matrix", lambda x, y: x @ y, lambda d: d.real(-1, 1, d.side), unit)
    add("dot", torch.dot, lambda d: d.real(-1, 1, d.side * d.side), lambda d: d.real(-1, 1, d.side * d.side), dtypes=EXACT)
    add("dot of rows", torch.linalg.vecdot, unit, unit)
    add("outer", torch.outer, lambda d: d.real(-1, 1, d.side), lambda d: d.real(-1, 1, d.side))
    add("kron", torch.kron, lambda d: d.real(-1, 1, d.side // 16, d.side // 16), lambda d: d.real(-1, 1, 16, 16))
    add("addmm", torch.addmm, lambda d: d.real(-1, 1, d.side), unit, unit)
    add("linear one row", F.linear, lambda d: d.real(-1, 1, 1, d.side), unit, lambda d: d.real(-1, 1, d.side))
    add("bilinear", F.bilinear, lambda d: d.real(-1, 1, d.side, 32), lambda d: d.real(-1, 1, d.side, 32),
        lambda d: d.real(-1, 1, 32, 32, 32))
    add("einsum bhqd,bhkd", lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), heads, heads)
    add("cross", torch.linalg.cross, *[lambda d: d.real(-1, 1, d.side * d.side // 4, 3)] * 2)
    add("attention", F.scaled_dot_product_attention, heads, heads, heads)
    add("attention causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), heads, heads, heads)
    add("attention of one query", F.scaled_dot_product_attention, lambda d: d.real(-1, 1, 1, d.pick(4, 8, 16), 1, 64), heads, heads)
    add("lstm", _recurrent("LSTM"), lambda d: d.real(-1, 1, d.pick(16, 64, 128), 8, 256), dtypes=("f32", "f32"))
    add("gru", _recurrent("GRU"), lambda d: d.real(-1, 1, d.pick(16, 64, 128), 8, 256), dtypes=("f32", "f32"))


def _recurrent(kind: str) -> Any:
    import torch

    layer = getattr(torch.nn, kind)(256, 256).eval()
    return lambda x: layer(x)[0]


def _images(add: Any) -> None:
    import torch
    import torch.nn.functional as F

    def filters(o: int, i: int, *kernel: int) -> Make:
        return lambda d: d.real(-0.1, 0.1, o, i, *kernel)

    pictures = lambda d: d.image(64)
    half = lambda d: d.image(64)[..., ::2, ::2].contiguous()
    signal = lambda d: d.real(-1, 1, d.pick(1, 4, 8), 64, d.pick(512, 4096, 8192))
    volume = lambda d: d.real(-1, 1, 1, d.pick(8, 16, 32), 16, d.pick(16, 32, 48), 32)
    add("conv 3x3", lambda x, w: F.conv2d(x, w, padding=1), pictures, filters(64, 64, 3, 3))
    add("conv 3x3 stride 2", lambda x, w: F.conv2d(x, w, padding=1, stride=2), pictures, filters(64, 64, 3, 3))
    add("conv 1x1", lambda x, w: F.conv2d(x, w), pictures, filters(128, 64, 1, 1))
    add("conv 7x7 of 3", lambda x, w: F.conv2d(x, w, stride=2, padding=3), lambda d: d.image(3), filters(64, 3, 7, 7))
    add("conv dilated", lambda x, w: F.conv2d(x, w, padding=2, dilation=2), pictures, filters(64, 64, 3, 3))
    add("conv grouped", lambda x, w: F.conv2d(x, w, padding=1, groups=4), pictures, filters(64, 16, 3, 3))
    add("conv depthwise 3x3", lambda x, w: F.conv2d(x, w, padding=1, groups=64), pictures, filters(64, 1, 3, 3))
    add("conv depthwise 7x7", lambda x, w: F.conv2d(x, w, padding=3, groups=64), pictures, filters(64, 1, 7, 7))
    add("conv transposed 2x2", lambda x, w: F.conv_transpose2d(x, w, stride=2), half, filters(64, 64, 2, 2))
    add("conv transposed 3x3", lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), half, filters(64, 64, 3, 3))
    add("conv 1-D 5", lambda x, w: F.conv1d(x, w, padding=2), signal, filters(64, 64, 5))
    add("conv 3-D", lambda x, w: F.conv3d(x, w, padding=1), volume, lambda d: d.real(-1, 1, 32, d.pick(8, 16, 32), 3, 3, 3))
    add("max pool 2x2", lambda x: F.max_pool2d(x, 2), pictures)
    add("max pool 3x3 stride 2", lambda x: F.max_pool2d(x, 3, 2, 1), pictures)
    add("max pool 13x13", lambda x: F.max_pool2d(x, 13, 1, 6), half)
    add("max pool with indices", lambda x: F.max_pool2d(x, 2, return_indices=True), pictures)
    add("max pool 1-D", lambda x: F.max_pool1d(x, 4), signal)
    add("max pool 3-D", lambda x: F.max_pool3d(x, 2), volume)
    add("avg pool 2x2", lambda x: F.avg_pool2d(x, 2), pictures)
    add("avg pool 3x3", lambda x: F.avg_pool2d(x, 3, 1, 1), pictures)
    add("avg pool 1-D", lambda x: F.avg_pool1d(x, 4), signal)
    add("adaptive avg pool 1", lambda x: F.adaptive_avg_pool2d(x, 1), pictures)
    add("adaptive avg pool 7", lambda x: F.adaptive_avg_pool2d(x, 7), pictures)
    add("adaptive max pool 5", lambda x: F.adaptive_max_pool2d(x, 5), pictures)
    add("lp pool", lambda x: F.lp_pool2d(x, 2.0, 2), pictures)
    for mode in ("bilinear", "bicubic", "nearest"):
        add(f"resize {mode}", lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode), half)
    add("resize bilinear down", lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), pictures)
    add("resize antialiased", lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True), pictures, dtypes=EXACT)
    add("resize trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), volume)
    add("grid sample", lambda x, g: F.grid_sample(x, g, align_corners=False), half,
        lambda d: d.real(-1, 1, d.pick(1, 4, 8), d.pick(14, 32, 56), d.pick(14, 32, 56), 2), dtypes=EXACT)
    add("grid sample nearest", lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False), half,
        lambda d: d.real(-1, 1, d.pick(1, 4, 8), d.pick(14, 32, 56), d.pick(14, 32, 56), 2), dtypes=EXACT)
    add("affine grid", lambda t: F.affine_grid(t, [t.shape[0], 1, 64, 64], align_corners=False),
        lambda d: d.real(-1, 1, d.pick(1, 8, 64), 2, 3), dtypes=EXACT)
    add("prelu", F.prelu, pictures, lambda d: d.real(0, 1, 64))
    add("max unpool", _unpool, lambda d: torch.round(d.image(64)), dtypes=EXACT)


def _unpool(x: Any) -> Any:
    import torch.nn.functional as F

    y, where = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(y, where, (2, 2))


def _losses(add: Any) -> None:
    import torch.nn.functional as F

    square, chance = _between(-3, 3), _between(0.01, 0.99)
    classes = lambda d: d.places(d.side, d.side)
    add("cross entropy", F.cross_entropy, square, classes)
    add("cross entropy smoothed", lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1), square, classes)
    add("cross entropy of a vocabulary", F.cross_entropy, lambda d: d.real(-3, 3, d.pick(16, 64, 256), 50257),
        lambda d: d.places(50257, d.pick(16, 64, 256)))
    add("nll loss", F.nll_loss, square, classes)
    for name, fn in {"mse loss": F.mse_loss, "l1 loss": F.l1_loss, "huber loss": F.huber_loss, "smooth l1 loss": F.smooth_l1_loss}.items():
        add(name, fn, square, square)
    for name, fn in {"kl div": F.kl_div, "binary cross entropy": F.binary_cross_entropy,
                     "binary cross entropy with logits": F.binary_cross_entropy_with_logits}.items():
        add(name, fn, chance, chance)
    add("pairwise distance", F.pairwise_distance, square, square)
    add("triplet margin loss", F.triplet_margin_loss, square, square, square)


def _backward(add: Any) -> None:
    """The backward passes that PyTorch's autograd calls."""
    import torch

    aten = torch.ops.aten
    square = _between(-3, 3)
    picture = lambda d: d.image(64)
    filters = lambda d: d.real(-0.1, 0.1, 64, 64, 3, 3)
    halved = lambda d: d.image(64)[..., ::2, ::2].contiguous()
    add("gelu backward", lambda g, x: aten.gelu_backward(g, x), square, square)
    add("tanh backward", aten.tanh_backward, square, square)
    add("silu backward", aten.silu_backward, square, square)
    add("softmax backward", lambda g, y: aten._softmax_backward_data(g, y, -1, y.dtype), square, lambda d: d.real(0, 1 / d.side))
    add("layer norm backward", _layer_norm_backward, square, square, lambda d: d.real(0.5, 1, d.side))
    add("conv 3x3 backward", lambda g, x, w: aten.convolution_backward(
        g, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])[:2], picture, picture, filters)
    add("conv depthwise backward", lambda g, x, w: aten.convolution_backward(
        g, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 64, [True, True, False])[:2], picture, picture,
        lambda d: d.real(-0.1, 0.1, 64, 1, 3, 3))
    add("max pool backward", _max_pool_backward, halved, picture, dtypes=EXACT)
    add("avg pool backward", lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None), halved, picture)
    add("bilinear resize backward", lambda g: aten.upsample_bilinear2d_backward(
        g, [g.shape[2], g.shape[3]], [g.shape[0], g.shape[1], g.shape[2] // 2, g.shape[3] // 2], False, None, None), picture, dtypes=EXACT)
    add("embedding backward", lambda g, i: aten.embedding_dense_backward(g, i, 30000, -1, False),
        lambda d: d.real(-1, 1, d.pick(128, 512, 2048), d.pick(64, 256, 768)), lambda d: d.places(30000, d.pick(128, 512, 2048)),
        dtypes=EXACT)


def _layer_norm_backward(g: Any, x: Any, w: Any) -> Any:
    import torch

    _, mean, scale = torch.ops.aten.native_layer_norm(x, x.shape[-1:], w, w, 1e-5)
    return torch.ops.aten.native_layer_norm_backward(g, x, x.shape[-1:], mean, scale, w, w, [True, True, True])


def _max_pool_backward(g: Any, x: Any) -> Any:
    import torch

    _, where = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    return torch.ops.aten.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, where)


def _transforms(add: Any) -> None:
    """Fourier transforms, complex numbers, decompositions: f32 and f64."""
    import torch

    def exact(name: str, fn: Any, *makes: Make) -> None:
        add(name, fn, *makes, dtypes=EXACT)

    def projected(found: Any) -> Any:  # vectors have no sign: the matrix that they and the values stand for
        return (found[1] * found[0][..., None, :]) @ found[1].mT

    def rebuilt(u: Any, s: Any, vh: Any) -> Any:
        return (u * s[..., None, :]) @ vh

    def matrices(small: tuple[int, int], medium: tuple[int, int], large: tuple[int, int]) -> Make:
        def make(d: Draw) -> Any:
            count, n = d.pick(small, medium, large)
            return d.real(-1, 1, count, n, n) + d.eye(n, n**0.5)

        return make

    plain, number, parts = _between(-1, 1), (lambda d: d.numbers()), torch.view_as_real
    exact("fft rows", lambda x: parts(torch.fft.fft(x)), plain)
    exact("rfft rows", lambda x: parts(torch.fft.rfft(x)), plain)
    exact("irfft rows", torch.fft.irfft, lambda d: d.numbers(d.side, d.side // 2 + 1))
    exact("fft complex rows", lambda x: parts(torch.fft.fft(x)), number)
    exact("fft columns", lambda x: parts(torch.fft.fft(x, dim=0)), number)
    exact("fft 2-D", lambda x: parts(torch.fft.fft2(x)), plain)
    exact("fft of one row", lambda x: parts(torch.fft.fft(x)), lambda d: d.real(-1, 1, d.side * d.side))
    exact("fft of odd rows", lambda x: parts(torch.fft.fft(x)), lambda d: d.real(-1, 1, d.side, d.pick(105, 945, 2205)))
    exact("fft of prime rows", lambda x: parts(torch.fft.fft(x)), lambda d: d.real(-1, 1, d.side, d.pick(127, 1021, 2039)))
    exact("stft", lambda x: parts(torch.stft(x, 400, 160, window=torch.hann_window(400, dtype=x.dtype), return_complex=True)),
          lambda d: d.real(-1, 1, d.pick(16000, 160000, 480000)))
    for name, fn in {"add": torch.add, "mul": torch.mul}.items():
        exact(f"complex {name}", lambda x, y, fn=fn: parts(fn(x, y)), number, number)
    exact("complex exp", lambda x: parts(torch.exp(x)), number)
    exact("complex abs", torch.abs, number)
    exact("complex matmul", lambda x, y: parts(x @ y), *[lambda d: d.numbers(d.side // 4, d.side // 4)] * 2)
    exact("solve", torch.linalg.solve, matrices((4, 32), (16, 256), (1, 1024)),
          lambda d: d.real(-1, 1, *d.pick((4, 32), (16, 256), (1, 1024)), 4))
    exact("cholesky", lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)),
          matrices((4, 32), (16, 256), (1, 1024)))
    exact("inverse", torch.linalg.inv, matrices((4, 32), (256, 64), (1, 512)))
    exact("determinant", torch.linalg.slogdet, matrices((64, 4), (256, 64), (1, 512)))
    exact("triangular solve", lambda x, y: torch.linalg.solve_triangular(x.tril(), y, upper=False),
          matrices((4, 32), (16, 256), (1, 1024)), lambda d: d.real(-1, 1, *d.pick((4, 32), (16, 256), (1, 1024)), 16))
    exact("qr", torch.linalg.qr, matrices((4, 32), (1, 256), (1, 512)))
    exact("eigh", lambda x: projected(torch.linalg.eigh(x + x.mT)), matrices((4, 16), (1, 128), (1, 256)))
    exact("svd", lambda x: rebuilt(*torch.linalg.svd(x, full_matrices=False)), matrices((4, 16), (1, 128), (1, 256)))
    exact("matrix exp", torch.matrix_exp, lambda d: d.real(-0.1, 0.1, d.pick(1, 4, 4), d.pick(16, 64, 256), d.pick(16, 64, 256)))
