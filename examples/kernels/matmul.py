"""Matrix products: tiles for the tensor cores of a GPU, and blocks for the caches of a CPU."""
from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import lang as tl

WIDTH = (4 if tl.registers() >= 32 else 2) * tl.lanes()  # six rows of it, and two registers more, fit the vector registers


@tw.kernel("T[M, K], T[K, N] -> T[M, N]", grid=lambda M, N, BM, BN: (tl.cdiv(M, BM), tl.cdiv(N, BN)), warps=8)
def matmul_tiles(a, b, c, *, BM=128, BN=128, BK=64):
    """One tile of the result a program: what a GPU wants."""
    i, j = tl.program_id(0), tl.program_id(1)
    rows, columns = a.partition(BM, BK), b.partition(BK, BN)
    acc = tl.zeros((BM, BN), tl.f64 if a.dtype == tl.f64 else tl.f32)
    for k in range(rows.count[1]):
        acc = tl.mma(rows[i, k], columns[k, j], acc)
    c.partition(BM, BN)[i, j] = acc


def matmul_gpu(a, b):
    """The largest tiles of which there are enough for the SMs of a GPU. Rows and columns of wide tiles are read less often."""
    m, n = a.shape[0], b.shape[1]
    sizes = ((128, 256), (128, 128), (128, 64), (64, 64))
    bm, bn = next((s for s in sizes if tl.cdiv(m, s[0]) * tl.cdiv(n, s[1]) >= 100), sizes[-1])
    return matmul_tiles(a, b, BM=bm, BN=bn)


@tw.kernel("T[M, K], T[K, N] -> T[M, N]", grid=lambda M, N, BM, BN: (tl.cdiv(M, BM), tl.cdiv(N, BN)))
def matmul(a, b, c, *, BM=132, BN=WIDTH, BK=512, ROWS=6):
    """A block of rows and a panel of columns a program: what a CPU wants. The panel is copied where the cache keeps it."""
    top, left = tl.program_id(0) * BM, tl.program_id(1) * BN
    wide = tl.f64 if a.dtype == tl.f64 else tl.f32
    panel, sums = tl.scratch((BK, BN), wide), tl.scratch((BM, BN), wide)
    height, depth = min(BM, c.shape[0] - top), a.shape[1]
    for r in range(0, height, ROWS):
        sums.store((r, 0), tl.zeros((ROWS, BN), wide))
    for start in range(0, depth, BK):
        stop = min(start + BK, depth)
        for k in range(start, stop):
            panel.store((k - start, 0), b.load((k, left), (1, BN)).to(wide))
        for r in range(0, height, ROWS):
            acc = sums.load((r, 0), (ROWS, BN))
            for k in tl.range(start, stop, unroll=4):
                acc = tl.mma(a.load((top + r, k), (ROWS, 1)).to(wide), panel.load((k - start, 0), (1, BN)), acc)
            sums.store((r, 0), acc)
    for r in range(0, height, ROWS):
        c.store((top + r, left), sums.load((r, 0), (ROWS, BN)))


def main() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((301, 517), np.float32), rng.standard_normal((517, 203), np.float32)
    np.testing.assert_allclose(matmul(a, b), a.astype(np.float64) @ b, rtol=1e-4, atol=1e-3)
    print("matmul: 301 x 517 x 203 agrees with float64")


if __name__ == "__main__":
    main()
