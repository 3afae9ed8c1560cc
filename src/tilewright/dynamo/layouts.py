"""Strided tensors of torch as dense memory: the order in which a tensor's axes lie in memory, and which of them are broadcast."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.dims import Dim
from ..ir.graph import Graph, Value
from ..ops import Expand, Transpose


@dataclass(frozen=True)
class Layout:
    """Axis `order[k]` of the tensor is axis k of its memory; axes in `broadcast` have one element there."""

    order: tuple[int, ...]
    broadcast: frozenset[int] = frozenset()

    @property
    def plain(self) -> bool:
        return self.order == tuple(range(len(self.order))) and not self.broadcast

    def memory(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The shape of the memory."""
        return tuple(1 if a in self.broadcast else shape[a] for a in self.order)

    def logical(self, graph: Graph, stored: Value, shape: Sequence[Dim]) -> Value:
        """The tensor, from the value that its memory holds."""
        if self.broadcast:
            stored = graph.add(Expand(shape=tuple(shape[a] for a in self.order)), stored).value
        back = tuple(self.order.index(a) for a in range(len(self.order)))
        return stored if back == tuple(range(len(back))) else graph.add(Transpose(perm=back), stored).value

    def stored(self, graph: Graph, value: Value) -> Value:
        """What the memory must hold, from the tensor (which has no broadcast axes)."""
        return value if self.order == tuple(range(len(self.order))) else graph.add(Transpose(perm=self.order), value).value


def layout_of(shape: Sequence[Dim], strides: Sequence[Dim], hint: Callable[[Dim], int | None]) -> Layout | None:
    """The layout of a tensor without gaps and overlaps; None for any other. `hint` guesses the value of a dim: only orders are guessed
    with it, what is found is proven."""
    rank = len(shape)
    plain = tuple(range(rank))
    if any(n == 0 for n in shape):
        return Layout(plain)
    broadcast = frozenset(a for a in plain if strides[a] == 0 and shape[a] != 1)
    wide = [a for a in plain if shape[a] != 1 and a not in broadcast]
    sizes = {a: hint(strides[a]) for a in wide}
    order = sorted(wide, key=lambda a: -(sizes[a] or 0)) if all(s is not None for s in sizes.values()) else wide
    step: Dim = 1
    for a in reversed(order):
        if strides[a] != step:
            return None
        step = step * shape[a]
    if order == wide:
        return Layout(plain, broadcast)
    rest = [a for a in plain if a not in order]
    return Layout((*rest, *order), broadcast)
