"""A first kernel: z = x + y, a tile at a time."""
from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import lang as tl


@tw.kernel("T[N], T[N] -> T[N]", grid=lambda N, BLOCK: tl.cdiv(N, BLOCK))
def vector_add(x, y, z, *, BLOCK=1024):
    i = tl.program_id(0)
    xs, ys, zs = x.partition(BLOCK), y.partition(BLOCK), z.partition(BLOCK)
    zs[i] = xs[i] + ys[i]


def main() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 1_000_003), np.float32)
    np.testing.assert_array_equal(vector_add(x, y), x + y)
    print("vector_add: 1,000,003 sums are NumPy's")


if __name__ == "__main__":
    main()
