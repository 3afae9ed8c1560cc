"""Shorter arithmetic on a GPU for results of 16 bits, where the full one would cost more than moving the numbers.

GELU is x times the normal distribution, whose lower tail is 2^P(|x|) with a polynomial P: a relative error of 4e-5 down to -6, where the
formula with erf has lost all digits to cancellation; half a unit of bf16 is 4e-3, of f16 5e-4 (which has no numbers below 6e-8).
Infinities and NaN come out as they do there.
"""

from __future__ import annotations

from ....core.dtypes import f32
from ....ops.base import Op
from ....ops.pointwise.activations import Gelu, Silu
from ....tile.builder import Tile
from ...region import Evaluator, Region

# log2 of the normal distribution at -a: minimax on [0, 6], falling for ever after
_TAIL = (-0.9999958276748657, -1.1512376070022583, -0.458515465259552, -0.05389075353741646, 0.008464887738227844,
         -0.0009173023863695562, 5.964222873444669e-05, -1.7240382703676005e-06)  # fmt: skip


class ShortEvaluator(Evaluator):
    def lower(self, op: Op, tiles: list[Tile]) -> Tile:
        x = tiles[0]
        if x.dtype is f32 and isinstance(op, Gelu) and op.approximate == "none":
            return x * self._normal(x)
        if x.dtype is f32 and isinstance(op, Silu):
            return x * self.b.unary("sigmoid", x, short=True)
        return super().lower(op, tiles)

    def _normal(self, x: Tile) -> Tile:
        b = self.b
        a = b.unary("abs", x)
        power = b.full(x.shape, _TAIL[-1], f32)
        for c in _TAIL[-2::-1]:
            power = b.fma(power, a, b.full(x.shape, c, f32))
        tail = b.unary("exp2", power, short=True)
        return b.select(b.cmp("gt", x, 0.0), 1.0 - tail, tail)


def evaluator(region: Region) -> type[Evaluator]:
    """The evaluator for a region's results."""
    return ShortEvaluator if all(r.type.dtype.name in ("bf16", "f16") for r in region.results) else Evaluator
