"""Convolution on a GPU without matrix units for its dtype: the shared kernel with small programs, one a thread.

Neighbouring threads take neighbouring stretches of a line, so that pixels are read side by side; all of them read the same weights, which
come from the first-level cache once for a warp.
"""

from __future__ import annotations

from ...core.dims import Dim
from ...core.target_spec import TargetSpec
from ..conv import Blocking, Conv
from ..launch import Launch
from ..region import Region
from .groups import shared_launch

MOST_ROWS = 8  # result channels of a thread
BYTES = 16  # of pixels of a thread


class CudaConv(Conv):
    def blocking(self, target: TargetSpec, channels: Dim, last: Dim, itemsize: int) -> Blocking:
        assert isinstance(channels, int)
        rows = next(r for r in range(MOST_ROWS, 0, -1) if channels % r == 0)
        width = BYTES // itemsize
        while isinstance(last, int) and width > 1 and width >= 2 * last:
            width //= 2
        return Blocking(width, rows, unrolled=True)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [shared_launch(launch) for launch in super().build(region, target)]
