"""PyTorch's meaning of every op: name -> function of (attributes, tensors)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as tf

from tests.control.oracle import CONTROL
from tests.ops.oracle_catalogue import CATALOGUE
from tests.ops.oracle_paged import paged_attention
from tests.ops.oracle_quantized import q8_blocks, qdot, qexperts_dot, quantize_rows, unpacked
from tests.ops.oracle_training import attention_backward, attention_saved, cross_entropy, norm_backward, scatter_add
from tilewright.ops import REGISTRY, Op

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i16": torch.int16,
    "i32": torch.int32,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "i64": torch.int64,
    "u8": torch.uint8,
    "i8": torch.int8,
    "bool": torch.bool,
}

Oracle = Callable[..., Any]


def plain(fn: Oracle) -> Oracle:
    return lambda a, *x: fn(*x)


def from_aten(op: type[Op]) -> Oracle:
    """PyTorch's own op of the same operands and meaning, which the class names."""
    base, _, overloads = op.aten.split()[0].partition(".")
    return plain(getattr(getattr(torch.ops.aten, base), (overloads or "default").split("|")[0]))


NAMED = {name: from_aten(op) for name, op in REGISTRY.items() if op.aten}
OTHERS = """floor ceil round trunc logical_not bitwise_not add sub pow logical_and logical_or logical_xor bitwise_and bitwise_or
bitwise_xor where"""  # by PyTorch's function of their name
PLAIN = {**{name: plain(getattr(torch, name)) for name in OTHERS.split()}, "is_nan": plain(torch.isnan), "is_inf": plain(torch.isinf)}
ACTIVATIONS: dict[str, Oracle] = {
    "relu": plain(tf.relu),
    "softplus": plain(tf.softplus),
    "gelu": lambda a, x: tf.gelu(x, approximate=a.get("approximate", "none")),
    "leaky_relu": lambda a, x: tf.leaky_relu(x, a["slope"]),
    "elu": lambda a, x: tf.elu(x, a["alpha"]),
    "bitcast": lambda a, x: x.view(DTYPES[a["dtype"].name]),
    "cast": lambda a, x: x.to(DTYPES[a["dtype"].name]),
}


def slice_(a: dict[str, Any], x: Any) -> Any:
    for axis, (start, size, step) in enumerate(zip(a["starts"], a["sizes"], a["steps"], strict=True)):
        x = torch.index_select(x, axis, torch.arange(size) * step + start)
    return x


VIEWS: dict[str, Oracle] = {
    "reshape": lambda a, x: torch.reshape(x, a["shape"]),
    "transpose": lambda a, x: torch.permute(x, a["perm"]),
    "slice": slice_,
    "expand": lambda a, x: x.expand(a["shape"]),
    "flip": lambda a, x: torch.flip(x, a["axes"]),
    "split": lambda a, x: torch.split(x, a["sizes"], a["axis"]),
}


def over_axes(fn: Oracle) -> Oracle:
    """A torch reduction of one axis, applied to several from the last to the first."""

    def reduce(a: dict[str, Any], x: Any) -> Any:
        for axis in reversed(a["axes"]):
            x = fn(x, axis, a.get("keepdims", False))
        return x

    return reduce


def same_dtype(fn: Oracle) -> Oracle:
    return lambda x, axis, keep: fn(x, axis, keep, dtype=x.dtype)


def spread(fn: Any) -> Oracle:
    def run(a: dict[str, Any], x: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns about empty inputs
            return fn(x, a["axes"], correction=a.get("correction", 1.0), keepdim=a.get("keepdims", False))

    return run


def recurrence(f: Any, x: Any, axis: int, step: int) -> Any:
    out: list[Any] = []
    for a, b in list(zip(f.unbind(axis), x.unbind(axis), strict=True))[::step]:
        out.append(b if not out else a * out[-1] + b)
    return torch.stack(out[::step], axis) if out else x


def running(fn: Oracle, start: int) -> Oracle:
    """A running sum or product; reversed and shifted by hand."""

    def run(a: dict[str, Any], x: Any) -> Any:
        axis = a["axis"]
        y = torch.flip(x, (axis,)) if a.get("reverse") else x
        out = fn(y, axis, dtype=x.dtype)
        if a.get("exclusive"):
            head = torch.full_like(y.narrow(axis, 0, min(1, y.shape[axis])), start)
            out = torch.cat([head, out.narrow(axis, 0, max(y.shape[axis] - 1, 0))], axis)
        return torch.flip(out, (axis,)) if a.get("reverse") else out

    return run


REDUCTIONS: dict[str, Oracle] = {
    "sum": over_axes(same_dtype(torch.sum)),
    "prod": over_axes(same_dtype(torch.prod)),
    "max": over_axes(torch.amax),
    "min": over_axes(torch.amin),
    "mean": over_axes(torch.mean),
    "any": over_axes(torch.any),
    "all": over_axes(torch.all),
    "log_sum_exp": over_axes(torch.logsumexp),
    "arg_max": lambda a, x: torch.argmax(x, a["axis"], a.get("keepdims", False)).to(index_dtype(a)),
    "arg_min": lambda a, x: torch.argmin(x, a["axis"], a.get("keepdims", False)).to(index_dtype(a)),
    "var": spread(torch.var),
    "std": spread(torch.std),
    "cum_sum": running(torch.cumsum, 0),
    "cum_prod": running(torch.cumprod, 1),
    "cum_max": lambda a, x: torch.cummax(x, a["axis"]),
    "cum_min": lambda a, x: torch.cummin(x, a["axis"]),
    "linear_recurrence": lambda a, f, x: recurrence(f, x, a["axis"], -1 if a["reverse"] else 1),
    "log_cum_sum_exp": lambda a, x: torch.logcumsumexp(x, a["axis"]),
}


def matmul(a: dict[str, Any], x: Any, y: Any) -> Any:
    x = x.mT if a.get("transpose_a") else x
    y = y.mT if a.get("transpose_b") else y
    if (wide := a.get("dtype")) is not None:
        out = torch.matmul(x.double(), y.double()) * a.get("alpha", 1.0)
        return out.to(DTYPES[wide.name])
    out = torch.matmul(x, y.to(x.dtype))
    return out if a.get("alpha", 1.0) == 1.0 else out * a["alpha"]


def pad_spatial(x: Any, padding: Any, value: float) -> Any:
    return tf.pad(x, [p for pair in reversed(padding) for p in pair], value=value)


def conv(a: dict[str, Any], x: Any, w: Any) -> Any:
    n = x.ndim - 2
    if a.get("transposed"):
        turned: Any = {1: tf.conv_transpose1d, 2: tf.conv_transpose2d, 3: tf.conv_transpose3d}[n]
        assert all(lo == hi for lo, hi in a["padding"])
        return turned(
            x, w, None, a["stride"], [lo for lo, _ in a["padding"]], a.get("output_padding") or 0, a.get("groups", 1), a["dilation"]
        )
    fn: Any = {1: tf.conv1d, 2: tf.conv2d, 3: tf.conv3d}[n]
    return fn(pad_spatial(x, a["padding"], 0.0), w, None, a["stride"], 0, a["dilation"], a.get("groups", 1))


def affine(a: dict[str, Any], rest: tuple[Any, ...]) -> tuple[Any, Any]:
    return (rest[0] if rest else None, rest[1] if len(rest) > 1 else None)


def layer_norm(a: dict[str, Any], x: Any, *rest: Any) -> Any:
    return tf.layer_norm(x, x.shape[x.ndim - a.get("naxes", 1) :], *affine(a, rest), a.get("eps", 1e-5))


def attention(a: dict[str, Any], q: Any, k: Any, v: Any, *rest: Any) -> Any:
    """SDPA where it can say it; soft-capping, hidden scores that are numbers, and rows of NaN are spelled out."""
    k, v = k.to(q.dtype), v.to(q.dtype)  # a cache may be smaller
    rows, columns = q.shape[2], k.shape[2]
    i, j = torch.arange(rows)[:, None] + a.get("offset", 0), torch.arange(columns)[None, :]
    near = torch.ones(rows, columns, dtype=torch.bool)
    if a.get("causal"):
        near = near & (j <= i)
    if a.get("window") is not None:
        near = near & (j > i - a["window"])
    seen = near & rest[0] if a.get("has_mask") else near
    bias = torch.zeros((), dtype=q.dtype) if not a.get("has_bias") else rest[-1]
    hidden = float(a.get("hidden", float("-inf")))
    if a.get("softcap") is None and hidden == float("-inf") and a.get("empty", "zeros") == "zeros":
        bias = torch.where(seen, bias, torch.tensor(hidden, dtype=q.dtype)).expand(q.shape[0], q.shape[1], rows, columns)
        return tf.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=a["scale"], enable_gqa=True)
    times = q.shape[1] // k.shape[1]
    s = torch.einsum("bhqd,bhkd->bhqk", q, k.repeat_interleave(times, 1)) * a["scale"]
    s = s if a.get("softcap") is None else a["softcap"] * torch.tanh(s / a["softcap"])
    s = (s + bias).masked_fill(~seen, hidden).masked_fill(~near, float("-inf"))
    p = torch.softmax(s, -1)
    return torch.einsum("bhqk,bhkd->bhqd", p if a.get("empty") == "nan" else torch.nan_to_num(p), v.repeat_interleave(times, 1))


def rope(a: dict[str, Any], x: Any, cos: Any, sin: Any) -> Any:
    """As a product of complex numbers, which knows nothing of the op's formula."""
    if x.numel() == 0:
        return x
    n = a.get("n_rot") or x.shape[-1]
    turned, rest = x[..., :n].double(), x[..., n:]
    pairs = turned.unflatten(-1, (n // 2, 2)) if a.get("interleaved") else turned.unflatten(-1, (2, n // 2)).transpose(-1, -2)
    out = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.complex(cos.double(), sin.double()))
    out = out.flatten(-2) if a.get("interleaved") else out.transpose(-1, -2).flatten(-2)
    return torch.cat([out.to(x.dtype), rest], -1)


COMPOSITES: dict[str, Oracle] = {
    "matmul": matmul,
    "conv": conv,
    "softmax": lambda a, x: torch.softmax(x, a["axis"]),
    "log_softmax": lambda a, x: torch.log_softmax(x, a["axis"]),
    "layer_norm": layer_norm,
    "rms_norm": lambda a, x, *w: tf.rms_norm(x, x.shape[x.ndim - a.get("naxes", 1) :], w[0] if w else None, a.get("eps", 1e-6)),
    "group_norm": lambda a, x, *r: tf.group_norm(x, a["groups"], *affine(a, r), a.get("eps", 1e-5)),
    "batch_norm": lambda a, x, m, v, *r: tf.batch_norm(x, m, v, *affine(a, r), False, 0.0, a.get("eps", 1e-5)),
    "attention": attention,
    "rope": rope,
}


def take_index(a: dict[str, Any], x: Any, *ids: Any) -> Any:
    return x[(*(slice(None),) * a["axes"][0], *(i.long() for i in ids))]


def gather(a: dict[str, Any], x: Any, ids: Any) -> Any:
    axis = a.get("axis", 0)
    flat = torch.index_select(x, axis, ids.reshape(-1))
    return flat.reshape((*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]))


def max_pool(a: dict[str, Any], x: Any) -> Any:
    fn = {1: tf.max_pool1d, 2: tf.max_pool2d}[len(a["kernel"])]
    assert all(lo == hi for lo, hi in a["padding"])
    return fn(x, a["kernel"], a["stride"], [lo for lo, _ in a["padding"]], a["dilation"], a.get("ceil_mode", False))


def avg_pool(a: dict[str, Any], x: Any) -> Any:
    fn: Any = {1: tf.avg_pool1d, 2: tf.avg_pool2d}[len(a["kernel"])]
    assert all(lo == hi for lo, hi in a["padding"])
    return fn(x, a["kernel"], a["stride"], [lo for lo, _ in a["padding"]], a.get("ceil_mode", False), a.get("count_include_pad", True))


def pool(a: dict[str, Any], x: Any) -> Any:
    """Windows by indices of each axis, outside of which stands what changes nothing."""
    kind, lead = a.get("kind", "sum"), x.ndim - len(a["kernel"])
    most = float("inf") if x.is_floating_point() else torch.iinfo(x.dtype).max
    fill = {"sum": 0, "prod": 1, "min": most}[kind]
    for i, (k, s, (lo, hi), dil) in enumerate(zip(a["kernel"], a["stride"], a["padding"], a["dilation"], strict=True)):
        axis = lead + i
        d, ceil = x.shape[axis], a.get("ceil_mode", False)
        count = (d + lo + hi - dil * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
        count -= int(ceil and (count - 1) * s >= d + lo)
        at = torch.arange(count)[:, None] * s - lo + torch.arange(k) * dil
        shape = [1] * axis + [count * k] + [1] * (x.ndim - axis - 1)
        inside = ((at >= 0) & (at < d)).reshape(shape)
        taken = torch.where(inside, x.index_select(axis, at.clamp(0, d - 1).reshape(-1)), torch.tensor(fill, dtype=x.dtype))
        x = taken.unflatten(axis, (count, k)).movedim(axis + 1, -1)
    parts = x.flatten(-len(a["kernel"]))
    return {"sum": lambda: parts.sum(-1, dtype=parts.dtype), "prod": lambda: parts.prod(-1, dtype=parts.dtype),
            "min": lambda: parts.amin(-1)}[kind]()


def _others(a: dict[str, Any], x: Any) -> tuple[int, ...]:
    """All axes but one."""
    return tuple(i for i in range(x.ndim) if i != a.get("axis", 1))


def max_pool_indices(a: dict[str, Any], x: Any) -> Any:
    fn: Any = {1: tf.max_pool1d, 2: tf.max_pool2d, 3: tf.max_pool3d}[len(a["kernel"])]
    padding = [lo for lo, _ in a["padding"]]
    y, where = fn(x, a["kernel"], a["stride"], padding, a["dilation"], a.get("ceil_mode", False), return_indices=True)
    return y, where.to(index_dtype(a))


def resize(a: dict[str, Any], x: Any) -> Any:
    n = len(a["sizes"])
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[n]
    if a.get("mode", "nearest") == "nearest":
        return tf.interpolate(x, a["sizes"], mode="nearest")
    if a.get("scales"):
        names: Any = {1: torch.ops.aten.upsample_linear1d, 2: torch.ops.aten.upsample_bilinear2d}
        return names[n].vec(x, None, a.get("align_corners", False), [1 / s for s in a["scales"]])
    mode = "bicubic" if a["mode"] == "cubic" else linear
    return tf.interpolate(x, a["sizes"], mode=mode, align_corners=a.get("align_corners", False))


def adaptive_pool(a: dict[str, Any], x: Any) -> Any:
    kind = "max" if a.get("kind") == "max" else "avg"
    n = len(a["sizes"])
    fn: Any = getattr(tf, f"adaptive_{kind}_pool{n}d")
    found = fn(x if x.ndim > n + 1 else x.reshape(1, *x.shape), a["sizes"]).reshape(*x.shape[:-n], *a["sizes"])
    for i, (d, out) in enumerate(zip(x.shape[-n:], a["sizes"], strict=True)):
        if a.get("kind") == "sum":
            lengths = [-(-(k + 1) * d // out) - k * d // out for k in range(out)]
            found = found * torch.tensor(lengths, dtype=x.dtype).reshape(-1, *(1,) * (n - 1 - i))
    return found


def top_k(a: dict[str, Any], x: Any) -> Any:
    """By a stable sort: torch.topk does not promise which of two equal elements it names."""
    values, order = torch.sort(x, dim=a["axis"], descending=a.get("largest", True), stable=True)
    return values.narrow(a["axis"], 0, a["k"]), order.narrow(a["axis"], 0, a["k"]).to(index_dtype(a))


def index_dtype(a: dict[str, Any]) -> Any:
    return DTYPES[a["dtype"].name] if "dtype" in a else torch.int64


def sort(a: dict[str, Any], x: Any) -> Any:
    values, order = torch.sort(x, dim=a["axis"], descending=a.get("descending", False), stable=True)
    return values, order.to(index_dtype(a))


def iota(a: dict[str, Any]) -> Any:
    n = a["shape"][a["axis"]]
    ramp = torch.arange(n) * a.get("step", 1) + a.get("start", 0)
    return ramp.reshape([-1 if i == a["axis"] else 1 for i in range(len(a["shape"]))]).expand(a["shape"]).to(DTYPES[a["dtype"].name])


def update_slice(a: dict[str, Any], cache: Any, new: Any) -> Any:
    start, step = a.get("start", 0), a.get("step", 1)
    places = start + step * torch.arange(new.shape[a["axis"]])
    return cache.index_copy(a["axis"], places, new.to(cache.dtype))


def sample(a: dict[str, Any], logits: Any, seen: Any, settings: Any, numbers: Any) -> Any:
    """The filters of transformers, then a draw by the running sum. The random number has its own test (known answers)."""
    from transformers.generation import logits_process as lp

    from tilewright.ops.index.sampling import uniform

    if logits.ndim > 1:
        rows = [sample(a, *parts) for parts in zip(logits, seen, settings, numbers, strict=True)]
        return torch.stack(rows) if rows else torch.zeros(logits.shape[:-1], dtype=torch.int64)
    temperature, top_p, min_p, penalty = (float(v) for v in settings)
    top_k, seed, counter = (int(v) for v in numbers)
    ids, scores = torch.nonzero(seen).T, logits[None].float()
    if ids.numel() and penalty > 0:
        scores = lp.RepetitionPenaltyLogitsProcessor(penalty)(ids, scores)
    if temperature <= 0:
        return scores[0].argmax()
    scores = lp.TemperatureLogitsWarper(temperature)(None, scores)
    if 0 < top_k < len(logits):
        scores = lp.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = lp.TopPLogitsWarper(top_p)(None, scores)
    if min_p > 0:
        scores = lp.MinPLogitsWarper(min(min_p, 1.0))(None, scores)
    running = torch.softmax(scores[0].double(), 0).cumsum(0)
    return torch.searchsorted(running, uniform(seed, counter) * running[-1], right=True)


def q8_attention(a: dict[str, Any], q: Any, k: Any, v: Any, k_scale: Any, v_scale: Any) -> Any:
    wide = [codes.float() * scale.float().repeat_interleave(32, -1) for codes, scale in ((k, k_scale), (v, v_scale))]
    return attention(a, q, *wide)


TRAINING: dict[str, Oracle] = {
    "attention_backward": partial(attention_backward, attention),
    "attention_saved": partial(attention_saved, attention),
    "norm_backward": norm_backward,
    "channel_sums": lambda a, *xs: tuple(x.double().sum(_others(a, x)).to(x.dtype) for x in xs),
    "moments": lambda a, x: (x.double().mean(_others(a, x)).to(x.dtype), x.double().var(_others(a, x), correction=0).to(x.dtype)),
    "scatter_add": scatter_add,
    "softmax_cross_entropy": cross_entropy,
}
GENERAL: dict[str, Oracle] = {
    "qexperts_dot": qexperts_dot,
    "q8_blocks": q8_blocks,
    "q8_attention": q8_attention,
    "quantize_rows": quantize_rows,
    "qdot": qdot,
    "paged_attention": paged_attention,
    "qproduct": lambda a, x, w: (x.double() @ unpacked(a, w).double().T).float(),
    "sample": sample,
    "update_slice": update_slice,
    "qmatmul": lambda a, x, w: x @ unpacked(a, w).to(x.dtype).T,
    "qexperts": lambda a, x, w, ids: torch.einsum(
        "stk,stnk->stn", x.expand(*ids.shape, a["k"]), unpacked(a, w).to(x.dtype).reshape(a["experts"], a["n"], a["k"])[ids.long()]
    ),
    "stop_gradient": lambda a, x: x.detach(),
    "fence": lambda a, x, *others: x,
    "qgather": lambda a, table, ids: unpacked(a, table)[ids.long()],
    "gather": gather,
    "gather_along_axis": lambda a, x, ids: torch.gather(x, a["axis"], ids.long()),
    "index": take_index,
    "concat": lambda a, *x: torch.cat(x, a["axis"]),
    "pad": lambda a, x: (
        tf.pad(x, [p for pair in reversed(list(zip(a["lo"], a["hi"], strict=True))) for p in pair], value=a.get("value", 0.0))
        if x.ndim
        else x
    ),
    "top_k": top_k,
    "sort": sort,
    "arg_sort": lambda a, x: sort(a, x)[1],
    "arg_rank": lambda a, x, r: torch.take_along_dim(sort(a, x)[1], r.long().clamp(0, x.shape[a["axis"]] - 1), a["axis"]),
    "max_pool": max_pool,
    "pool": pool,
    "max_pool_indices": max_pool_indices,
    "resize": resize,
    "adaptive_pool": adaptive_pool,
    "search_sorted": lambda a, rows, x: torch.searchsorted(rows, x, right=a.get("right", False)),
    "avg_pool": avg_pool,
    "iota": iota,
    "positions": lambda a: torch.arange(int(np.prod(a["shape"]))).to(DTYPES[a["dtype"].name]).reshape(a["shape"]),
    "dim_value": lambda a: torch.tensor(a["dim"], dtype=DTYPES[a["dtype"].name]),
}


class Oracles(dict[str, Oracle]):
    def __missing__(self, name: str) -> Oracle:
        raise LookupError(f"{name}: no oracle; the class names its `aten` op, or tests/ops/oracle*.py has a function of (attributes, "
                          "tensors)")


ORACLES: dict[str, Oracle] = Oracles({**NAMED, **PLAIN, **ACTIVATIONS, **VIEWS, **REDUCTIONS, **COMPOSITES, **GENERAL, **TRAINING,
                                      **CONTROL, **CATALOGUE})
NO_ORACLE = {
    "input": "is given, not computed",
    "constant": "is given, not computed",
    "fused": "is its body, which the decompose test runs op by op",
    "checkpoint": "is its body, which the decompose test runs op by op",
    "custom_vjp": "is its body, which the decompose test runs op by op",
    "custom_forward": "is its body, which the decompose test runs op by op",
    "custom_jvp": "is its body, which the decompose test runs op by op",
}


def to_torch(a: Any) -> Any:
    if a.dtype.itemsize == 1 and a.dtype.kind in "fV":
        return torch.from_numpy(a.astype(np.float32))  # exact; PyTorch multiplies no eight-bit floats on a CPU
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(a))


def from_torch(x: Any) -> Any:
    if x.dtype == torch.bfloat16:
        return x.float().numpy().astype(ml_dtypes.bfloat16)
    return x.numpy()
