"""Calls of a small model while other processes keep every core busy: ours with all threads and with one, beside PyTorch and ONNX Runtime.

    python benchmarks/contention.py [--hogs 2] [--seconds 4]

A thread pool that waits at a barrier for a thread without a core waits for the scheduler; what is shown is the median and the worst call.
"""
from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable

import torch

import tilewright as tw


def _burn() -> None:
    while True:
        sum(range(100_000))


def _calls(call: Callable[[], object], seconds: float) -> list[float]:
    call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hogs", type=int, default=os.cpu_count() or 1, help="busy processes beside this one")
    parser.add_argument("--seconds", type=float, default=4.0, help="time of each contender")
    options = parser.parse_args()
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()
    x = torch.randn(1, 64, 256)
    ours, alone = tw.compile(model, (x,)), tw.compile(model, (x,), threads=1)
    contenders: dict[str, Callable[[], object]] = {"tilewright": lambda: ours(x), "tilewright, one thread": lambda: alone(x)}

    def eager() -> object:
        with torch.inference_mode():
            return model(x)

    contenders["eager"] = eager
    try:
        import onnxruntime

        buffer = io.BytesIO()
        torch.onnx.export(model, (x,), buffer, dynamo=False)  # type: ignore[no-untyped-call]
        session = onnxruntime.InferenceSession(buffer.getvalue())
        feed = {session.get_inputs()[0].name: x.numpy()}
        contenders["onnxruntime"] = lambda: session.run(None, feed)
    except ImportError:
        print("onnxruntime is not installed: not shown")
    for hogs in (0, options.hogs):
        others = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(hogs)]
        for process in others:
            process.start()
        print(f"{hogs} busy processes:")
        for name, call in contenders.items():
            times = _calls(call, options.seconds)
            print(f"  {name:24s} median {statistics.median(times):8.2f} ms  mean {statistics.fmean(times):8.2f}  worst {max(times):8.1f}  "
                  f"({len(times)} calls)", flush=True)
        for process in others:
            process.kill()


if __name__ == "__main__":
    main()
