"""Attention forward on a Hopper GPU in many cases, beside PyTorch's where that has them.

    PYTHONPATH=src python benchmarks/gpu_attention_cases.py [--only WORDS] [--json FILE]

Some rows of two heads are checked against float64. `growing` is the time with keys whose scores grow from tile to tile, `sink` with a first
key that many rows look at.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from gpu_tools import BF16, captured, error, ours, rand, session, timed

import tilewright.ops as o
from tilewright.runtime.cuda import driver as gpu


@dataclass(frozen=True)
class Case:
    b: int
    h: int
    s: int
    d: int
    causal: bool = False
    kv: int = 0  # heads of keys, where there are fewer
    window: int | None = None
    softcap: float | None = None
    mask: str = ""  # "padding": half of the keys; "random"
    bias: bool = False
    hard: bool = False  # growing scores and sinks, too

    def __str__(self) -> str:
        heads = f"{self.h}/{self.kv}" if self.kv else str(self.h)
        said = f"{self.b}x{heads}x{self.s}x{self.d}{' causal' if self.causal else ''}"
        said += f" window {self.window}" if self.window else ""
        said += f" soft cap {self.softcap:g}" if self.softcap else ""
        return said + (f" {self.mask} mask" if self.mask else "") + (" bias" if self.bias else "")


CASES = [
    Case(16, 16, 1024, 64, True, hard=True), Case(4, 32, 4096, 128, True, hard=True), Case(4, 32, 4096, 128, hard=True),
    Case(1, 32, 16384, 128, True, hard=True), Case(8, 16, 2048, 64), Case(8, 16, 2048, 64, True), Case(2, 16, 8192, 64, True),
    Case(8, 32, 1024, 64, True, kv=8), Case(4, 32, 2048, 128, True, kv=8), Case(1, 32, 512, 128, True, kv=8), Case(32, 12, 197, 64),
    Case(64, 12, 128, 64), Case(4, 16, 4096, 64, True, window=512), Case(4, 32, 4096, 128, True, window=1024),
    Case(8, 16, 1024, 64, mask="padding"), Case(8, 16, 1024, 64, mask="random"), Case(4, 16, 2048, 128, mask="padding"),
    Case(4, 16, 2048, 128, mask="random"), Case(8, 16, 1024, 64, bias=True), Case(4, 16, 2048, 128, bias=True),
    Case(8, 16, 1024, 64, True, mask="random", bias=True), Case(4, 16, 2048, 128, True, mask="random", bias=True),
    Case(8, 16, 1024, 64, True, softcap=30.0), Case(4, 16, 2048, 128, True, softcap=30.0), Case(4, 16, 2048, 80, True),
    Case(4, 16, 2048, 96, True), Case(8, 16, 1024, 40),
]  # fmt: skip


def run(case: Case) -> dict[str, Any]:
    b, h, s, d, kv = case.b, case.h, case.s, case.d, case.kv or case.h
    op = o.Attention(
        scale=d**-0.5, causal=case.causal, window=case.window, softcap=case.softcap, has_mask=bool(case.mask), has_bias=case.bias
    )  # fmt: skip
    q, k, v = rand(b, h, s, d), rand(b, kv, s, d), rand(b, kv, s, d)
    mask, bias = None, rand(1, h, s, s) if case.bias else None
    if case.mask == "padding":
        mask = torch.arange(s, device="cuda") < torch.linspace(s // 4, 3 * s // 4, b, device="cuda")[:, None, None, None]
    elif case.mask:
        mask = torch.rand(b, 1, s, s, device="cuda") < 0.7
    inputs = [x for x in (q, k, v, mask, bias) if x is not None]
    call, y = ours(session(lambda *x: o.Transpose(perm=(0, 2, 1, 3))(op(*x)), *inputs), *inputs)
    rows = torch.cat([torch.randint(0, s, (60,)), torch.tensor([0, s - 1])]).cuda()
    i, j = rows[:, None], torch.arange(s, device="cuda")[None]

    def wrong() -> float:
        """The error of some rows of the first and the last head."""
        torch.cuda.synchronize()
        found = []
        for at in (0, -1):
            scores = q[at, at, rows].double() @ k[at, at].double().T * d**-0.5
            scores = scores if case.softcap is None else case.softcap * torch.tanh(scores / case.softcap)
            scores = scores if bias is None else scores + bias[0, at, rows].double()
            seen = (j <= i) if case.causal else torch.ones_like(j <= i)
            seen = seen if case.window is None else seen & (j > i - case.window)
            seen = seen if mask is None else seen & mask.expand(b, 1, s, s)[at, 0, rows]
            found.append(error(y[at, rows, at], scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num(0.0) @ v[at, at].double()))
        return max(found)

    errors, contenders = [wrong()], {"ours": call}
    if case.window is None and case.softcap is None:
        beside = mask if bias is None else bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        if beside is not None and case.causal:
            beside = beside.masked_fill(~torch.ones(s, s, dtype=torch.bool, device="cuda").tril(), float("-inf"))
        contenders["SDPA"] = lambda: F.scaled_dot_product_attention(
            q, k, v, attn_mask=beside, is_causal=case.causal and beside is None, enable_gqa=bool(case.kv)
        )
    times = max(1, min(20, int(3000 / (4 * b * h * s * s * d / (2 if case.causal else 1) / 4e8))))
    graphs = {name: captured(made, times) for name, made in contenders.items()}
    taken = timed(graphs, times, 11)
    if case.hard:
        plain = k.clone()
        k[..., 0, :] = 8.0  # by the sum of its query a row's score is large or small
        taken |= {"sink": timed({"ours": graphs["ours"]}, times, 7)["ours"]}
        errors.append(wrong())
        k.copy_(plain * torch.linspace(40.0, 1.0, s, device="cuda").to(BF16)[:, None])  # the last keys come first
        taken |= {"growing": timed({"ours": graphs["ours"]}, times, 7)["ours"]}
        errors.append(wrong())
    return {"case": str(case), "times": taken, "error": max(errors)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--json", default="", help="append JSON lines to this file")
    arguments, failed = parser.parse_args(), 0
    chosen = [case for case in CASES if arguments.only in str(case)]
    if not chosen:
        parser.error(f"no case has {arguments.only!r} in its name; they are {', '.join(map(str, CASES))}")
    gpu.enter()  # or says what is missing
    for case in chosen:
        row = run(case)
        mine = row["times"]["ours"]
        said = "  ".join(f"{n} {t:.1f}" + (f" (x{t / mine:.3f})" if n == "SDPA" else "") for n, t in row["times"].items())
        print(f"{row['case']:40s} {said}  error {row['error']:.1e}{'' if row['error'] < 8e-3 else '  WRONG'}", flush=True)
        failed |= row["error"] >= 8e-3
        if arguments.json:
            with open(arguments.json, "a") as f:
                f.write(json.dumps(row) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
