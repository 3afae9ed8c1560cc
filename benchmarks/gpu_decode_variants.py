"""The decode step of `gpu_decode` (bf16) and `gpu_decode_packed` (Q4_K) in its ways to run: launches in a graph, and one kernel.

    PYTHONPATH=src python benchmarks/gpu_decode_variants.py [--packed | --both] [--limit 15] [--total 100] [--layers 16] [SETTINGS ...]

SETTINGS are values of TILEWRIGHT_JOIN (`on`, `depth=2,barrier=flags`, ...); without any, a list that moves one knob at a time. A process
of its own goes through them; where one takes longer than --limit seconds (blocks that wait for one another may wait for ever), the process
is killed, and another one goes on behind it. The first variant is always `off`, the launches apart, whose results are kept; another is
timed only where all of its results (logits and caches) have the same bits three times over, and is said to be wrong otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BF16 = (
    "on", "barrier=flags", "depth=2", "depth=0", "depth=0,barrier=flags", "rows=2,depth=6", "rows=2,depth=6,barrier=flags",
    "rows=1,depth=8", "threads=1024,rows=2", "blocks=2,rows=2,depth=2",
)  # fmt: skip
PACKED = ("on", "barrier=flags", "depth=2", "depth=0", "depth=0,barrier=flags", "threads=1024,depth=0", "threads=1024,depth=2")
START = 45.0  # seconds that a process has until its first result, beyond the limit


def child(arguments: argparse.Namespace) -> int:
    """Results of every variant against the file of the first one, then its time; one line of JSON each."""
    import torch
    from gpu_decode import Sizes, build, weights
    from gpu_tools import timed

    import tilewright as tw

    torch.manual_seed(0)
    s = Sizes(layers=arguments.layers)
    caches = [torch.randn(1, s.kv_heads, s.capacity, s.head, device="cuda", dtype=torch.bfloat16) for _ in range(2 * s.layers)]
    angle = s.position * 500000.0 ** (-torch.arange(s.head // 2, device="cuda") / (s.head // 2))
    cos, sin, ids = angle.cos()[None], angle.sin()[None], torch.tensor([17], device="cuda")
    if arguments.packed:
        import gpu_decode_packed as packed

        blocks = packed.weights(s, "Q4_K")
        make = lambda: packed.build(s, blocks, "Q4_K")
        inputs = (ids, cos, sin, *caches)
    else:
        w = weights(s)
        make = lambda: build(s)
        inputs = (ids, cos.bfloat16(), sin.bfloat16(), *w.values(), *caches)
    kept = Path(arguments.child) / "first.pt"
    for setting in arguments.settings:
        os.environ["TILEWRIGHT_JOIN"] = setting
        compiled: Any = tw.compile(make(), target="cuda")
        results = [[y.cpu() for y in compiled(*inputs)] for _ in range(2)]
        held = compiled(*inputs)  # its memory is what timed runs write
        results.append([y.cpu() for y in held])
        if setting == "off":
            torch.save(results[0], kept)
        first = torch.load(kept)  # an error where the launches apart have failed: there is nothing to compare with
        same = all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for r in results for a, b in zip(r, first, strict=True))
        schedule = compiled.schedule({})
        us = timed({"us": lambda x=schedule: x.run(torch.cuda.current_stream().cuda_stream)}, 1, 25)["us"] if same else None
        row = {"setting": setting, "us": us, "same": same, "launches": len(schedule.steps), "note": schedule.steps[0].launch.note}
        print(json.dumps(row), flush=True)
        del compiled, schedule, held
    return 0


def rows(arguments: argparse.Namespace, settings: list[str]) -> Iterator[dict[str, Any]]:
    """A row for every setting: of those that fail or hang, what was seen of it."""
    end = time.monotonic() + arguments.total
    with tempfile.TemporaryDirectory() as folder:
        while settings:
            command = [sys.executable, __file__, *settings, "--child", folder, "--layers", str(arguments.layers)]
            errors = open(Path(folder) / "errors", "w+")  # noqa: SIM115
            process = subprocess.Popen(command + ["--packed"] * arguments.packed, stdout=subprocess.PIPE, stderr=errors, text=True)
            lines: queue.Queue[str] = queue.Queue()
            threading.Thread(target=_read, args=(process, lines), daemon=True).start()
            patience = arguments.limit + START
            while settings:
                left = end - time.monotonic()
                try:
                    line = lines.get(timeout=max(0.1, min(patience, left)))
                except queue.Empty:
                    line = ""
                    why = "not run: the time is up" if left < patience else f"killed after {patience:.0f} s"
                else:
                    errors.seek(0)
                    why = errors.read().strip()[-800:] or "no output"
                setting = settings.pop(0)
                yield json.loads(line) if line.startswith("{") else {"setting": setting, "failed": why}
                if not line.startswith("{"):
                    break
                patience = arguments.limit
            process.kill()
            process.wait()
            errors.close()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            lines.put(line)
    lines.put("")  # it has ended


def run(arguments: argparse.Namespace) -> int:
    name = "Q4_K" if arguments.packed else "bf16"
    settings = ["off", *(arguments.settings or (PACKED if arguments.packed else BF16))]
    print(f"decode step in {name}, {arguments.layers} layers, position 512: us, ratio to the launches apart", flush=True)
    base, failed = 0.0, 0
    for row in rows(arguments, settings):
        base = base or row.get("us") or 0.0
        good = bool(row.get("same"))
        failed |= not good
        shown = f"{row['us']:9.1f} us  x{base / row['us']:.3f}" if good else row.get("failed", "WRONG BITS")
        print(f"{row['setting']:36s} {shown}  {row.get('launches', '')} launches  {row.get('note', '')}", flush=True)
        if arguments.json:
            with open(arguments.json, "a") as f:
                f.write(json.dumps({"row": f"decode {name}", **row}) + "\n")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--packed", action="store_true", help="Q4_K instead of bf16")
    parser.add_argument("--both", action="store_true", help="bf16, then Q4_K")
    parser.add_argument("--limit", type=float, default=15.0, help="seconds of one variant")
    parser.add_argument("--total", type=float, default=100.0, help="seconds of all")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--json", default="", help="append JSON lines to this file")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments)
    if not arguments.both:
        return run(arguments)
    arguments.total /= 2
    status = run(arguments)
    arguments.packed = True
    return status | run(arguments)


if __name__ == "__main__":
    sys.exit(main())
