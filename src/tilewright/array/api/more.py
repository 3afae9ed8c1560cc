"""The last of NumPy's commonly used functions."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...transform.trace import Functions
from ..arrays import Array, plain, wrap
from ..machine import tight
from ..updates import fitting
from . import creation, files, rows, shapes
from .base import FLOAT, axes_of, give, header, known

public = FUNCTIONS = Functions()
rows.enter(FUNCTIONS, {
    "nan_to_num(x, /, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None)":
        "NaN and infinities replaced by numbers.",
    "vander(x, n: int | None = None, increasing: bool = False)":
        ("The Vandermonde matrix.", lambda a, n, increasing: np.vander(a, n, increasing).astype(a.dtype, copy=False)),
    "tri(n: int, m: int | None = None, k: int = 0, dtype: Any = None)":
        ("Ones at and below a diagonal, zeros above.",
         lambda n, m, k, dtype: np.tri(n, m, k, FLOAT if dtype is None else known(dtype, "tri"))),
    "polyfit(x, y, deg: int)": ("The polynomial, its highest coefficient first, nearest to y at x.",
                                lambda x, y, deg: np.polyfit(x, y, deg).astype(y.dtype if y.dtype.kind == "f" else FLOAT)),
    "unravel_index(indices, shape: Any) -> tuple[Array, ...]": "The indices of positions in a shape.",
    "polyval(p, x)": "A polynomial, its highest coefficient first, at x.",
    "tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]": "The indices of a lower triangle.",
    "triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]": "The indices of an upper triangle.",
    "diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]":
        "The indices of the main diagonal of an array of `ndim` axes of n elements.",
})
rows.enter(FUNCTIONS, {
    "select(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0)": "Elements of the first choice whose condition holds.",
    "ravel_multi_index(indices: Sequence[Any], shape: Any)":
        ("The positions of indices in a shape.", lambda indices, shape: np.ravel_multi_index(tuple(indices), shape)),
    "lexsort(keys: Sequence[Any], axis: int = -1)": "The indices that sort by several keys; the last one counts most.",
}, lambda what, *lists: [[header(x, what) for x in each] for each in lists])


@public
def copy(x: Any, /) -> Array:
    """x in memory of its own."""
    return wrap(header(x, "copy")).copy()


@public
def ascontiguousarray(x: Any, /, dtype: Any = None) -> Array:
    """x with its elements in order in memory, copied only where they are not."""
    a = header(x, "ascontiguousarray")
    a = a if dtype is None else a.astype(known(dtype, "ascontiguousarray"), copy=False)
    return wrap(a if a.flags.c_contiguous else tight(a))


def ix_(*indices: Any) -> tuple[Array, ...]:
    """Indices of rows, columns ... that name the elements where they cross: `x[tw.ix_([0, 2], [1, 3])]`."""
    return tuple(give(a) for a in np.ix_(*(header(i, "ix_") for i in indices)))


FUNCTIONS["ix_"] = ix_


def _window(name: str) -> Callable[..., Any]:
    def kaiser(m: int, beta: float, *, dtype: Any = None) -> Array:
        return give(np.kaiser(m, beta).astype(FLOAT if dtype is None else known(dtype, name)))

    def window(m: int, *, dtype: Any = None) -> Array:
        return give(getattr(np, name)(m).astype(FLOAT if dtype is None else known(dtype, name)))

    call = kaiser if name == "kaiser" else window
    call.__name__, call.__doc__ = name, f"The {name.capitalize()} window of m points{', with its shape beta' if name == 'kaiser' else ''}."
    return call


for _name in ("bartlett", "blackman", "hamming", "hanning", "kaiser"):
    creation.on_devices(_window(_name))


def _told(name: str, doc: str) -> Callable[..., Any]:
    """A function of NumPy that says something about arrays, shapes and dtypes; it is given headers, and gives no Array."""
    fn = getattr(np, name)

    def call(*args: Any, **options: Any) -> Any:
        return fn(*plain(args), **plain(options))

    call.__name__, call.__doc__ = name, doc
    return call


for _name, _doc in {
    "iscomplexobj": "Whether an array or a number is complex.", "isrealobj": "Whether an array or a number is not complex.",
    "isscalar": "Whether x is a number, and no array.", "issubdtype": "Whether a dtype is another one, or of a kind of NumPy's.",
    "iterable": "Whether x can be iterated over.", "ndindex": "All indices of a shape, in order.",
    "ndenumerate": "(index, element) of all elements, in order.", "shares_memory": "Whether two arrays have an element in common.",
    "may_share_memory": "Whether the memory of two arrays may overlap.", "min_scalar_type": "The smallest dtype that holds a number.",
    "common_type": "The float dtype in which arrays meet.", "einsum_path": "The order of products of an einsum, and what it costs.",
}.items():
    FUNCTIONS[_name] = _told(_name, _doc)


def _read(name: str, doc: str) -> Callable[..., Any]:
    """A reader of NumPy's; its results are floats of the default dtype unless one is given."""
    def call(source: Any, *args: Any, dtype: Any = None, **options: Any) -> Array:
        return give(getattr(np, name)(source, *args, dtype=FLOAT if dtype is None else known(dtype, name), **options))

    call.__name__, call.__doc__ = name, doc
    return call


for _name, _doc in {
    "loadtxt": "The numbers of a text file, a row a line; options are NumPy's.",
    "genfromtxt": "The same, of files where numbers are missing.",
    "fromfile": "The numbers of a binary file, or of text with a separator.", "fromstring": "The numbers of a text with a separator `sep`.",
    "fromiter": "The numbers of an iterable.",
}.items():
    FUNCTIONS[_name] = _read(_name, _doc)


@public
def savetxt(path: Any, x: Any, **options: Any) -> None:
    """Write a vector or matrix to a text file; options are NumPy's."""
    np.savetxt(path, header(x, "savetxt"), **options)


@public
def savez(path: Any, **arrays: Any) -> None:
    """Write Arrays to an `.npz` file, by name."""
    files.save(path, arrays)


@public
def shape(x: Any, /) -> tuple[int, ...]:
    """The shape."""
    return tuple(header(x, "shape").shape)


@public
def ndim(x: Any, /) -> int:
    """The number of axes."""
    return header(x, "ndim").ndim


@public
def size(x: Any, /, axis: Any = None) -> int:
    """The number of elements, or of those along axes."""
    a = header(x, "size")
    return math.prod(a.shape[k] for k in axes_of(axis, a.ndim, "size"))


@public
def apply_along_axis(fn: Callable[..., Any], axis: int, x: Any, *args: Any, **options: Any) -> Array:
    """fn of every vector along an axis, and of further arguments."""
    return give(np.apply_along_axis(lambda v: header(fn(wrap(v), *args, **options)), axis, header(x)))


@public
def append(x: Any, values: Any, axis: int | None = None) -> Array:
    """`values` behind x along an axis; with axis None, all elements one after the other."""
    return shapes.FUNCTIONS["concat"]([x, values], axis=axis)  # type: ignore[no-any-return]


@public
def insert(x: Any, where: Any, values: Any, axis: int | None = None) -> Array:
    """x with `values`, in its dtype, before the positions `where` along an axis (None: of all its elements)."""
    a = header(x, "insert")
    given = values if type(values) is int else header(values, "insert")
    return give(np.insert(a, _positions(where), fitting(given, a.dtype), axis))


@public
def delete(x: Any, where: Any, axis: int | None = None) -> Array:
    """x without the positions `where` along an axis (None: of all its elements)."""
    return give(np.delete(header(x, "delete"), _positions(where), axis))


def _positions(where: Any) -> Any:
    return where if isinstance(where, (int, slice)) else header(where, "positions")


def _split_like(name: str, axis: int) -> Callable[..., Any]:
    def call(x: Any, parts: Any) -> list[Array]:
        k = axis if name != "hsplit" or header(x, name).ndim > 1 else 0
        return shapes.FUNCTIONS["split"](x, parts, k)  # type: ignore[no-any-return]

    call.__name__, call.__doc__ = name, f"`split` along {'the second axis, of a vector the first' if axis == 1 else f'axis {axis}'}: views."
    return call


for _name, _axis in (("vsplit", 0), ("hsplit", 1), ("dsplit", 2)):
    public(_split_like(_name, _axis))
public(files.save)
public(files.load_arrays)
