"""Singular values by one-sided Jacobi rotations: vectors lie in rows, so that every loop runs along registers.

The shorter side's vectors (columns of a tall matrix, rows of a wide one) are rotated in pairs until all are orthogonal; their lengths are
then the singular values, and the rotations, applied to the identity, the other side's vectors. Vectors shorter than the rounding error of
the whole matrix are left alone and replaced by unit vectors orthogonal to all others. Sweeps over all pairs stop when one changes nothing;
their number is bounded. A small matrix is one program, all in local memory; larger ones are rotated on all threads (`svd_blocks.py`).
Matrices without rows or columns take no launch.
"""

from __future__ import annotations

import numpy as np

from ...core.dims import product
from ...core.dtypes import i64
from ...core.target_spec import TargetSpec
from ...ops.linalg.spectra import Svd as SvdOp
from ...tile.builder import Ix
from ..launch import Launch
from ..region import Region
from ..template import Reason, Template, alone, region_bytes, region_flops
from .matrices import Columns, Matrices, nothing, vector
from .spectra import rank_of, sign_of
from .svd_blocks import Blocks
from .svd_rotations import GROUP, Step, finish, floor_of, orthogonalise, take

SMALL = 64  # vectors of a matrix that is one program


class Svd(Template):
    key = "svd"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, SvdOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        a = region.operands[0]
        *lead, m, n = a.type.shape
        assert isinstance(m, int) and isinstance(n, int)
        if m == 0 or n == 0:
            return nothing(region.name, region.results)
        tall = m >= n
        few, many = min(m, n), max(m, n)
        dtype = a.type.dtype
        width = vector(dtype, target)
        width *= 2 if few >= 2 * width else 1  # several registers at a time, where vectors are that long
        if few > SMALL:
            return Blocks(region, tall, few, many, vector(dtype, target), width).launches()
        w = Matrices("svd", region.name, tuple(lead))
        b = w.b
        av, values = w.read("a", a), w.write("s", region.results[0])
        u, vt = (w.write(s, o) for s, o in zip("uv", region.results[1:], strict=True)) if len(region.results) > 1 else (None, None)
        count, length = w.call.word("few", few), w.call.word("many", many)
        at = w.at(b.pid)
        rank = len(at)
        x = Columns(b, dtype, few, many, width)
        y = None if u is None else Columns(b, dtype, few, few, width)
        power = take(b, av, at, tall, x, y, count, length)
        eps = float(np.finfo(dtype.np).eps)
        floor = floor_of(b, x, count, length, many, eps)
        norms, order, moving = Columns(b, dtype, 1, few, width), b.scratch(i64, (few,)), b.scratch(i64, (1,))
        orthogonalise(Step(b, x, y, norms, order, moving, 0, count, length, many, eps, floor, min(GROUP, few + few % 2)))
        s = Columns(b, dtype, 1, few, width)
        finish(b, x, y, s, count, length, floor, many)

        def write(i: Ix) -> None:
            place = rank_of(b, s, i, count, descending=True)
            b.store(values, (*at, place), s.one(0, i) * power)
            if y is not None and u is not None and vt is not None:
                left, right = (x, y) if tall else (y, x)
                long, short = (length, count) if tall else (count, length)
                sign = sign_of(b, left, i, long)
                with b.loop(0, long, width) as part:
                    b.store(u, (*at, part.index, place), left.get(i, part.index) * sign, axes=(rank,), limit=(long - part.index,))
                with b.loop(0, short, width) as part:
                    b.store(vt, (*at, place, part.index), right.get(i, part.index) * sign, limit=(short - part.index,))

        with b.loop(0, count) as row:
            write(row.index)
        return [w.call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]
