"""Masks that follow from positions become attributes of attention: `causal` with its offset, `window`; a mask of all True goes."""
from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..core.dims import Dim, at_least, at_most
from ..core.dtypes import DType
from ..ir.graph import Graph, Value
from ..ir.rewrite import Match, P, Rule, rule
from .analyze import Forms
from .base import Log, Pass, hides, scalar
from .forms import Choice, Linear, conjunction, number


@dataclass
class Found:
    """What a mask says: bounds on the indices, and what remains as an operand (None: nothing)."""

    bounds: tuple[Linear, ...] = ()
    rest: Value | None = None


def split_mask(mask: Value, forms: Forms) -> Found:
    """A boolean mask as bounds that follow from positions, and the rest; logical-and, expansion and casts are looked through."""
    known = conjunction(forms.of(mask))
    if known is True:
        return Found()
    if known is not None and known is not False:
        return Found(known)
    node = mask.node
    if isinstance(node.op, o.Expand) or (isinstance(node.op, o.Cast) and node.operands[0].dtype.is_bool):
        return split_mask(node.operands[0], forms)
    if isinstance(node.op, (o.LogicalAnd, o.BitwiseAnd)):
        a, b = (split_mask(v, forms) for v in node.operands)
        if (a.rest, b.rest) == node.operands:
            return Found(a.bounds + b.bounds, mask)
        rest = a.rest if b.rest is None else b.rest if a.rest is None else o.LogicalAnd()(a.rest, b.rest)
        return Found(a.bounds + b.bounds, rest)
    return Found((), mask)


@dataclass
class Position:
    """causal/offset/window as found so far."""

    causal: bool
    offset: Dim
    window: int | None

    def take(self, bounds: tuple[Linear, ...], queries: Dim) -> tuple[Linear, ...]:
        """Absorb what fits; returns the bounds that remain."""
        left = list(bounds)
        for b in bounds:
            c = (0, 0, *b.coeffs)[-2:]
            below = c == (1, -1) or (queries == 1 and c == (0, -1))  # i - j + offset >= 0
            if not below or any(k != 0 for k in b.coeffs[:-2]):
                continue
            if not self.causal or self.offset == b.const:
                self.causal, self.offset = True, b.const
                left.remove(b)
        for b in list(left):
            c = (0, 0, *b.coeffs)[-2:]
            above = c == (-1, 1) or (queries == 1 and c == (0, 1))  # j - i + k >= 0: j > i + offset - window
            if not self.causal or not above or any(k != 0 for k in b.coeffs[:-2]):
                continue
            window = b.const + 1 + self.offset
            if isinstance(window, int) and window >= 1 and self.window in (None, window):
                self.window = window
                left.remove(b)
        return tuple(left)

    def leaves_a_key(self, queries: Dim, keys: Dim) -> bool:
        """Provably no row is fully masked."""
        if not self.causal or not at_least(self.offset, 0):
            return not self.causal and at_least(keys, 1)
        return at_least(keys, 1) and (self.window is None or at_most(queries + self.offset - self.window - keys, -1))


def split_bias(bias: Value, forms: Forms, dtype: DType) -> tuple[Found, bool] | None:
    """A bias that is 0 or minus infinity as a mask, and whether its -inf is only a number that hides every score of `dtype`; None: it is
    something else."""
    form = forms.of(bias)
    if number(form) == 0:
        return Found(), False
    if isinstance(form, Choice) and form.bounds:
        hidden = form.no if form.yes == 0 else form.yes if form.no == 0 else 0.0
        known = conjunction(form.map(lambda v: v == 0))
        if hides(hidden, dtype) and isinstance(known, tuple):
            return Found(known), hidden != float("-inf")
    node = bias.node
    if isinstance(node.op, (o.Expand, o.Cast)):
        return split_bias(node.operands[0], forms, dtype)
    if isinstance(node.op, o.Where):
        cond, yes, no = node.operands
        values = scalar(yes), scalar(no)
        if values == (0, float("-inf")):
            return split_mask(cond, forms), False
        if values == (float("-inf"), 0):
            return split_mask(o.LogicalNot()(cond), forms), False
    return None


def absorb(attention: Any, forms: Forms) -> Value | None:
    op = attention.op
    q, k, v, *more = attention.operands
    mask = more.pop(0) if op.has_mask else None
    bias = more.pop(0) if op.has_bias else None
    at = Position(op.causal, op.offset, op.window)
    queries, keys = q.shape[2], k.shape[2]
    changed = False
    never = op.hidden == -math.inf
    if mask is not None:
        found = split_mask(mask, forms)
        trial = dataclasses.replace(at)
        taken = not trial.take(found.bounds, queries) and found.rest is not mask
        if taken and (never or (found.rest is None and hides(op.hidden, q.dtype) and trial.leaves_a_key(queries, keys))):
            at, mask, changed = trial, found.rest, True
    if bias is not None and (mask is None or never):  # a finite number would take the place of -inf where both hide a key
        split = split_bias(bias, forms, bias.dtype)
        if split is not None:
            found, finite = split
            trial = dataclasses.replace(at)
            left = trial.take(found.bounds, queries)
            if not left and (not finite or (found.rest is None and mask is None and trial.leaves_a_key(queries, keys))):
                at, bias, changed = trial, None, True
                if found.rest is not None:
                    mask = found.rest if mask is None else o.LogicalAnd()(mask, found.rest)
    if not changed:
        return None
    new = dataclasses.replace(op, causal=at.causal, offset=at.offset, window=at.window,
                              has_mask=mask is not None, has_bias=bias is not None,
                              hidden=op.hidden if op.has_mask and mask is not None else -math.inf)
    return o.emit(new, q, k, v, *(x for x in (mask, bias) if x is not None))


@rule(P(o.Attention, name="attention"), changes="hidden")
def positional_mask(attention: Any, m: Match) -> Value | None:
    return absorb(attention, m.known) if attention.op.has_mask or attention.op.has_bias else None


@rule(P(o.Attention, name="attention"))
def unexpanded_mask(attention: Any) -> Value | None:
    """Masks and biases broadcast by themselves."""
    q, k, v, *more = attention.operands
    if not any(isinstance(x.op, o.Expand) for x in more):
        return None
    return o.emit(attention.op, q, k, v, *(x.node.operands[0] if isinstance(x.op, o.Expand) else x for x in more))


@dataclass(frozen=True)
class AbsorbMasks(Pass):
    """Before: attention nodes may read masks (True = attend) or additive biases.
    After: the part of a mask or 0/-inf bias that depends on positions only, constant or computed for any length, is `causal`, `offset`
    and `window`; masks of all True and biases of all 0 are gone; what came with the call stays an operand."""

    name: ClassVar[str] = "absorb-masks"
    rules: ClassVar[tuple[Rule, ...]] = (positional_mask, unexpanded_mask)

    def run(self, graph: Graph, log: Log) -> Graph:
        if any(isinstance(n.op, o.Attention) and (n.op.has_mask or n.op.has_bias) for n in graph.nodes):
            super().run(graph, log)
        return graph

    def known(self, graph: Graph) -> Forms:
        return Forms(graph)
