"""Resident memory stays flat: compiles, calls, shapes, loads of a model, generations, each repeated after a warm-up.

`python -m tests.campaigns leaks:FULL` repeats each as often as `COUNTS` says; the short form does a part of it.
"""

from __future__ import annotations

import ctypes
import gc
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import lang as tl
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.ir.types import TensorType
from tilewright.ops import functions as F
from tilewright.ops.base import single

from .engine.campaign import MB, Campaign

COUNTS = {"compiles": 1000, "calls": 100_000, "shapes": 1000, "eager_shapes": 1000, "loads": 30, "generations": 10_000, "saves": 300,
          "arrays": 20_000, "kernels": 300, "onnx": 100}  # fmt: skip
SLACK = 6 * MB  # what allocators and caches of a fixed size may still take after the warm-up


@dataclass(frozen=True)
class Case:
    what: str
    share: float


def small(rng: np.random.Generator) -> Case:
    return Case(str(rng.choice(list(COUNTS))), 0.04)


def full(rng: np.random.Generator) -> Case:
    return Case(str(rng.choice(list(COUNTS))), 1.0)


def resident() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def check(case: Case) -> None:
    count = max(3, int(COUNTS[case.what] * case.share))
    with tempfile.TemporaryDirectory() as folder:
        step = WORK[case.what](Path(folder))
        for i in range(max(2, count // 3)):
            step(i)
        before = resident()
        for i in range(count):
            step(i + count)
        grown = resident() - before
    assert grown < SLACK + 200 * count ** 0.5, f"{count} {case.what} left {grown / MB:.1f} MB behind"


def compiles(_: Path) -> Any:
    x = np.ones((7, 9), np.float32)

    def step(i: int) -> None:
        with tw.compile(single(lambda g, v: F.add(F.exp(v[0]), float(i)), TensorType(dt.f32, (7, 9)))) as session:
            session(x)

    return step


def session_of_rows() -> Any:
    weights = np.ones((32, 32), np.float32)
    return tw.compile(single(lambda g, v: F.matmul(v[0], g.constant(weights)), TensorType(dt.f32, (sym("N", 1, 4096), 32))))


def calls(_: Path) -> Any:
    session, x = session_of_rows(), np.ones((5, 32), np.float32)
    return lambda i: session(x)


def shapes(_: Path) -> Any:
    session = session_of_rows()
    return lambda i: session(np.ones((1 + i * 37 % 4000, 32), np.float32))


def eager_shapes(_: Path) -> Any:
    return lambda i: tw.exp(np.ones((1 + i * 37 % 1009, 1 + i % 3), np.float32))


def loads(folder: Path) -> Any:
    from tilewright.llm.tiny import write_tiny_model

    path = write_tiny_model(folder / "m.gguf", layers=1)

    def step(i: int) -> None:
        with tw.load_llm(path, threads=1) as llm:
            llm.feed(llm.start(), [i % 200])

    return step


def generations(folder: Path) -> Any:
    from tilewright.llm.tiny import write_tiny_model

    llm = tw.load_llm(write_tiny_model(folder / "m.gguf", layers=1), threads=1)
    return lambda i: "".join(llm.generate([1 + i % 200], max_tokens=2))


def saves(folder: Path) -> Any:
    session, x = session_of_rows(), np.ones((5, 32), np.float32)

    def step(i: int) -> None:
        session.save(folder / "s.tw")
        with tw.load(folder / "s.tw") as opened:
            opened(x)

    return step


def arrays(_: Path) -> Any:
    x = tw.asarray(np.ones((6, 7), np.float32))

    def step(i: int) -> None:
        y = x[i % 6 :].T
        y[0] = i
        y += tw.exp(x[i % 6, :, None])
        y[y > 2] = 0
        y.reshape(-1)[::-1].sum().item()

    return step


def kernels(_: Path) -> Any:
    """New kernels of users: each a function of its own, with sizes of its own."""

    def step(i: int) -> None:
        @tw.kernel("f32[N] -> f32[N]", grid=lambda N: tl.cdiv(N, 64))
        def scaled(x, y, *, scale=1.0):  # type: ignore[no-untyped-def]
            at = tl.program_id(0)
            y.partition(64)[at] = x.partition(64)[at] * scale

        scaled(np.ones(1 + i % 300, np.float32), scale=float(i))

    return step


def onnx(_: Path) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    shape, weight = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 4]) for n in "xy"], np.ones((4, 4), np.float32)

    def step(i: int) -> None:
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", shape[:1], shape[1:],
                                  [numpy_helper.from_array(weight * i, "w")])
        data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
        tw.onnx.InferenceSession(data).run(None, {"x": np.ones((3, 4), np.float32)})

    return step


WORK = {"compiles": compiles, "calls": calls, "shapes": shapes, "eager_shapes": eager_shapes, "loads": loads, "generations": generations,
        "saves": saves, "arrays": arrays, "kernels": kernels, "onnx": onnx}  # fmt: skip
CAMPAIGN = Campaign(draw=small, check=check, quick=5, seconds=60.0, growth=64.0 * MB, keep=("what", "share"))
FULL = Campaign(draw=full, check=check, quick=1, seconds=900.0, growth=64.0 * MB, keep=("what", "share"))
