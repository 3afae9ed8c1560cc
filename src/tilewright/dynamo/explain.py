"""`tilewright.explain(model, inputs)`: what the backend makes of a model, which ops run in PyTorch, and their share of the time."""
from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError
from ..core.extras import need
from .backend import Compiled, SplitWarning, tilewright, watching


@dataclass(frozen=True)
class Foreign:
    """An op that runs in PyTorch: how often it stands in the graphs, where first, why, and its part of the time of all calls."""

    op: str
    count: int
    place: str
    reason: str
    share: float


@dataclass(frozen=True)
class Part:
    """One graph of AOTAutograd: `kind` is inference, forward or backward; `steps` are its parts, `splits` those that PyTorch runs."""

    kind: str
    nodes: int
    kernels: int
    steps: int
    splits: int
    compile_seconds: float


@dataclass(frozen=True)
class Explanation:
    """Print it. `share` is the part of the time of all graphs that PyTorch's ops take; `breaks` are graphs beyond the first, which dynamo
    makes where it cannot go on."""

    parts: tuple[Part, ...]
    foreign: tuple[Foreign, ...]
    share: float
    breaks: int

    def __str__(self) -> str:
        splits = sum(p.splits for p in self.parts)
        lines = [f"{len(self.parts)} graph{'s' * (len(self.parts) != 1)}, {splits} parts in PyTorch: {100 * self.share:.1f} % of the time"]
        for p in self.parts:
            lines.append(f"  {p.kind}: {p.nodes} nodes, {p.kernels} kernels, {p.steps} part{'s' * (p.steps != 1)}, compiled in "
                         f"{p.compile_seconds:.2f} s")
        if self.foreign:
            lines.append("ops that run in PyTorch:")
            for f in self.foreign:
                where = f" (first at {f.place})" if f.place else ""
                lines.append(f"  {f.op} x{f.count}, {100 * f.share:.1f} %{where}: {f.reason}")
        if not self.parts:
            lines.append("  dynamo found no graph: everything runs in PyTorch (TORCH_LOGS=graph_breaks says why)")
        return "\n".join(lines)


def explain(model: Any, inputs: Any = (), kwargs: Mapping[str, Any] | None = None, *, train: bool = False, calls: int = 3,
            options: Mapping[str, Any] | None = None) -> Explanation:
    """Compile `model` as `torch.compile(model, backend="tilewright", options=options)` does, call it on the inputs, and say what became of
    it. With `train` the sum of the results is differentiated too. The model's gradients stay as they are; buffers that it updates move on.

    print(tilewright.explain(model, (x,)))
    """
    need("torch", "explain")
    import torch

    if not callable(model):
        raise InputError(f"explain: needs a module or a function, got a {type(model).__name__}")
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    kept = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    compiled: Any = torch.compile(model, backend=lambda module, found: tilewright(module, found, options=options))

    leaves_of: Any = torch.utils._pytree.tree_leaves

    def call() -> None:
        mode: Any = torch.enable_grad if train else torch.no_grad
        with mode():
            out = compiled(*args, **dict(kwargs or {}))
            if train:
                leaves = [t for t in leaves_of(out) if isinstance(t, torch.Tensor) and t.requires_grad]
                if not leaves:
                    raise InputError("explain: train=True, and no result depends on anything that requires a gradient")
                total: Any = torch.stack([t.abs().sum().float() for t in leaves]).sum()
                total.backward()

    try:
        with warnings.catch_warnings(), watching() as found:
            warnings.simplefilter("ignore", SplitWarning)
            call()
        with _timed(found) as spent:
            for _ in range(calls):
                call()
    finally:
        for p, grad in zip(parameters, kept, strict=True):
            p.grad = grad
    return _explanation(found, spent)


class _timed:
    """Clocks around every step of these graphs; seconds by step."""

    def __init__(self, found: Sequence[Compiled]) -> None:
        self.found = found
        self.steps: dict[Any, float] = {}

    def __enter__(self) -> _timed:
        self.before = [(c, c.call, [(s, s.run) for s in c.steps]) for c in self.found]
        for c, call, steps in self.before:
            for step, run in steps:
                step.run = self._clocked(step, run)
            if len(steps) == 1 and call is steps[0][1]:  # nothing between the call and its only step
                c.call = steps[0][0].run
        return self

    def __exit__(self, *_: object) -> None:
        for c, call, steps in self.before:
            c.call = call
            for step, run in steps:
                step.run = run

    def _clocked(self, step: Any, run: Any) -> Any:
        import torch

        cuda: Any = torch.cuda
        done = cuda.synchronize if cuda.is_available() and cuda.is_initialized() else lambda: None

        def clocked(args: list[Any]) -> Any:
            done()
            start = time.perf_counter()
            out = run(args)
            done()
            self.steps[step] = self.steps.get(step, 0.0) + time.perf_counter() - start
            return out

        return clocked


def _explanation(found: Sequence[Compiled], spent: _timed) -> Explanation:
    total = sum(spent.steps.values()) or 1.0
    ops: dict[str, list[Any]] = {}
    for c in found:
        for step in c.steps:
            if step.ours:
                continue
            share = spent.steps.get(step, 0.0) / total / max(1, len(step.refusals))
            for node, refusal in step.refusals.items():
                ops.setdefault(str(node.target), []).append((refusal, share))
    foreign = [Foreign(op, len(rows), rows[0][0].place, rows[0][0].reason, sum(s for _, s in rows)) for op, rows in ops.items()]
    parts = tuple(Part(c.kind, sum(len(s.nodes) for s in c.steps), sum(_kernels(s.session) for s in c.steps), len(c.steps), c.splits,
                       c.seconds) for c in found)
    firsts = sum(c.kind != "backward" for c in found)
    return Explanation(parts, tuple(sorted(foreign, key=lambda f: -f.share)), sum(f.share for f in foreign), max(0, firsts - 1))


def _kernels(session: Any) -> int:
    executable = getattr(session, "executable", None)
    return len(getattr(executable, "launches", ())) if executable is not None else 0
