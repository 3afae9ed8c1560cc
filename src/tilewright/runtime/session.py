"""A session: a compiled model that is called like the model.

A call checks its inputs, takes a workspace from the free list, allocates the outputs and makes one native call. The fast way is
generated (`fastcall.py`); `_slow` is the complete way, with copies, `out=`, nested arguments and every error message.
"""
from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from types import FrameType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakMethod, ref

import numpy as np

from ..core.config import load
from ..core.dims import evaluate
from ..core.errors import ExecutionError, InputError, ShapeError, UnsupportedError
from ..core.records import dataclass, field
from ..core.signature import Signature
from ..core.target_spec import TargetSpec
from ..core.torch_context import unrecorded
from ..core.validation import Level, validate
from ..target.cpu.host import available_cores
from .arguments import Bound, as_given, bind, is_tensor, numpy_to_tensor, tensor_to_numpy
from .executable import CpuExecutable, Interface
from .fastcall import compile_call, result_source
from .faults import fault
from .memory import ADVICE, OutOfMemory
from .native import layout as L
from .outputs import address, check_out, copy, fresh, overlap
from .owners import Watched, check, watched
from .pool import Pool, process_pool
from .workspace import Key, Workspace

if TYPE_CHECKING:
    from ..core.needs import Need
    from ..ir.graph import Graph
    from .profile import Profile
    from .report import Report

PLACES = ("threading", "queue", "select", "socket", "concurrent")  # modules of the standard library: threads wait there
WAITING = tuple(os.path.join(os.path.dirname(os.__file__), name) for name in PLACES)
FREE = 16  # workspaces kept for the next callers
PATIENCE, GRACE = 10.0, 0.05  # seconds when Python ends: for other threads that call or run, and for those that sleep


@dataclass(eq=False)
class Model:
    """What a session was made from, and how: kept for reports, for saving and for the reference target."""

    name: str
    source: Graph | Callable[[], Graph]  # a loaded session reads its graph only when somebody asks for it
    signature: Signature
    target: TargetSpec
    validation: Level = "normal"
    stages: dict[str, float] = field(default_factory=dict)  # seconds
    notes: list[str] = field(default_factory=list)
    passes: dict[str, dict[str, int]] = field(default_factory=dict)  # pass -> named rule -> times applied
    framework: str = "torch"  # the framework of the outputs where no input says it
    needs: tuple[Need, ...] = ()  # what the type rules of the model, as it was written, ask of the symbols
    stored_interface: Interface | None = None

    @property
    def graph(self) -> Graph:
        """The graph after the passes."""
        if callable(self.source):
            self.source = self.source()
        return self.source

    @property
    def interface(self) -> Interface:
        if self.stored_interface is not None:
            return self.stored_interface
        from ..ir.windows import windows

        inputs, outputs = (tuple(v.type for v in values) for values in (self.graph.inputs, self.graph.outputs))
        donated = tuple(sorted(self.graph.donated.items()))
        symbols, called = tuple(self.graph.symbols()), tuple(s.name for s in self.graph.call_symbols)
        return Interface(self.signature.input_names, inputs, outputs, symbols, donated, called, tuple(windows(self.graph)), self.needs)


class Compiled:
    """What sessions on every device have: a model, its interface, inputs that are bound to it, and an end."""

    executable: Any
    threads = 0  # threads of the host that a call runs on; 0 on a GPU
    inputs_must_be = "contiguous"  # or a call copies them

    def __init__(self, model: Model) -> None:
        self.model, self.interface = model, model.interface
        self.copies: dict[str, int] = {}  # input name -> calls that had to copy it
        self.otherwise: Any = None  # an ONNX file's `OtherSizes`: takes calls at sizes that the program does not
        self._closed = False

    @property
    def name(self) -> str:
        return self.model.name

    def __reduce__(self) -> Any:
        raise UnsupportedError("session: machine code cannot be pickled or copied; write it with save(path) and read it with tw.load(path)")

    def _other_size(self, leaves: Sequence[Any]) -> str:
        """How an input that has another size along one axis than the example could be taken, where no size varies yet."""
        if self.interface.symbols or self.model.framework != "torch":
            return ""
        for i, (type_, given) in enumerate(zip(self.interface.inputs, leaves, strict=True)):
            shape = tuple(getattr(given, "shape", ()))
            if len(shape) != len(type_.shape):
                continue
            both = enumerate(zip(type_.shape, shape, strict=True))  # sizes of a tensor that is traced may be tensors
            other = [axis for axis, (want, got) in both if type(want) is type(got) is int and want != got]
            if len(other) == 1:
                return f"; sizes that vary are named at the compile: dynamic={self.model.signature.declaration(i, {other[0]: 'N'})}"
        return ""

    def _bound(self, leaves: Sequence[Any], env: Mapping[str, int] | None, admit: Any = None) -> Bound:
        """The inputs of a call, checked, and the values of all symbols."""
        interface = self.interface
        try:
            bound = bind(interface.input_names, interface.inputs, leaves, env, interface.symbols, admit)
        except InputError as e:
            raise InputError(f"{e}{self._other_size(leaves)}") from None
        wanting = unrecorded(leaves) if any(map(is_tensor, leaves)) else None
        if wanting is not None:
            name = interface.input_names[wanting]
            warnings.warn(f"session: input {name!r} requires grad, and the results of a session have none: call it inside torch.no_grad(), "
                          f"pass {name}.detach(), or train with torch.compile(model, backend='tilewright')", stacklevel=2)
        for name in bound.copied:
            self.copies[name] = self.copies.get(name, 0) + 1
        return bound

    def last_env(self) -> dict[str, int] | None:
        """The sizes of the last call, where one is known."""
        raise NotImplementedError

    def describe(self, env: dict[str, int]) -> dict[str, Any]:
        """What only the device knows of the program at these sizes, for a report."""
        raise NotImplementedError

    def report(self, at: Mapping[str, int] | None = None) -> Report:
        """What the program consists of: kernels and their costs, arena, compile stages, inserted copies. `at` gives the sizes of dynamic
        dims; others are those of the last call, or typical ones."""
        self._open()
        from .report import make_report

        return make_report(self, at or {})

    def save(self, path: str | PathLike[str]) -> None:
        """Write the compiled graph and its constants to one file; `tw.load` reads it."""
        self._open()
        from .archive.session import save

        save(self, path)

    def close(self) -> None:
        """Give the memory back."""
        self._closed = True

    def _open(self) -> None:
        if self._closed:
            _refuse(self.model.name)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}: {t}" for n, t in zip(self.interface.input_names, self.interface.inputs, strict=True))
        outs = ", ".join(map(str, self.interface.outputs))
        return f"<{type(self).__name__} {self.name}({shown}) -> {outs} on {self.model.target.kind}{', closed' if self._closed else ''}>"


class Session(Compiled):
    """`session(*args)`: torch in, torch out; NumPy in, NumPy out. Outputs are new and the caller's own; `out=` reuses.

    Threads: any number may call one session at once, with the bits of one call after the other; `report`, `profile`, `save` and `close` may
    come meanwhile (calls that run finish). What a call writes to (`out=`, inputs that the model updates) is for one call at a time.
    """

    def __init__(self, model: Model, executable: CpuExecutable | None, *, threads: int | None = None) -> None:
        super().__init__(model)
        self.executable = executable
        self._free: list[Workspace] = []
        self.quantization: Any = None  # what `tw.quantize` did to every layer
        self.arguments: Any = None  # an ONNX file's inputs and outputs as it declares them
        self._checked = False
        self._pool: Pool | None = None
        self._has_looked = False
        self.shared = _shared(model, executable)
        self.threads = 1
        if executable is not None:
            self._pool = process_pool()
            self.threads = self._pool.ensure(load().threads or available_cores() if threads is None else threads)

    # ---- calling

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        try:
            return self._call(args, kwargs, out)
        except (InputError, ShapeError) as problem:
            if self.otherwise is None or self._closed or out is not None:
                raise
            return self.otherwise.instead(problem, args, kwargs)
        except (RuntimeError, MemoryError) as problem:  # costs nothing where it does not happen
            raise self._explained(self.model.signature.flatten(args, kwargs), problem) from None

    def _explained(self, leaves: list[Any], problem: BaseException) -> BaseException:
        """torch's error from a tensor that has no shape or memory of its own, and what is too large for the memory, in our words."""
        env: Mapping[str, int] = {}
        try:
            bound = bind(self.interface.input_names, self.interface.inputs, leaves)
            env = bound.env
            if not isinstance(problem, MemoryError):
                for t in self.interface.outputs:
                    fresh(t, tuple(evaluate(d, env) for d in t.shape), self._wants_torch(leaves))
                return problem
        except MemoryError as e:
            problem = e
        return self.no_memory(env, problem)

    def no_memory(self, env: Mapping[str, int], problem: BaseException) -> OutOfMemory:
        """The error for a call at these sizes."""
        needs, executable = "", self.executable
        if all(s.name in env for s in self.interface.symbols):
            results = sum(evaluate(t.nbytes, env) for t in self.interface.outputs)
            arena = 0 if executable is None else executable.arena_bytes(env)
            needs = f", whose results take {results:,} bytes and whose intermediate values {arena:,}"
        at = ", ".join(f"{name} = {value}" for name, value in env.items())
        reason = str(problem).removeprefix("memory: ").partition(";")[0]
        return OutOfMemory(f"session: {self.model.name}: no memory for a call{f' with {at}' if at else ''}{needs} ({reason}); {ADVICE}")

    def run_with(self, env: Mapping[str, int], *args: Any, **kwargs: Any) -> Any:
        """A call that gives the values of symbols no input's shape shows. Donated inputs are copied first: the caller's stay as they are.
        (`runtime.state` runs on donated memory itself.)"""
        return self._leaves(self.model.signature.flatten(args, kwargs), None, env)

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """The first call: run the checks before execution, then choose the generated function that fits the inputs. Where none does,
        every call is like it."""
        leaves = self.model.signature.flatten(args, kwargs)
        result, executable = self._leaves(leaves, out), self.executable
        if self._has_looked or executable is None or self.model.signature.updates:
            return result
        self._has_looked = True
        fast = self._generated(executable, "torch" if self._wants_torch(leaves) else "numpy")
        if fast is not None and not self._closed:
            if not self.model.signature.simple:
                self._call = partial(_nested, self.model.signature, fast)
            else:
                self._call = fast if self.shared or not self._wants_torch(leaves) else partial(_second, ref(self), fast)
        return result

    def _native(self, executable: CpuExecutable, short: Callable[..., Any]) -> Callable[..., Any]:
        """The fast path as machine code, where there is one, or in Python."""
        from .native_call import native_call

        workspace, session = self.take(), ref(self)

        def after(status: int) -> None:
            found = session()
            assert found is not None
            found.settle(status, workspace)
            if workspace.errors[:, 0].any():
                raise found._fault(workspace)

        found = native_call(self.interface, self.model.signature, self.pool, workspace, len(executable.error_launches), short, after)
        if found is None:
            self.give(workspace)
        return found or short

    # Nothing that a session holds refers to the session: one that is dropped is freed at once, with its weights.
    _call: Callable[..., Any] = _first

    def _wants_torch(self, leaves: Sequence[Any]) -> bool:
        """Outputs follow the inputs; a model without inputs follows what it was compiled from."""
        return any(map(is_tensor, leaves)) or (not leaves and self.model.framework == "torch" and "torch" in sys.modules)

    def _generated(self, executable: CpuExecutable, framework: str) -> Any:
        signature, pool = self.model.signature, self.pool
        free = self._free
        leaves = _weakly(self._leaves)
        slow = _weakly(self._slow) if signature.simple else lambda values, _, out: leaves(values, out)
        scope = {"slow": slow, "free": free, "take": free.pop, "give": free.append, "most": FREE, "run": pool.run,
                 "grow": _weakly(self.grow), "settle": _weakly(self.settle), "fail": _weakly(self.fail),
                 "stale": _weakly(self._check_weights)}
        return compile_call(self.interface, framework, errors=len(executable.error_launches), scope=scope, watched=self.shared,
                            result=result_source(signature, self.interface.symbols, scope))

    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        return self._leaves(self.model.signature.flatten(args, kwargs), out)

    def _leaves(self, leaves: list[Any], out: Any, env: Mapping[str, int] | None = None) -> Any:
        """A call whose arguments are the graph's inputs already."""
        self._check_weights()
        signature = self.model.signature
        bound = self._bound(leaves, env)
        for i, _ in signature.updates:
            if isinstance(leaves[i], np.ndarray) and not leaves[i].flags.writeable:
                name = self.interface.input_names[i]
                raise InputError(f"session: the model writes to input {name!r}, and the array is read-only; pass a copy")
        torch = self._wants_torch(leaves)
        shapes = [tuple(evaluate(d, bound.env) for d in t.shape) for t in self.interface.outputs]
        given = None if out is None else check_out(out, self.interface.outputs, shapes, signature)
        if self._pool is None:
            results = self._interpret(bound, torch)
        else:
            if given is None or overlap(given, bound.kept):
                results = [fresh(t, shape, torch) for t, shape in zip(self.interface.outputs, shapes, strict=True)]
            else:
                results = given
            for i, k in self.interface.donated:
                copy(results[k], bound.kept[i])
                bound.addresses[i] = address(results[k])
            self._execute(bound, results)
        for i, k in signature.updates:
            copy(leaves[i], results[k])
        if given is None:
            return signature.unflatten(as_given(leaves, results), bound.env)
        for target, result in zip(given, results, strict=True):
            if target is not result:
                copy(target, result)
        return out

    def _execute(self, bound: Bound, results: Sequence[Any]) -> None:
        """One native run over these inputs and outputs."""
        assert self._pool is not None
        workspace = self.take()
        key = tuple(bound.env[s.name] for s in self.interface.symbols)
        if not self._checked:
            self._check(workspace, key)
        for i, at in enumerate((*bound.addresses, *map(address, results))):
            workspace.io[i] = at
        status = self._pool.run(workspace.job(key))
        if status:
            self.settle(status, workspace)
        if workspace.errors[:, 0].any():
            self.fail(workspace)
        self.give(workspace)

    def _check(self, workspace: Workspace, key: Key) -> None:
        from ..plan import validate as _plan  # noqa: F401  importing registers the checks
        from . import validate as _execute  # noqa: F401

        instance, executable = workspace.instance(key), workspace.executable
        validate("plan", self.model.validation, executable.program, instance.placement, instance.env)
        validate("execute", self.model.validation, executable, instance)
        self._checked = True

    def _interpret(self, bound: Bound, torch: bool) -> list[Any]:
        from ..ir.interp import run

        self.interface.check(bound.env)
        arrays = [tensor_to_numpy(v) if is_tensor(v) else v for v in bound.kept]
        try:
            results = run(self.model.graph, arrays, bound.env)
        except IndexError as e:
            raise ExecutionError(f"session: {e}") from None
        fresh = [np.array(r, dtype=t.dtype.np, order="C") for r, t in zip(results, self.interface.outputs, strict=True)]
        return [numpy_to_tensor(a) for a in fresh] if torch else fresh

    def _check_weights(self) -> None:
        """Raise when a weight that is shared with the module is no longer what it was at the compile."""
        if self.shared:
            check(self.model.name, self.shared)

    # ---- workspaces

    def take(self) -> Workspace:
        try:
            return self._free.pop()
        except IndexError:
            return self.grow()

    @property
    def pool(self) -> Pool:
        assert self._pool is not None, "only sessions with an executable have a pool"
        return self._pool

    def last_env(self) -> dict[str, int] | None:
        """Symbol values of the last call, where one is known."""
        for workspace in reversed(list(self._free)):
            for _, instance, _ in reversed(list(workspace.instances.values())):  # other threads may be using it
                return dict(instance.env)
        return None

    def grow(self) -> Workspace:
        executable = self.executable
        if executable is None or self._pool is None or self._closed:
            raise InputError(f"session: {self.model.name} is closed")
        return Workspace(executable, self._pool.address, self.threads)

    def give(self, workspace: Workspace) -> None:
        if len(self._free) < FREE and not self._closed:
            self._free.append(workspace)

    def settle(self, status: int, workspace: Workspace) -> None:
        """A run that a signal stopped goes on where it was: Python's handlers have run by now, and had they raised, nobody would have
        come here. Missing workers are started for the next run."""
        assert self._pool is not None
        while status & L.CANCELLED:
            job = workspace.latest()
            job[L.JOB_START], job[L.JOB_OTHERS] = job[L.JOB_STOPPED], job[L.JOB_STOPPED_OTHERS]
            status = self._pool.run(job.ctypes.data)
        if status & L.FEW_WORKERS:
            self._pool.ensure(self.threads)

    def fail(self, workspace: Workspace) -> None:
        """Raise what a kernel has found."""
        problem = self._fault(workspace)
        self.give(workspace)
        raise problem

    def _fault(self, workspace: Workspace) -> Exception:
        """The exception of the first filled error block; all are clear for the next call."""
        blocks, env, executable = workspace.errors.copy(), workspace.last_env(), workspace.executable
        workspace.errors[:] = 0
        k = int(np.flatnonzero(blocks[:, 0])[0])
        step = executable.error_launches[k]
        return fault(executable.launches[step], blocks[k], env, self.model.name, step=step)

    # ---- everything else

    def describe(self, env: dict[str, int]) -> dict[str, Any]:
        from .profile import describe

        return describe(self, env)

    def profile(self, *args: Any, repeat: int = 5, **kwargs: Any) -> Profile:
        """Run with a clock around every kernel on every thread."""
        self._open()
        from .profile import measure

        return measure(self, args, kwargs, repeat=repeat)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model, its packed weights and its machine code to one file; `tw.load` reads it."""
        self._open()
        self._check_weights()
        super().save(path)

    def close(self) -> None:
        """Give the memory back. Calls that are running finish; later ones are an error."""
        super().close()
        self._call = partial(_refuse, self.model.name)
        self._free.clear()
        self.executable = None


def _sleep(native: int | None) -> str:
    """How often a thread that sleeps has gone to sleep; nothing of one that runs, or would if it had a core."""
    try:
        with open(f"/proc/self/task/{native}/status", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return "unknown"
    return text[text.find("voluntary_ctxt_switches") :] if "\nState:\tS" in text else ""


def _end() -> None:
    """When Python ends, calls on other threads end first and new ones wait for ever: PyTorch aborts a process where Python takes a thread
    away inside it. A call that takes longer than `PATIENCE` is left to that. A thread that is in neither may be inside PyTorch where it
    drops a result, without a frame that says so: it has that time, too, to come to its next call, or to sleep for `GRACE`."""
    import threading

    mine, call, sleeps = get_ident(), Session.__call__, dict[int, tuple[str, float]]()

    def waiting(self: Session, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        if get_ident() != mine:
            lock = allocate_lock()
            while lock.acquire():
                pass
        return call(self, *args, out=out, **kwargs)

    def patience(thread: int, native: int | None, frame: FrameType | None, now: float) -> float:
        inner = frame
        while frame is not None:
            if frame.f_code is waiting.__code__:
                return 0.0
            if frame.f_code is call.__code__:
                return PATIENCE
            frame = frame.f_back
        if "torch" not in sys.modules or (inner is not None and inner.f_code.co_filename.startswith(WAITING)):
            return GRACE
        known = _sleep(native)
        if known != sleeps.get(thread, ("", 0.0))[0]:
            sleeps[thread] = known, now
        return PATIENCE if not known or now - sleeps[thread][1] < GRACE else GRACE

    Session.__call__ = waiting  # type: ignore[method-assign]
    begin = now = time.monotonic()
    while True:
        natives = {thread.ident: thread.native_id for thread in threading.enumerate()}
        left = [patience(thread, natives.get(thread), f, now) for thread, f in sys._current_frames().items() if thread != mine]
        if now - begin >= max(left, default=0.0):
            break
        time.sleep(1e-3)
        now = time.monotonic()


atexit.register(_end)


def _second(session: ref[Session], short: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    """The second call: a session that is called again with tensors has machine code in front. Arrays never enter PyTorch, which aborts a
    process that ends while one of its threads is inside."""
    found = session()
    assert found is not None
    unmade = isinstance(found._call, partial)  # no other thread has been here
    if unmade and any(map(is_tensor, args)) and (executable := found.executable) is not None:
        found._call = found._native(executable, short)
    return short(args, kwargs, out)


def _nested(signature: Signature, fast: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    """Nested or named arguments: take them apart, then the fast way."""
    return fast(signature.flatten(args, kwargs), None, out)


def _refuse(name: str, *_: Any) -> Any:
    raise InputError(f"session: {name} is closed")


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method for a generated function that its object holds. The object lives while a call of it runs."""
    found = WeakMethod(method)

    def call(*args: Any) -> Any:
        bound = found()
        assert bound is not None
        return bound(*args)

    return call


def _shared(model: Model, executable: CpuExecutable | None) -> tuple[Watched, ...]:
    """Constants in torch's memory: those that kernels read there, and those of the graph that no kernel holds in a form of its own."""
    program = [] if executable is None else list(zip(executable.program.constants, executable.constants, strict=True))
    held = {c.data for c, _ in program}
    graph: Iterable[Any] = ()
    if not callable(model.source):  # a loaded one is nobody else's
        from ..ir.text import constant_data

        graph = constant_data(model.source)
    return watched([*((c.data.name, a) for c, a in program), *((d.name, d.array) for d in graph if d not in held)])
