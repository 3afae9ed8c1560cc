"""NumPy's names, order and options of arguments: calls as text, of `tw.`, of NumPy's functions of Arrays and inside compiled functions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.array import arguments
from tilewright.core.errors import ArgumentError, TraceError

# Everywhere; functions that are compiled for this have the options, too.
EVERYWHERE = """
sum(m, 0, F64)                                  sum(m, 1, None, None, True)              max(m, 0, None, True)
any(b, 0, None, True)                           mean(m, 0, F64)                          var(m, 0, None, None, 1, True)
var(m, axis=0, ddof=1, keepdims=True, where=b)  std(m, axis=1, mean=row, dtype=F64)      std(c, axis=0)
argmax(b, axis=0)                               argmin(m, keepdims=True)                 cumsum(m, 0, F64)
average(m, 1, v, True)                          cov(m, bias=True)                        cov(m, None, False)
cov(m, fweights=[1, 2, 1, 1, 3], aweights=v)    digitize(v, e[::-1])                     searchsorted(e, v, 'right')
isin(i, [1, 2], False, True)                    take(m, [0, 99], axis=1, mode='clip')    take(m, i, mode='wrap')
take_along_axis(v, o, None)                     clip(m, a_min=0.2, a_max=0.8)            around(m * 99, -1)
nan_to_num(n, True, 3.0)                        angle(c, deg=True)                       sort(m, None)
argsort(m, axis=0, kind='stable')               argpartition(v, 4, kind='introselect')   lexsort((i[0], i[1]))
broadcast_to(v, (3, 5), subok=False)            atleast_2d(v, m)                         roll(m, (1, 2), axis=0)
tile(m, reps=(2, 2))                            repeat(m, repeats=2, axis=0)             split(m, indices_or_sections=2)
insert(m, obj=1, values=v, axis=0)              pad(m, 1, 'reflect')                     pad(m, {0: 1, 1: (2, 3)})
diff(m, axis=0, prepend=0)                      diff(b)                                  gradient(m, edge_order=2)
gradient(v, e[:5], edge_order=2)                dot(m, 2.0)                              dot(m, t.swapaxes(1, 2))
inner(m, 2)                                     einsum('ii->i', m[:, :4])                einsum('...j,kj', t, m, optimize=True)
einsum(m, [0, 1], m, [2, 1], [0, 2])            einsum('i...,...->i...', t, m)    trace(t, 0, 0, 1)
trace(t, offset=1, axis1=1, axis2=2)            vander(v, N=3, increasing=True)          correlate(c[0], c[1], mode='same')
polyfit(v, m[0], 2, w=e[:5])                    polyfit(v, m.T, deg=1)                   apply_along_axis(twice, 1, m, 3)
add(m, i, dtype=F64)                            sqrt(i, dtype=F64)                       less(m, 0.5, casting='same_kind')
linspace(v, m, 3, axis=1)                       unravel_index(i, (3, 4))                 ravel_multi_index((i, i), (2, 3), mode='clip')
size(m, axis=0)                                 histogram(m, 5, (0.0, 1.0), True)        matmul(m, m.T, dtype=F64)
eye(3, 4, 1) + m[:3, :4]                        linalg.trace(m, offset=1)                linalg.diagonal(t, offset=1)
"""
# NumPy's own function serves these options, over the Array's memory.
OUTSIDE = """
quantile(m, 0.2, axis=1, weights=w, method='inverted_cdf')   nansum(n, axis=1, keepdims=True, initial=2, where=b)   nanmean(n, 0, F64)
unique(n, equal_nan=False)                  intersect1d(i[0], i[1], return_indices=True)  setdiff1d(i[0], i[1], assume_unique=True)
choose(b[0] * 1, [v, v + 1], None, 'wrap')  reshape(m, (5, 4), 'F')                      ravel(m, order='F')
concatenate((m, i), dtype=F64)              stack((m, m), axis=-1, dtype=F64)            pad(m, 2, 'linear_ramp', end_values=1)
trim_zeros(z, axis=0)                       cross(m[:, :3].T, m[:, :3], axisa=0)
polyfit(v, m[0], 1, full=True)              geomspace(v + 1, v + 2, 3, axis=1)           full_like(m, 2, shape=(2, 2))
indices((2, 3), sparse=True)                fromfunction(twice, (3,), k=2)               unravel_index(i, (3, 4), 'F')
kaiser(M=5, beta=2.0)                       array(m, ndmin=3)                            arange(stop=5)
linalg.pinv(m, 1e-3)                        linalg.matrix_rank(m, tol=0.5)               linalg.svd(m, compute_uv=False)
linalg.eigvalsh(m[:, :4], UPLO='U')         linalg.qr(m, mode='r')                       linalg.lstsq(m, m[:, 0], rcond=None)
"""


class Scope(dict[str, Any]):
    """The names in a call: arrays, else functions of a module."""

    def __init__(self, module: Any, arrays: dict[str, Any]) -> None:
        super().__init__(arrays, F64=np.float64, twice=lambda x, k: x * k)
        self.module = module

    def __missing__(self, name: str) -> Any:
        return getattr(self.module, name)


def arrays() -> dict[str, Any]:
    rng = fresh_rng()
    m, t, w, v = (rng.random(s, np.float32) + 0.1 for s in ((4, 5), (3, 4, 5), (4, 5), (5,)))
    n = m.copy()
    n[1, 2] = n[3, 0] = np.nan
    return {"m": m, "t": t, "w": w, "v": v, "n": n, "c": m + 1j * w, "i": rng.integers(0, 4, (4, 5)), "b": w > 0.3,
            "e": np.sort(rng.random(6)), "o": np.argsort(v), "row": m.mean(1, keepdims=True), "z": np.pad(m, 1)}  # fmt: skip


def agree(made: Any, wanted: Any, call: str) -> None:
    made, wanted = (list(x) if isinstance(x, (tuple, list)) else [x] for x in (made, wanted))
    assert len(made) == len(wanted), call
    for ours, theirs in zip(made, wanted, strict=True):
        assert np.shape(ours) == np.shape(theirs), call
        assert np.asarray(ours).dtype.kind == np.asarray(theirs).dtype.kind, call
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-3, atol=1e-3, err_msg=call)


CALLS = {mode: re.split(r"\s{2,}|\n", text.strip()) for mode, text in {"everywhere": EVERYWHERE, "outside": OUTSIDE}.items()}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("call", [*CALLS["everywhere"], *CALLS["outside"]])
def test_arguments_are_numpys(call: str) -> None:
    given = arrays()
    wanted = eval(call, {}, Scope(np, given))
    ours = {k: tw.asarray(x) for k, x in given.items()}
    agree(eval(call, {}, Scope(tw, ours)), wanted, call)
    agree(eval(call, {}, Scope(tw, given)), wanted, call)
    agree(eval(call, {}, Scope(np, ours)), wanted, call)


def names(call: str, given: dict[str, Any]) -> list[str]:
    return [k for k in given if re.search(rf"\b{k}\b", call.partition("(")[2])]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, where a random mask leaves nothing
@pytest.mark.parametrize("call", CALLS["everywhere"])
def test_arguments_inside_jit_are_numpys(call: str) -> None:
    given = arrays()
    used = names(call, given)
    made = tw.jit(lambda *xs: eval(call, {}, Scope(tw, dict(zip(used, xs, strict=True)))))(*(given[k] for k in used))
    agree(made, eval(call, {}, Scope(np, given)), call)


@pytest.mark.parametrize("call", ["ravel(m, order='F')", "nansum(n, initial=2)", "linalg.matrix_rank(m, tol=0.5)", "bincount(i)",
                                  "stack((m, m), dtype=F64)", "nanmean(n, 0, F64)", "where(b)"])  # fmt: skip
def test_what_traced_functions_do_not_take(call: str) -> None:
    given = arrays()
    used = names(call, given)
    with pytest.raises(TraceError, match=r"\w+: in a traced function it takes \(.*\), got \(.*\); call it outside of the traced function"):
        tw.jit(lambda *xs: eval(call, {}, Scope(tw, dict(zip(used, xs, strict=True)))))(*(given[k] for k in used))


@pytest.mark.parametrize("name", ["unique", "nonzero", "argwhere", "flatnonzero", "unique_values", "trim_zeros"])
def test_sizes_that_depend_on_elements(name: str) -> None:
    with pytest.raises(TraceError, match=r"the size of (its|the) result depends on .*; call it outside of the traced function"):
        tw.jit(lambda x: getattr(tw, name)(x))(np.ones(3))


def test_what_nobody_takes() -> None:
    x = tw.ones((2, 3))
    functions: Any = tw
    with pytest.raises(TypeError, match=r"sum\(\) got an unexpected keyword argument 'nothing'"):
        functions.sum(x, nothing=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        functions.tile(x, nothing=1)
    with pytest.raises(ArgumentError, match=r"add: an operand does not fit the dtype, got f32\[2,3\] for dtype=int64"):
        functions.add(x, 1, dtype=np.int64)
    with pytest.raises(ArgumentError, match=r"quantile: .*non-negative"):
        functions.quantile(x, 0.5, weights=-x, method="inverted_cdf")


def test_results_in_given_memory() -> None:
    x, parts = tw.asarray([1.5, -2.25]), (tw.zeros(2), tw.zeros(2))
    functions: Any = tw
    assert functions.modf(x, out=parts)[1] is parts[1]
    assert [p.tolist() for p in parts] == [[0.5, -0.25], [1, -2]]
    total = tw.zeros(3)
    assert functions.sum(tw.ones((2, 3)), 0, None, total) is total
    assert total.tolist() == [2, 2, 2]
    assert functions.mean(tw.ones((2, 3)), 0, True).shape == (1, 3)  # PyTorch's order


def test_bins_of_a_known_length() -> None:
    """The same inside compiled functions and outside."""
    i = np.array([1, 1, 4])
    assert tw.bincount(tw.asarray(i), length=6).tolist() == tw.jit(lambda x: tw.bincount(x, length=6))(i).tolist() == [0, 2, 0, 0, 1, 0]
    with pytest.raises(tw.ExecutionError, match="bincount: the numbers must be below length=3, got 4"):
        tw.bincount(tw.asarray(i), length=3)


@pytest.mark.parametrize("dtype", [tw.bfloat16, tw.float8_e4m3fn, tw.float8_e5m2], ids=lambda d: d.name)
def test_small_floats_that_numpy_does_not_know(dtype: Any) -> None:
    """NumPy asks for __array_interface__ before __array__."""
    x = tw.asarray([[1.0, 2.0], [3.0, 4.0]], dtype=dtype)
    for made in (np.asarray(x), np.asarray(x[::-1])[::-1], np.array([x[0], x[1]]), np.asarray(tw.jit(lambda v: v + 0)(x))):
        assert made.dtype == dtype
        assert made.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(AttributeError, match=f"{dtype.name} has no name in __array_interface__"):
        _ = x.__array_interface__
    n = tw.asarray([1.0, float("nan"), -2.0], dtype=dtype)
    for fn in (tw.isfinite, tw.nanmax, tw.nanargmin):
        wanted = getattr(np, fn.__name__)(np.array([1.0, np.nan, -2.0]))
        assert np.asarray(fn(n)).tolist() == np.asarray(tw.jit(fn)(n)).tolist() == wanted.tolist()


def test_functions_without_a_signature() -> None:
    """Older releases of NumPy have them: arguments are taken as they are, where they fit."""
    def target(x: Any, axis: Any = None) -> None: ...

    assert arguments.translated(max, target, (1, 2), {}) == ([1, 2], {})
    assert arguments.translated(max, target, (1, 2, 3), {}) is None
