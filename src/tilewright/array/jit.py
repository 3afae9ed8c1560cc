"""`tw.jit`: a function is traced once for each structure and set of types of its arguments, compiled, and called natively from then on.

A call first tries the generated function of the last signature (`shell.py` and `runtime/fastcall.py`: all checks, no Python loops); any
difference goes through `_dispatch`, which looks the signature up or compiles it.
"""
from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Generic, ParamSpec, overload

import numpy as np

from ..compile import compile_graph, target_spec
from ..core import dtypes as dt
from ..core.dims import Expr
from ..core.errors import InputError, UnsupportedError
from ..core.exact import key_of
from ..core.pytree import SCALARS, Spec, flatten, unflatten
from ..core.signature import Fixed, Signature, Size, Slot
from ..core.target_spec import TargetSpec
from ..core.tensors import is_masked, is_tensor, tensor_to_numpy
from ..runtime.donation import overlap_check
from ..runtime.fastcall import compile_call
from ..runtime.memory import ADVICE, OutOfMemory
from ..runtime.session import FREE, Session
from ..transform import lib as _lib  # noqa: F401  gives tracers their operators
from ..transform.trace import Leaf, Traced, leaf_of, python_type, trace, tracing
from .arrays import Array, plain
from .donate import pair_donated
from .dynamic import Dynamic, positional
from .gpu import CompiledOnGpu, gpu_leaf, is_on_gpu
from .programs import Programs
from .shell import Ends
from .torch_function import TorchFunction, as_tensors, wants_gradients
from .trees import check_devices, own_tree, rewrapped

Fn = Callable[..., Any]
P = ParamSpec("P")
_numbers_of_functions = itertools.count()
PREPARED = 1  # the `out` of a call whose arguments have been brought into form already


def is_data(x: Any) -> bool:
    return not isinstance(x, type) and (isinstance(x, (np.ndarray, np.generic)) or is_tensor(x) or hasattr(x, "__array__") or is_on_gpu(x))


class Compiled:
    """One signature of a jitted function."""

    def __init__(self, fn: Fn, spec: Spec, leaves: Sequence[Any], donated: Sequence[int], slow: Callable[..., Any]) -> None:
        self.traced: Traced = trace(fn, spec, leaves)
        graph = self.traced.graph
        arrays = [i for i, x in enumerate(leaves) if isinstance(x, Leaf)]
        graph.donated = pair_donated(graph, [arrays.index(i) for i in donated if i in arrays])
        self.session: Session = compile_graph(graph, called_as(fn, spec, leaves, self.traced), target_spec("cpu"))
        self.session.model.framework = "numpy"
        self.spec, self.leaves = spec, list(leaves)
        self.kept: list[Any] = []
        names = {s.name: f"s{k}" for k, s in enumerate(self.session.interface.symbols)}
        ends = Ends(spec, leaves, self.traced.out_spec, self.traced.n_leaves, self.traced.statics, names)
        self.call = None if ends.prologue is None else self._generated(ends, slow)

    def _generated(self, ends: Ends, slow: Callable[..., Any]) -> Any:
        session = self.session
        executable, free = session.executable, session._free
        assert executable is not None
        scope = {"slow": slow, "free": free, "take": free.pop, "give": free.append, "most": FREE, "grow": session.grow,
                 "run": session.pool.run, "settle": session.settle, "fail": session.fail, **ends.names,
                 "apart": overlap_check(session.interface, session.name)}
        return compile_call(session.interface, "numpy", errors=len(executable.error_launches), result=ends.result, scope=scope,
                            prologue=ends.prologue)

    def prepared(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves as the generated function wants them: contiguous arrays of native byte order, writable where donated."""
        donated = {i for i, _ in self.session.interface.donated}
        out, array = [], 0
        for x, leaf in zip(leaves, self.leaves, strict=True):
            if isinstance(leaf, Leaf):
                if not leaf.weak:
                    a = tensor_to_numpy(x) if is_tensor(x) else np.asarray(x)
                    fits = a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative and (a.flags.writeable or array not in donated)
                    x = a if fits and type(a) is np.ndarray else np.array(a, dtype=leaf.type.dtype.np, order="C")
                array += 1
            out.append(x)
        return out


def called_as(fn: Fn, spec: Spec, leaves: Sequence[Any], traced: Traced) -> Signature:
    """How a session of a traced function is called: like the function."""
    params, names = positional(fn), list[str]()

    def walk(spec: Spec, name: str) -> None:
        if spec.type == "leaf":
            names.append(name)
        for k, child in enumerate(spec.children):
            walk(child, f"{name}_{spec.keys[k] if k < len(spec.keys) else k}")

    args, kwargs = spec.children
    for k, child in enumerate(args.children):
        walk(child, params[k] if k < len(params) else f"args_{k}")
    for k, child in zip(kwargs.keys, kwargs.children, strict=True):
        walk(child, k)
    arrays = [i for i, x in enumerate(leaves) if isinstance(x, Leaf)]
    inputs = tuple(Slot(arrays.index(i)) if isinstance(x, Leaf) else Fixed(x) for i, x in enumerate(leaves))
    statics, slots = traced.statics, itertools.count()
    outputs = tuple(Slot(next(slots)) if i not in statics else Size(statics[i]) if isinstance(statics[i], Expr) else Fixed(statics[i])
                    for i in range(traced.n_leaves))
    found = [names[i] if names.count(names[i]) == 1 else f"{names[i]}_{i}" for i in arrays]
    return Signature(params, spec, traced.out_spec, inputs, outputs, tuple(found))


def is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except Exception:  # an exception of the user's class
        return False
    return True


class Jit(Generic[P]):
    """A compiled function; its results are arrays of the kind of its arguments. `lower(*args)` gives the session of one signature (its
    `report()` and `profile()`), `clear()` forgets all.
    `save(path)` writes a compiled function to a file that `tw.load` reads.
    Of more than `programs.KEPT` signatures the least lately used are forgotten, and compiled again when they come back.

    Threads: any number may call one jitted function at once, `lower` and `clear` it. A signature that is new to several of them may be
    traced by each. Donated arrays are written and for one call at a time."""

    def __init__(self, fn: Callable[P, Any], *, donate: Sequence[int] = (), static: Sequence[int | str] = (), numbers: str = "traced",
                 target: str | TargetSpec | None = None, programs: Programs | None = None, dynamic: Any = None) -> None:
        """`target` None: the GPU where an argument lies there, else the CPU. `programs` is a store that several functions share."""
        functools.update_wrapper(self, fn)
        self.fn, self.donate, self.static, self.numbers, self.target = fn, tuple(donate), tuple(static), numbers, target
        self.dynamic = None if dynamic is None else Dynamic(fn, dynamic)
        self._programs = Programs() if programs is None else programs
        self._number = next(_numbers_of_functions)
        self._fast: Any = self._dispatch

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        if tracing():
            return self.fn(*args, **kwargs)
        try:
            return self._fast(args, kwargs, None)
        except MemoryError as problem:
            shown = ", ".join(str(_type(x, "cpu").type) for x in flatten((args, kwargs))[0] if is_data(x) and not is_on_gpu(x))
            reason = str(problem).partition(";")[0]
            raise OutOfMemory(f"jit: {getattr(self.fn, '__name__', 'function')}: no memory for a call with {shown or 'no arrays'} "
                              f"({reason}); {ADVICE}") from None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _dispatch(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        if out == PREPARED:
            raise InputError(f"jit: {self.fn.__name__} was called with arguments that changed while it ran")
        if any(type(x) is Array for x in flatten((args, kwargs))[0]):
            return self._on_arrays(args, kwargs)
        compiled, leaves, sizes = self._find(args, kwargs)
        if isinstance(compiled, CompiledOnGpu):
            result = compiled(leaves, sizes)
            self._fast = compiled.short(self._dispatch) or self._dispatch
            return result
        if wants_gradients(leaves):
            if self.donate:
                raise InputError(f"jit: {self.fn.__name__} overwrites its donated arguments, and a tensor among them requires a gradient; "
                                 "call it inside torch.no_grad(), or leave out donate")
            return self._differentiable(*args, **kwargs)
        given, named = unflatten(compiled.spec, compiled.prepared(leaves))
        if compiled.call is None:  # containers of other classes, and sizes that no axis has by itself
            result = compiled.session(*given, **named)
        else:
            self._fast = compiled.call
            result = compiled.call(given, named, PREPARED)
        return as_tensors(result) if any(map(is_tensor, leaves)) else result

    @functools.cached_property
    def _differentiable(self) -> TorchFunction:
        """For tensors whose gradients PyTorch wants."""
        return TorchFunction(self.fn, self.dynamic)

    def _on_arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Arrays among the arguments: the program reads their memory, and its results are Arrays. Donated ones are written in place where
        nobody else holds their memory, and in a copy otherwise."""
        check_devices((args, kwargs), f"jit: {getattr(self.fn, '__name__', 'function')}")
        given = [own_tree(x) if i in self.donate or i - len(args) in self.donate else plain(x) for i, x in enumerate(args)]
        return rewrapped(self._fast(tuple(given), plain(kwargs), None))

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Compiled | CompiledOnGpu, list[Any], dict[str, int]]:
        """The program for these arguments, their leaves and the values of their dynamic sizes."""
        leaves, spec = flatten((args, kwargs))
        fixed = self._static_leaves(spec)
        target = self.target if self.target is not None else "cuda" if any(map(is_on_gpu, leaves)) else "cpu"
        types = [x if i in fixed or not self._is_array(x) else _type(x, target) for i, x in enumerate(leaves)]
        types, sizes = (types, {}) if self.dynamic is None else self.dynamic.applied(spec, types)
        try:
            key = (target, spec, *map(key_of, types))
            found: Compiled | CompiledOnGpu | None = self._programs.get(self._number, key)
        except (TypeError, ValueError) as e:  # the second is what memory that can be written raises
            bad = next((x for x in types if not isinstance(x, Leaf) and not is_hashable(x)), None)
            raise InputError(f"jit: an argument that is no array must be hashable, got a {type(bad).__name__} ({e})") from None
        if found is None:
            from . import functions  # noqa: F401  gives traced values NumPy's functions and their methods

            donated = [i for a in self.donate for i in _leaves_of(spec, a, self.fn)]
            if target == "cpu":
                found = Compiled(self.fn, spec, types, donated, self._dispatch)
            else:
                found = CompiledOnGpu(self.fn, spec, types, donated, target_spec(target))
            self._programs.put(self._number, key, found)
        return found, leaves, sizes

    def _is_array(self, x: Any) -> bool:
        return is_data(x) or (self.numbers == "traced" and python_type(x) is not None)

    def _static_leaves(self, spec: Spec) -> set[int]:
        if not self.static:
            return set()
        positions = [_position(s, self.fn) for s in self.static]
        args, kwargs = spec.children
        found = {i for p in positions if isinstance(p, int) and p < len(args.children) for i in _leaves_of(spec, p, self.fn)}
        start = args.size
        for name, child in zip(kwargs.keys, kwargs.children, strict=True):
            if name in self.static:
                found |= set(range(start, start + child.size))
            start += child.size
        return found

    def lower(self, *args: Any, **kwargs: Any) -> Session:
        """The session for these arguments, compiled but not run."""
        return self._find(plain(args), plain(kwargs))[0].session

    def save(self, path: str | PathLike[str], /, *args: Any, **kwargs: Any) -> None:
        """Write the compiled function to one file; `tw.load` reads it as a session that is called like the function. Example arguments
        say which signature, and compile it; without any it is the one that has been compiled."""
        name = getattr(self.fn, "__name__", "function")
        keys = self._programs.of(self._number)
        if args or kwargs or (not keys and not positional(self.fn)):
            program = self._find(plain(args), plain(kwargs))[0]
        elif len(keys) == 1:
            program = self._programs.get(self._number, keys[0])
        else:
            known = f"for {len(keys)} signatures" if keys else "for no arguments yet"
            raise InputError(f"jit: {name} has been compiled {known}; say which one to save with example arguments, save(path, *args)")
        signature = program.session.model.signature
        for what, roles in (("argument", signature.inputs), ("result", signature.outputs)):
            for role in roles:
                if isinstance(role, Fixed) and not isinstance(role.value, SCALARS):
                    raise UnsupportedError(f"save: {name} has a static {what} of type {type(role.value).__name__}; a file holds strings, "
                                           "numbers, booleans and None")
        if isinstance(program, CompiledOnGpu) and signature != called_as(self.fn, program.spec, program.leaves, program.traced):
            raise UnsupportedError(f"save: {name} runs on a GPU; there files hold functions of arrays by position, with arrays as results")
        program.session.save(path)

    def clear(self) -> None:
        """Forget every compiled signature."""
        self._programs.forget(self._number)
        self._fast = self._dispatch

    def __repr__(self) -> str:
        return f"<jit {getattr(self.fn, '__name__', self.fn)}: {len(self._programs.of(self._number))} signatures>"


def _type(x: Any, target: str | TargetSpec) -> Leaf:
    if target != "cpu" and is_on_gpu(x):
        return gpu_leaf(x)
    if type(x) is int and not -(2**63) <= x < 2**63:
        raise InputError(f"jit: a Python int is an i64 array, got {x}; pass an array of a wider dtype")
    if is_masked(x):
        raise InputError("jit: a masked array would lose its mask; pass its data and use tw.where")
    if is_tensor(x):
        x = tensor_to_numpy(x, "jit")
    try:
        return leaf_of(x)
    except Exception as e:
        known = " ".join(d.name for d in dt.ALL)
        raise InputError(f"jit: an array must have one of the dtypes {known}, got {getattr(x, 'dtype', type(x).__name__)}") from e


def _position(static: int | str, fn: Fn) -> int | str:
    if isinstance(static, int):
        return static
    names = list(inspect.signature(fn).parameters)
    return names.index(static) if static in names else static


def _leaves_of(spec: Spec, argnum: int, fn: Fn) -> range:
    args = spec.children[0].children
    if not -len(args) <= argnum < len(args):
        raise InputError(f"jit: {getattr(fn, '__name__', 'function')} was called with {len(args)} positional arguments, and argument "
                         f"{argnum} is donated or static; pass it by position")
    argnum %= len(args)
    start = sum(s.size for s in args[:argnum])
    return range(start, start + args[argnum].size)


def _numbers(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, (int, str)) else tuple(value)


def _check_static(fn: Fn, static: Sequence[int | str]) -> None:
    """Every static argument is one of the function's parameters, where those are known."""
    try:
        parameters = inspect.signature(fn).parameters
    except (ValueError, TypeError):
        return
    kinds = {p.kind for p in parameters.values()}
    for s in static:
        positional = isinstance(s, int)
        if (inspect.Parameter.VAR_POSITIONAL if positional else inspect.Parameter.VAR_KEYWORD) in kinds:
            continue
        if not (-len(parameters) <= s < len(parameters) if isinstance(s, int) else s in parameters):
            raise InputError(f"jit: static names arguments of {getattr(fn, '__name__', 'function')}({', '.join(parameters)}), got {s!r}")


@overload
def jit(fn: Callable[P, Any], *, donate: int | Sequence[int] = (), static: int | str | Sequence[int | str] = (),
        target: str | TargetSpec | None = None, dynamic: Mapping[str | int, Any] | None = None) -> Jit[P]: ...


@overload
def jit(fn: None = None, *, donate: int | Sequence[int] = (), static: int | str | Sequence[int | str] = (),
        target: str | TargetSpec | None = None,
        dynamic: Mapping[str | int, Any] | None = None) -> Callable[[Callable[P, Any]], Jit[P]]: ...


def jit(fn: Fn | None = None, *, donate: int | Sequence[int] = (), static: int | str | Sequence[int | str] = (),
        target: str | TargetSpec | None = None,
        dynamic: Mapping[str | int, Any] | None = None) -> Jit[...] | Callable[[Fn], Jit[...]]:
    """Compile a function of arrays: `tw.jit(f)`, `@tw.jit`, `@tw.jit(donate=(0, 1))`, `tw.jit(f, target="cuda")`.

    Arguments and results are NumPy arrays, numbers and nested containers of them; where an argument is an Array, results are Arrays; where
    one is a torch tensor, results are, and PyTorch's autograd differentiates them. The arrays of `donate`d arguments are overwritten:
    results of the same types come back in their memory. `static` arguments (positions or names) are fixed at compile time; other
    values than before compile again. `target` is "cpu", "cuda" or an architecture like "sm_90a"; without it, "cuda" where an argument is
    a CUDA tensor. On a GPU results are CUDA tensors, and NumPy arrays and numbers among the arguments are copied there.

    `dynamic` maps parameters (names or positions) to {axis: tw.Dim(...)}, or to {axis: "N"} for any size from 1 on, nested as the argument
    is: one program serves all sizes. In the function such a size is a symbol, with arithmetic and comparisons that its limits decide.
    """
    if fn is None:
        return functools.partial(jit, donate=donate, static=static, target=target, dynamic=dynamic)
    if not callable(fn):
        raise InputError(f"jit: needs a function, got a {type(fn).__name__}")
    if any(isinstance(a, bool) or not isinstance(a, int) for a in _numbers(donate)):
        raise InputError(f"jit: donate names arguments by their positions, got {donate!r}")
    _check_static(fn, _numbers(static))
    if target is not None and target != "cpu" and target_spec(target).kind != "cuda":
        raise InputError(f"jit: target is 'cpu', 'cuda' or an architecture like 'sm_90a', got {target!r}; references run with tw.compile")
    return Jit(fn, donate=_numbers(donate), static=_numbers(static), target=target, dynamic=dynamic)
