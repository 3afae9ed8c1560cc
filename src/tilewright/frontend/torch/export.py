"""Run torch.export with our dynamic dims, and turn its errors into ours."""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...core.dims import UNBOUNDED, Expr, Symbol, symbols
from ...core.dynamic import Axis, linear
from ...core.errors import CompileError, ConfigError
from ...core.files import open_file, reader_of
from . import replace
from .recurrences import scans

WEIGHTS = "weights alone say nothing of what is computed: make the module, call module.load_state_dict(...), and compile that"


def parameters(module: Any) -> tuple[str, ...]:
    """Names of the positional parameters of a module's forward (or of a callable)."""
    target = getattr(module, "forward", module)
    try:
        found = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def as_module(target: Any) -> Any:
    """torch.export wants an nn.Module: a plain callable becomes one, with the same signature."""
    import torch

    if isinstance(target, torch.nn.Module):
        return target
    body = target
    if isinstance(target, types.FunctionType):
        # export records source lines only for frames called "forward": a copy of the function under that name keeps its places
        body = types.FunctionType(
            target.__code__.replace(co_name="forward"), target.__globals__, "forward", target.__defaults__, target.__closure__
        )
        body.__kwdefaults__ = target.__kwdefaults__

    class Function(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return body(*args, **kwargs)

    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        pass
    else:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        setattr(Function.forward, "__signature__", signature.replace(parameters=[own, *signature.parameters.values()]))  # noqa: B010
    module = Function().eval()
    owner = getattr(target, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        module.owner = owner  # a bound method: its module's parameters keep their names
    return module


_own_lock = threading.RLock()


def tracing_lock() -> Any:
    """torch traces one model at a time: its tracers keep in globals what they are at. This is the lock that torch.compile holds while it
    traces; a torch without it gets one of ours."""
    from torch._dynamo import convert_frame

    return getattr(convert_frame, "compile_lock", _own_lock)


if hasattr(os, "register_at_fork"):
    # A child of a process that was tracing on another thread would wait for ever. (Where torch's module is not loaded nobody traces.)
    os.register_at_fork(after_in_child=lambda: tracing_lock()._at_fork_reinit() if "torch._dynamo.convert_frame" in sys.modules else None)


def read_program(path: Any) -> Any:
    """The ExportedProgram that `torch.export.save` wrote. PyTorch reads it with pickle: the file must be trusted."""
    import torch

    try:
        with os.fdopen(open_file(path, subject="import_torch", error=CompileError), "rb") as file, warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            return torch.export.load(file)
    except CompileError:
        raise
    except Exception as e:  # any class, by what the file holds
        raise CompileError(f"import_torch: {os.fspath(path)!r} is no program that torch.export.save wrote; {WEIGHTS}") from e


def refuse(target: Any) -> None:
    """Raise an error for what no frontend reads; it needs no torch to say so."""
    if isinstance(target, (str, os.PathLike)):
        path = os.fspath(target)
        if not os.path.exists(path):
            hint = reader_of(path, ".pt2", otherwise="give a module, a function, an ExportedProgram or its file")
            raise CompileError(f"compile: there is no file {path!r}{hint}")
        if hint := reader_of(path, ".pt2"):
            raise CompileError(f"compile: {path!r} is no program that torch.export.save wrote{hint}")
    elif not callable(target) and type(target).__name__ != "ExportedProgram":
        kinds = "a torch.nn.Module, a function, an ExportedProgram or an ONNX file"
        weights = isinstance(target, dict) and any(type(v).__name__ in ("Tensor", "Parameter") for v in target.values())
        raise CompileError(f"compile: takes {kinds}, got {type(target).__name__}{f'; {WEIGHTS}' if weights else ''}")


def run_export(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any) -> Any:
    """The ExportedProgram of a module or callable, in the mode (train or eval) that it is in."""
    import torch

    module = as_module(target)
    replace.no_look_at_masks()
    args, kwargs = _distinct(module, (args, dict(kwargs)))
    try:
        with warnings.catch_warnings(), torch.no_grad(), replace.mode(), replace.experts(), scans(), _quiet():
            warnings.simplefilter("ignore")
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as e:  # torch.export raises many classes of its own; all mean the same to the user
        raise CompileError(explain(e)) from e


@contextmanager
def _quiet() -> Iterator[None]:
    """torch logs the whole way to an error that we pass on in one line, and prints its graph; its distributions look at their arguments'
    data."""
    import torch
    import torch.export._trace as tracer

    logs = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "torch.export", "torch.fx.experimental.symbolic_shapes")]
    distributions = torch.distributions.Distribution
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    checked = distributions._validate_args
    distributions.set_default_validate_args(False)
    tracer.__dict__["print"] = lambda *_, **__: None
    try:
        yield
    finally:
        tracer.__dict__.pop("print", None)
        for log, was in zip(logs, before, strict=True):
            log.disabled = was
        distributions.set_default_validate_args(checked)


def _distinct(module: Any, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """The example inputs with no tensor twice, and none of the module's own: export takes one tensor for one input, also where a later
    call gives two (compiled as attention(x, x, x), called as attention(q, k, v))."""
    import torch
    from torch.utils import _pytree as pytree

    seen = {id(t) for t in (*module.parameters(), *module.buffers())}

    def own(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) in seen:
            x = x.detach().clone()
        seen.add(id(x))
        kept.append(x)
        return x

    kept: list[Any] = []  # an id is a tensor's only while it lives
    return pytree.tree_map(own, inputs)


_NOISE = (
    "For more information",
    "The error above occurred",
    "Suggested fixes",
    "consider using",
    "Caused by",
    "If you suspect",
    "For extended",
)


_OWN_NAMES = re.compile(r"L\['(\w+)'\]((?:\[[^\]]*\])*)\.size\(\)\[(\d+)\]")  # torch's L['x'].size()[0] is the user's x.shape[0]


# What torch raises for a wrong call; what export cannot do has classes of its own
COMPLAINTS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError, AttributeError)
# but for these, which say that a tensor has no data while it is traced (x.numpy(), ops without a fake kernel)
_TRACED = re.compile(r"tensor subclass|fake impl|fake tensor|meta kernel|data pointer|torch\.compile|tracing", re.IGNORECASE)


def _frames(error: Exception) -> list[tuple[str, int]]:
    """The lines of the model that an error passed, outermost first."""
    ours = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    return [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)
            if not f.filename.startswith((ours, "<", _torch_folder(), inspect.__file__))]


def _torch_folder() -> str:
    import torch

    return os.path.dirname(torch.__file__) + os.sep


def explain(error: Exception) -> str:
    """One readable message: the first useful lines of torch's text, the place, and what to do."""
    text = _OWN_NAMES.sub(r"\1\2.shape[\3]", str(error))
    lines = [line.strip(" -\t") for line in text.splitlines()]
    useful = [line for line in lines if line and not line.startswith(_NOISE)] or [type(error).__name__]
    head = re.sub(r"\s*For more information, run with .*$", "", useful[0])
    if head.startswith("Constraints violated") and len(useful) > 1:
        head = f"{head} {useful[1]}"
    advice = "rewrite that part of the model so that torch.export accepts it (torch.export.draft_export lists every problem)"
    if type(error) in COMPLAINTS and not _TRACED.search(text):
        advice = "the model does not run on these example inputs"
    fixes = re.search(r"Suggested fixes:\n((?:  .*\n?)+)", text)
    if fixes:
        asked = "; ".join(line.strip() for line in fixes[1].strip().splitlines())
        fixed = re.fullmatch(r"(\w+) = (\d+)", asked)
        advice = f"declare the dims as torch suggests: {asked}"
        if fixed:
            advice = f"the model works for {asked} only: leave {fixed[1]} out of dynamic="
        head = head.partition(" If you're using")[0]
    elif "must always be equal" in head:
        advice = "use one Dim for both"
    elif "missing a required argument" in head:
        advice = "give example inputs for it: tw.compile(model, (x, ...))"
    elif "not a known type" in text:
        head = head.partition(". If this type")[0]
        advice = "return tensors in tuples, lists and dicts (a Hugging Face model: set config.use_cache = False)"
    elif "data-dependent" in text or "data dependent" in text:
        advice = ("control flow and sizes may not depend on tensor values; use torch.where, move that part out of the model, or use "
                  "torch.compile(model, backend='tilewright'), which leaves such parts to PyTorch")
    frames = re.findall(r'File "([^"]+)", line (\d+)', text)
    own = [f for f in frames if not f[0].startswith(_torch_folder())] or _frames(error)
    place = f" ({own[-1][0].rsplit('/', 1)[-1]}:{own[-1][1]})" if own else ""
    return f"torch.export: {head.rstrip('.! ')}; {advice}{place}"


def translate(dynamic: Any) -> Any:
    """Our `dynamic` tree as torch's dynamic_shapes: every Expr becomes a torch.export.Dim (or a linear form of one)."""
    import torch

    made: dict[Symbol, Any] = {}

    def dim(e: Expr) -> Any:
        if len(e.symbols) != 1:
            raise ConfigError(f"dynamic: a dim must use one symbol, got {e}")
        (root,) = e.symbols
        if root not in made:
            if any(root.name == other.name for other in made):
                raise ConfigError(f"dynamic: two dims are called {root.name} but have different ranges; use one Dim")
            made[root] = torch.export.Dim(root.name, min=root.lo, max=None if root.hi >= UNBOUNDED else root.hi)
        factor, offset = linear(e)
        out = made[root] if factor == 1 else factor * made[root]
        return out if offset == 0 else out + offset

    def walk(t: Any) -> Any:
        if isinstance(t, Expr):
            return dim(t)
        if isinstance(t, Mapping):
            return {k: walk(v) for k, v in t.items()}
        if isinstance(t, (tuple, list)):
            return type(t)(walk(v) for v in t)
        return t

    return walk(dynamic)


def complete(tree: Any, values: Any) -> Any:
    """The declaration with None for every entry of a dict that it leaves out: torch wants the whole structure."""
    if isinstance(values, Mapping) and (tree is None or isinstance(tree, Mapping)):
        return {k: complete((tree or {}).get(k), v) for k, v in values.items()}
    if isinstance(values, (tuple, list)) and (tree is None or (isinstance(tree, (tuple, list)) and len(values) == len(tree))):
        made = [complete(t, v) for t, v in zip(tree or [None] * len(values), values, strict=True)]
        return tuple(made) if isinstance(values, tuple) else made
    return tree


def grown_sizes(found: list[Axis]) -> dict[Symbol, int]:
    """Example sizes for symbols whose example is 0 or 1: export would fix those, so we trace with a larger one."""
    sizes: dict[Symbol, int] = {}
    for a in found:
        if not isinstance(a.dim, Expr):
            continue
        (root,) = symbols(a.dim)
        factor, offset = linear(a.dim)
        given = a.tensor.shape[a.axis]
        size = (given - offset) // factor
        if sizes.setdefault(root, size) != size or given != factor * size + offset:
            raise ConfigError(f"dynamic: {a.where} is {given}, which does not fit {a.dim} with {root}={sizes[root]}")
        if not root.lo <= size <= root.hi:
            raise ConfigError(f"dynamic: {a.where}: the example has {root}={size}, outside {root.lo}..{root.hi}")
    return {s: min(max(3, s.lo), s.hi) for s, n in sizes.items() if n < 2 <= s.hi}
