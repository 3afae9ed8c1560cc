"""OpInfo samples through our frontend: many calls of one op make one module, which is imported, compiled and run as a user's would be.

torch.export costs more than a call does, so the samples of an op go through it in bundles: `Calls` is a module whose inputs are the
tensors of all its samples and whose outputs are the results of calling the op on each. It takes the user's path (`import_torch`, passes,
kernels, session). When a bundle fails as a whole (one sample cannot be imported, say), its samples are run alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from tests.opinfo.compare import Tolerance, describe, difference, reason, tolerance_of
from tilewright.compile import compile_graph, graph_signature, target_spec
from tilewright.core.errors import TilewrightError
from tilewright.core.signature import Slot
from tilewright.frontend.torch.importer import import_torch
from tilewright.passes.pipeline import recognized
from tilewright.transform.vjp import differentiable, vjp_graph

BUNDLE = 12
# torch may return the index of any of several equal elements: the elements are compared. Name -> the arguments behind the input.
ANY_OF_EQUALS = {"kthvalue": ("k", "dim", "keepdim"), "mode": ("dim", "keepdim"), "topk": ("k", "dim", "largest", "sorted")}
# Factors that are unique up to signs: what OpInfo makes of them to compare derivatives is compared.
UP_TO_SIGN = ("linalg.svd", "svd", "linalg.eigh")
IN_ANY_ORDER = ("linalg.eig", "linalg.eigvals")  # eigenvalues come in no order that torch promises: they are compared in order
MOST_REASONS = 3  # failing samples that are looked at one by one; the op has failed with the first


@dataclass
class Score:
    """How many samples were run and passed, and why others failed (at most a few are told)."""

    samples: int
    failed: int
    reasons: list[str]

    @property
    def passed(self) -> bool:
        return self.samples > 0 and not self.failed


class Call:
    """One sample: its tensors, and the rest of the arguments with holes for them."""

    def __init__(self, sample: Any, number: int = 0) -> None:
        self.sample, self.number = sample, number
        self.leaves, self.spec = _pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        self.holes = [i for i, x in enumerate(self.leaves) if isinstance(x, torch.Tensor)]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.leaves[i] for i in self.holes]

    def copies(self, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """Fresh leaves, that want gradients where the sample's do; floats in `dtype` where one is given."""
        made = []
        for t in self.tensors:
            copy = t.detach().clone()
            if dtype is not None and (copy.is_floating_point() or copy.is_complex()):
                copy = copy.to(dtype.to_complex() if copy.is_complex() else dtype)
            made.append(copy.requires_grad_(t.requires_grad))
        return made

    def __call__(self, fn: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
        """The leaves of the result."""
        filled = list(self.leaves)
        for i, t in zip(self.holes, tensors, strict=True):
            filled[i] = t
        args, kwargs = _pytree.tree_unflatten(filled, self.spec)
        return list(_pytree.tree_flatten(fn(*args, **kwargs))[0])


    def exact(self, fn: Callable[..., Any]) -> list[Any]:
        """The result for f64 inputs."""
        return self(fn, self.copies(torch.float64))


class Calls(torch.nn.Module):
    """The op on every sample: forward takes the tensors of all of them."""

    def __init__(self, fns: Sequence[Callable[..., Any]], calls: Sequence[Call]) -> None:
        super().__init__()
        self.fns, self.calls = list(fns), list(calls)

    def forward(self, *tensors: Any) -> list[list[Any]]:
        given = iter(tensors)
        return [call(fn, [next(given) for _ in call.holes]) for fn, call in zip(self.fns, self.calls, strict=True)]


def forward(op: Any, calls: Sequence[Call]) -> list[str | None]:
    """Per sample what is wrong with our results, or None."""
    fns = [_processed(op, call) if op.name in (*UP_TO_SIGN, *IN_ANY_ORDER) else op.op for call in calls]
    expected = [call(fn, call.copies()) for fn, call in zip(fns, calls, strict=True)]
    module = Calls(fns, calls)
    tensors = [t.detach() for call in calls for t in call.copies()]
    imported = import_torch(module, tuple(tensors), name="calls")
    session = compile_graph(imported.graph, imported.signature, target_spec("cpu"))
    got = session(*tensors)
    told, wider = [], tolerance_of(op)
    for fn, call, mine, theirs in zip(fns, calls, got, expected, strict=True):
        if op.name in ANY_OF_EQUALS:
            mine, theirs = (_at_index(call, op.name, v) for v in (mine, theirs))
        told.append(_first(call, mine, theirs, partial(call.exact, fn), wider))
    return told


def _at_index(call: Call, name: str, result: Sequence[Any]) -> list[Any]:
    """(values, indices) with the elements of the input at the indices instead of the indices."""
    x, given = call.sample.input, dict(zip(ANY_OF_EQUALS[name], call.sample.args, strict=False)) | call.sample.kwargs
    values, index = result
    if not isinstance(index, torch.Tensor) or index.dtype != torch.int64 or index.shape != values.shape:
        return [values, index]
    dim = given.get("dim", -1)
    wide = index if x.ndim == index.ndim else index.unsqueeze(dim)
    picked = torch.take_along_dim(x, wide, dim) if x.ndim else x
    return [values, picked.reshape(index.shape)]


def _first(call: Call, got: Sequence[Any], want: Sequence[Any], exact: Callable[[], list[Any]], wider: Tolerance) -> str | None:
    if len(got) != len(want):
        return f"{len(want)} results expected, got {len(got)}; {describe(call.sample)}"
    for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if isinstance(theirs, torch.Tensor):
            found = difference(mine, theirs, partial(_nth, exact, i), wider)
        else:
            found = None if mine == theirs else f"{theirs!r} expected, got {mine!r}"
        if found is not None:
            return f"{found}; {describe(call.sample)}"
    return None


def _nth(results: Callable[[], list[Any]], i: int) -> Any:
    return results()[i]


def _processed(op: Any, call: Call) -> Callable[..., Any]:
    """The op as OpInfo differentiates it: what it does to inputs and outputs to make the derivative unique is part of it."""

    def fn(*args: Any, **kwargs: Any) -> Any:
        out = op.gradcheck_wrapper(op.op, *args, **kwargs)
        return call.sample.output_process_fn_grad(_ordered(out) if op.name in IN_ANY_ORDER else out)

    return fn


def _ordered(out: Any) -> Any:
    """Eigenvalues (and vectors) by real part, then by imaginary part."""
    values = out if isinstance(out, torch.Tensor) else out[0]
    order = torch.argsort(values.imag, stable=True)
    order = torch.take_along_dim(order, torch.argsort(torch.take_along_dim(values.real, order, -1), stable=True), -1)
    turned = torch.take_along_dim(values, order, -1)
    return turned if values is out else (turned, torch.take_along_dim(out[1], order[..., None, :], -1))


def _torch_gradients(fn: Any, call: Call, seeds: dict[int, torch.Tensor] | None, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """(cotangents by output leaf, gradients of the tensors that want one)."""
    tensors = call.copies(dtype)
    outputs = call(fn, tensors)
    moved = [i for i, x in enumerate(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    if seeds is None:
        seeds = {i: torch.randn_like(outputs[i]) for i in moved}
    wanted = [t for t in tensors if t.requires_grad]
    if not moved or not wanted:
        return {}, []
    found = torch.autograd.grad([outputs[i] for i in moved], wanted, [seeds[i].to(outputs[i].dtype) for i in moved], allow_unused=True)
    return seeds, [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]


def _exact_gradients(fn: Any, call: Call, seeds: dict[int, torch.Tensor]) -> list[Any]:
    return list(_torch_gradients(fn, call, seeds, torch.float64)[1])


def gradient(op: Any, calls: Sequence[Call]) -> list[str | None]:
    """Per sample what is wrong with our gradients (of all float inputs, with random cotangents), or None."""
    fns = [_processed(op, call) for call in calls]
    pairs = []
    for fn, call in zip(fns, calls, strict=True):
        _seeded(op.full_name, call.number)  # the same cotangents alone and in any bundle
        pairs.append(_torch_gradients(fn, call, None))
    tensors = [t.detach() for call in calls for t in call.copies()]
    imported = import_torch(Calls(fns, calls), tuple(tensors), name="calls")
    graph, slots = imported.graph, imported.signature.outputs
    sums: dict[int, torch.Tensor] = {}
    place = 0
    with torch.no_grad():
        module_outputs = [call(fn, call.copies()) for fn, call in zip(fns, calls, strict=True)]
        for (seeds, _), outs in zip(pairs, module_outputs, strict=True):
            for i in range(len(outs)):
                slot = slots[place + i]
                if isinstance(slot, Slot) and i in seeds:
                    sums[slot.index] = sums[slot.index] + seeds[i] if slot.index in sums else seeds[i]
            place += len(outs)
    graph = recognized(graph)
    wanted = [t.requires_grad for call in calls for t in call.tensors]
    seeded = [i in sums and differentiable(v) for i, v in enumerate(graph.outputs)]
    made, found = vjp_graph(graph, wanted, seeds=seeded)
    got: list[Any] = []
    if made.outputs:
        session = compile_graph(made, graph_signature(made), target_spec("cpu"))
        got = list(_pytree.tree_flatten(session(*tensors, *(sums[i] for i, s in enumerate(seeded) if s)))[0])
    hits, results = iter(found), iter(got)
    told: list[str | None] = []
    absolute, relative = tolerance_of(op)
    wider = absolute, max(relative, 1e-5)  # a gradient is a longer computation than what it is of
    for fn, call, (seeds, theirs) in zip(fns, calls, pairs, strict=True):
        wants = [t for t in call.tensors if t.requires_grad]
        mine = [next(results) if next(hits) else torch.zeros_like(t) for t in wants]
        told.append(_first(call, mine, theirs, partial(_exact_gradients, fn, call, seeds), wider) if theirs else None)
    return told


def _seeded(text: str, seed: int) -> None:
    torch.manual_seed(seed + sum(map(ord, text)))


def samples_of(op: Any, dtype: torch.dtype, requires_grad: bool, seed: int = 0) -> list[Call]:
    """The op's samples, the same for the same seed."""
    import random

    import numpy as np

    _seeded(op.full_name, seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - OpInfo's generators draw from it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [Call(s, i) for i, s in enumerate(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))]


def run(check: Callable[[Any, Sequence[Call]], list[str | None]], op: Any, calls: Sequence[Call], seed: int = 0,
        bundle: int = BUNDLE) -> Score:
    """Run a check over the samples in bundles; where one fails as a whole, over its samples alone."""
    score = Score(len(calls), 0, [])
    for part in _bundles(calls, bundle):
        for told in _tried(check, op, part, seed):
            if told is not None:
                score.failed += 1
                if len(score.reasons) < MOST_REASONS and told not in score.reasons:
                    score.reasons.append(told)
        if len(score.reasons) >= MOST_REASONS:
            break
    return score


def _tried(check: Any, op: Any, part: Sequence[Call], seed: int) -> Iterator[str | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _seeded(op.full_name, seed)
            yield from check(op, part)
            return
        except Exception as e:
            if len(part) == 1:
                yield f"{reason(e)}; {describe(part[0].sample)}"
                return
    failures = 0
    for call in part:
        for told in _tried(check, op, [call], seed):
            failures += told is not None
            yield told
        if failures >= MOST_REASONS:
            return


def _bundles(calls: Sequence[Call], size: int) -> Iterator[list[Call]]:
    """Bundles of samples, in order; large tensors (a few samples have them) make a bundle full sooner."""
    part: list[Call] = []
    for call in calls:
        part.append(call)
        if len(part) == size or sum(t.numel() for c in part for t in c.tensors) > 1 << 20:
            yield part
            part = []
    if part:
        yield part


def _raised(op: Any, call: Call) -> Exception | None:
    """What torch says to a call."""
    try:
        call(op.op, call.copies())
    except Exception as e:
        return e
    return None


COMPLAINTS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)  # what torch raises for wrong arguments


def wrong_kind(error: Exception, theirs: Exception) -> str | None:
    """Why an error is no answer to a wrong call, or None: it must be one of ours, raised on purpose. Where we pass on what torch said while
    it exported the call, that must be a complaint as torch's own is, or the same class, and not something that export cannot do."""
    if not isinstance(error, TilewrightError):
        return f"{type(error).__name__} from inside: {error}"
    cause = error.__cause__
    if cause is None or type(cause) in COMPLAINTS or type(cause) is type(theirs):
        return None
    if type(cause) is AssertionError and str(cause):  # some of torch's rules are assertions with a text
        return None
    return f"{type(cause).__name__} while exporting, {type(theirs).__name__} expected: {error}"


def errors(op: Any) -> Score:
    """The op's error samples: importing, compiling or running each must raise an error of the right kind. Left out are samples that torch
    itself accepts (some are meant for its references) and those about memory to write to (`out=`), which a compiled program does not
    take."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _seeded(op.full_name, 0)
        found = [Call(e.sample_input) for e in op.error_inputs("cpu")] if op.error_inputs_func is not None else []
        pairs = [(c, e) for c in found if "out" not in c.sample.kwargs and (e := _raised(op, c)) is not None]
        score = Score(len(pairs), 0, [])
        for call, theirs in pairs:
            try:
                tensors = tuple(t.detach() for t in call.copies())
                imported = import_torch(Calls([op.op], [call]), tensors, name="calls")
                compile_graph(imported.graph, imported.signature, target_spec("cpu"))(*tensors)
            except Exception as e:
                told = wrong_kind(e, theirs)
            else:
                told = "an error expected"
            if told is not None:
                score.failed += 1
                score.reasons.append(f"{told[:300]}; {describe(call.sample)}")
    score.reasons = score.reasons[:MOST_REASONS]
    return score
