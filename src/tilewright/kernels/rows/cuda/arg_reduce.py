"""Indices of extremes on a GPU: the shared kernel on as many threads as a row has work for, or on one for each of some columns."""

from __future__ import annotations

from dataclasses import replace

from ....core.dims import bounds
from ....core.target_spec import TargetSpec
from ...cuda.groups import ONE_THREAD, on_threads, shared_launch
from ...launch import Launch
from ...region import Region
from ..reduce import ArgKernel, ArgReduce, reduced_length


class CudaArgReduce(ArgReduce):
    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        longest = bounds(reduced_length(region.node))[1]
        threads = next(t for most, t in ((512, 32), (1 << 14, 256), (float("inf"), 1024)) if longest <= most)
        kernel = ArgKernel(region, replace(target, vector_bits=32 * threads // 4))  # its tile is four times as wide
        launch = kernel.launch()
        if kernel.columns:
            return [shared_launch(launch)]
        launch.kernel = on_threads(launch.kernel, min(threads, kernel.tile), max(1, ONE_THREAD // threads))
        return [launch]
