"""Gaussian splatting: prepare, rasterize, forward, forward and backward, from 10^4 to 10^6 Gaussians.

    python benchmarks/splats.py                     the table at 800x800
    python benchmarks/splats.py --cpu-time          time of the calling thread, with TILEWRIGHT_THREADS=1: for a busy machine
    python benchmarks/splats.py --counts 100000 --size 1920x1080
    python benchmarks/splats.py --device cuda --size 1920x1080 --profile

Gaussians fill a ball that the camera sees whole, with standard deviations of 1 to 6 pixels at 800x800. A row has the times (minimum of the
runs), the entries of all tile lists, and nanoseconds an entry: what should not grow with the number of Gaussians.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw


def scene(count: int, width: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=(count, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    arrays = (direction * rng.uniform(0, 1, (count, 1)) ** (1 / 3), np.exp(rng.uniform(np.log(0.004), np.log(0.02), (count, 3))),
              rng.normal(size=(count, 4)), rng.uniform(0.1, 1, count), rng.normal(size=(count, 16, 3)) * 0.2)
    camera = tw.splat.look_at((0, 1, -2.6), width=width, height=width, fov=53)
    return [*(a.astype(np.float32) for a in arrays), camera.view]


def least(fn: Callable[[], Any], runs: int, clock: Callable[[], float], wait: Callable[[], None]) -> float:
    """Milliseconds of the fastest run."""
    fn()
    best = float("inf")
    for _ in range(runs):
        wait()
        start = clock()
        fn()
        wait()
        best = min(best, clock() - start)
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="10000,30000,100000,300000,1000000")
    parser.add_argument("--size", default="800x800")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--profile", action="store_true", help="also the time of every launch of the largest scene (cuda)")
    args = parser.parse_args()
    width, height = (int(v) for v in args.size.split("x"))
    clock = time.thread_time if args.cpu_time else time.perf_counter
    put, wait = placed(args.device)
    k = np.array([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1]], np.float32)
    size: dict[str, Any] = {"width": width, "height": height}
    cotangent = put(np.random.default_rng(1).normal(size=(height, width, 3)).astype(np.float32))
    print(f"{'Gaussians':>10} {'entries':>11} {'prepare':>9} {'raster':>9} {'forward':>9} {'both':>9} ms {'fwd':>8} {'both':>8} ns/entry")
    for count in (int(c) for c in args.counts.split(",")):
        operands = [put(a) for a in (*scene(count, width), k)]
        # a little more than the default where large scenes need it
        options: dict[str, Any] = {**size, "capacity": count * 16 + (1 << 18)}
        prepare = tw.jit(lambda *a, o=options: tw.splat_prepare(*a, **o))
        raster = tw.jit(lambda v: tw.splat_rasterize(v, **size))
        forward = tw.jit(lambda *a, o=options: tw.splat_render(*a, **o))
        both = tw.jit(tw.grad(lambda g, *a, o=options: tw.sum(tw.splat_render(*a, **o).color * g), argnums=tuple(range(1, 8))))
        view = prepare(*operands)
        entries = int(view.starts[0, -1])
        calls = [partial(prepare, *operands), partial(raster, view), partial(forward, *operands), partial(both, cotangent, *operands)]
        times = [least(fn, args.runs, clock, wait) for fn in calls]
        shown = " ".join(f"{t:9.3f}" for t in times)
        print(f"{count:10,} {entries:11,} {shown}    {times[2] * 1e6 / entries:8.2f} {times[3] * 1e6 / entries:8.2f}", flush=True)
    if args.profile:
        print(raster.lower(view).profile(*view))
        print(both.lower(cotangent, *operands).profile(cotangent, *operands))


def placed(device: str) -> tuple[Callable[[Any], Any], Callable[[], None]]:
    """How an array comes to a device, and how to wait for it."""
    if device == "cpu":
        return lambda x: x, lambda: None
    import torch

    return lambda x: torch.from_numpy(x).cuda(), torch.cuda.synchronize


if __name__ == "__main__":
    main()
