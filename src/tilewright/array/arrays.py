"""`tw.Array`: a strided view of reference-counted memory, with value semantics.

An Array holds a header (address, shape, signed strides, dtype and a reference to the storage: NumPy's array header, which native code reads
directly). Views share the storage and cost no copy. A write copies first when anybody else holds the storage, so that no write is seen
through another Array: `y = x[2:5]; y[0] = 1` leaves x as it was.
"""
from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import dtypes as dt
from ..core.errors import ArgumentError, ParseError
from ..runtime.outputs import new_array

Fn = Callable[..., Any]
_refs = sys.getrefcount
_WRITES = {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"}  # NumPy's functions that write their first argument
ALONE = 3  # references to a header that only its Array holds: the slot, a local name, the argument of getrefcount


class Array:
    """An array of numbers on one device: `tw.asarray([1.0, 2.0])`, `tw.zeros((2, 3))`, `tw.arange(5)`.

    It works with Python's operators, slices and NumPy's functions. Views (`x.T`, `x[::-1]`, `x.reshape(...)` where the memory lies right)
    share memory; writing (`x[0] = 1`, `x += y`) copies first when the memory is shared.

    >>> x = wrap(np.arange(4.0, dtype=np.float32))
    >>> y = x[::-1]
    >>> y[0] = 9
    >>> x.tolist(), y.tolist()
    ([0.0, 1.0, 2.0, 3.0], [9.0, 2.0, 1.0, 0.0])
    """

    __slots__ = ("__weakref__", "_a", "_node")  # native code knows the place of _a
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 1000
    _a: np.ndarray[Any, Any]
    _node: Any

    if TYPE_CHECKING:  # `operators.py` enters these; functions of `tw.` serve them
        def _binary(self, other: Any, /) -> Array: ...
        def _unary(self) -> Array: ...
        def _method(self, *args: Any, **options: Any) -> Array: ...
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _binary
        __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = _binary
        __rxor__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __lt__ = __le__ = __gt__ = __ge__ = _binary
        __eq__ = __ne__ = _binary  # type: ignore[assignment]
        __neg__ = __pos__ = __abs__ = __invert__ = _unary
        sum = prod = max = min = mean = std = var = all = any = argmax = argmin = cumsum = cumprod = sort = argsort = clip = _method
        round = conj = repeat = dot = trace = take = _method
        nonzero: Callable[[], tuple[Array, ...]]
        real: Array
        imag: Array

    def __init__(self) -> None:
        raise ArgumentError("Array: use tw.asarray, tw.zeros, tw.arange ... to make one")

    # ---- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(ready(self).shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type, one of `tw.float32` ...; these are NumPy's dtype objects."""
        found: np.dtype[Any] = ready(self).dtype
        return found

    @property
    def ndim(self) -> int:
        return ready(self).ndim

    @property
    def size(self) -> int:
        return ready(self).size

    @property
    def nbytes(self) -> int:
        return ready(self).nbytes

    @property
    def itemsize(self) -> int:
        return ready(self).itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each axis; they may be negative or 0."""
        return ready(self).strides

    @property
    def device(self) -> str:
        return "cpu"

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """This Array on `device`; there is "cpu"."""
        check_device(device, "to_device")
        if stream is not None:
            raise ArgumentError(f"to_device: a CPU has no streams, got {stream!r}")
        return self

    to = to_device

    # ---- views: O(1)

    @property
    def T(self) -> Array:
        return wrap(ready(self).T)

    @property
    def mT(self) -> Array:
        a = ready(self)
        if a.ndim < 2:
            raise ArgumentError(f"mT: needs two axes or more, got {shown(a)}")
        return wrap(a.swapaxes(-1, -2))

    def view(self) -> Array:
        """Another Array of the same memory: a clone that costs nothing until one of them is written."""
        return wrap(ready(self)[...])

    def transpose(self, *axes: Any) -> Array:
        return wrap(ready(self).transpose(*axes))

    permute = transpose

    def swapaxes(self, a: int, b: int) -> Array:
        return wrap(ready(self).swapaxes(a, b))

    def reshape(self, *shape: Any, order: Any = "C", copy: bool | None = None) -> Array:
        """The same elements in another shape; a view where the strides allow it."""
        wanted = shape[0] if len(shape) == 1 else shape
        try:
            if copy is None and order == "C":
                return wrap(ready(self).reshape(wanted))
            return wrap(np.reshape(ready(self), _ints(wanted), order=order, copy=copy))
        except (ValueError, TypeError) as e:
            raise ArgumentError(f"reshape: {e}, got {shown(ready(self))} to {wanted}") from None

    def ravel(self) -> Array:
        return self.reshape(-1)

    def flatten(self) -> Array:
        return wrap(ready(self).flatten())

    def squeeze(self, axis: Any = None) -> Array:
        return wrap(ready(self).squeeze(axis))

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        return wrap(ready(self).diagonal(offset, axis1, axis2))

    def expand(self, *shape: Any) -> Array:
        """Broadcast to a shape, with strides of 0."""
        return wrap(np.broadcast_to(ready(self), _ints(shape[0] if len(shape) == 1 else shape)))

    def unfold(self, axis: int, size: int, step: int = 1) -> Array:
        """Windows of `size` elements along an axis, `step` apart, on a new last axis. They overlap in memory."""
        a = ready(self)
        if not 1 <= size <= a.shape[axis] or step < 1:
            raise ArgumentError(f"unfold: size is 1 to {a.shape[axis]} and step at least 1, got size={size} step={step} for {shown(a)}")
        windows = np.lib.stride_tricks.sliding_window_view(a, size, axis=axis)
        return wrap(windows[(slice(None),) * (axis % a.ndim) + (slice(None, None, step),)])

    # ---- elements

    def __getitem__(self, key: Any) -> Array:
        found = ready(self)[key if type(key) is int or type(key) is slice else index(key)]
        return wrap(found if type(found) is np.ndarray else np.asarray(found))

    def __setitem__(self, key: Any, value: Any) -> None:
        # The value is read before the memory is made ours: it may be a view of it.
        own(self)[index(key)] = fitting(given(value), ready(self).dtype)

    @property
    def at(self) -> Any:
        """`x.at[i].add(v)` gives a new Array in which the elements x[i] are changed; an index that stands twice counts twice."""
        from .updates import At

        return At(self)

    def item(self, *args: Any) -> Any:
        return ready(self).item(*args)

    def tolist(self) -> Any:
        return ready(self).tolist()

    def tobytes(self) -> bytes:
        return ready(self).tobytes()

    def fill(self, value: Any) -> None:
        own(self)[...] = value

    def copy(self) -> Array:
        """The same elements in memory of its own."""
        a = ready(self)
        if a.size < 4096 or a.flags.c_contiguous:
            return wrap(a.copy())
        from .machine import tight

        return wrap(tight(a))

    def __copy__(self) -> Array:
        return self.view()

    def __deepcopy__(self, memo: Any) -> Array:
        return self.copy()

    def __len__(self) -> int:
        a = ready(self)
        if not a.ndim:
            raise TypeError("len() of an Array without axes")
        return len(a)

    def __iter__(self) -> Iterator[Array]:
        a = ready(self)
        if not a.ndim:
            raise TypeError("iteration over an Array without axes")
        return map(wrap, map(np.asarray, a))

    def __contains__(self, value: Any) -> bool:
        return bool((ready(self) == given(value)).any())

    def _scalar(self, what: str) -> np.ndarray[Any, Any]:
        a = ready(self)
        if a.size != 1:
            raise TypeError(f"{what}: needs an Array of one element, got {shown(a)}")
        return a.reshape(())

    def __bool__(self) -> bool:
        a = ready(self)
        if a.size != 1:
            raise ValueError(f"bool(): the truth of {shown(a)} is ambiguous; use tw.any or tw.all")
        return bool(a.reshape(()))

    def __int__(self) -> int:
        return int(self._scalar("int()"))

    def __float__(self) -> float:
        return float(self._scalar("float()"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()").item())

    def __index__(self) -> int:
        a = ready(self)
        if a.ndim or a.dtype.kind not in "iu":
            raise TypeError(f"an index must be an integer Array without axes, got {shown(a)}")
        return operator.index(a.item())

    # ---- text and files

    def __repr__(self) -> str:
        a = ready(self)
        body = np.array2string(a, separator=", ", prefix="Array(", suffix=")")
        plain = a.size and (a.dtype in (np.float32, np.int64, np.bool_, np.complex64))
        tail = "" if plain else f", dtype={a.dtype.name}"
        if not a.size and a.ndim > 1:
            tail = f", shape={a.shape}{tail}"
        return f"Array({body}{tail})"

    def __str__(self) -> str:
        return str(ready(self))

    def __format__(self, spec: str) -> str:
        a = ready(self)
        return format(a.item() if a.ndim == 0 else a, spec)

    def _repr_html_(self) -> str:
        """A table of the first two axes, with the dtype and shape above it."""
        from html import escape

        a = ready(self)
        head = f"<code>Array {a.dtype.name}{list(a.shape)}</code>"
        if a.ndim not in (1, 2) or not a.size:
            return f"<div>{head}<pre>{escape(str(a))}</pre></div>"
        rows, cols = _shown_of(np.atleast_2d(a).shape[0]), _shown_of(np.atleast_2d(a).shape[1])
        body = []
        for r in rows:
            cells = ["…" if r is None or c is None else np.array2string(np.atleast_2d(a)[r, c]) for c in cols]
            body.append("<tr>" + "".join(f"<td style='text-align:right'>{escape(c)}</td>" for c in cells) + "</tr>")
        return f"<div>{head}<table>{''.join(body)}</table></div>"

    def __reduce__(self) -> tuple[Any, ...]:
        a = ready(self)
        if a.dtype.kind != "V":
            return wrap, (np.ascontiguousarray(a).reshape(a.shape),)
        return _rebuilt, (a.tobytes(), a.shape, dt.dtype(a.dtype).name)

    # ---- protocols

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """NumPy's view of the memory, read-only; a copy where a copy or another dtype is asked for."""
        a = ready(self)
        if dtype is not None and np.dtype(dtype) != a.dtype:
            if copy is False:
                raise ValueError(f"Array: {a.dtype} as {np.dtype(dtype)} needs a copy")
            return a.astype(dtype)
        if copy:
            return a.copy()
        seen = a[...]
        seen.flags.writeable = False
        return seen

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.__array__().__array_interface__

    def __buffer__(self, flags: int) -> memoryview:
        return self.__array__().data

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """`np.exp(x)` and `ndarray + x` are Tilewright's functions of that name; other ufuncs run in NumPy and give an Array."""
        from . import functions

        out = kwargs.pop("out", None)
        found = getattr(functions, ufunc.__name__, None) if method == "__call__" and not kwargs else None
        if found is not None:
            made = found(*(wrap(x) if type(x) is np.ndarray else x for x in inputs))
        else:
            given = [x.__array__() if isinstance(x, Array) else x for x in inputs]
            if method == "at" and type(inputs[0]) is Array:
                del given[0]
                given.insert(0, own(inputs[0]))
            got = getattr(ufunc, method)(*given, **kwargs)
            made = tuple(map(wrapped, got)) if isinstance(got, tuple) else wrapped(got)
        if out is None:
            return made
        return functions.written(out[0], made)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from . import functions

        found = getattr(functions, function.__name__, None)
        module = getattr(function, "__module__", "")
        if module in ("numpy.linalg", "numpy.fft"):
            from . import fft, linalg

            found = getattr(linalg if module == "numpy.linalg" else fft, function.__name__, None)
        if found is not None:
            try:
                return found(*args, **kwargs)
            except TypeError:  # arguments that only NumPy's function has
                pass
        if function.__name__ in _WRITES and args and type(args[0]) is Array:
            return function(own(args[0]), *plain(args[1:]), **plain(kwargs))
        got = function(*plain(args), **plain(kwargs))
        return rewrapped(got)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
            raise ValueError(f"Array: the array API is 2025.12 or older, got {api_version!r}")
        return sys.modules["tilewright"]

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None, dl_device: Any = None,
                   copy: bool | None = None) -> Any:
        if stream is not None:
            raise BufferError(f"Array: a CPU has no streams, got stream={stream!r}")
        if dl_device is not None and tuple(map(int, dl_device)) != (1, 0):
            raise BufferError(f"Array: lies on the CPU (1, 0), asked for {tuple(dl_device)}")
        a = ready(self)
        if any(s < 0 for s in a.strides):  # PyTorch ends the process when it is given such
            if copy is False:
                raise BufferError(f"Array: negative strides cannot be exported without a copy, got strides={a.strides}")
            a, copy = a.copy(), None
        if a.dtype.kind == "V" or a.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            from ..runtime.dlpack import export

            tight = np.ascontiguousarray(a).reshape(a.shape)
            if copy is False and tight is not a and not a.flags.c_contiguous:
                raise BufferError(f"Array: {a.dtype.name} must be contiguous to be exported without a copy")
            return export(tight.ctypes.data, a.shape, dt.dtype(a.dtype), (1, 0), tight.copy() if copy else tight)
        if not a.flags.writeable:  # a broadcast view, or memory of others
            if copy is False and max_version is None:
                raise BufferError("Array: read-only memory cannot be exported without a copy to a consumer of DLPack before 1.0")
            a = a if max_version is not None and max_version >= (1, 0) and not copy else a.copy()
        return a.__dlpack__(max_version=max_version, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    # ---- conversions

    def astype(self, dtype: Any, *, copy: bool = True) -> Array:
        from . import functions

        found: Array = functions.API["astype"](self, dtype, copy=copy)
        return found

    def numpy(self) -> np.ndarray[Any, Any]:
        """A NumPy array of its own memory, to write to."""
        return ready(self).copy()

    def torch(self) -> Any:
        """A PyTorch tensor of the same memory where PyTorch can have it, else of a copy."""
        from ..core.tensors import numpy_to_tensor

        return numpy_to_tensor(np.ascontiguousarray(own(self)))


_new = object.__new__


ArrayLike = Array | np.ndarray[Any, Any] | np.generic | complex | Sequence[Any]  # what functions of `tw.` take for an array


def wrap(a: np.ndarray[Any, Any]) -> Array:
    """An Array of this header."""
    x: Array = _new(Array)
    x._a = a
    return x


def wrapped(a: Any) -> Any:
    """Arrays and scalars of NumPy as Arrays; anything else, and objects and strings in NumPy's arrays, as it is."""
    return wrap(np.asarray(a)) if isinstance(a, (np.ndarray, np.generic)) and a.dtype.kind not in "OSUMm" else a


def ready(x: Array) -> np.ndarray[Any, Any]:
    """The header; a lazy Array is computed first."""
    try:
        return x._a
    except AttributeError:
        a: np.ndarray[Any, Any] = x._node.value()
        x._a = a
        del x._node
        return a


class Node:
    """What a lazy Array waits for."""

    __slots__ = ()
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def value(self) -> np.ndarray[Any, Any]:
        raise NotImplementedError


def refuse_buffer(x: Array) -> None:
    """Consumers that write, and those that take any memory for bytes: `torch.asarray(x)` would see them as floats, in one axis."""
    raise BufferError("Array: its buffer is read-only and has a dtype and a shape; write with x[...] = value, take x.numpy(), x.torch() or "
                      "torch.from_dlpack(x) for a library, and x.tobytes() for the bytes")


def attribute(x: Array, name: str) -> Any:
    """An attribute of a lazy Array; shape and dtype are known before its elements."""
    node = getattr(x, "_node", None)
    return getattr(node, name) if node is not None and name in ("shape", "dtype") else getattr(ready(x), name)


def is_alone(x: Array) -> bool:
    """Whether nobody else holds the memory, so that it may be written. Foreign memory is never ours alone."""
    a = x._a
    return _refs(a) == ALONE and has_own_memory(a)


def has_own_memory(a: np.ndarray[Any, Any]) -> bool:
    """Whether the memory of a header is ours, and no other header has it."""
    if not a.flags.writeable:
        return False
    base = a.base
    if base is None:
        return bool(a.flags.owndata)
    if type(base) is np.ndarray:
        inner = base.base
        return _refs(base) == ALONE and (bool(base.flags.owndata) if inner is None else _is_lease(inner) and _refs(inner) == ALONE)
    return _is_lease(base) and _refs(base) == ALONE


def _is_lease(base: Any) -> bool:
    return type(base).__name__ == "Lease"


def own(x: Array) -> np.ndarray[Any, Any]:
    """The header, after a copy where the memory is shared: it may be written."""
    a = ready(x)
    del a
    if not is_alone(x):
        shared = x._a
        made = new_array(shared.shape, shared.dtype)
        made[...] = shared
        x._a = made
    return x._a


def shown(a: Any) -> str:
    """`f32[2,3]`."""
    try:
        name = dt.dtype(a.dtype).name
    except ParseError:
        name = str(a.dtype)
    return f"{name}[{','.join(map(str, a.shape))}]"


def plain(tree: Any) -> Any:
    """Arrays in nested lists, tuples and dicts as NumPy arrays of the same memory."""
    if type(tree) is Array:
        return tree.__array__()
    if type(tree) in (list, tuple):
        return type(tree)(map(plain, tree))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(plain, tree))
    if type(tree) is dict:
        return {k: plain(v) for k, v in tree.items()}
    return tree


def unwrapped(tree: Any) -> Any:
    """As `plain`, of results that nobody else holds: the memory may be written."""
    if type(tree) is Array:
        return ready(tree)
    if type(tree) in (list, tuple):
        return type(tree)(map(unwrapped, tree))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(unwrapped, tree))
    return tree


def own_tree(tree: Any) -> Any:
    """As `plain`, with memory that may be written."""
    if type(tree) is Array:
        return own(tree)
    if type(tree) in (list, tuple):
        return type(tree)(map(own_tree, tree))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(own_tree, tree))
    return {k: own_tree(v) for k, v in tree.items()} if type(tree) is dict else tree


def rewrapped(tree: Any) -> Any:
    """The opposite of `plain`."""
    if isinstance(tree, (np.ndarray, np.generic)):
        return wrapped(tree)
    if type(tree) in (list, tuple):
        return type(tree)(map(rewrapped, tree))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(rewrapped, tree))
    if type(tree) is dict:
        return {k: rewrapped(v) for k, v in tree.items()}
    return tree


def index(key: Any) -> Any:
    """An index with Arrays in it, for NumPy's header."""
    if type(key) is tuple:
        return tuple(_part(k) for k in key)
    return _part(key)


def _part(k: Any) -> Any:
    if type(k) is Array:
        return ready(k)
    if type(k) is list:
        made = np.asarray(plain(k))
        return made.astype(np.intp) if not made.size else made
    return k


def given(value: Any) -> Any:
    return ready(value) if type(value) is Array else plain(value)


def fitting(value: Any, dtype: np.dtype[Any]) -> Any:
    """What is assigned must not be of a higher kind: floats do not go into integers by themselves."""
    order = "buifc"
    kind = np.asarray(value).dtype.kind
    mine = dtype.kind if dtype.kind != "V" else "f"
    if kind in order and (order.index(kind) > order.index(mine)) and not {kind, mine} <= {"u", "i"}:
        raise TypeError(f"setitem: cannot put {np.asarray(value).dtype} into {dtype}; use .astype first")
    return value


def _ints(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, (int, np.integer)):
        return (int(shape),)
    return tuple(operator.index(n) for n in shape)


def _shown_of(n: int) -> list[int | None]:
    return [*range(n)] if n <= 12 else [*range(6), None, *range(n - 5, n)]


def _rebuilt(data: bytes, shape: tuple[int, ...], name: str) -> Array:
    return wrap(np.frombuffer(data, dt.dtype(name).np).reshape(shape))


def check_device(device: Any, what: str) -> None:
    if device not in (None, "cpu"):
        raise ArgumentError(f"{what}: the devices are 'cpu', got {device!r}")
