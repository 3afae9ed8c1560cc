"""An example for every function of the API reference: the docstring's own, one of the table below, or the first pattern that it takes.

Examples are run when the reference is made and shown with what they gave, so none of them can be out of date.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

SETUP = """
import numpy as np
import tilewright as tw
x = tw.asarray([-0.5, 0.25, 0.75])
y = tw.asarray([2.0, 0.5, 1.0])
i = tw.asarray([6, 3, 5])
z = tw.asarray([1 + 2j, 3 - 1j])
A = tw.asarray([[4.0, 1.0], [2.0, 3.0]])
S = tw.asarray([[2.0, 1.0], [1.0, 2.0]])
b = tw.asarray([1.0, 2.0])
"""
SHOWN = "x = [-0.5, 0.25, 0.75], y = [2, 0.5, 1], i = [6, 3, 5], z = [1+2j, 3-1j], A = [[4, 1], [2, 3]], S = [[2, 1], [1, 2]], b = [1, 2]"

PATTERNS = ("{f}(x)", "{f}(y)", "{f}(x, y)", "{f}(i)", "{f}(i, 2)", "{f}(A)", "{f}(A, b)", "{f}(A, A)", "{f}(z)", "{f}((2, 2))", "{f}(3)")

# Expressions, where no pattern says what a function is for.
WRITTEN = {
    "adaptive_pool": "tw.adaptive_pool(tw.ones((1, 3, 8, 8)), (2, 2)).shape",
    "angle": "tw.angle(z)",
    "apply_along_axis": "tw.apply_along_axis(np.sum, 1, A)",
    "astype": 'tw.astype(i, "float16").dtype',
    "broadcast_arrays": "tw.broadcast_arrays(A, b)[1]",
    "broadcast_shapes": "tw.broadcast_shapes((2, 1), (3,))",
    "broadcast_to": "tw.broadcast_to(b, (2, 2))",
    "can_cast": "tw.can_cast(tw.int64, tw.float32)",
    "column_stack": "tw.column_stack([x, y])",
    "compress": "tw.compress([True, False, True], i)",
    "conj": "tw.conj(z)",
    "conjugate": "tw.conjugate(z)",
    "convolve": "tw.convolve(i, b)",
    "digitize": "tw.digitize(x, tw.asarray([0.0, 0.5]))",
    "dot_general": "tw.dot_general(A, S, ((1,), (0,)))",
    "dstack": "tw.dstack([x, y]).shape",
    "empty": "tw.empty((2, 3)).shape",
    "empty_like": "tw.empty_like(A).shape",
    "extract": "tw.extract(i > 4, i)",
    "eye": "tw.eye(2)",
    "finfo": "tw.finfo(tw.float32).eps",
    "fromfunction": "tw.fromfunction(lambda r, c: r + c, (2, 2))",
    "geomspace": "tw.geomspace(1, 100, 3)",
    "group_norm": "tw.group_norm(tw.ones((1, 4, 2)), 2, tw.ones(4), tw.zeros(4)).shape",
    "histogram": "tw.histogram(i, bins=2)",
    "hstack": "tw.hstack([x, y])",
    "identity": "tw.identity(2)",
    "iinfo": "tw.iinfo(tw.int8).max",
    "imag": "tw.imag(z)",
    "interp": "tw.interp(0.5, b, tw.asarray([10.0, 20.0]))",
    "isdtype": 'tw.isdtype(tw.float32, "real floating")',
    "matmul": "A @ b",
    "nan_to_num": "tw.nan_to_num(tw.asarray([tw.nan, tw.inf]))",
    "nansum": "tw.nansum(tw.asarray([1.0, tw.nan]))",
    "percentile": "tw.percentile(i, 50)",
    "promote_types": "tw.promote_types(tw.int32, tw.float16)",
    "put_along_axis": "tw.put_along_axis(A, tw.asarray([[0], [1]]), 0.0, axis=1)",
    "quantile": "tw.quantile(i, 0.5)",
    "real": "tw.real(z)",
    "resize": "tw.resize(tw.ones((1, 3, 4, 4)), (8, 8)).shape",
    "result_type": "tw.result_type(x, i)",
    "rollaxis": "tw.rollaxis(tw.ones((2, 3, 4)), 2).shape",
    "scatter_add": "tw.scatter_add(x, tw.asarray([0, 0]), b)",
    "select": "tw.select([x > 0, x < 0], [x, y])",
    "softmax_cross_entropy": "tw.softmax_cross_entropy(A, tw.asarray([0, 1]))",
    "threshold": "tw.threshold(x, 0.3, 0.0)",
    "unfold": "tw.unfold(tw.arange(6), 0, 3, 2)",
    "unravel_index": "tw.unravel_index(5, (2, 3))",
    "vstack": "tw.vstack([x, y])",
    "linalg.cholesky_solve": "tw.linalg.cholesky_solve(b[:, None], tw.linalg.cholesky(S))",
    "linalg.lstsq": "tw.linalg.lstsq(A, b[:, None])[0]",
    "linalg.matrix_power": "tw.linalg.matrix_power(A, 2)",
    "linalg.multi_dot": "tw.linalg.multi_dot([A, S, A])",
    "linalg.solve_triangular": "tw.linalg.solve_triangular(tw.triu(A), b[:, None], lower=False)",
    "arange": "tw.arange(2, 10, 3)",
    "array": 'tw.array([1, 2], dtype="bfloat16")',
    "asarray": "tw.asarray([1, 2.5])",
    "attention": "tw.attention(tw.ones((1, 2, 3, 4)), tw.ones((1, 2, 5, 4)), tw.ones((1, 2, 5, 4)), causal=True).shape",
    "batch_norm": "tw.batch_norm(tw.ones((2, 3, 4)), x, y, weight=y, bias=x).shape",
    "clip": "tw.clip(x, 0.3, 0.6)",
    "concat": "tw.concat([x, y])",
    "concatenate": "tw.concatenate([A, S], axis=1)",
    "cond": "tw.cond(True, lambda v: v + 1, lambda v: v - 1, x)",
    "conv": "tw.conv(tw.ones((1, 3, 8, 8)), tw.ones((4, 3, 3, 3)), padding=1).shape",
    "conv_transpose": "tw.conv_transpose(tw.ones((1, 3, 8, 8)), tw.ones((3, 4, 2, 2)), stride=2).shape",
    "cumsum": "tw.cumsum(i)",
    "einsum": 'tw.einsum("ij,j->i", A, b)',
    "expand_dims": "tw.expand_dims(x, 0).shape",
    "fori_loop": "tw.fori_loop(0, 5, lambda step, v: v * 2, 1)",
    "full": "tw.full((2, 2), 7.0)",
    "full_like": "tw.full_like(x, 7.0)",
    "grad": "tw.grad(lambda v: (v ** 2).sum())(x)",
    "hessian": "tw.hessian(lambda v: (v ** 3).sum())(b)",
    "jacobian": "tw.jacobian(lambda v: A @ v)(b)",
    "jit": "tw.jit(lambda v: tw.tanh(v) * 2)(x)",
    "jvp": "tw.jvp(tw.sin, (x,), (y,))",
    "layer_norm": "tw.layer_norm(A, b, b)",
    "linspace": "tw.linspace(0, 1, 5)",
    "logspace": "tw.logspace(0, 2, 3)",
    "max_pool": "tw.max_pool(tw.ones((1, 3, 8, 8)), 2).shape",
    "mean_pool": "tw.mean_pool(tw.ones((1, 3, 8, 8)), 2).shape",
    "meshgrid": "tw.meshgrid(b, x)[0]",
    "moveaxis": "tw.moveaxis(tw.ones((2, 3, 4)), 0, -1).shape",
    "one_hot": "tw.one_hot(tw.asarray([0, 2]), 3)",
    "ones": "tw.ones((2, 2), dtype=np.float32)",
    "pad": "tw.pad(x, (1, 2))",
    "permute_dims": "tw.permute_dims(tw.ones((2, 3, 4)), (2, 0, 1)).shape",
    "reshape": "tw.reshape(A, (4,))",
    "polygamma": "tw.polygamma(1, y)",
    "rms_norm": "tw.rms_norm(A, b)",
    "roll": "tw.roll(i, 1)",
    "round": "tw.round(y * 1.37, 1)",
    "scan": "tw.scan(lambda total, v: (total + v, total), 0.0, x)",
    "softmax": "tw.softmax(A)",
    "sort": "tw.sort(i)",
    "split": "tw.split(i, 3)",
    "squeeze": "tw.squeeze(tw.ones((1, 3)), 0).shape",
    "stack": "tw.stack([x, y])",
    "swapaxes": "tw.swapaxes(tw.ones((2, 3)), 0, 1).shape",
    "take": "tw.take(x, tw.asarray([2, 0]))",
    "take_along_axis": "tw.take_along_axis(A, tw.asarray([[1], [0]]), axis=1)",
    "tile": "tw.tile(b, 2)",
    "top_k": "tw.top_k(i, 2)",
    "transpose": "tw.transpose(A)",
    "value_and_grad": "tw.value_and_grad(lambda v: (v ** 2).sum())(x)",
    "vjp": "tw.vjp(tw.sin, x)[0]",
    "vmap": "tw.vmap(lambda row: row.sum())(A)",
    "where": "tw.where(x > 0.3, x, y)",
    "while_loop": "tw.while_loop(lambda v: v < 100, lambda v: v * 3, 1)",
    "checkpoint": "tw.grad(lambda v: tw.checkpoint(tw.tanh)(v).sum())(x)",
    "ravel_multi_index": "tw.ravel_multi_index((1, 2), (2, 3))",
    "rope": "tw.rope(tw.asarray([[1.0, 2.0]]), tw.asarray([[0.0]]), tw.asarray([[1.0]]))",
    "pack_quantized": "tw.pack_quantized(tw.asarray([1, 2, 3, -1], dtype=tw.int8), 4)",
    "unpack_quantized": "tw.unpack_quantized(tw.asarray([33, 243], dtype=tw.uint8), 4)",
    "lora_matmul": "tw.lora_matmul(A, S, tw.ones((2, 1)), tw.ones((1, 2)), scale=0.5)",
    "grouped_matmul": "tw.grouped_matmul(A, tw.stack([S, A]), tw.asarray([0, 1], dtype=tw.int32))",
    "scatter": "tw.scatter(x, tw.asarray([0, 2]), tw.asarray([9.0, 8.0]))",
    "put": "tw.put(x, [0, 2], [9.0, 8.0])",
    "place": "tw.place(x, x > 0, [9.0, 8.0])",
    "putmask": "tw.putmask(x, x > 0, [9.0, 8.0, 7.0])",
    "requantize": "tw.requantize(tw.asarray([100, -300], dtype=tw.int32), 0.25)",
    "int_conv": "tw.int_conv(tw.ones((1, 1, 3, 3), dtype=tw.int8), tw.ones((1, 1, 2, 2), dtype=tw.int8)).shape",
    "selective_scan": "tw.selective_scan(*(tw.ones(s) for s in ((1, 4, 2), (1, 4, 2), (2, 3), (1, 4, 3), (1, 4, 3))))[0].shape",
    "gated_delta_rule": "tw.gated_delta_rule(*(tw.ones(s) for s in ((1, 1, 4, 2),) * 3 + ((1, 1, 4),) * 2))[0].shape",
    "linalg.ormqr": "tw.linalg.ormqr(*tw.linalg.geqrf(A), S)",
    "fft.stft": "tw.fft.stft(tw.ones(16), 8, hop=4).shape",
    "fft.istft": "tw.fft.istft(tw.fft.stft(tw.ones(16), 8, hop=4), 8, hop=4).shape",
    "random.key": "tw.random.key(0)",
    "random.uniform": "tw.random.uniform(tw.random.key(0), (3,))",
    "random.normal": "tw.random.normal(tw.random.key(0), (3,))",
    "random.split": "tw.random.split(tw.random.key(0))",
    "random.permutation": "tw.random.permutation(tw.random.key(0), 5)",
    "random.randint": "tw.random.randint(tw.random.key(0), (3,), 0, 10)",
    "random.bernoulli": "tw.random.bernoulli(tw.random.key(0), 0.5, (4,))",
    "random.exponential": "tw.random.exponential(tw.random.key(0), (3,))",
    "random.gumbel": "tw.random.gumbel(tw.random.key(0), (3,))",
    "random.bits": "tw.random.bits(tw.random.key(0), (3,))",
    "random.fold_in": "tw.random.fold_in(tw.random.key(0), 7)",
    "random.categorical": "tw.random.categorical(tw.random.key(0), A)",
    "random.dropout": "tw.random.dropout(tw.random.key(0), x, 0.5)",
    "optim.cosine": "tw.optim.cosine(0.1, 100)(50)",
    "apply_over_axes": "tw.apply_over_axes(tw.sum, A, (0, 1))",
    "axial_rope": "tw.axial_rope(tw.ones((2, 3, 8)), (tw.ones((2, 2)), tw.zeros((2, 2))), (tw.ones((3, 2)), tw.zeros((3, 2)))).shape",
    "choose": "tw.choose(tw.asarray([0, 1, 0]), [x, y])",
    "common_type": "tw.common_type(x, i).__name__",
    "dsplit": "len(tw.dsplit(tw.ones((2, 2, 4)), 2))",
    "einsum_path": "tw.einsum_path('ij,jk,k->i', A, A, b)[0]",
    "embedding_bag": "tw.embedding_bag(A, tw.asarray([0, 1, 1]), tw.asarray([0, 1]))",
    "frombuffer": "tw.frombuffer(bytes(range(4)), dtype=tw.uint8)",
    "fromstring": "tw.fromstring('1 2 3', sep=' ')",
    "genfromtxt": "tw.genfromtxt(['1 2', '3 4'])",
    "histogram2d": "tw.histogram2d(x, y, bins=2)[0]",
    "hsplit": "tw.hsplit(A, 2)",
    "insert": "tw.insert(i, 1, 9)",
    "int_matmul": "tw.int_matmul(tw.asarray([[1, 2]], dtype=tw.int8), tw.asarray([[3], [4]], dtype=tw.int8))",
    "issubdtype": "tw.issubdtype(tw.float32, np.floating)",
    "kaiser": "tw.kaiser(4, 2.0)",
    "layer_norm_2d": "tw.layer_norm_2d(tw.ones((1, 2, 3, 3)), b, b).shape",
    "loadtxt": "tw.loadtxt(['1 2', '3 4'])",
    "mask_indices": "tw.mask_indices(2, tw.triu)",
    "nanquantile": "tw.nanquantile(x, 0.5)",
    "ndenumerate": "[n for n, _ in tw.ndenumerate(A)]",
    "ndindex": "list(tw.ndindex(2, 2))",
    "ndtri": "tw.ndtri(tw.asarray([0.1, 0.5]))",
    "piecewise": "tw.piecewise(x, [x < 0, x >= 0], [-1, 1])",
    "polyfit": "tw.polyfit(x, 2 * x + 1, 1)",
    "unpackbits": "tw.unpackbits(tw.asarray([5], dtype=tw.uint8))",
    "vsplit": "tw.vsplit(A, 2)",
    "random.default_rng": "tw.random.default_rng(0).integers(0, 10, 3)",
    "random.dropout_mask": "tw.random.dropout_mask(tw.random.key(0), 0.5, (4,))",
    "optim.constant": "tw.optim.constant(0.1)(7)",
    "optim.exponential": "tw.optim.exponential(0.1, 0.5, 10)(20)",
    "optim.linear": "tw.optim.linear(0.1, 0.0, 10)(5)",
    "optim.one_cycle": "tw.optim.one_cycle(0.1, 100)(50)",
    "optim.piecewise": "tw.optim.piecewise(0.1, {10: 0.5})(20)",
    "optim.warmup": "tw.optim.warmup(tw.optim.constant(0.1), 10)(5)",
    "linalg.cholesky": "tw.linalg.cholesky(S)",
    "linalg.eigh": "tw.linalg.eigh(S)",
    "linalg.solve": "tw.linalg.solve(A, b)",
}


def _namespace() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(SETUP, names)
    return names


def _shown(value: Any) -> str:
    import numpy as np

    if isinstance(value, tuple | list):
        left, right = "()" if isinstance(value, tuple) else "[]"
        return left + ", ".join(_shown(v) for v in value) + ("," if isinstance(value, tuple) and len(value) == 1 else "") + right
    if hasattr(value, "tolist") and getattr(value, "size", 99) <= 16:
        return np.array2string(np.asarray(value), precision=4, separator=", ", suppress_small=True)
    return repr(value)


def _tried(text: str, names: dict[str, Any]) -> str | None:
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("error")
        shown = _shown(eval(text, names))
        return shown if len(shown) < 300 and " at 0x" not in shown and ("nan" not in shown or "nan" in text) else None
    return None


def example(name: str, function: Callable[..., Any]) -> tuple[str, str] | None:
    """(expression, what it gave) for `tw.<name>`; None where it has an example in its docstring, or none."""
    if ">>> " in (inspect.getdoc(function) or ""):
        return None
    names = _namespace()
    if name in WRITTEN:
        shown = _tried(WRITTEN[name], names)
        assert shown is not None, f"the example of tw.{name} does not run: {WRITTEN[name]}"
        return WRITTEN[name], shown
    for pattern in PATTERNS:
        text = pattern.format(f=f"tw.{name}")
        if (shown := _tried(text, names)) is not None:
            return text, shown
    return None
