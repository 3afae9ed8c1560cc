"""`@tw.kernel`: a function of the kernel language as a function of arrays."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..array.api.base import header
from ..array.arrays import Array as OurArray
from ..array.arrays import own, plain
from ..array.gpu import is_on_gpu
from ..array.trees import check_devices, rewrapped
from ..compile import target_spec
from ..core.dims import evaluate
from ..core.dtypes import dtype as dtype_of
from ..core.errors import CompileError, ExecutionError, InputError, UnsupportedError
from ..core.exact import key_of
from ..core.hashing import blake2b
from ..core.target_spec import TargetSpec
from ..core.tensors import is_masked, is_tensor, numpy_to_tensor, tensor_to_numpy, unfit
from ..ir.types import TensorType
from ..kernels.launch import Launch, Word
from ..kernels.region import Region
from ..ops.kernels import OwnKernel, remember
from ..runtime.outputs import fresh
from ..tile.builder import Ix, Tile
from ..tile.interp import Argument, _Fault, _Interpreter
from ..tile.interp import Buffer as Flat
from ..tile.ir import Block, Instr, Kernel, ViewType
from ..tile.text import to_text
from ..transform.promote import as_tracer
from ..transform.trace import apply, tracing, user_place
from .build import Definition, Place_, build, need_definition
from .context import Recorder
from .cpu import CpuKernel, Plan, stride_class, symbolic
from .gpu import block_program

MOST_SHOWN = 1000  # elements of a printed tile


class Debugger(_Interpreter):
    def __init__(self, kernel: Kernel, args: Sequence[Argument], recorder: Recorder, out: Callable[[str], Any]) -> None:
        super().__init__(kernel, args)
        self.recorder, self.out = recorder, out

    def block(self, block: Block) -> None:
        for instr in block.body:
            try:
                self.check(instr)
                self.step(instr)
            except (_Fault, IndexError, ValueError, ZeroDivisionError, FloatingPointError) as problem:
                place = self.recorder.places.get(instr)
                where = f" ({place}: `{place.text}`)" if place is not None else ""
                pid = self.env[self.kernel.pid]
                raise ExecutionError(f"kernel {self.kernel.name}, program {pid}: {instr.op}: {problem}{where}") from None

    def check(self, instr: Instr) -> None:
        for access in self.recorder.accesses.get(instr, ()):
            for axis, (start, size, inside) in enumerate(zip(access.starts, access.sizes, access.inside, strict=True)):
                at, n = self.value(start), self.value(size)
                if at < 0 or (inside and at + inside > n):
                    raise _Fault(f"the position along axis {axis} of {access.name} must be in 0..{n - max(inside, 1)}, got {at}")

    def step(self, i: Instr) -> None:
        if i.op == "debug.print":
            self.out(" ".join(self.text(x) for x in self.recorder.prints[i][1]))
        elif i.op == "debug.assert":
            if not bool(self.value(i.operands[0])):
                raise _Fault(self.recorder.prints[i][0] or "does not hold")
        else:
            super().step(i)

    def text(self, x: Any) -> str:
        if isinstance(x, Tile):
            return np.array2string(np.asarray(self.value(x.var)), threshold=MOST_SHOWN)
        return str(self.value(x.var)) if isinstance(x, Ix) else str(x)


def debug_run(kernel: Kernel, recorder: Recorder, args: Sequence[Argument], grid: int, out: Callable[[str], Any] = print) -> None:
    """Run programs 0..grid-1 one after the other."""
    Debugger(kernel, args, recorder, out).programs(range(grid))


Array = np.ndarray[Any, Any]
KEPT = 256  # compiled versions of one kernel


class KernelFunction:
    """A kernel as a function: `f(*arrays, **constants)` gives its results, `out=` takes the memory for them.

    `f.debug(...)` runs it in the interpreter, `f.tile_ir(...)` is the text of what it becomes. Inside `tw.jit` it is an op like any other.

    Threads: any number may call one kernel at once; what is new to several of them may be compiled by each. `out=` is for one call at a
    time.
    """

    def __init__(self, definition: Definition) -> None:
        functools.update_wrapper(self, definition.fn)
        self.definition = definition
        self._compiled: dict[Any, CpuKernel] = {}
        self._plans: dict[Any, Any] = {}  # by everything that the caller's arrays look like
        self._on_gpu: dict[Any, Any] = {}
        source = "".join(linecache.getlines(definition.fn.__code__.co_filename))
        self.op_class = _op_class(definition, blake2b(source.encode(), digest_size=10).hexdigest())

    def __repr__(self) -> str:
        return f"<kernel {self.definition.name}: {self.definition.signature.text}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, out: Any = None, **constants: Any) -> Any:
        if not tracing() and any(type(x) is OurArray for x in args):  # results are Arrays, too
            check_devices(args, f"kernel {self.definition.name}")
            if out is not None and any(type(x) is OurArray and x.device != "cpu" for x in args):
                return _copied_to(out, self(*args, **constants), self.definition.name)
            return _wrapped(self(*map(plain, args), out=out, **constants), out)
        if out is None and not tracing():  # arrays that look like those of an earlier call need no checks
            try:
                known = self._plans.get(_looks(args, (), constants))
            except TypeError:
                known = None  # a constant that is not hashable, which is named below
            if known is not None:
                kernel, plan, types = known
                results = [fresh(t, t.shape, torch=False) for t in types]
                kernel.run(plan, [*args, *results])
                return results[0] if len(results) == 1 else tuple(results)
        self._check_call(args, constants)
        if tracing():
            if out is not None:
                raise InputError(f"kernel {self.definition.name}: out= takes memory, which a traced function does not have")
            try:
                op = self.op_class(tuple(sorted(constants.items())), self.op_class.digest)
                return apply(op, *(self._traced(i, x) for i, x in enumerate(args)))
            except InputError as e:
                raise InputError(f"{e} ({user_place()})") from None
        if any(map(is_on_gpu, args)):
            return self._launch_on_gpu(args, out, constants)
        return self._launch(args, out, constants)

    def _traced(self, i: int, x: Any) -> Any:
        number = self.definition.signature.inputs[i]
        if number.dims is None and isinstance(x, (bool, int, float)):
            return as_tracer(np.array(x, dtype_of(number.dtype).np))
        return as_tracer(x)

    def _check_call(self, args: Sequence[Any], constants: dict[str, Any]) -> None:
        d = self.definition
        if len(args) != len(d.inputs):
            raise InputError(f"kernel {d.name}: takes {len(d.inputs)} arguments ({', '.join(d.inputs)}), got {len(args)}; results are "
                             "returned, or written to out=")
        for name, value in constants.items():
            if name not in d.constants:
                raise InputError(f"kernel {d.name}: has the constants {', '.join(d.constants) or '(none)'}, got {name}")
            try:
                hash(value)
            except TypeError:
                raise InputError(f"kernel {d.name}: a constant must be hashable, got {name}={value!r}") from None

    # --- the CPU ------------------------------------------------------------------------------------------------------------------
    def _arrays(self, args: Sequence[Any]) -> list[Array]:
        d = self.definition
        return [_array(x, f"kernel {d.name}: {name}", a.dtype if a.dims is None else None)
                for x, name, a in zip(args, d.inputs, d.signature.inputs, strict=True)]

    def _results(self, types: Sequence[TensorType], given: Sequence[Array] | None) -> list[Array]:
        d = self.definition
        if given is None:
            return [fresh(t, _numbers(t), torch=False) for t in types]
        if len(given) != len(types):
            raise InputError(f"kernel {d.name}: out= takes {len(types)} arrays, got {len(given)}")
        found = []
        for a, t, name in zip(given, types, d.outputs, strict=True):
            if a.shape != t.shape or a.dtype != t.dtype.np:
                raise InputError(f"kernel {d.name}: out {name} must be {t}, got {a.dtype}{list(a.shape)}")
            if not a.flags.writeable:
                raise InputError(f"kernel {d.name}: out {name} is read-only memory; pass an array that may be written")
            if not _fits(a):
                raise InputError(f"kernel {d.name}: out {name} must have native, aligned elements")
            if any(s == 0 and n > 1 for s, n in zip(a.strides, a.shape, strict=True)):
                raise InputError(f"kernel {d.name}: several elements of out {name} lie at one place in memory; pass an array of its own")
            found.append(a)
        return found

    def _launch(self, args: Sequence[Any], out: Any, constants: dict[str, Any]) -> Any:
        arrays = self._arrays(args)
        given = None if out is None else [_memory(x) for x in (out if isinstance(out, (tuple, list)) else (out,))]
        held = () if given is None else tuple((x.shape, x.strides) for x in given)
        key = _looks(arrays, held, constants)
        known = self._plans.get(key)
        if known is None:
            known = self._plan(arrays, given, constants)
            if len(self._plans) >= KEPT:
                self._plans.clear()
            self._plans[key] = known
        kernel, plan, types = known
        results = self._results(types, given)
        if given is not None and any(np.may_share_memory(a, b) for i, a in enumerate(results) for b in (*arrays, *results[i + 1 :])):
            made = self(*args, **constants)  # programs would read what others have written
            for a, b in zip(results, made if isinstance(made, tuple) else (made,), strict=True):
                a[...] = tensor_to_numpy(b) if is_tensor(b) else b
            return out
        kernel.run(plan, [*arrays, *results])
        return self._returned(results, args, out)

    def _plan(self, arrays: Sequence[Array], out: Sequence[Array] | None,
              constants: dict[str, Any]) -> tuple[CpuKernel, Plan, tuple[TensorType, ...]]:
        d = self.definition
        types = [TensorType(dtype_of(a.dtype), a.shape) for a in arrays]
        bound, values = d.bind(types, constants)
        every = [*arrays, *self._results(bound.outputs, out)]
        target = target_spec("cpu")
        classes = tuple(_class(a) for a in every)
        key = (target, tuple(t.dtype for t in types), classes, *_exact(values))
        kernel = self._compiled.get(key)
        if kernel is None:
            if len(self._compiled) >= KEPT:
                self._compiled.clear()
            kernel = self._compiled[key] = CpuKernel(d, bound, values, classes, target)
        sizes = {n: int(v) for n, v in bound.dims.items()}
        return kernel, kernel.plan(sizes, [tuple(s // a.itemsize for s in a.strides) for a in every]), bound.outputs

    def _returned(self, results: Sequence[Array], args: Sequence[Any], out: Any) -> Any:
        if out is not None:
            return out
        given = [numpy_to_tensor(a) for a in results] if any(map(is_tensor, args)) else list(results)
        return given[0] if len(given) == 1 else tuple(given)

    # --- the GPU ------------------------------------------------------------------------------------------------------------------
    def _launch_on_gpu(self, args: Sequence[Any], out: Any, constants: dict[str, Any]) -> Any:
        from ..array.jit import Jit

        if out is not None:
            raise UnsupportedError(f"kernel {self.definition.name}: out= is not supported on a GPU yet; take the result that is returned")
        key = tuple(sorted(_exact(constants)))
        if key not in self._on_gpu:
            self._on_gpu[key] = Jit(lambda *xs: self(*xs, **constants))
        return self._on_gpu[key](*args)

    # --- to look at -----------------------------------------------------------------------------------------------------------------
    def debug(self, *args: Any, show: Callable[[str], Any] = print, **constants: Any) -> Any:
        """Run in the interpreter, one program after the other: `print` in the kernel shows tiles, positions outside an array and `assert`s
        that fail are errors with their line. Results that no program wrote are NaN (or a noisy number)."""
        if any(type(x) is OurArray for x in args):
            return rewrapped(self.debug(*map(plain, args), show=show, **constants))
        self._check_call(args, constants)
        results = run_debugged(self.definition, self._arrays(args), constants, show)
        return self._returned(results, args, None)

    def tune(self, *args: Any, rounds: int = 7, **choices: Sequence[Any]) -> dict[str, Any]:
        """The fastest of all combinations of constants, `kernel.tune(x, BLOCK=(64, 128))`, timed in turns on these arguments of the CPU.
        Combinations that cannot be compiled are left out."""
        name = self.definition.name
        if any(map(is_on_gpu, args)):
            raise UnsupportedError(f"kernel {name}: tune times launches on a CPU; on a GPU time them with events of its own")
        for n, values in choices.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise InputError(f"kernel {name}: tune takes a tuple of values for each constant, got {n}={values!r}")
        best: dict[int, float] = {}
        every = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
        problem: CompileError | None = None
        for k, constants in enumerate(every):
            try:
                self(*args, **constants)
                best[k] = float("inf")
            except CompileError as e:
                problem = e
        if problem is not None and not best:
            raise problem
        for _ in range(rounds):
            for k in best:
                start = time.perf_counter()
                self(*args, **every[k])
                best[k] = min(best[k], time.perf_counter() - start)
        return every[min(best, key=lambda k: best[k])]

    def tile_ir(self, *args: Any, **constants: Any) -> str:
        """The tile IR of the kernel for these arguments."""
        d = self.definition
        arrays = self._arrays(args)
        bound, values = d.bind([TensorType(dtype_of(a.dtype), a.shape) for a in arrays], constants)
        every = [*arrays, *self._results(bound.outputs, None)]
        over, inputs, outputs = symbolic(d, bound, values, [_class(a) for a in every])
        return to_text(build(d, over, inputs, outputs, values, "cpu").launch.kernel)


def _wrapped(results: Any, out: Any) -> Any:
    return rewrapped(results) if out is None else out


def _copied_to(out: Any, results: Any, name: str) -> Any:
    """Results on a GPU in the memory of `out`."""
    there, made = (x if isinstance(x, (tuple, list)) else (x,) for x in (out, results))
    for x, y in zip(there, made, strict=True):
        if type(x) is not OurArray or x.device != y.device or (x.shape, x.dtype) != (y.shape, y.dtype):
            raise InputError(f"kernel {name}: out must be an Array {y.dtype}{list(y.shape)} on {y.device}, got {x!r}")
        x[...] = y
    return out


def _looks(arrays: Sequence[Any], held: tuple[Any, ...], constants: dict[str, Any]) -> tuple[Any, ...]:
    """Everything that a plan depends on; equal for no arguments but plain arrays, which a kernel reads as they are."""
    seen = [(a.dtype, a.shape, a.strides, a.flags.aligned) if type(a) is np.ndarray else object for a in arrays]
    return (*seen, held, *_exact(constants), _settings())


def _exact(constants: dict[str, Any]) -> list[tuple[str, Any]]:
    """Constants as a key: 1, 1.0 and True are three values."""
    return [(n, key_of(v)) for n, v in constants.items()]


def _settings() -> tuple[str | None, ...]:
    """What of the environment a compiled kernel depends on."""
    return os.environ.get("TILEWRIGHT_CHECKS"), os.environ.get("TILEWRIGHT_CPU")


def run_debugged(d: Definition, arrays: Sequence[Array], constants: dict[str, Any], show: Callable[[str], Any] = print) -> list[Array]:
    """The results of a kernel in the interpreter."""
    bound, values = d.bind([TensorType(dtype_of(a.dtype), a.shape) for a in arrays], constants)
    results = [_noise(t) for t in bound.outputs]
    every = [*arrays, *results]
    classes = [_class(a) for a in every]
    over, inputs, outputs = symbolic(d, bound, values, classes)
    built = build(d, over, inputs, outputs, values, "cpu", debug=True)
    env: dict[str, int] = {n: v for n, v in bound.dims.items() if isinstance(v, int)}
    for name, a in zip(d.names, every, strict=True):
        env.update({f"stride_{name}_{axis}": s // a.itemsize for axis, s in enumerate(a.strides)})
    given: list[Any] = []
    flat = iter(zip(every, classes, strict=True))
    kernel = built.launch.kernel
    kernel.name = d.name
    words = iter(w for w in built.launch.arguments if isinstance(w, Word))
    for p in kernel.params:
        if isinstance(p.type, ViewType):
            for _ in range(sum(s is None for s in p.type.strides)):
                next(words)
            given.append(_flat(*next(flat)))
        else:
            given.append(evaluate(next(words).value, env))
    debug_run(kernel, built.recorder, given, evaluate(built.launch.grid, env), show)
    return results


def _flat(a: Array, known: Sequence[int | None]) -> Flat:
    """An array as the interpreter takes it; the memory between its first and last element bounds what may be touched."""
    steps = tuple(s // a.itemsize if k is None else k for s, k in zip(a.strides, known, strict=True))
    if a.size == 0:
        return Flat(np.empty(0, a.dtype), 0, steps)
    ends = [(n - 1) * s for n, s in zip(a.shape, steps, strict=True)]
    a = a if a.ndim else a.reshape(1)
    first = tuple(slice(n - 1, n) if s < 0 else slice(0, 1) for n, s in zip(a.shape, steps or (1,), strict=True))
    corner = a[first]  # lies first in memory
    flat = np.lib.stride_tricks.as_strided(corner, (sum(map(abs, ends)) + 1,), (a.itemsize,), writeable=a.flags.writeable)
    return Flat(flat, -sum(min(0, e) for e in ends), steps)


def _numbers(t: TensorType) -> tuple[int, ...]:
    return tuple(int(d) for d in t.shape)


def _noise(t: TensorType) -> Array:
    made = np.empty(_numbers(t), t.dtype.np)
    made.fill(np.nan if t.dtype.is_float else 0x5A if t.dtype.is_int else True)
    return made


def _fits(a: Array) -> bool:
    whole = all(s % a.itemsize == 0 for s in a.strides)
    return a.flags.aligned and a.dtype.isnative and whole


def _class(a: Array) -> tuple[int | None, ...]:
    """The stride class of an array; along an axis of one element or none any stride will do."""
    steps = [s // a.itemsize for s in a.strides]
    last = len(steps) - 1
    free = [1 if i == last else None for i in range(len(steps))]
    return tuple(f if n <= 1 or a.size == 0 else c for f, n, c in zip(free, a.shape, stride_class(steps), strict=True))


def _memory(x: Any) -> Array:
    """An array over the memory of what was given for `out`."""
    if type(x) is OurArray:
        return own(x)
    if is_masked(x):
        raise InputError("kernel: out= is a masked array, whose mask no kernel knows; pass its data")
    if is_tensor(x):
        if unfit(x) is None and (x.is_neg() or x.is_conj() or x.requires_grad):
            what = "requires grad" if x.requires_grad else f"is a {'negative' if x.is_neg() else 'conjugate'} view"
            raise InputError(f"kernel: out= {what}, so that its memory is not what it holds; pass a plain tensor")
        return tensor_to_numpy(x, "kernel: out=")
    if isinstance(x, np.ndarray):
        return x
    try:
        return np.asarray(x, copy=False)
    except (TypeError, ValueError):  # its elements would be copied, and the results lost
        raise InputError(f"kernel: out= takes arrays whose memory can be written, got a {type(x).__name__}") from None


def _array(x: Any, what: str, number: str | None) -> Array:
    if number is not None and isinstance(x, (bool, int, float, np.generic)):
        try:
            return np.array(x, dtype_of(number).np)
        except OverflowError:
            raise InputError(f"{what} must be a number that {number} holds, got {x}") from None
    a = header(x, what)
    return a if _fits(a) and type(a) is np.ndarray else np.array(a, a.dtype.newbyteorder("="), order="C")


# --- inside graphs --------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, repr=False, eq=False)
class KernelOp(OwnKernel):
    """A launch of a user's kernel."""

    constants: tuple[tuple[str, Any], ...] = ()
    source: str = ""  # the digest of the file that defines it
    unread: tuple[int, ...] = ()  # results that nobody reads: they are not written
    definition = None
    stored = True

    @property
    def d(self) -> Definition:
        assert isinstance(self.definition, Definition)
        return self.definition

    def infer(self, *types: TensorType) -> Any:
        bound, _ = self.d.bind(types, dict(self.constants))
        return bound.outputs[0] if len(bound.outputs) == 1 else bound.outputs

    def ref(self, *arrays: Any) -> Any:
        found = run_debugged(self.d, [np.asarray(a) for a in arrays], dict(self.constants))
        return found[0] if len(found) == 1 else tuple(found)

    def without(self, unread: tuple[int, ...]) -> KernelOp:
        return replace(self, unread=unread) if unread else self

    def launches(self, region: Region, target: TargetSpec) -> list[Launch]:
        d = self.d
        assert region.anchor is not None
        operands = [region.operand(v) for v in region.anchor.operands]
        kind = "cuda" if target.kind == "cuda" else "cpu"
        bound, values = d.bind([v.type for v in region.anchor.operands], dict(self.constants), kind)
        inputs = [Place_(o.type, o.buffer, o.layout) for o in operands if o is not None]
        outputs = [Place_(r.type, r.buffer, r.layout) for r in region.results]
        built = build(d, bound, inputs, outputs, values, kind, label=region.name, checks=kind == "cpu" and target.checks,
                      unread=[d.outputs[k] for k in self.unread])
        if kind == "cpu":
            return [built.launch]
        layouts = {n: p.layout for n, p in zip(d.names, (*inputs, *outputs), strict=True)}
        return [block_program(built.launch, layouts, target, warps=d.warps, stages=d.stages)]


def _op_class(d: Definition, digest: str) -> Any:
    members = {"name": f"kernel_{d.name}", "definition": d, "digest": digest, "arity": (len(d.inputs), len(d.inputs)),
               "__doc__": d.fn.__doc__ or f"The kernel {d.name}."}
    made = type(f"Kernel_{d.name}_{digest}", (KernelOp,), members)
    remember(made, digest)
    return made


def kernel(signature: str, *, grid: Any = None, warps: int | None = None, stages: int | None = None) -> Callable[[Any], KernelFunction]:
    """A kernel of the user's: `@tw.kernel("T[N], T[N] -> T[N]", grid=lambda N, BLOCK: tl.cdiv(N, BLOCK))`.

    The signature names arguments and results (see docs/kernels-of-your-own.md); `grid` is the number of programs, a number or a tuple, or a
    function of sizes and constants by name. The function's positional parameters are views of the arrays, arguments first; its
    keyword-only parameters are constants, known when the kernel is compiled. `warps` and `stages` schedule it on a GPU; its tiles
    choose them where they are not given. (The source of a kernel must be in a file or a cell.)

        from tilewright import lang as tl

        @tw.kernel("T[N] -> T[N]", grid=lambda N, BLOCK: tl.cdiv(N, BLOCK))
        def twice(x, y, *, BLOCK=1024):
            i = tl.program_id(0)
            y.partition(BLOCK)[i] = 2.0 * x.partition(BLOCK)[i]

        twice(tw.ones(10))
    """
    if not isinstance(signature, str):
        raise InputError("kernel: needs a signature: @tw.kernel('T[N] -> T[N]', grid=...)")
    return lambda fn: KernelFunction(need_definition(fn, signature, grid, warps, stages))
