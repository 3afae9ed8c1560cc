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
