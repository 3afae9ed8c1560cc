"""ONNX files beside ONNX Runtime: results, least and median times of calls, seconds from file to first result.

    python benchmarks/onnx_files.py FILE.onnx… [--size NAME=N…]
    python benchmarks/onnx_files.py --sklearn [--rows 1 50 1000]      # forests and pipelines by skl2onnx
    python benchmarks/onnx_files.py FILE.onnx… --busy                 # one thread each, processor time: for a machine that does other work

Inputs are random; unnamed sizes are 1 (the first) or 64, of images 320, unless `--size` (an input's or a dim's name) says otherwise. A
runtime runs alone: ONNX Runtime's session is dropped, and with it its threads, before ours is timed.
"""
from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import tilewright as tw

KINDS = {"float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32, "uint8": np.uint8,
         "bool": np.bool_}


def drawn(info: Any, sizes: dict[str, int], rng: np.random.Generator) -> Any:
    image = len(info.shape) == 4
    shape = [d if isinstance(d, int) and d > 0 else sizes.get(str(d), sizes.get(info.name, 1 if k == 0 else 320 if image and k > 1 else 64))
             for k, d in enumerate(info.shape)]
    kind = KINDS.get(info.type.removeprefix("tensor(").removesuffix(")"))
    if kind is None:
        return np.full(shape, "word", object)
    return rng.standard_normal(shape).astype(kind) if np.issubdtype(kind, np.floating) else rng.integers(0, 8, shape).astype(kind)


def apart(a: Any, b: Any) -> float:
    """The largest difference over the largest number; of labels, the share that differs."""
    if isinstance(a, list):
        pairs = [(list(x.values()), list(y.values())) if isinstance(x, dict) else (x, y) for x, y in zip(a, b, strict=True)]
        return max((apart(np.asarray(x), np.asarray(y)) for x, y in pairs), default=0.0)
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "OUSb" or not a.size:
        return float(np.mean(a != b)) if a.size else 0.0
    wide = a.astype(np.float64)
    return float(np.nanmax(np.abs(wide - b)) / max(float(np.nanmax(np.abs(wide))), 1e-6))


def compare(name: str, model: Any, feed: dict[str, Any], seconds: float, busy: bool) -> float:
    clock, threads = (time.thread_time, 1) if busy else (time.perf_counter, 2)
    options, own = ort.SessionOptions(), tw.onnx.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level, own.intra_op_num_threads = threads, 4, threads
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    first, results = {}, {}
    for _ in range(2):
        for who in times:
            start = clock()
            session = ort.InferenceSession(model, options) if who == "theirs" else tw.onnx.InferenceSession(model, own)
            results[who] = session.run(None, feed)
            first[who] = clock() - start
            end = clock() + seconds
            while (now := clock()) < end:
                session.run(None, feed)
                times[who].append(clock() - now)
            del session
    ours, theirs = (np.array(times[w] or [first[w]]) for w in ("ours", "theirs"))
    ratio = float(theirs.min() / ours.min())
    error = max(apart(a, b) for a, b in zip(results["theirs"], results["ours"], strict=True))
    print(f"{name:48s} {ours.min() * 1e3:9.3f} ms  ONNX Runtime {theirs.min() * 1e3:9.3f} ms  ratio {ratio:5.2f} "
          f"(medians {np.median(theirs) / np.median(ours):.2f})  first {first['ours']:.2f} s ({first['theirs']:.2f})  error {error:.0e}",
          flush=True)
    return ratio


def pipelines(rows: list[int]) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    from skl2onnx import to_onnx
    from sklearn import ensemble, linear_model, tree

    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 20)).astype(np.float32)
    three, real = (x[:, 0] + x[:, 1] ** 2 > 1).astype(int) + (x[:, 2] > 0.3), x[:, 0] * 2 + np.sin(3 * x[:, 1])
    models = {"random forest": (ensemble.RandomForestClassifier(100, random_state=0), three, False),
              "random forest, regression": (ensemble.RandomForestRegressor(100, random_state=0), real, False),
              "extra trees": (ensemble.ExtraTreesClassifier(200, random_state=0), three, False),
              "boosting": (ensemble.GradientBoostingClassifier(random_state=0), three, False),
              "tree": (tree.DecisionTreeClassifier(random_state=0), three, False),
              "logistic regression, ZipMap": (linear_model.LogisticRegression(), three, True)}
    for name, (model, y, maps) in models.items():
        model.fit(x, y)
        options = {} if maps or not hasattr(model, "predict_proba") else {"options": {id(model): {"zipmap": False}}}
        proto = to_onnx(model, x[:1], target_opset={"": 18, "ai.onnx.ml": 3}, **options)
        for n in rows:
            yield f"{name}, {n} rows", proto.SerializeToString(), {proto.graph.input[0].name: x[:n]}


def main() -> None:
    parser = argparse.ArgumentParser(description="ONNX files beside ONNX Runtime.")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--size", nargs="*", default=[], help="NAME=N: the size of a symbolic dim, or of an input's dims")
    parser.add_argument("--sklearn", action="store_true")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 50, 1000])
    parser.add_argument("--seconds", type=float, default=0.15)
    parser.add_argument("--busy", action="store_true", help="one thread each, least processor time")
    args = parser.parse_args()
    sizes = {k: int(v) for k, _, v in (s.partition("=") for s in args.size)}
    rng, ratios = np.random.default_rng(0), []
    for path in args.files:
        inputs = ort.InferenceSession(path).get_inputs()
        ratios.append(compare(Path(path).name, path, {i.name: drawn(i, sizes, rng) for i in inputs}, args.seconds, args.busy))
    for name, model, feed in pipelines(args.rows) if args.sklearn else ():
        ratios.append(compare(name, model, feed, args.seconds, args.busy))
    print(f"{len(ratios)} rows, lowest ratio {min(ratios):.2f}, geometric mean {np.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
