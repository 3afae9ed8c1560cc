"""`tw.compile` and `tw.load`: the stages from a model to a session, each timed."""
from __future__ import annotations

import sys
import time
from _thread import allocate_lock
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

from .core.collection import paused
from .core.config import load as load_config
from .core.dtypes import DType
from .core.errors import CompileError, ConfigError, UnsupportedError
from .core.records import replace
from .core.signature import Signature
from .core.target_spec import REFERENCE, TargetSpec
from .core.validation import Level, check_level, validate
from .core.workers import Workers, spawn
from .runtime.session import Model, Session

if TYPE_CHECKING:
    from inspect import Parameter

    from .build.ahead import Ahead
    from .core.needs import Need
    from .frontend.onnx.session import SegmentedSession
    from .ir.graph import Graph
    from .passes.base import Log

Progress = bool | Callable[[str], None] | None
SHOW_AFTER_S = 0.5


class Stages:
    """Named stages with their seconds; on a terminal a line says which one runs once the whole takes noticeable time."""

    def __init__(self, title: str, progress: Progress = None) -> None:
        self.seconds: dict[str, float] = {}
        self.title, self.progress = title, progress
        self._current = ""
        self._status: Any = None
        self._over = allocate_lock()  # free once all is done
        self._over.acquire()
        self._join: Callable[[], None] | None = None
        if progress is True or (progress is None and sys.stderr.isatty()):  # nothing is shown where there is no thread for it
            self._join = spawn(self._show, 0.0 if progress is True else SHOW_AFTER_S)

    def _show(self, after: float) -> None:
        if self._over.acquire(timeout=after):
            return
        from rich.console import Console
        from rich.status import Status

        self._status = Status(f"{self.title}: {self._current}", console=Console(stderr=True))
        self._status.start()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._current = name
        if callable(self.progress):
            self.progress(name)
        if self._status is not None:
            self._status.update(f"{self.title}: {name}")
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def close(self) -> None:
        self._over.release()
        if self._join is not None:
            self._join()
        if self._status is not None:
            self._status.stop()


def compile(  # noqa: A001
    module: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None, *, dynamic: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None, dtype: Any = None, threads: int | None = None, target: str | TargetSpec | None = None,
    precision: str | None = None, validation: str | None = None, passes: Mapping[str, bool] | Collection[str] | None = None,
    name: str | None = None, progress: Progress = None,
) -> Session:
    """Compile a torch.nn.Module, a callable, an ExportedProgram (or its .pt2 file) or a Graph to a Session.

    `args` and `kwargs` are example inputs; a mapping of parameter names may stand for `args`. Without any, a module that takes inputs is
    compiled at its first call, for inputs like those. `dynamic` maps parameter names to {axis: tw.Dim(...)}, or to {axis: "N"} for a dim of
    any size; `dynamic_shapes` is torch.export's own form. `dtype` stores weights and intermediates in another float dtype (a name, or
    torch's or NumPy's dtype). `passes` switches optional passes off: a mapping
    name -> bool, or the names to leave out. `target` is "cpu", "cuda", "reference" (NumPy) or a TargetSpec; without it, "cuda" where the
    module or an example input is on a GPU, else "cpu". `precision` "tf32" lets products and convolutions of f32 round their operands to 11
    bits on a GPU, which is several times faster, "exact" does not; "auto", the default, does what PyTorch's switches say for a PyTorch
    module (by default convolutions round and products do not) and is exact otherwise.

    A session keeps the weights of its compile: later changes of the module are not seen. Small weights and those that kernels pack are
    copies. Large ones that kernels read as they are (tables of embeddings) are shared with the module; a call after torch wrote to one of
    these raises an InputError instead of mixing old and new.

    >>> import torch
    >>> import tilewright as tw
    >>> layer = torch.nn.Linear(3, 2).eval()
    >>> session = tw.compile(layer, (torch.ones(1, 3),), dynamic={"input": {0: "N"}})
    >>> session, session(torch.ones(5, 3)).shape
    (<Session Linear(input: f32[N,3]) -> f32[N,2] on cpu>, torch.Size([5, 2]))
    """
    options: dict[str, Any] = {"dynamic": dynamic, "dynamic_shapes": dynamic_shapes, "dtype": dtype, "threads": threads, "target": target,
                               "precision": precision, "validation": validation, "passes": passes, "name": name, "progress": progress}
    for option, given, kinds, rule in (("kwargs", kwargs, Mapping, "a mapping from names to example inputs"),
                                       ("dynamic", dynamic, (Mapping, tuple, list), "a mapping from names to {axis: tw.Dim(...)}"),
                                       ("dynamic_shapes", dynamic_shapes, (Mapping, tuple, list), "torch.export's own form")):
        if given is not None and not isinstance(given, kinds):
            raise ConfigError(f"{option}: must be {rule}, got {given!r}")
    if isinstance(module, type):
        raise CompileError(f"compile: takes a module, got the class {module.__name__}; make one of it: {module.__name__}(...)")
    check_level(load_config(threads=threads).validation if validation is None else validation)
    if target is not None:
        target_spec(target, precision)
    if dtype is not None:
        from .passes.convert_dtype import float_dtype

        options["dtype"] = float_dtype(dtype)
    if _is_onnx(module):
        return _compile_onnx(module, **options)
    if isinstance(args, Mapping) and args and not kwargs and all(k in _parameters(module) for k in args):
        args, kwargs = (), args
    if isinstance(args, (tuple, list)) and not args and not kwargs and _takes_inputs(module):
        return Deferred(module, options)  # type: ignore[return-value]
    return _compile(module, args, kwargs, **options)


def _compile(module: Any, args: Any, kwargs: Mapping[str, Any] | None, *, dynamic: Any, dynamic_shapes: Any, dtype: DType | None,
             threads: int | None, target: str | TargetSpec | None, precision: str | None, validation: str | None,
             passes: Mapping[str, bool] | Collection[str] | None, name: str | None, progress: Progress) -> Session:
    """With example inputs, and options that have been checked."""
    from .build.ahead import Ahead
    from .ir import verify as _checks  # noqa: F401  registers the checks of graphs
    from .ir.graph import Graph

    level = check_level(load_config().validation if validation is None else validation)
    spec = target_spec(chosen_target(module, args, kwargs) if target is None else target, precision, pytorch=not isinstance(module, Graph))
    stages = Stages("tilewright", progress)
    ahead: Ahead | None = None
    try:
        ahead = Ahead.of(module) if spec.kind == "cpu" and dtype is None else None
        with paused():
            graph, signature = import_model(module, args, kwargs, dynamic, dynamic_shapes, name, stages)
            validate("import", level, graph)
            if ahead is not None:
                ahead.begin(graph, spec)
            return compile_graph(graph, signature, spec, level=level, dtype=dtype, disable=disabled(passes), threads=threads,
                                 stages=stages, ahead=ahead)
    except MemoryError as problem:
        what = name or getattr(module, "name", type(module).__name__)
        raise CompileError(f"compile: no memory for {what} ({str(problem).partition(';')[0]}); compile it in a smaller dtype, drop other "
                           "sessions, or raise the limit on this process's memory") from None
    finally:
        if ahead is not None:
            ahead.close()
        stages.close()


def _is_onnx(module: Any) -> bool:
    """Paths, bytes and ONNX's own ModelProto; nothing is imported to find out."""
    from .frontend.onnx.load import is_onnx

    return is_onnx(module)


def _compile_onnx(module: Any, *, dynamic: Any, dynamic_shapes: Any, dtype: DType | None, threads: int | None,
                  target: str | TargetSpec | None, precision: str | None, validation: str | None,
                  passes: Mapping[str, bool] | Collection[str] | None, name: str | None, progress: Progress) -> Session:
    """A plain session where the model is one graph, a session of segments otherwise."""
    if dynamic is not None or dynamic_shapes is not None:
        raise ConfigError("dynamic: an ONNX file names its symbolic sizes itself; leave it out")
    from .frontend.onnx import store
    from .frontend.onnx.load import Source

    level = check_level(load_config().validation if validation is None else validation)
    spec = target_spec("cpu" if target is None else target, precision)
    source = module if isinstance(module, Source) else Source(module)
    key = store.key_of(source, spec, dtype, disabled(passes), name) if level != "strict" else None

    stages = Stages("tilewright", False)  # the stages of compiles that calls ask for

    def build_segment(graph: Graph, signature: Signature | None = None) -> Session:
        from .ir import verify as _checks  # noqa: F401  registers the checks of graphs

        validate("import", level, graph)
        session = compile_graph(graph, signature or graph_signature(graph), spec, level=level, dtype=dtype, disable=disabled(passes),
                                threads=threads, stages=stages)
        session.model.framework = "numpy"
        return session

    def otherwise() -> Callable[..., Any]:
        """What serves sizes that a graph of symbols does not."""
        from .frontend.onnx.session import SegmentedSession, import_onnx

        return SegmentedSession(import_onnx(source, build_segment, name=name, assume=False))

    def optimised() -> Graph:
        from .frontend.onnx.session import import_onnx

        graph = import_onnx(source, lambda g: None, name=name).graph
        assert graph is not None
        return through_passes(graph, spec, level, dtype, disabled(passes))[0]

    def load_segment(entry: str) -> Session | None:
        def unknown() -> Graph:
            raise UnsupportedError("onnx: a segment of a stored call has no graph; compile the model with TILEWRIGHT_CACHE_BYTES=0")

        return store.load(entry, source, spec, unknown, None, level=level, threads=threads)

    def segmented() -> SegmentedSession:
        from .frontend.onnx.session import SegmentedSession, import_onnx

        return SegmentedSession(import_onnx(source, build_segment, name=name), key)

    if key is not None:
        stored = store.load(key, source, spec, optimised, otherwise, level=level, threads=threads)
        if stored is not None:
            return stored
        from .frontend.onnx.calls import load_model, save_model

        calls = load_model(key, load_segment, segmented)
        if calls is not None:
            return calls  # type: ignore[return-value]
    from .frontend.onnx.session import SegmentedSession, import_onnx

    stages = Stages("tilewright", progress)
    try:
        with paused():
            with stages.stage("import"):
                found = import_onnx(source, build_segment, name=name)
            if found.graph is None:
                if key is not None:
                    save_model(key, found)
                return SegmentedSession(found, key)  # type: ignore[return-value]
            session = build_segment(found.graph, found.signature)
            session.arguments = found.arguments
            if session.interface.symbols or found.assumed:
                session.otherwise = store.OtherSizes(otherwise, session, bool(found.assumed))
            if found.assumed:
                session.model.notes += found.notes
            if key is not None:
                with stages.stage("store"):
                    store.save(key, session, found)
            return session
    except MemoryError as problem:
        reason = str(problem).partition(";")[0]
        raise CompileError(f"compile: no memory for {name or 'the ONNX model'} ({reason}); drop other sessions, or raise "
                           "the limit on this process's memory") from None
    finally:
        stages.close()


class Deferred:
    """What `tw.compile(model)` gives without example inputs: a session from its first call on, for inputs like those of that call."""

    def __init__(self, module: Any, options: Mapping[str, Any]) -> None:
        self._module, self._options = module, options
        self._session: Session | None = None
        self._lock = allocate_lock()

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        if self._session is None:
            with self._lock:
                if self._session is None:
                    self._session = _compile(self._module, args, kwargs, **self._options)
        return self._session(*args, out=out, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._session is None:
            what = f"compile: {type(self._module).__name__} has been given no example inputs and is compiled at its first call"
            raise AttributeError(f"{what}; call it before you ask for {name!r}, or give inputs: tw.compile(model, (x, ...))")
        return getattr(self._session, name)

    def __repr__(self) -> str:
        return f"<{type(self._module).__name__}, compiled at its first call>" if self._session is None else repr(self._session)


def _parameters(module: Any) -> dict[str, Parameter]:
    """Those of a module's forward or of a callable."""
    import inspect

    try:
        return dict(inspect.signature(getattr(module, "forward", module)).parameters)
    except (TypeError, ValueError):
        return {}


def _takes_inputs(module: Any) -> bool:
    """A module or callable with parameters that have no default."""
    if isinstance(module, (str, PathLike)) or type(module).__name__ == "ExportedProgram" or not callable(module):
        return False
    return any(p.default is p.empty for p in _parameters(module).values())


def chosen_target(module: Any, args: Any, kwargs: Any) -> str:
    """Where the first parameter of a module, or an example input, lies."""
    inputs = [*(args if isinstance(args, (tuple, list)) else ()), *(kwargs.values() if isinstance(kwargs, Mapping) else ())]
    parameters = getattr(module, "parameters", None)
    first = next(iter(parameters()), None) if callable(parameters) and hasattr(module, "forward") else None
    return "cuda" if any(getattr(x, "is_cuda", False) is True for x in (first, *inputs)) else "cpu"


def target_spec(target: str | TargetSpec, precision: str | None = None, *, pytorch: bool = False) -> TargetSpec:
    """The spec that a name stands for; on a GPU the precision of f32 products and convolutions are among its features. `pytorch`: where
    nothing else is said they are what PyTorch's switches say."""
    spec, config = _target_spec(target), load_config(precision=precision)
    if spec.kind != "cuda":
        return spec
    features = {"tf32", "tf32-conv"} if config.precision == "tf32" else set()
    if config.precision == "auto" and pytorch and "torch" in sys.modules:
        import torch

        features |= {"tf32-conv"} if torch.backends.cudnn.allow_tf32 else set()
        features |= {"tf32"} if torch.backends.cuda.matmul.allow_tf32 else set()
    return replace(spec, features=spec.features | features) if features else spec


def _target_spec(target: str | TargetSpec) -> TargetSpec:
    if isinstance(target, TargetSpec):
        return target
    if target == "reference":
        return REFERENCE
    if target == "cpu":
        from .target.cpu.host import host_target

        return host_target()
    if isinstance(target, str) and (target == "cuda" or target.startswith("sm_")):
        from .build.cuda import cuda_target_of

        return cuda_target_of(target)
    raise ConfigError(f"target: must be 'cpu', 'cuda', an architecture like 'sm_90a', or 'reference', got {target!r}")


def disabled(passes: Mapping[str, bool] | Collection[str] | None) -> tuple[str, ...]:
    """Names of the passes that `passes=` switches off."""
    if passes is None:
        return ()
    if isinstance(passes, str):
        return (passes,)
    if isinstance(passes, Mapping):
        return tuple(n for n, on in passes.items() if not on)
    if not isinstance(passes, Collection):
        raise ConfigError(f"passes: must be a mapping from names to booleans, or the names to leave out, got {passes!r}")
    return tuple(passes)


def import_model(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, dynamic: Mapping[str, Any] | None,
                 dynamic_shapes: Any, name: str | None, stages: Stages) -> tuple[Graph, Signature]:
    """A graph and the signature of its calls."""
    from .ir.graph import Graph

    with stages.stage("import"):
        if isinstance(module, Graph):
            return module, graph_signature(module)
        if _is_onnx(module):
            return _onnx_graph(module, dynamic, name)
        from .frontend.torch.importer import import_torch

        found = import_torch(module, args, kwargs, dynamic=dynamic, dynamic_shapes=dynamic_shapes, name=name)
        return found.graph, found.signature


def _onnx_graph(module: Any, dynamic: Any, name: str | None) -> tuple[Graph, Signature]:
    """An ONNX model that is one graph."""
    from .frontend.onnx.session import import_onnx

    if dynamic is not None:
        raise ConfigError("dynamic: an ONNX file names its symbolic sizes itself; leave it out")
    found = import_onnx(module, lambda graph: None, name=name)
    if found.graph is None or found.signature is None:
        why = "; ".join(found.program.notes) or "it has steps of the host"
        raise UnsupportedError(f"onnx: {found.program.name} is compiled as several segments and is no single graph: {why}")
    return found.graph, found.signature


def graph_signature(graph: Graph) -> Signature:
    """A graph is called with its inputs by position or name; several outputs come back as a tuple."""
    from .core.pytree import LEAF, Spec
    from .core.signature import Slot

    names = tuple(v.name for v in graph.inputs)
    outs = tuple(Slot(i) for i in range(len(graph.outputs)))
    out_spec = LEAF if len(outs) == 1 else Spec("tuple", (), (LEAF,) * len(outs))
    in_spec = Spec("tuple", (), (Spec("tuple", (), (LEAF,) * len(names)), Spec("dict")))
    return Signature(names, in_spec, out_spec, tuple(Slot(i) for i in range(len(names))), outs, names)


def compile_graph(graph: Graph, signature: Signature, target: TargetSpec, *, level: Level = "normal", dtype: DType | None = None,
                  disable: Collection[str] = (), threads: int | None = None, stages: Stages | None = None,
                  ahead: Ahead | None = None) -> Session:
    """Passes, then everything that depends on the target. `ahead` is memory for the packed weights."""
    from .ir import verify as _checks  # noqa: F401  registers the checks of graphs

    stages = Stages(graph.name, False) if stages is None else stages
    with stages.stage("passes"):
        graph, asked, log = through_passes(graph, target, level, dtype, disable)
    validate("passes", level, graph)
    model = Model(graph.name, graph, signature, target, level, stages.seconds, needs=asked)
    model.passes = {name: dict(hits) for name, hits in log.hits.items()}
    if dtype is not None and (cost := small_float_cost(dtype, target)):
        model.notes.append(cost)
    return build(model, threads=threads, stages=stages, ahead=ahead)


def through_passes(graph: Graph, target: TargetSpec, level: Level, dtype: DType | None,
                   disable: Collection[str]) -> tuple[Graph, tuple[Need, ...], Log]:
    """The graph after the passes, what the ops it had before ask of the symbols, and which rules were applied."""
    from .ir.windows import needs
    from .passes.base import Log
    from .passes.pipeline import run_pipeline

    log = Log()
    if dtype is not None:
        from .passes.convert_dtype import convert_dtype

        graph = convert_dtype(graph, dtype)
    asked = needs(graph)  # before passes take ops apart whose parts have rules of their own
    return run_pipeline(graph, target, disable, log, verify=level == "strict"), asked, log


def small_float_cost(dtype: DType, target: TargetSpec) -> str:
    """What a small float dtype costs on a CPU without products of it."""
    if target.kind != "cpu" or dtype.itemsize != 2 or (dtype.name == "bf16" and target.has_avx512bf16):
        return ""
    needs = "AVX-512 BF16" if dtype.name == "bf16" else "bf16 on a CPU with AVX-512 BF16"
    return (f"dtype {dtype.name}: numbers are widened to f32 when kernels read them, so weights and activations take half the memory and "
            f"products run at the speed of f32 or somewhat below; faster products of 16 bits need {needs}")


def build(model: Model, *, threads: int | None = None, stages: Stages | None = None, ahead: Ahead | None = None) -> Session:
    """Templates, machine code and packed weights for a graph that has been through the passes."""
    if model.target.kind == "reference":
        return Session(model, None)
    if model.target.kind == "cuda":
        from .build.cuda import build_cuda

        return build_cuda(model, Stages(model.name, False) if stages is None else stages)  # type: ignore[return-value]
    from .build.code import compile_kernels
    from .build.packing import pack_constants
    from .kernels.select import select
    from .plan.order import ordered
    from .runtime.executable import CpuExecutable

    if stages is None:  # a loaded session whose code cannot be used
        stages = Stages(model.name, False)
        model.stages = stages.seconds
    with stages.stage("select"):
        program = ordered(select(model.graph, model.target), model.graph.symbols())
    with Workers(1) as side:
        packing = side.submit(lambda: pack_constants(program.constants, ahead=ahead))  # LLVM and NumPy both work without the GIL
        with stages.stage("code"):
            code = compile_kernels([k for x in program.launches for k in x.kernels], model.target)
        with stages.stage("pack"):  # what is left of it
            constants = packing.result()
    with stages.stage("plan"):
        executable = CpuExecutable(program, model.interface, code, constants)
    model.notes += code.notes
    return Session(model, executable, threads=threads)


def load(path: str | PathLike[str], *, threads: int | None = None, trust: bool = False, digest: str | None = None,
         validation: str | None = None) -> Session:
    """Read a session that `session.save` wrote. Machine code in it runs only on the kind of CPU that it was saved on, and only when you
    trust it: it was saved with this user's key (`TILEWRIGHT_KEY_FILE`), the file has the `digest` that you pin (`tilewright digest` prints
    it; any other file is an error), or you say `trust=True`. Otherwise the stored graph is compiled again, and a warning says why."""
    from .runtime.archive.session import load as read

    level = check_level(load_config().validation if validation is None else validation)
    if threads is not None:
        load_config(threads=threads)
    return read(path, rebuild=_again, threads=threads, trust=trust, digest=digest, level=level)


def _again(model: Model, *, threads: int | None = None) -> Session:
    """A session of a graph that a file holds, which may have ops that its own target had kernels for, or that nobody's passes made."""
    from .passes.base import Log
    from .passes.decompose import Decompose

    model.source = Decompose(target=model.target).run(model.graph, Log())
    return build(model, threads=threads)
