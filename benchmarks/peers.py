"""The contenders that benchmarks can time beside us, each made ready from a PyTorch module."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.cli.timing import Call

Inputs = tuple[Any, ...]


def eager(module: Any, inputs: Inputs, threads: int) -> Call:
    return lambda: module(*inputs)


def compiled(module: Any, inputs: Inputs, threads: int) -> Call:
    import torch
    import torch._inductor.config

    torch._dynamo.reset()
    torch._inductor.config.freezing = True  # constants folded and weights packed, as we do
    fn = torch.compile(module)
    return lambda: fn(*inputs)


def onnxruntime(module: Any, inputs: Inputs, threads: int) -> Call:
    import onnxruntime as ort

    with exported(module, inputs) as path:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for meta, x in zip(session.get_inputs(), inputs, strict=True):
        binding.bind_cpu_input(meta.name, x.numpy())
    for meta in session.get_outputs():
        binding.bind_output(meta.name)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return [v.numpy() for v in binding.get_outputs()]

    return call


def openvino(module: Any, inputs: Inputs, threads: int) -> Call:
    import openvino as ov

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    with exported(module, inputs) as path:
        request = ov.Core().compile_model(path, "CPU", config).create_infer_request()
    values = [x.numpy() for x in inputs]
    return lambda: list(request.infer(values, share_inputs=True, share_outputs=True).values())


PEERS: dict[str, Callable[[Any, Inputs, int], Call]] = {"eager": eager, "compile": compiled, "ort": onnxruntime, "openvino": openvino}


@contextmanager
def exported(module: Any, inputs: Inputs) -> Iterator[str]:
    """The module as an ONNX file while the block runs."""
    import torch

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        path = os.path.join(folder, "model.onnx")
        torch.onnx.export(module, inputs, path, dynamo=True, verbose=False, external_data=True)
        yield path
