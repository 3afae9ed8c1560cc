"""The tables of functions and of programs on a GPU, beside eager PyTorch: a script for a machine that has one.

    PYTHONPATH=src:. python tests/dynamo/device.py [--device cuda] [--jobs 10] [--seconds 105] [words ...]
"""
from __future__ import annotations

import argparse
import dataclasses
import itertools
import multiprocessing
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))


def cases(words: list[str]) -> list[tuple[str, str]]:
    from tests.dynamo import functions_more, programs, programs_more
    from tests.dynamo.functions import ROWS

    assert functions_more and programs_more
    found = [("program", name) for name in programs.PROGRAMS]
    found += [(mode, f"{kind}/{name}") for mode in ("plain", "grad") for kind, rows in ROWS.items() for name, row in rows.items()
              if mode == "plain" or row.grad]
    return [c for c in found if any(w in "/".join(c) for w in words or [""])]


def run(mode: str, name: str, device: str) -> Any:
    import torch
    from torch.utils import _pytree

    import tilewright.dynamo  # noqa: F401
    from tests.dynamo import functions_more, run_row, test_programs
    from tests.dynamo.functions import ROWS

    assert functions_more
    if mode == "program":
        return test_programs.run(name, device)
    kind, _, rest = name.partition("/")
    row = ROWS[kind][rest]
    torch.manual_seed(0)
    moved: dict[int, Any] = {}

    def place(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or t.device.type == device:
            return t
        base = t if t._base is None else t._base
        if id(base) not in moved:  # views of one memory stay views of one memory, with their strides
            moved[id(base)] = base, torch.empty(0, dtype=base.dtype, device=device).set_(base.untyped_storage().to(device=device))
        memory = moved[id(base)][1].untyped_storage()
        out = torch.empty(0, dtype=t.dtype, device=device).set_(memory, t.storage_offset(), t.shape, t.stride())
        out = torch._neg_view(out) if t.is_neg() else out
        return out.conj() if t.is_conj() else out

    placed = dataclasses.replace(row, make=lambda: _pytree.tree_map(place, row.make()))
    if device != "cpu":
        placed = dataclasses.replace(placed, rtol=max(row.rtol or 0, 2e-3), atol=max(row.atol or 0, 1e-4))
    torch._dynamo.reset()
    run_row.check_row(placed, mode)
    return 0


def worker(cases: list[tuple[str, str]], counter: Any, device: str, end: float, say: Any) -> None:
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    while time.time() < end:
        with counter.get_lock():
            i, counter.value = counter.value, counter.value + 1
        if i >= len(cases):
            break
        try:
            mode, name = cases[i]
            say.put((i, "ok", run(mode, name, device)))
        except BaseException as e:  # a row that ends its process must be said, too
            lines = [ln for ln in str(e).strip().splitlines() if ln.strip()]
            at = traceback.extract_tb(e.__traceback__)[-1]
            say.put((i, type(e).__name__, f"{' '.join(lines)[:330]} [{Path(at.filename).name}:{at.lineno}]"))
            if "CUDA" in str(e) and "illegal" in str(e):
                break
    say.put(None)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("words", nargs="*")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--jobs", type=int, default=10)
    ap.add_argument("--seconds", type=float, default=105)
    args = ap.parse_args()
    todo, context = cases(args.words), multiprocessing.get_context("spawn")
    counter, say, end = context.Value("i", 0), context.Queue(), time.time() + args.seconds
    workers = [context.Process(target=worker, args=(todo, counter, args.device, end, say), daemon=True) for _ in range(args.jobs)]
    for w in workers:
        w.start()
    good = splits = 0
    bad: list[str] = []
    for i, how, what in results(say, workers, end):
        if how == "ok":
            good += 1
            splits += what
            if what:
                print(f"SPLITS {what}  {'/'.join(todo[i])}", flush=True)
        else:
            bad.append("/".join(todo[i]))
            print(f"FAILED {bad[-1]}: {how}: {what}", flush=True)
    print(f"{good} right, {len(bad)} failed, {len(todo) - good - len(bad)} not run of {len(todo)}; parts in PyTorch: {splits}", flush=True)


def results(say: Any, workers: list[Any], end: float) -> Iterator[Any]:
    ended = 0
    for _ in itertools.count():
        try:
            found = say.get(timeout=1)
        except Exception:
            if time.time() > end + 8 or not any(w.is_alive() for w in workers):
                return
            continue
        if found is None:
            ended += 1
            if ended == len(workers):
                return
        else:
            yield found


if __name__ == "__main__":
    main()
