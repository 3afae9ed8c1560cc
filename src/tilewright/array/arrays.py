"""`tw.Array`: a strided view of reference-counted memory, with value semantics.

An Array holds a header (address, shape, signed strides, dtype and a reference to the storage: NumPy's array header, which native code reads
directly). Views share the storage and cost no copy. A write copies first when anybody else holds the storage, so that no write is seen
through another Array: `y = x[2:5]; y[0] = 1` leaves x as it was.
"""
from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..core import dtypes as dt
from ..core.errors import ArgumentError, AxisError, ParseError, refused
from ..core.pytree import mapped
from ..core.tensors import HasArray, HasDlpack, is_masked, is_tensor
from ..runtime.outputs import new_array
from ..transform.promote import as_tracer
from ..transform.trace import Tracer, tracing

Fn = Callable[..., Any]
F = TypeVar("F", bound=Fn)
_refs = sys.getrefcount
ALONE = 3  # references to a header that only its Array holds: the slot, a local name, the argument of getrefcount


def viewing(method: F) -> F:
    """A method that makes a view of a header, also of one that describes memory of a GPU. NumPy's errors are named by the method."""

    @functools.wraps(method)
    def call(self: Array, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except OnDevice:
            from .cuda import placed

            return placed.as_view(method, [self, *args], kwargs)
        except (ArgumentError, AxisError):
            raise
        except (ValueError, IndexError) as e:
            raise refused(method.__name__, e, shown(self)) from None

    return call  # type: ignore[return-value]


class Array:
    """An array of numbers on one device, the CPU or a GPU: `tw.asarray([1.0, 2.0])`, `tw.zeros((2, 3))`, `tw.arange(5)`.

    It works with Python's operators, slices and NumPy's functions. Views (`x.T`, `x[::-1]`, `x.reshape(...)` where the memory lies right)
    share memory; writing (`x[0] = 1`, `x += y`) copies first when the memory is shared.

    Threads: any number may use one Array, make views of it and write those. Writing the Array itself while another thread uses it needs a
    lock of yours: who comes first is open, and a large result may hold elements of before and after.

    >>> import tilewright as tw
    >>> x = tw.arange(4.0)
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
        from .updates import At

        def _binary(self, other: Any, /) -> Array: ...
        def _unary(self) -> Array: ...
        def _method(self, *args: Any, **options: Any) -> Array: ...
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _binary
        __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = _binary
        __divmod__ = __rdivmod__ = _binary
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
        return tuple(attribute(self, "shape"))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type, one of `tw.float32` ...; these are NumPy's dtype objects."""
        return attribute(self, "dtype")  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        return int(attribute(self, "ndim"))

    @property
    def size(self) -> int:
        return int(attribute(self, "size"))

    @property
    def nbytes(self) -> int:
        return int(attribute(self, "nbytes"))

    @property
    def itemsize(self) -> int:
        return int(attribute(self, "itemsize"))

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each axis; they may be negative or 0."""
        return tuple(attribute(self, "strides"))

    @property
    def device(self) -> str:
        """"cpu", or "cuda": the first GPU."""
        return str(attribute(self, "device"))

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """This Array on `device`, "cpu" or "cuda"; itself where it lies there. On a GPU the copy is made on `stream`, by default the
        current one (`tw.stream`), and later work on another stream waits for it."""
        if device in (None, "cpu") and stream is None and hasattr(self, "_a"):
            return self
        from .cuda import placed

        return placed.to(self, device, stream, "to_device")

    to = to_device

    # ---- views: O(1)

    @property
    def T(self) -> Array:
        """The axes in reverse order."""
        found: Array = attribute(self, "T")
        return found

    @property
    def mT(self) -> Array:
        """The last two axes exchanged."""
        return attribute(self, "mT")  # type: ignore[no-any-return]

    @viewing
    def view(self) -> Array:
        """Another Array of the same memory: a clone that costs nothing until one of them is written."""
        return wrap(ready(self)[...])

    @viewing
    def transpose(self, *axes: Any) -> Array:
        """Axes in another order, by default reversed."""
        return wrap(ready(self).transpose(*axes))

    permute = transpose

    @viewing
    def swapaxes(self, a: int, b: int) -> Array:
        """Two axes exchanged."""
        return wrap(ready(self).swapaxes(a, b))

    def reshape(self, *shape: Any, order: Any = "C", copy: bool | None = None) -> Array:
        """The same elements in another shape; a view where the strides allow it."""
        wanted = shape[0] if len(shape) == 1 else shape
        try:
            if not hasattr(self, "_a") and self.device != "cpu":
                made: Array = device_calls().reshape(self, _ints(wanted), order, copy)
                return made
            if copy is None and order == "C":
                return wrap(ready(self).reshape(wanted))
            return wrap(np.reshape(ready(self), _ints(wanted), order=order, copy=copy))
        except (ValueError, TypeError) as e:
            raise ArgumentError(f"reshape: {e}, got {shown(self)} to {wanted}") from None

    def ravel(self) -> Array:
        return self.reshape(-1)

    def flatten(self) -> Array:
        return self.copy().reshape(-1)

    @viewing
    def squeeze(self, axis: Any = None) -> Array:
        """Without axes of size 1, or without the ones named."""
        return wrap(ready(self).squeeze(axis))

    @viewing
    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        """The elements of a diagonal of two axes."""
        return wrap(ready(self).diagonal(offset, axis1, axis2))

    @viewing
    def expand(self, *shape: Any) -> Array:
        """Broadcast to a shape, with strides of 0."""
        return wrap(np.broadcast_to(ready(self), _ints(shape[0] if len(shape) == 1 else shape)))

    @viewing
    def unfold(self, axis: int, size: int, step: int = 1) -> Array:
        """Windows of `size` elements along an axis, `step` apart, on a new last axis. They overlap in memory."""
        a = ready(self)
        if not 1 <= size <= a.shape[axis] or step < 1:
            raise ArgumentError(f"unfold: size is 1 to {a.shape[axis]} and step at least 1, got size={size} step={step} for {shown(a)}")
        windows = np.lib.stride_tricks.sliding_window_view(a, size, axis=axis)
        return wrap(windows[(slice(None),) * (axis % a.ndim) + (slice(None, None, step),)])

    # ---- elements

    def __getitem__(self, key: Any) -> Array:
        if (node := getattr(self, "_node", None)) is not None and node.device != "cpu":
            there: Array = device_calls().taken(self, key)
            return there
        if any(isinstance(k, Tracer) for k in (key if type(key) is tuple else (key,))):
            return as_tracer(plain(self))[key]  # type: ignore[index, no-any-return]
        try:
            found = ready(self)[key if type(key) is int or type(key) is slice else index(key)]
        except IndexError as e:
            raise refused("getitem", e, f"{key!r:.60} for {shown(self)}") from None
        return wrap(found if type(found) is np.ndarray else np.asarray(found))

    def __setitem__(self, key: Any, value: Any) -> None:
        if (node := getattr(self, "_node", None)) is not None and node.device != "cpu":
            del node  # it holds the memory
            device_calls().put(self, key, value)
            return
        from .updates import fitting, given

        # The value is read before the memory is made ours: it may be a view of it.
        v = fitting(given(value), ready(self).dtype)
        try:
            own(self)[index(key)] = v
        except (ValueError, IndexError, OverflowError) as e:
            raise refused("setitem", e, f"{shown(np.asarray(v))} for elements of {shown(self)}") from None

    @property
    def at(self) -> At:
        """`x.at[i].add(v)` gives a new Array in which the elements x[i] are changed; an index that stands twice counts twice."""
        from .updates import At

        if tracing():  # the index or the value may be traced
            return as_tracer(plain(self)).at  # type: ignore[attr-defined, no-any-return]
        return At(self) if self.device == "cpu" else device_calls().DeviceAt(self)

    def item(self, *args: Any) -> Any:
        return host(self).item(*args)

    def tolist(self) -> Any:
        return host(self).tolist()

    def tobytes(self) -> bytes:
        return host(self).tobytes()

    def fill(self, value: Any) -> None:
        self[...] = value

    def copy(self) -> Array:
        """The same elements in memory of its own."""
        if not hasattr(self, "_a") and self.device != "cpu":
            made: Array = device_calls().copied(self)
            return made
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
        if self.shape:
            return self.shape[0]
        raise TypeError("len() of an Array without axes")

    def __iter__(self) -> Iterator[Array]:
        if not self.ndim:
            raise TypeError("iteration over an Array without axes")
        return map(wrap, map(np.asarray, ready(self))) if self.device == "cpu" else (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool((ready(self) == plain(value)).any()) if self.device == "cpu" else bool((self == value).any())

    def _scalar(self, what: str) -> np.ndarray[Any, Any]:
        a = host(self)
        if a.size != 1:
            raise TypeError(f"{what}: needs an Array of one element, got {shown(a)}")
        return a.reshape(())

    def __bool__(self) -> bool:
        a = host(self)
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
        a = host(self)
        if a.ndim or a.dtype.kind not in "iu":
            raise TypeError(f"an index must be an integer Array without axes, got {shown(a)}")
        return operator.index(a.item())

    # ---- text and files

    def __repr__(self) -> str:
        from .protocols import text

        return text(self)

    def __str__(self) -> str:
        return str(host(self))

    def __format__(self, spec: str) -> str:
        a = host(self)
        return format(a.item() if a.ndim == 0 else a, spec)

    def _repr_html_(self) -> str:
        from .protocols import html

        return html(self)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.device != "cpu":
            return _moved, (wrap(host(self)), self.device)
        a = ready(self)
        if a.dtype.kind != "V":
            return wrap, (np.ascontiguousarray(a).reshape(a.shape),)
        return _rebuilt, (a.tobytes(), a.shape, dt.dtype(a.dtype).name)

    # ---- protocols

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """NumPy's view of the memory, read-only; a copy where a copy or another dtype is asked for."""
        if not hasattr(self, "_a") and self.device != "cpu":
            raise TypeError(f"Array: {shown(self)} lies on {self.device} and is not copied to the host by itself; use x.numpy() or "
                            "x.to('cpu')")
        a = ready(self)
        if dtype is not None and np.dtype(dtype) != a.dtype:
            if copy is False:
                raise ValueError(f"Array: {a.dtype} as {np.dtype(dtype)} needs a copy")
            return a.astype(dtype)
        if copy:
            return a.copy()
        (seen := a[...]).flags.writeable = False
        return seen

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.device != "cpu":
            raise AttributeError(f"Array: memory on {self.device} has no __array_interface__; use x.numpy()")
        if dt.dtype(self.dtype) in dt.FOREIGN:  # NumPy then asks __array__
            raise AttributeError(f"Array: {self.dtype.name} has no name in __array_interface__; use np.asarray(x)")
        return self.__array__().__array_interface__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device == "cpu":
            raise AttributeError("Array: only an Array on a GPU has __cuda_array_interface__")
        from .cuda import placed

        return placed.interface(self)

    def __buffer__(self, flags: int) -> memoryview:
        return self.__array__().data

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from . import protocols

        return protocols.ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from . import protocols

        return protocols.function(function, args, kwargs)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
            raise ValueError(f"Array: the array API is 2025.12 or older, got {api_version!r}")
        return sys.modules["tilewright"]

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None, dl_device: Any = None,
                   copy: bool | None = None) -> Any:
        from . import protocols

        return protocols.dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self.device == "cpu" else (2, 0)

    # ---- conversions

    def astype(self, dtype: Any, *, copy: bool = True) -> Array:
        from . import functions

        found: Array = functions.API["astype"](self, dtype, copy=copy)
        return found

    def numpy(self) -> np.ndarray[Any, Any]:
        """A NumPy array of its own memory, to write to. From a GPU it is copied, once the work that makes it has ended."""
        return ready(self).copy() if hasattr(self, "_a") or self.device == "cpu" else host(self)

    def torch(self) -> Any:
        """A PyTorch tensor of the same memory where PyTorch can have it, else of a copy."""
        if self.device != "cpu":
            import torch

            return torch.from_dlpack(self)  # type: ignore[attr-defined]
        from ..core.tensors import numpy_to_tensor

        return numpy_to_tensor(np.ascontiguousarray(own(self)).reshape(self.shape))  # the former adds an axis where there is none


_new = object.__new__


# What functions of `tw.` take for an array.
ArrayLike = Array | np.ndarray[Any, Any] | np.generic | complex | Sequence[Any] | HasArray | HasDlpack


def wrap(a: np.ndarray[Any, Any]) -> Array:
    """An Array of this header. NumPy gives a scalar for some views of rank 0, which native code must not take for a header."""
    x: Array = _new(Array)
    x._a = a if isinstance(a, np.ndarray) else np.asarray(a)
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


class OnDevice(ArgumentError):
    """An Array on a GPU is used where memory of the host is needed."""


def host(x: Array) -> np.ndarray[Any, Any]:
    """The elements on the host: the header, or a copy from the GPU."""
    if hasattr(x, "_a"):
        return x._a
    if x.device == "cpu":
        return ready(x)
    from .cuda import placed

    place = placed.of(x)
    assert place is not None
    return placed.downloaded(place)


@functools.cache
def device_calls() -> Any:
    from .cuda import calls

    return calls


class Node:
    """What an Array holds instead of a header: an expression that waits, or a place on a GPU."""

    __slots__ = ()
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device = "cpu"

    def value(self) -> np.ndarray[Any, Any]:
        raise NotImplementedError


def attribute(x: Array, name: str) -> Any:
    """An attribute of an Array; shape and dtype of a lazy one are known before its elements. `T` and `mT` are Arrays."""
    node = getattr(x, "_node", None)
    if node is not None and name in ("shape", "dtype", "device"):
        return getattr(node, name)
    if name == "mT" and len(attribute(x, "shape")) < 2:
        raise ArgumentError(f"mT: needs two axes or more, got {shown(x)}")
    if node is not None and node.device != "cpu":
        from .cuda import placed

        place = placed.of(x)
        assert place is not None
        if name in ("T", "mT"):
            return placed.wrap(placed.Placed(getattr(place.header, name), place.stream))
        return getattr(place.key, name) if name in ("size", "nbytes", "strides") else getattr(place.header, name)
    return getattr(ready(x), name) if name not in ("T", "mT") else wrap(getattr(ready(x), name))


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


def _plain(x: Any) -> Any:
    if type(x) is not Array:
        return x
    return x.__array__() if hasattr(x, "_a") or x.device == "cpu" else device_calls().device_array(x)


def plain(tree: Any) -> Any:
    """Arrays in nested lists, tuples and dicts as NumPy arrays of the same memory; those on a GPU as `DeviceArray`s."""
    return mapped(_plain, tree)


def index(key: Any) -> Any:
    """An index with Arrays in it, for NumPy's header."""
    return tuple(map(_part, key)) if type(key) is tuple else _part(key)


def _part(k: Any) -> Any:
    if type(k) is Array:
        return ready(k)
    if is_masked(k) or is_tensor(k):
        from .api.base import header

        return header(k, "index")
    if type(k) is list:
        made = np.asarray(plain(k))
        return made.astype(np.intp) if not made.size else made
    return k


def _ints(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, (int, np.integer)):
        return (int(shape),)
    return tuple(operator.index(n) for n in shape)


def _rebuilt(data: bytes, shape: tuple[int, ...], name: str) -> Array:
    return wrap(np.frombuffer(data, dt.dtype(name).np).reshape(shape))


def _moved(x: Array, device: str) -> Array:
    return x.to(device)
