"""Plans of attention forward on a Hopper GPU (`kernels/cuda/flash_plan.py`) beside PyTorch's, in one run of less than 90 seconds.

    PYTHONPATH=src python benchmarks/gpu_attention_variants.py [--heads 64,128] [--only WORDS] [--seconds 90] [--json FILE]

Each plan has a process of its own, so that one that hangs costs `PATIENCE` seconds and nothing else; several get ready at a time (imports,
PTX, machine code), one at a time uses the GPU. Every result is checked before it is timed: rows of two heads against float64, everything
against PyTorch's. `growing` is the time with keys whose scores grow from tile to tile, where lazy and eager maxima do their extra work at
every tile; its rows are checked, too.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from tilewright.kernels.cuda import attention as template
from tilewright.kernels.cuda.flash_plan import MEASURED, VARIANTS

SHAPES = {64: [(16, 16, 1024, True)], 128: [(4, 32, 4096, True), (4, 32, 4096, False), (1, 32, 16384, True)]}
PATIENCE = {64: 10.0, 128: 15.0}  # seconds that a plan may use the GPU
START = 60.0  # seconds that it may take to get ready
TOGETHER = 10  # processes that get ready
USED = "measured"  # the plan that is used


def child(d: int, name: str) -> None:
    import torch
    import torch.nn.functional as F
    from gpu_tools import BF16, error, measure, ours, rand, session, timed

    import tilewright.ops as o

    template.PLANS[d] = replace(MEASURED[d], **VARIANTS[d].get(name, {}))
    sessions = []
    for b, h, s, causal in SHAPES[d]:

        def build(q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
            return o.Transpose(perm=(0, 2, 1, 3))(o.Attention(scale=d**-0.5, causal=causal)(q, k, v))

        sessions.append(session(build, *(torch.empty(b, h, s, d, dtype=BF16, device="meta") for _ in range(3))))
        sessions[-1].schedule({})  # the driver assembles
    print("ready", flush=True)
    sys.stdin.readline()

    def wrong(q: Any, k: Any, v: Any, y: Any, causal: bool) -> float:
        """The error of some rows of the first and the last head."""
        n = q.shape[2]
        rows = torch.cat([torch.randint(0, n, (190,)), torch.tensor([0, n - 1])]).cuda()
        found = []
        for at in (0, -1):
            scores = q[at, at, rows].double() @ k[at, at].double().T * d**-0.5
            if causal:
                scores.masked_fill_(torch.arange(n, device="cuda")[None] > rows[:, None], float("-inf"))
            found.append(error(y[at, rows, at], scores.softmax(-1) @ v[at, at].double()))
        return max(found)

    for (b, h, s, causal), compiled in zip(SHAPES[d], sessions, strict=True):
        q, k, v = rand(b, h, s, d), rand(b, h, s, d), rand(b, h, s, d)
        call, y = ours(compiled, q, k, v)
        torch.cuda.synchronize()
        errors = [wrong(q, k, v, y, causal)]
        sdpa = lambda q=q, k=k, v=v, causal=causal: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        far = error(y.transpose(1, 2), sdpa())
        times = measure({"ours": call, "SDPA": sdpa}, 20 if d == 64 else 2, 15 if d == 64 else 7)
        k.mul_(torch.linspace(40.0, 1.0, s, device="cuda", dtype=BF16)[:, None])  # the last keys come first
        times |= {f"{n} growing": x for n, x in timed({"ours": lambda call=call: [call() for _ in range(4)]}, 4, 5).items()}
        torch.cuda.synchronize()
        errors.append(wrong(q, k, v, y, causal))
        shape = f"{b}x{h}x{s}x{d}{' causal' if causal else ''}"
        print(json.dumps({"shape": shape, "plan": name, "times": times, "errors": errors, "from SDPA": far}), flush=True)


class Child:
    """A plan's process; `lines` gets what it prints, and None at its end."""

    def __init__(self, d: int, name: str) -> None:
        self.d, self.name, self.lines = d, name, queue.Queue[str | None]()
        command = [sys.executable, __file__, "--child", str(d), name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def rows(self) -> tuple[list[dict[str, Any]], str]:
        """What it measured, and what went wrong."""
        rows: list[dict[str, Any]] = []
        end = time.monotonic() + START
        try:
            while (line := self.lines.get(timeout=max(0.0, end - time.monotonic()))) is not None:
                if line.strip() == "ready":
                    assert self.process.stdin is not None
                    self.process.stdin.write("go\n")
                    self.process.stdin.flush()
                    end = time.monotonic() + PATIENCE[self.d]
                elif line.startswith("{"):
                    rows.append(json.loads(line))
            code = self.process.wait(5)
            return rows, "" if code == 0 else f"ended with {code}"
        except (queue.Empty, subprocess.TimeoutExpired, BrokenPipeError):
            return rows, "hangs"
        finally:
            self.process.kill()


def show(row: dict[str, Any]) -> None:
    t, errors = row["times"], row["errors"]
    good = max(errors) < 8e-3 and row["from SDPA"] < 8e-3
    said = f"{t['ours']:9.1f} us  SDPA {t['SDPA']:9.1f}  x{t['SDPA'] / t['ours']:.3f}  growing {t['ours growing']:9.1f}"
    print(f"{row['shape']:24s} {row['plan']:40s} {said}  errors {errors[0]:.1e} {errors[1]:.1e}{'' if good else '  WRONG'}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--heads", default="64,128", help="head sizes")
    parser.add_argument("--only", default="", help="plans whose name has this in it (the one in use always runs)")
    parser.add_argument("--seconds", type=float, default=90.0, help="no plan is begun that could end later")
    parser.add_argument("--json", default="", help="append JSON lines to this file")
    arguments = parser.parse_args()
    if arguments.child:
        child(int(arguments.child[0]), arguments.child[1])
        return 0
    start, failed = time.monotonic(), 0
    todo = [(d, n) for d in map(int, arguments.heads.split(",")) for n in (USED, *(x for x in VARIANTS[d] if arguments.only in x))]
    waiting: list[Child] = []
    while todo or waiting:
        while todo and len(waiting) < TOGETHER:
            waiting.append(Child(*todo.pop(0)))
        one = waiting.pop(0)
        if time.monotonic() - start + PATIENCE[one.d] > arguments.seconds:
            one.process.kill()
            print(f"head size {one.d}, {one.name}: no time left", flush=True)
            continue
        rows, trouble = one.rows()
        for row in rows:
            show(row)
        if trouble:
            failed = 1
            print(f"head size {one.d}, {one.name}: {trouble}", flush=True)
        if arguments.json:
            with open(arguments.json, "a") as f:
                f.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{time.monotonic() - start:.0f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())
