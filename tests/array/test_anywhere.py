"""Functions that are written once over others: at once, lazily, in compiled functions and on NumPy arrays as NumPy has them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.array import anywhere, composed, polynomials
from tilewright.core.errors import ArgumentError, ExecutionError, TraceError

NAN, INF = float("nan"), float("inf")
M = np.array([[3.0, -1.5, NAN, 7.0, 2.0], [NAN, 5.5, -4.0, 1.0, -INF], [0.5, NAN, NAN, 6.0, 6.0]])
ARRAYS: dict[str, Any] = {
    "f32": M.astype(np.float32), "f64": M, "f16": M.astype(np.float16), "i64": np.array([[7, -3, 2, 0, 5], [5, 4, -9, 4, -5]]),
    "i8": np.array([[127, -128, 2], [0, 4, -9]], np.int8), "u8": np.array([[0, 255, 3], [7, 128, 1]], np.uint8),
    "bool": np.array([[True, False, True], [False, False, True]]), "column": M[:, 1:2].copy(), "strided": M[::-1, ::2], "c64":
    np.array([[1 + 2j, 3, -1j], [0, NAN, 2]], np.complex64),
}  # fmt: skip
FLOATS = ("f32", "f64", "f16", "column", "strided")
REAL = (*FLOATS, "i64", "i8", "u8", "bool")
INTEGERS = ("i64", "i8", "u8")
NUMBERS = ("f32", "f64", "column", "strided", "i64")


def written(name: str) -> Callable[..., Any]:
    """NumPy's function writes; ours gives a new array."""

    def call(m: ModuleType, x: Any, *args: Any, **options: Any) -> Any:
        if m is not np:
            return getattr(m, name)(x, *args, **options)
        made = x.copy()
        getattr(np, name)(made, *args, **options)
        return made

    return call


put, place, putmask, copyto, along, diagonal = map(
    written, ("put", "place", "putmask", "copyto", "put_along_axis", "fill_diagonal")
)
CASES: dict[str, tuple[Callable[[Any, Any], Any], tuple[str, ...]]] = {  # functions of the module (tw or NumPy) and an array
    "modf": (lambda m, x: m.modf(x), FLOATS),
    "isneginf": (lambda m, x: (m.isneginf(x), m.isposinf(x)), FLOATS),
    "iscomplex": (lambda m, x: (m.iscomplex(x), m.isreal(x), np.array([m.iscomplexobj(x), m.isrealobj(x), m.isscalar(x)])), (*REAL, "c64")),
    "bitwise_count": (lambda m, x: m.bitwise_count(x), INTEGERS),
    "piecewise": (lambda m, x: m.piecewise(x, [x > 2, x < 0], [lambda v: v * 2, -1.0, 7.0]), NUMBERS),
    "piecewise of one": (lambda m, x: m.piecewise(x[0], x[0] > 2, [3.0]), NUMBERS),
    "choose": (lambda m, x: m.choose(np.array([[0], [1]]), [x[:2], x[:1] * 2]), REAL),
    "choose clip": (lambda m, x: m.choose(np.array([[-3], [5]]), [x[:2], x[:1]], mode="clip"), REAL),
    "choose wrap": (lambda m, x: m.choose(np.array([[-3], [5]]), [x[:2], x[:1]], mode="wrap"), REAL),
    "put": (lambda m, x: put(m, x, [0, -1, 1], [1, 2]), REAL),
    "put clip": (lambda m, x: put(m, x, [[0, 99], [-99, 1]], 3, mode="clip"), REAL),
    "put wrap": (lambda m, x: put(m, x, [0, 99, -98], [1, 2, 3], mode="wrap"), REAL),
    "place": (lambda m, x: place(m, x, x > 1, [1, 2, 3]), REAL),
    "putmask": (lambda m, x: putmask(m, x, x > 1, [1, 2, 3]), REAL),
    "copyto": (lambda m, x: copyto(m, x, x[:1], where=x > 0), REAL),
    "put_along_axis": (lambda m, x: along(m, x, np.zeros((x.shape[0], 1), int), 1, axis=1), REAL),
    "put_along_axis of all": (lambda m, x: along(m, x, np.array([1, -1]), np.array([0, 1]), axis=None), REAL),
    "fill_diagonal": (lambda m, x: diagonal(m, x, 1), REAL),
    "fill_diagonal of tall ones": (lambda m, x: diagonal(m, x.reshape(-1, 1), [1, 0], wrap=True), REAL),
    "block": (lambda m, x: m.block([[x, x[:, :1]], [x[:1], np.ones((1, 1), x.dtype)]]), REAL),
    "block of vectors": (lambda m, x: m.block([x[0], x[1, :1]]), REAL),
    "ediff1d": (lambda m, x: m.ediff1d(x, [1, 0], 1), ("f32", "f64", "i64", "strided")),
    "diagflat": (lambda m, x: m.diagflat(x[:, :2], -1), REAL),
    "indices from": (lambda m, x: (*m.tril_indices_from(x, 1), *m.triu_indices_from(x), *m.diag_indices_from(x[:1, :1])), REAL),
    "mask_indices": (lambda m, x: m.mask_indices(x.shape[0], m.triu, 1), ("f32",)),
    "array_equiv": (lambda m, x: np.array([bool(m.array_equiv(x, x[0]))]), ("i64", "f32")),
    "packbits": (lambda m, x: m.packbits(x), ("u8", "bool", "i64")),
    "packbits of rows": (lambda m, x: m.packbits(x, axis=1, bitorder="little"), ("u8", "bool", "i64")),
    "unpackbits": (lambda m, x: m.unpackbits(x), ("u8",)),
    "unpackbits of rows": (lambda m, x: (m.unpackbits(x, axis=0, count=11, bitorder="little"), m.unpackbits(x, 1, count=30)), ("u8",)),
    "unpackbits but some": (lambda m, x: m.unpackbits(x, axis=1, count=-5), ("u8",)),
    "apply_over_axes": (lambda m, x: m.apply_over_axes(m.sum, x, [0, 1]), ("i64", "column")),
    "nancumsum": (lambda m, x: (m.nancumsum(x), m.nancumsum(x, axis=1), m.nancumsum(x, axis=0)), NUMBERS),
    "nancumprod": (lambda m, x: (m.nancumprod(x), m.nancumprod(x, axis=1)), NUMBERS),
    "nanargmax": (lambda m, x: (m.nanargmax(x), m.nanargmax(x, axis=1, keepdims=True)), ("f32", "f64", "f16", "i64")),
    "nanargmin": (lambda m, x: (m.nanargmin(x), m.nanargmin(x, axis=1)), ("f32", "f64", "f16", "i64")),
    "nanquantile": (lambda m, x: (m.nanquantile(x.clip(-9), [0.25, 0.7]), m.nanquantile(x.clip(-9), 0.3, axis=0)), NUMBERS),
    "nanquantile of rows": (lambda m, x: m.nanquantile(x.clip(-9), [[0.1], [1]], axis=1, keepdims=True), NUMBERS),
    "nanpercentile": (lambda m, x: (m.nanpercentile(x.clip(-9), 30), m.nanpercentile(x.clip(-9), [0, 50, 100], axis=(0, 1))), NUMBERS),
    "unwrap": (lambda m, x: (m.unwrap(x * 2.0, axis=0), m.unwrap(x * 2.0, period=3.0), m.unwrap(x * 2.0, 4.0)), ("i64",)),
    "unwrap of integers": (lambda m, x: (m.unwrap(x, period=4), m.unwrap(x, period=5)), ("i64",)),
    "histogram_bin_edges": (lambda m, x: m.histogram_bin_edges(x[0, :2], 3), ("f32", "i64")),
    "histogram2d": (lambda m, x: m.histogram2d(x[0, :2], x[1, 1:3], bins=[3, 2], range=[[-5, 7], [-10, 10]]), ("f32", "i64")),
    "histogram2d of weights": (lambda m, x: m.histogram2d(x[0, :2], x[1, 1:3], 2, None, True, np.array([1.0, 2.0])), ("f32", "i64")),
    "histogramdd": (lambda m, x: m.histogramdd((x[0], x[1]), [np.array([-9.0, 0.0, 2.0, 9.0]), 2], [None, [-5, 5]])[0], ("i64",)),
    "matvec": (lambda m, x: (m.matvec(x[:2, :2], x[0, :2]), m.vecmat(x[0, :2], x[:2, :2])), ("f32", "i64", "c64")),
    "polyadd": (lambda m, x: (m.polyadd(x[0], x[1, :2]), m.polysub(x[1, :2], x[0]), m.polymul(x[0, :2], x[1])), ("f32", "i64")),
    "polyder": (lambda m, x: (m.polyder(x[0]), m.polyder(x[0], 2), m.polyint(x[0]), m.polyint(x[0], 2, [3.0, 1.0])), ("f64", "i64")),
    "r_": (lambda m, x: (m.r_[x[0], 1, x[1], 2:4], m.c_[x[0], x[1]], m.r_[x, x], m.c_[x, x[:, :1]]), REAL),
    "around": (lambda m, x: (m.around(x), m.fix(x)), FLOATS),
}  # fmt: skip
WINDOWS = ("bartlett", "blackman", "hamming", "hanning")
EAGER: dict[str, tuple[Callable[[Any, Any], Any], tuple[str, ...]]] = {  # what depends on elements, or is not computed in small floats
    "spacing": (lambda m, x: m.spacing(x), ("f32", "f64", "strided")),
    "sort_complex": (lambda m, x: m.sort_complex(x[0]), ("i64", "c64")),
    "real_if_close": (lambda m, x: (m.real_if_close(x), m.real_if_close(x * (1 + 1e-9j))), ("i64", "c64")),
    "trim_zeros": (lambda m, x: (m.trim_zeros(x[0]), m.trim_zeros(x[1], "f"), m.trim_zeros(x[0] * 0)), ("i64", "u8")),
    "poly": (lambda m, x: (m.poly(x[0, :3] / 2), m.poly(x[:2, :2] / 4)), ("i64",)),
    "polydiv": (lambda m, x: (*m.polydiv(x[0, :3], x[1, :2]), *m.polydiv(x[0, :1], x[1])), ("i64",)),
    "roots": (lambda m, x: (np.sort_complex(np.asarray(m.roots(x[0]))), m.roots(x[0] * 0), m.roots([3.0, 0.0])), ("i64",)),
    "tensorinv": (lambda m, x: m.linalg.tensorinv((x.reshape(5, 2) @ x.reshape(2, 5) + 9 * np.eye(5)).reshape(5, 1, 5), 2), ("i64",)),
    "tensorsolve": (lambda m, x: m.linalg.tensorsolve((x[:, :2] + 0.5).reshape(1, 2, 1, 2), x[:1, :2] * 1.0, axes=(1, 0)), ("i64",)),
    "histogram edges by a rule": (lambda m, x: m.histogram_bin_edges(x, "sturges"), ("i64",)),
    "loadtxt": (lambda m, x: m.loadtxt(["1 2", "3 4"]), ("i64",)),
    "fromiter": (lambda m, x: (m.fromiter(iter([1, 2]), dtype=np.int32), m.fromstring("1 2", sep=" ")), ("i64",)),
    "windows": (lambda m, x: tuple(getattr(m, w)(n) for w in WINDOWS for n in (0, 1, 2, 7)), ("i64",)),
    "kaiser": (lambda m, x: (m.kaiser(8, 3.5), m.kaiser(1, 2.0)), ("i64",)),
    "grids": (lambda m, x: (m.mgrid[0:2, 1:4], *m.ogrid[0:2, 0:1:3j], m.mgrid[2:5], m.s_[1:2] == m.index_exp[1:2][0]), ("i64",)),
}  # fmt: skip


def agree(made: Any, wanted: Any, case: str) -> None:
    made, wanted = (v if isinstance(v, (tuple, list)) else (v,) for v in (made, wanted))
    assert len(made) == len(wanted)
    for ours, theirs in zip(made, wanted, strict=True):
        assert np.shape(ours) == np.shape(theirs), case
        if np.asarray(theirs).dtype.kind in "iub":
            assert np.asarray(ours).dtype.kind == np.asarray(theirs).dtype.kind, case
        exact = 2e-3 if np.asarray(ours).dtype == np.float16 else 2e-5
        theirs = np.asarray(theirs)
        wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(np.asarray(ours).astype(wide), theirs.astype(wide), rtol=exact, atol=exact, err_msg=case)


ROWS = [(case, name) for case, (_, names) in CASES.items() for name in names]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("case", "name"), ROWS, ids=lambda v: v)
def test_functions_are_numpys(case: str, name: str) -> None:
    fn, x = CASES[case][0], ARRAYS[name]
    wanted = fn(np, x)
    agree(fn(tw, tw.asarray(x)), wanted, case)
    agree(fn(tw, x), wanted, case)
    with tw.lazy():
        agree(fn(tw, tw.asarray(x)), wanted, case)
    if case not in ("mask_indices", "array_equiv"):
        agree(tw.jit(lambda v: fn(tw, v))(x), wanted, case)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("case", EAGER)
def test_functions_outside_of_traces_are_numpys(case: str) -> None:
    fn, names = EAGER[case]
    for name in names:
        agree(fn(tw, tw.asarray(ARRAYS[name])), fn(np, ARRAYS[name]), case)


def test_every_function_is_in_this_file() -> None:
    text = "".join(Path(__file__).with_name(f"test_{name}.py").read_text() for name in ("traced", "anywhere", "arguments"))
    said = set(re.findall(r"(?:\.|\"|\b)(\w+)(?:\(|\")", text)) | set(re.findall(r"\.(\w+)", text))
    names = (*anywhere.FUNCTIONS, *polynomials.FUNCTIONS, *polynomials.LINALG)
    assert [n for n in names if n not in said] == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("method", composed.PLACES)
def test_methods_of_quantiles_without_nan(method: str) -> None:
    rng = np.random.default_rng(3)
    x = np.where(rng.random((6, 9)) < 0.3, NAN, rng.standard_normal((6, 9)))
    for q in (0.0, 0.13, 0.5, 0.77, 1.0):
        wanted = np.nanquantile(x, q, axis=1, method=method)  # type: ignore[call-overload]
        np.testing.assert_allclose(tw.nanquantile(tw.asarray(x), q, axis=1, method=method), wanted, rtol=1e-12)


def test_nothing_and_nan_alone() -> None:
    empty = tw.zeros((0, 3))
    assert tw.nancumsum(empty, axis=0).shape == tw.block([[empty], [empty]]).shape == tw.unwrap(empty).shape == (0, 3)
    assert tw.nanquantile(empty, [0.1, 0.9], axis=0).shape == (2, 3) and tw.packbits(empty).shape == (0,)
    assert np.isnan(np.asarray(tw.nanquantile(tw.full(3, NAN), 0.5)))
    assert tw.put(empty, [], []).shape == tw.place(empty, empty > 0, [1.0]).shape == (0, 3)
    assert tw.histogram2d(tw.zeros(0), tw.zeros(0), bins=3)[0].tolist() == np.zeros((3, 3)).tolist()
    assert tw.roots([]).shape == tw.roots([0.0]).shape == (0,) and tw.poly(tw.zeros(0)).tolist() == [1.0]
    with pytest.raises(ArgumentError, match=r"nanargmax: a slice holds NaN alone, got f32\[2\] and axis=None \(test_anywhere"):
        tw.nanargmax(tw.full(2, NAN))
    assert tw.jit(lambda x: tw.nanargmin(x, axis=1))(np.array([[NAN, 1.0]])).tolist() == [1]


def test_bad_arguments_are_named() -> None:
    x: Any = tw.ones((2, 3))
    tries: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: tw.choose(tw.asarray([2]), [x[0], x[1]]), ArgumentError, "choose: an index is out of range for 2"),
        (lambda: tw.put(x, [9], 1.0), ArgumentError, "put: an index is out of range for 6"),
        (lambda: tw.put(x, [0], 1.0, mode="skip"), ArgumentError, "put: mode is 'raise', 'wrap' or 'clip', got 'skip'"),
        (lambda: tw.fill_diagonal(tw.ones(3), 1.0), ArgumentError, "fill_diagonal: needs a matrix"),
        (lambda: tw.block([x, [x]]), ArgumentError, "block: lists hold at least one array, and lie equally deep"),
        (lambda: tw.unpackbits(x), ArgumentError, r"unpackbits: needs u8, got f32\[2,3\]"),
        (lambda: tw.packbits(x, bitorder="middle"), ArgumentError, "packbits: bitorder is 'big' or 'little'"),
        (lambda: tw.bitwise_count(x), ArgumentError, "bitwise_count: needs integers"),
        (lambda: tw.nanquantile(x, 1.5), ArgumentError, "nanquantile: quantiles are 0 to 1"),
        (lambda: tw.nanquantile(x, 0.5, method="middle"), ArgumentError, "nanquantile: the method is one of linear"),
        (lambda: tw.piecewise(x, [x > 0], [1.0, 2.0, 3.0]), ArgumentError, "piecewise: 1 conditions need as many functions"),
        (lambda: tw.put_along_axis(x, tw.asarray([0]), 1.0), ArgumentError, "put_along_axis: indices need as many axes"),
        (lambda: tw.put_along_axis(x, tw.asarray([[9]]), 1.0), IndexError, "index 9 is out of bounds"),
        (lambda: tw.histogramdd(x, bins=[1, 2]), ArgumentError, "histogramdd: needs bins for each of the 3 axes, got 2"),
        (lambda: tw.linalg.tensorinv(x, 1), ArgumentError, "tensorinv: the axes before and behind `ind`"),
        (lambda: tw.linalg.tensorsolve(x, tw.ones(2)), ArgumentError, "tensorsolve: needs as many equations as unknowns"),
        (lambda: tw.linalg.tensorinv(tw.zeros((2, 2)), 1), ExecutionError, "inv: Singular matrix"),
        (lambda: tw.r_["c", x], ArgumentError, "r_: directives are not supported, got 'c'"),
        (lambda: tw.jit(lambda v: v + tw.random.default_rng(0).normal())(x), TraceError, "random.normal: a generator with a state"),
    ]
    for attempt, kind, message in tries:
        with pytest.raises(kind, match=message):
            attempt()


def test_derivatives_are_pytorchs() -> None:
    x = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    x[0, 1] = NAN
    pairs: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "nancumsum": (lambda v: tw.nancumsum(v, axis=1)[:, 2].sum(), lambda v: torch.nan_to_num(v).sum()),
        "nanquantile": (lambda v: tw.nanquantile(v, 0.3, axis=1).sum(), lambda v: torch.nanquantile(v, 0.3, dim=1).sum()),
        "fill_diagonal": (
            lambda v: tw.nansum(tw.fill_diagonal(v, 0.0) ** 2), lambda v: torch.nansum((v * (1 - torch.eye(3))) ** 2)
        ),
        "block": (lambda v: tw.nansum(tw.block([[v, v * 2]])), lambda v: torch.nansum(torch.cat([v, v * 2], 1))),
        "put_along_axis": (
            lambda v: tw.nansum(tw.put_along_axis(v, np.array([[0], [1], [1]]), v[:, :1] * 3.0, 1)),
            lambda v: torch.nansum(torch.scatter(v, 1, torch.tensor([[0], [1], [1]]), v[:, :1] * 3.0)),
        ),
        "polymul": (lambda v: (tw.polymul(v[1], v[2]) ** 2).sum(), lambda v: (torch.stack(
            [sum((v[1, i] * v[2, k - i] for i in range(3) if 0 <= k - i < 3), torch.zeros(())) for k in range(5)]) ** 2).sum()),
    }  # fmt: skip
    for name, (ours, theirs) in pairs.items():
        leaf = torch.tensor(x, requires_grad=True)
        (wanted,) = torch.autograd.grad(theirs(leaf), leaf)
        got = np.nan_to_num(np.asarray(tw.grad(ours)(x)))
        np.testing.assert_allclose(got, np.nan_to_num(wanted.numpy()), rtol=1e-4, atol=1e-5, err_msg=name)


def test_vectorize() -> None:
    x = np.random.default_rng(0).standard_normal((4, 1, 3)).astype(np.float32)
    y = x[:, 0] * 2
    both = tw.vectorize(lambda a, b: (a * b, a - b))
    for made, wanted in zip(both(x, y), (x * y, x - y), strict=True):
        assert isinstance(made, np.ndarray)
        np.testing.assert_allclose(made, wanted, rtol=1e-6)
    assert both(tw.asarray(2.0), 3.0)[0].item() == 6
    dot = tw.vectorize(lambda a, b: (a * b).sum(), signature="(n),(n)->()")
    np.testing.assert_allclose(dot(x, y), (x * y).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(tw.jit(lambda v: dot(v, v[0, 0]))(x), (x * x[0, 0]).sum(-1), rtol=1e-5)
    with pytest.raises(ArgumentError, match=r"vectorize: .* has 2 arguments in"):
        dot(x)


def test_a_generator_with_a_state() -> None:
    ours, theirs = tw.random.default_rng(7), np.random.default_rng(7)
    for name, args in (("normal", (1.0, 2.0, (3, 2))), ("integers", (9, 20, 5)), ("random", (4,)), ("poisson", (3.0, 6))):
        made, wanted = getattr(ours, name)(*args), getattr(theirs, name)(*args)
        assert isinstance(made, tw.Array) and made.dtype == (np.float32 if wanted.dtype.kind == "f" else wanted.dtype)
        np.testing.assert_allclose(made, wanted, rtol=1e-6)
    x, y = tw.arange(9), np.arange(9)
    before = x.view()
    ours.shuffle(x)
    theirs.shuffle(y)
    assert x.tolist() == y.tolist() and before.tolist() == list(range(9))
    assert ours.choice(x, 3).tolist() == theirs.choice(y, 3).tolist()
    assert ours.random(2, dtype=tw.float64).dtype == np.float64
