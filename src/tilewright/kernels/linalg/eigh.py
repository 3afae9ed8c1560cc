"""Symmetric eigenvalues: reduction to a tridiagonal matrix by reflections, then implicit QL.

The values alone, and small matrices, are one program a matrix, all in local memory, where matrix and vectors lie in rows, so that
reflections and rotations run along registers. Larger ones with vectors keep reflections and rotations and apply them afterwards, to slices
of all vectors on all threads (`eigh_vectors.py`). The tridiagonal numbers are f64. Matrices of no rows take no launch.
"""

from __future__ import annotations

import numpy as np

from ...core.dims import product
from ...core.dtypes import f64
from ...core.target_spec import TargetSpec
from ...ops.linalg.spectra import Eigh as EighOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..launch import Launch
from ..region import Region
from ..template import Reason, Template, alone, region_bytes, region_flops
from .eigh_ql import Rotate, ql
from .eigh_tridiagonal import product_of, symmetric, tridiagonal
from .eigh_vectors import Vectors
from .matrices import Columns, Matrices, nothing, padded, vector
from .spectra import rank_of, sign_of

SMALL = 48  # rows of a matrix whose vectors one program computes


class EighTemplate(Template):
    key = "eigh"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, EighOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        a = region.operands[0]
        *lead, _, n = a.type.shape
        assert isinstance(n, int)
        if n == 0:
            return nothing(region.name, region.results)
        if n > SMALL and len(region.results) > 1:
            return Vectors(region, target, n).launches()
        w = Matrices("eigh", region.name, tuple(lead))
        b, width = w.b, vector(a.type.dtype, target)
        av, values = w.read("a", a), w.write("w", region.results[0])
        vectors = w.write("v", region.results[1]) if len(region.results) > 1 else None
        size = w.call.word("n", n)
        at = w.at(b.pid)
        rows = Columns(b, a.type.dtype, n, n, width)
        power = symmetric(b, av, at, rows, size)
        d = Columns(b, f64, 1, n, vector(f64, target))
        e = b.scratch(f64, (padded(n + 1, vector(f64, target)),))
        keep = vectors is not None
        v, taus = Columns(b, a.type.dtype, n + 1 if keep else 2, n, width), b.scratch(a.type.dtype, (n,))
        tridiagonal(b, rows, d, e, v, taus, size, n, keep=keep)
        z = Columns(b, a.type.dtype, n, n, width) if keep else None
        if z is not None:
            product_of(b, z, v, taus, size)
        ql(b, d, e, size, n, float(np.finfo(a.type.dtype.np).eps), rotate=None if z is None else rotate_rows(b, z, size))
        _write(b, d, power, z, size, values, vectors, at)
        return [w.call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]


def rotate_rows(b: KernelBuilder, z: Columns, size: Ix) -> Rotate:
    """Rotations of whole rows of z, at once."""
    def rotate(i: Ix | int, _: Ix, s: Tile, c: Tile) -> None:
        sine, cosine = b.cast(s, z.dtype), b.cast(c, z.dtype)

        def part(k: Ix) -> None:
            x, y = z.get(i, k), z.get(i + 1, k)
            z.put(i + 1, k, b.fma(cosine, y, sine * x))
            z.put(i, k, b.fma(-sine, y, cosine * x))

        z.each(0, size, part)

    return rotate


def _write(b: KernelBuilder, d: Columns, power: Tile, z: Columns | None, size: Ix, values: View, vectors: View | None,
           at: list[Ix | int]) -> None:
    with b.loop(0, size) as loop:
        i = loop.index
        place = rank_of(b, d, i, size)
        dtype = values.type.dtype
        b.store(values, (*at, place), b.cast(d.one(0, i) * power, dtype))
        if z is not None and vectors is not None:
            sign = sign_of(b, z, i, size)
            with b.loop(0, size, z.width) as part:
                b.store(vectors, (*at, part.index, place), z.get(i, part.index) * sign, axes=(len(at),), limit=(size - part.index,))
