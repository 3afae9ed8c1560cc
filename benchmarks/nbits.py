"""Products with weights in groups of four or eight bits (ONNX `MatMulNBits`) beside ONNX Runtime's, and beside PyTorch's product in f32.

    python benchmarks/nbits.py [--level 4] [rows …]     one thread; alternating calls, least CPU time of each

At accuracy level 4 both round activations to eight bits.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw

ROWS = (1, 4, 16, 64, 256)
SHAPES = ((2048, 2048, 4, 32), (2048, 2048, 8, 32), (4096, 1024, 4, 128), (1024, 4096, 4, 16))  # n, k, bits, group


def model(n: int, k: int, bits: int, group: int, level: int) -> tuple[bytes, Any]:
    """A file of one product, and its weights in f32."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << bits, (n, k // group, group)).astype(np.uint8)
    scales = (rng.random((n, k // group)) / 50 + 0.01).astype(np.float32)
    packed = values if bits == 8 else values[..., ::2] | (values[..., 1::2] << 4)
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=k, N=n, bits=bits, block_size=group,
                            accuracy_level=level)
    graph = helper.make_graph(
        [node], "nbits", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", n])],
        [numpy_helper.from_array(np.ascontiguousarray(packed), "w"), numpy_helper.from_array(scales.reshape(-1), "s")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    file: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return file, ((values.astype(np.float32) - (1 << (bits - 1))) * scales[..., None]).reshape(n, k)


def least(calls: dict[str, Any], seconds: float = 1.0) -> dict[str, float]:
    """CPU time of this thread: others on the machine do not count."""
    found = dict.fromkeys(calls, float("inf"))
    end, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or rounds < 5:
        for name, call in calls.items():
            start = time.thread_time()
            call()
            found[name] = min(found[name], time.thread_time() - start)
        rounds += 1
    return found


def main() -> None:
    import onnxruntime
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, default=0)
    parser.add_argument("rows", type=int, nargs="*", default=ROWS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for n, k, bits, group in SHAPES:
        file, weights = model(n, k, bits, group, args.level)
        peer = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        ours, w = tw.compile(file, threads=1), torch.from_numpy(weights)
        for rows in args.rows:
            x = np.random.default_rng(1).standard_normal((rows, k)).astype(np.float32)
            got, want = np.asarray(ours(x)), x.astype(np.float64) @ weights.T.astype(np.float64)
            error = np.abs(got - want).max() / np.abs(want).max()
            there = torch.from_numpy(x)
            times = least({"ours": partial(ours, x), "ort": partial(peer.run, None, {"x": x}),
                           "torch": partial(torch.nn.functional.linear, there, w)})
            us = {name: t * 1e6 for name, t in times.items()}
            print(f"{rows:4d} rows, {n}x{k}, {bits} bits in groups of {group:3d}: {us['ours']:9.0f} us, ONNX Runtime {us['ort']:9.0f} "
                  f"({us['ort'] / us['ours']:.2f}), f32 in PyTorch {us['torch']:9.0f} ({us['torch'] / us['ours']:.2f}), error {error:.0e}",
                  flush=True)


if __name__ == "__main__":
    main()
