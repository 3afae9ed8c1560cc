"""Time an ONNX file beside ONNX Runtime and OpenVINO, where they are installed, on random inputs of the declared shapes.

    tilewright bench model.onnx
    tilewright bench ops --wide      in a checkout: our own workloads, single ops and passes, which benchmarks/bench.py times
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError, UnsupportedError
from ..core.files import append_text
from .console import console
from .timing import Call, measure, ratio

if TYPE_CHECKING:
    from rich.console import Console

NUMPY = {"float": "float32", "double": "float64", "bool": "bool"}


def of_repository(argv: Sequence[str]) -> int | None:
    """The exit code of the checkout's own benchmarks where the words ask for them, or None."""
    script = Path(__file__).resolve().parents[3] / "benchmarks" / "bench.py"
    if not argv or {"-h", "--help"} & set(argv) or any(word.endswith(".onnx") for word in argv) or not script.exists():
        return None
    return subprocess.run([sys.executable, str(script), *argv], check=False).returncode


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="ONNX files")
    parser.add_argument("--rounds", type=int, default=11, help="rounds a file (default: 11)")
    parser.add_argument("--json", metavar="F", help="append one JSON object a row to this file")


def run(args: argparse.Namespace) -> int:
    if args.rounds < 1:
        raise ConfigError(f"bench: rounds must be at least 1, got {args.rounds}")
    for path in args.models:
        row = run_onnx(console(), path, args.rounds)
        if args.json:
            append_text(args.json, json.dumps(row) + "\n", subject="bench")
    return 0


def random_inputs(args: list[Any], size: int) -> list[Any]:
    """Arrays for a model's inputs; symbolic sizes are 1 at the front and `size` elsewhere."""
    import numpy as np

    rng = np.random.default_rng(0)
    found = []
    for a in args:
        kind = a.type.removeprefix("tensor(").removesuffix(")")
        if not a.type.startswith("tensor(") or kind == "string":
            raise UnsupportedError(f"bench: input {a.name!r} is a {a.type}; only tensors of numbers can be drawn")
        shape = [d if isinstance(d, int) else 1 if i == 0 else size for i, d in enumerate(a.shape)]
        dtype = np.dtype(NUMPY.get(kind, kind))
        found.append(rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else rng.integers(0, 2, shape).astype(dtype))
    return found


def contenders(path: str, threads: int | None) -> tuple[dict[str, Call], dict[str, float]]:
    """name -> a call, and the seconds from the file to the first result."""
    from ..onnx import InferenceSession

    ready: dict[str, float] = {}
    start = time.perf_counter()
    ours = InferenceSession(path)
    xs = random_inputs(ours.get_inputs(), 16)
    ours.session(*xs)
    ready["tilewright"] = time.perf_counter() - start
    feed = {a.name: x for a, x in zip(ours.get_inputs(), xs, strict=True)}
    calls: dict[str, Call] = {"tilewright": lambda: ours.session(*xs)}
    try:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = ours.session.threads if hasattr(ours.session, "threads") else 0
        options.log_severity_level = 4
        start = time.perf_counter()
        theirs = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        theirs.run(None, feed)
        ready["onnxruntime"] = time.perf_counter() - start
        calls["onnxruntime"] = lambda: theirs.run(None, feed)
    except ImportError:
        pass
    try:
        import openvino as ov

        start = time.perf_counter()
        request = ov.Core().compile_model(path, "CPU", {"PERFORMANCE_HINT": "LATENCY"}).create_infer_request()
        request.infer(xs)
        ready["openvino"] = time.perf_counter() - start
        calls["openvino"] = lambda: request.infer(xs, share_inputs=True, share_outputs=True)
    except ImportError:
        pass
    return calls, ready


def run_onnx(out: Console, path: str, rounds: int) -> dict[str, Any]:
    calls, ready = contenders(path, None)
    times = measure(calls, rounds=rounds)
    row: dict[str, Any] = {"name": path}
    for name, found in times.items():
        us = statistics.median(found) * 1e6
        row[name] = us
        versus = "" if name == "tilewright" else f"  ratio {ratio(times['tilewright'], found)}"
        out.print(f"{name:12} {us:12.1f} us a call, {ready[name]:.2f} s to the first result{versus}")
    return row
