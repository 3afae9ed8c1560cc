"""A five-point stencil: every inner point of a grid becomes the mean of its neighbours."""
from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import lang as tl

WIDTH = tl.by_target(cpu=4 * tl.lanes(), cuda=1024)  # four vector registers, or eight elements a thread


@tw.kernel("T[H, W] -> T[H - 2, W - 2]", grid=lambda H: H - 2)
def stencil(x, y, *, BLOCK=WIDTH):
    row = tl.program_id(0)
    above, here, below = x[row], x[row + 1], x[row + 2]
    for t in y[row].partition(BLOCK):
        left, whole = t.start[0], not t.is_edge
        up, down = above.load(left + 1, BLOCK, inside=whole), below.load(left + 1, BLOCK, inside=whole)
        west, east = here.load(left, BLOCK, inside=whole), here.load(left + 2, BLOCK, inside=whole)
        t.store((up + down + west + east) * 0.25)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((123, 457), np.float32)
    want = (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) * np.float32(0.25)
    np.testing.assert_allclose(stencil(x), want, rtol=1e-6)
    print("stencil: 121 x 455 means are NumPy's")


if __name__ == "__main__":
    main()
