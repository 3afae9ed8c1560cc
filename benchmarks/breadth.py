#!/usr/bin/env python3
"""Models that nobody named: small random ones of every architecture of transformers, of timm and diffusers where they are installed, and of
PyTorch's own modules. What does not compile, what is wrong, what is slow?

    python benchmarks/breadth.py                            every row, four stages each (hours)
    python benchmarks/breadth.py mamba whisper --stages compile,train --log out.jsonl
    python benchmarks/breadth.py --kinds modules            names that start with one of these
    python benchmarks/breadth.py --summary --log out.jsonl  the failures of a run, by message

Stages: `import` (the graph alone), `compile` (tw.compile beside float64, with eager's own error), `dynamic` (the same with a symbolic
batch, called with another one), `infer` (torch.compile), `train` (one step: losses and gradients beside eager). A row is a fork of one
process that has everything imported; --limit seconds of CPU and --memory GB end it. Rows that the log has already are left out. Ratios
over eager are of tiny models on whatever else the machine does: they find cliffs, nothing else.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
Build = Callable[[], tuple[nn.Module, tuple[Any, ...]]]
STAGES = ("import", "compile", "dynamic", "infer", "train")


def rows() -> dict[str, Build]:
    from benchmarks import breadth_hf, breadth_modules

    found: dict[str, Build] = dict(breadth_modules.models())
    for name, cls in breadth_hf.names().items():
        found[name] = lambda cls=cls: breadth_hf.build(cls)
    return found


def timed(calls: dict[str, Callable[[], Any]], rounds: int = 9) -> dict[str, float]:
    """The least of alternating calls, in seconds."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def leaves(tree: Any) -> list[torch.Tensor]:
    from torch.utils import _pytree

    return [t for t in _pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def judge(row: dict[str, Any], got: Any, want: Any, true: Any) -> None:
    """`wrong` where ours is much further from float64 than eager (from eager, where the model has no float64)."""
    from tests.e2e.compare import distance

    row["error"] = distance(leaves(got), leaves(want if true is None else true))
    row["eager error"] = 0.0 if true is None else distance(leaves(want), leaves(true))
    limit = 5 * row["eager error"] + (3e-5 if true is None else 3e-6)
    if not row["error"] <= limit:
        row["wrong"] = f"error {row['error']:.1e}, eager's own {row['eager error']:.1e}"


def exactly(module: nn.Module, args: tuple[Any, ...]) -> Any:
    from tests.e2e.compare import exact

    try:
        return exact(module, args)
    except Exception:  # what has no float64 is compared with eager
        return None


def larger(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same inputs with one more row in the batch."""
    return tuple(torch.cat([a, a[:1]]) for a in args)


def stage(name: str, module: nn.Module, args: tuple[Any, ...], row: dict[str, Any]) -> None:
    import tilewright as tw
    from tilewright.dynamo.backend import watching

    start = time.perf_counter()
    if name == "import":
        from tilewright.frontend.torch.importer import import_torch

        row["nodes"] = len(list(import_torch(module, args).graph.nodes))
        row["seconds"] = time.perf_counter() - start
        return
    if name in ("compile", "dynamic"):
        with torch.no_grad():
            want, true = module(*args), exactly(module, args)
            start = time.perf_counter()
            if name == "dynamic":
                batch = torch.export.Dim("batch", min=2, max=64)
                session = tw.compile(module, args, dynamic_shapes=(tuple({0: batch} for _ in args),))
                args = larger(args)
                want, true = module(*args), exactly(module, args)
            else:
                session = tw.compile(module, args)
            row["seconds"] = time.perf_counter() - start
            judge(row, session(*args), want, true)
            times = timed({"eager": lambda: module(*args), "ours": lambda: session(*args)})
            row["ratio"], row["ms"] = times["eager"] / times["ours"], times["ours"] * 1e3
        return
    train = name == "train"
    call = torch.compile(module, backend="tilewright")
    if train and not list(module.parameters()):
        args = tuple(a.requires_grad_() if a.is_floating_point() else a for a in args)

    def step(f: Callable[..., Any], m: nn.Module = module, a: tuple[Any, ...] = args) -> Any:
        if not train:
            with torch.no_grad():
                return f(*a)
        m.zero_grad()
        for x in leaves(a):
            x.grad = None
        ends = [t for t in leaves(f(*a)) if t.requires_grad]
        sum((t * torch.cos(torch.arange(t.numel(), dtype=t.dtype)).reshape(t.shape)).mean() for t in ends).backward()
        return ends, [p.grad for p in (*m.parameters(), *leaves(a)) if p.grad is not None]

    want, start = step(module), time.perf_counter()
    with watching() as found:
        got = step(call)
    row["seconds"] = time.perf_counter() - start
    row["graphs"], row["splits"] = len(found), sum(c.splits for c in found)
    row["refused"] = sorted({f"{n.target} ({r.reason[:140]})" for c in found for n, r in c.refusals.items()})
    judge(row, got, want, None)
    if row.get("wrong"):  # cancelling gradients are far from each other in every f32: is ours further from the truth?
        from tests.e2e.compare import doubled

        exact = __import__("copy").deepcopy(module).double()
        row.pop("wrong")
        inputs = tuple(x.detach().requires_grad_(a.requires_grad) for x, a in zip(doubled(args), args, strict=True))
        judge(row, got, want, step(exact, exact, inputs))
    times = timed({"eager": lambda: step(module), "ours": lambda: step(call)}, 5)
    row["ratio"], row["ms"] = times["eager"] / times["ours"], times["ours"] * 1e3


def run_row(name: str, build: Build, stages: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        module, args = build()
        with torch.no_grad():
            out = module(*args)
        assert leaves(out), "no result is a tensor of floats"
    except Exception as e:
        return [{"name": name, "stage": "build", "failed": said(e)}]
    for s in stages:
        row: dict[str, Any] = {"name": name, "stage": s}
        start = time.process_time()
        try:
            torch._dynamo.reset()
            stage(s, module, args, row)
        except Exception as e:
            row["failed"], row["trace"] = said(e), "".join(traceback.format_exc())[-900:]
        row["cpu"] = round(time.process_time() - start, 2)
        found.append(row)
    return found


def said(e: BaseException) -> str:
    at = traceback.extract_tb(e.__traceback__)[-1]
    return f"{type(e).__name__}: {str(e)[:400]} [{os.path.basename(at.filename)}:{at.lineno}]"


def forked(name: str, build: Build, args: argparse.Namespace) -> tuple[int, int]:
    """The process of a row, and the end of its pipe."""
    r, w = os.pipe()
    pid = os.fork()
    if pid:
        os.close(w)
        return pid, r
    os.close(r)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    resource.setrlimit(resource.RLIMIT_AS, (args.memory << 30, args.memory << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (args.limit, args.limit))
    signal.alarm(20 * args.limit)  # what waits for ever
    for row in run_row(name, build, args.stages):
        os.write(w, json.dumps(row).encode() + b"\n")
    os._exit(0)


def sweep(args: argparse.Namespace) -> None:
    warm()
    done = set()
    if os.path.exists(args.log):
        done = {json.loads(line)["name"] for line in Path(args.log).read_text().splitlines()}
    todo = [(n, b) for n, b in rows().items() if n not in done and any(w in n for w in args.words or [""])
            and any(n.startswith(k) for k in args.kinds or [""])]
    if args.names:
        wanted = Path(args.names).read_text().splitlines()
        found = dict(todo)
        todo = [(n, found[n]) for n in wanted if n in found]
    print(f"{len(todo)} rows", flush=True)
    under_way: dict[int, tuple[str, int]] = {}
    with open(args.log, "a") as log:
        while todo or under_way:
            while todo and len(under_way) < args.jobs:
                name, build = todo.pop(0)
                pid, r = forked(name, build, args)
                under_way[pid] = (name, r)
            pid, status = os.wait()
            name, r = under_way.pop(pid)
            with os.fdopen(r, "rb") as f:
                lines = f.read().decode().splitlines()
            if status:
                late = os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL)
                how = f"not within {args.limit} s" if late else f"died with status {status}"
                lines.append(json.dumps({"name": name, "stage": "process", "failed": how}))
            for line in lines:
                log.write(line + "\n")
                print(short(json.loads(line)), flush=True)
            log.flush()


def short(row: dict[str, Any]) -> str:
    head = f"{row['name']:44s} {row['stage']:8s}"
    if "failed" in row:
        return f"{head} FAILED {row['failed'][:230]}"
    keys = {k: v for k, v in row.items() if k not in ("name", "stage", "trace") and v != []}
    return head + " " + " ".join(f"{k} {v:.2g}" if isinstance(v, float) else f"{k} {v}" for k, v in keys.items())


def warm() -> None:
    """What every row needs, imported once."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.setdefault("TILEWRIGHT_THREADS", "1")
    import transformers
    from torch._dynamo.backends import common  # noqa: F401
    from torch._functorch import aot_autograd  # noqa: F401
    from transformers import LlamaForCausalLM, ViTForImageClassification  # noqa: F401

    import tests.e2e.compare
    import tilewright.dynamo.backend
    import tilewright.frontend.torch.importer
    import tilewright.passes.pipeline

    assert tests.e2e.compare and tilewright.passes.pipeline

    transformers.logging.set_verbosity_error()
    torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),))


def summary(args: argparse.Namespace) -> None:
    classes: dict[str, list[str]] = defaultdict(list)
    slow, long, count = [], [], defaultdict(int)
    for line in Path(args.log).read_text().splitlines():
        row = json.loads(line)
        count[row["stage"], "failed" if "failed" in row else "wrong" if "wrong" in row else "right"] += 1
        if "failed" in row:
            classes[row["stage"] + ": " + re.sub(r"\d+", "N", row["failed"])[:110]].append(row["name"])
        if "wrong" in row:
            classes[row["stage"] + ": wrong"].append(f"{row['name']} ({row['wrong']})")
        for r in row.get("refused", ()):
            classes[row["stage"] + ": refused " + re.sub(r"\d+", "N", r)[:110]].append(row["name"])
        if row.get("ratio", 1) < 0.7:
            slow.append((row["ratio"], row["name"], row["stage"], row["ms"]))
        if row.get("seconds", 0) > 10:
            long.append((row["seconds"], row["name"], row["stage"]))
    for k, v in sorted(classes.items(), key=lambda kv: -len(kv[1])):
        print(f"{len(v):4d} {k}\n       {', '.join(v)[:300]}")
    print("below 0.7 of eager:", *(f"{r:.2f} {n} {s} {ms:.1f} ms" for r, n, s, ms in sorted(slow)), sep="\n  ")
    print("over 10 s:", *(f"{t:.0f} {n} {s}" for t, n, s in sorted(long, reverse=True)), sep="\n  ")
    print({" ".join(k): v for k, v in sorted(count.items())})


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("words", nargs="*", help="names that contain one of these")
    ap.add_argument("--kinds", nargs="*", help="names that start with one of these")
    ap.add_argument("--names", help="a file of names, in the order in which they run")
    ap.add_argument("--stages", default="compile,train")
    ap.add_argument("--jobs", type=int, default=1)
    ap.add_argument("--limit", type=int, default=150)
    ap.add_argument("--memory", type=int, default=12)
    ap.add_argument("--log", default="breadth.jsonl")
    ap.add_argument("--summary", action="store_true")
    args = ap.parse_args()
    args.stages = args.stages.split(",")
    if unknown := [s for s in args.stages if s not in STAGES]:
        ap.error(f"stages are {', '.join(STAGES)}, got {', '.join(unknown)}")
    (summary if args.summary else sweep)(args)


if __name__ == "__main__":
    main()
