"""A five-point stencil: every inner point of a grid becomes the mean of its neighbours."""
from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import lang as tl


@tw.kernel("T[H, W] -> T[H - 2, W - 2]", grid=lambda H, ROWS: tl.cdiv(H - 2, ROWS))
def stencil(x, y, *, ROWS=4, BLOCK=2 * tl.lanes()):
    top = tl.program_id(0) * ROWS
    for left in range(0, y.shape[1], BLOCK):
        up, down = x.load((top, left + 1), (ROWS, BLOCK)), x.load((top + 2, left + 1), (ROWS, BLOCK))
        west, east = x.load((top + 1, left), (ROWS, BLOCK)), x.load((top + 1, left + 2), (ROWS, BLOCK))
        y.store((top, left), (up + down + west + east) * 0.25)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((123, 457), np.float32)
    want = (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) * np.float32(0.25)
    np.testing.assert_allclose(stencil(x), want, rtol=1e-6)
    print("stencil: 121 x 455 means are NumPy's")


if __name__ == "__main__":
    main()
