"""What the GPU benchmarks share: random data, sessions, timing of CUDA graphs in turn, the table."""

from __future__ import annotations

import fcntl
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import tilewright as tw
from tilewright.core.dtypes import DType, bf16, bool_, f8e4m3, f16, f32, f64, i8, i64
from tilewright.ir.graph import Graph, Value
from tilewright.ir.types import TensorType

BF16 = torch.bfloat16
DTYPES: dict[torch.dtype, DType] = {
    BF16: bf16, torch.float16: f16, torch.float32: f32, torch.float64: f64, torch.int64: i64, torch.int8: i8, torch.float8_e4m3fn: f8e4m3,
    torch.bool: bool_,
}  # fmt: skip


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=BF16)


def session(fn: Callable[..., Any], *tensors: torch.Tensor, target: str = "cuda", precision: str | None = None) -> Any:
    """Compile a graph of inputs shaped like these tensors."""
    g = Graph("bench")
    out = fn(*(g.input(TensorType(DTYPES[t.dtype], tuple(t.shape)), f"x{i}") for i, t in enumerate(tensors)))
    g.outputs = [out] if isinstance(out, Value) else list(out)
    return tw.compile(g, target=target, precision=precision)


def captured(call: Callable[[], Any], times: int) -> Callable[[], None]:
    """A CUDA graph of `times` calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph.replay


def ours(compiled: Any, *tensors: torch.Tensor) -> tuple[Callable[[], None], Any]:
    """A call that only launches the kernels, and the result of a first call."""
    result = compiled(*tensors)
    schedule = compiled.schedule({})
    keep = (result, tensors)
    return lambda _=keep: schedule.run_singly(torch.cuda.current_stream().cuda_stream), result


def timed(replays: dict[str, Callable[[], Any]], times: int, repeats: int = 15) -> dict[str, float]:
    """Median microseconds of one of the `times` calls that each replay makes, taken in turn."""
    taken: dict[str, list[float]] = {name: [] for name in replays}
    for replay in replays.values():
        replay()
    for _ in range(repeats):
        for name, replay in replays.items():
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            replay()
            stop.record()
            torch.cuda.synchronize()
            taken[name].append(start.elapsed_time(stop) * 1000 / times)
    return {name: statistics.median(values) for name, values in taken.items()}


def measure(contenders: dict[str, Callable[[], Any]], times: int, repeats: int = 15) -> dict[str, float]:
    """Median microseconds of one call of each, captured and taken in turn."""
    return timed({name: captured(call, times) for name, call in contenders.items()}, times, repeats)


@contextmanager
def alone(after: str = "") -> Iterator[None]:
    """One process at a time; with a file named, none before it is there."""
    if after:
        print("prepared", flush=True)
    while after and not os.path.exists(after):
        time.sleep(0.05)
    with open(os.path.join(tempfile.gettempdir(), "gpu.lock"), "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def slowest(profile: Any, count: int) -> Iterator[str]:
    """The launches that take most time, beside predictions."""
    yield f"    {len(profile.rows)} launches, {sum(x['us'] for x in profile.rows):.1f} us apart, {profile.total_us:.1f} together"
    for x in sorted(profile.rows, key=lambda x: -x["us"])[:count]:
        yield (f"    {x['us']:8.1f} us, predicted {x['predicted_us']:7.1f}, {100 * x['roofline']:3.0f} % by {x['bound']:6s} "
               f"{x['grid']} x {x['block']} {x['name'][:60]} [{x['kernel'][:40]}] {x['reason'] or ''}")


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


class Table:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, times: dict[str, float], *, flops: float = 0, nbytes: float = 0, err: float = math.nan) -> None:
        mine = times["ours"]
        peers = {k: v for k, v in times.items() if k != "ours"}
        best = min(peers.values(), default=mine)
        rate = f"{flops / mine / 1e6:.0f} TFLOP/s" if flops else f"{nbytes / mine / 1e3:.0f} GB/s"
        self.rows.append({"row": name, "us": mine, "ratio": best / mine, "rate": rate, "peers": peers, "error": err})
        others = "  ".join(f"{k} {v:.1f}" for k, v in peers.items())
        print(f"{name:42s} {mine:9.1f} us  {rate:>14s}  x{best / mine:.3f}  error {err:.1e}   {others}", flush=True)
