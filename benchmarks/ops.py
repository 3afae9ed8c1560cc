"""`benchmarks/bench.py ops`: single ops against the same op in PyTorch, in one run, with the share of this machine's roofline that each of
ours reaches. Plain: f32 at about a million elements. `--wide`: three sizes, two dtypes, lowest ratio first."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.op_cases import SIZES, Draw
from tilewright.cli.timing import measure, ratio
from tilewright.core.files import append_text

if TYPE_CHECKING:
    from rich.console import Console

    from benchmarks.op_cases import Case

CLOSE = {"f32": 1e-4, "f64": 1e-9, "bf16": 3e-2, "i32": 1e-12, "i64": 1e-12}  # error beside PyTorch, of the largest value
BEHIND = 0.8  # ratios below it are counted at the end of a wide run


def run_ops(out: Console, words: list[str], rounds: int, *, wide: bool = False, threads: int | None = None,
            json_path: str | None = None) -> list[dict[str, Any]]:
    """One row a case whose name contains one of the words (in a wide run words may also name sizes and dtypes); rows go to the file of
    JSON lines as they come. Cases behind PyTorch are shown again at the end, each with the reason."""
    import torch

    from benchmarks.op_cases import cases, why
    from tilewright.core.errors import ConfigError

    draws = {w for w in words if wide and w in (*SIZES, *CLOSE)}
    named = [w for w in words if w not in draws]
    table = {name: case for name, case in cases().items() if not named or any(w in name for w in named)}
    if not table:
        raise ConfigError(f"bench ops: no op contains {' or '.join(words)}; `--list` shows all")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    out.print(f"{'op':40s} {'ours':>10s} {'PyTorch':>10s}  ratio              roofline  bound")
    rows: list[dict[str, Any]] = []
    for name, case in table.items():
        for draw in _draws(case, draws) if wide else [Draw(dtype=case.dtypes[0])]:
            rows.append(_row(out, name, case, draw, rounds, wide=wide))
            if json_path:
                append_text(json_path, json.dumps(rows[-1]) + "\n", subject="bench")
    torch.set_num_threads(before)
    timed = sorted((r for r in rows if "ratio" in r), key=lambda r: r["ratio"])
    if timed:
        behind = [r for r in timed if r["ratio"] < 1]
        mean = statistics.geometric_mean([r["ratio"] for r in timed])
        out.print(f"{len(timed)} {'cases' if wide else 'ops'}, geometric mean {mean:.2f}, "
                  + (f"{sum(r['ratio'] < BEHIND for r in timed)} below {BEHIND}, " if wide else "")
                  + f"{len(behind)} below 1{':' if behind else ''}")
        for r in behind:
            r["why"] = why(r["name"], r["bound"], r["roofline"])
            label = f"{r['name']}, {r['size']} {r['dtype']}" if wide else r["name"]
            out.print(f"  {label} {r['ratio']:.2f}: {r['why']}", soft_wrap=True)
    return rows


def _draws(case: Case, words: set[str]) -> list[Draw]:
    sizes, dtypes = words & {*SIZES}, words & {*CLOSE}
    return [Draw(s, d) for d in dict.fromkeys(case.dtypes) if not dtypes or d in dtypes for s in SIZES if not sizes or s in sizes]


def _row(out: Console, name: str, case: Case, draw: Draw, rounds: int, *, wide: bool) -> dict[str, Any]:
    import torch

    import tilewright as tw
    from benchmarks.bench import distance, flat
    from tilewright.cli.console import seconds
    from tilewright.core.errors import TilewrightError

    class Module(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return case.fn(*args)

    row: dict[str, Any] = {"name": name, "size": draw.size, "dtype": draw.dtype}
    label = f"{name:26s} {draw.size:6s} {draw.dtype:4s}  " if wide else f"{name:40s}"
    torch.manual_seed(0)
    inputs = case.inputs(draw)
    with torch.no_grad():
        try:
            want = flat(case.fn(*inputs))
            session = tw.compile(Module(), inputs, threads=torch.get_num_threads())
        except (TilewrightError, RuntimeError) as e:  # RuntimeError: PyTorch has no such kernel
            row["problem"] = f"{type(e).__name__}: {e}".splitlines()[0][:160]
            out.print(f"{label} [red]{row['problem']}[/]", soft_wrap=True)
            return row
        row["error"] = distance(flat(session(*inputs)), want)
        if not row["error"] < CLOSE[draw.dtype]:
            row["problem"] = f"differs from PyTorch by {row['error']:.1e} of the largest value"
        calls = {"ours": lambda: session(*inputs), "torch": lambda: case.fn(*inputs)}
        times = measure(calls, rounds=rounds, slice_s=0.006 if wide else 0.03, processor=torch.get_num_threads() == 1)
        kernels = session.profile(*inputs).rows
    faster = ratio(times["ours"], times["torch"])
    spent = sum(k["us"] for k in kernels) or 1.0
    longest = max(kernels, key=lambda k: float(k["us"]), default=None)
    row |= {
        "us": {k: (min if wide else statistics.median)(v) * 1e6 for k, v in times.items()},
        "ratio": faster.median, "low": faster.low, "high": faster.high,
        "roofline": sum(k["roofline"] * k["us"] for k in kernels) / spent,
        "bound": longest["bound"] if longest else "",
        "launches": len(kernels),
    }
    if wide:  # a thousand short measurements: the fastest moments of both are the ones that repeat
        row["ratio"] = row["us"]["torch"] / row["us"]["ours"]
    ours, theirs = seconds(row["us"]["ours"] / 1e6), seconds(row["us"]["torch"] / 1e6)
    shown = f"{row['ratio']:<18.2f}" if wide else f"{faster!s:18s}"
    line = f"{label} {ours:>10s} {theirs:>10s}  {shown} {row['roofline']:7.0%}   {row['bound']}"
    out.print(line + (f"  [red]{row['problem']}[/]" if "problem" in row else ""), soft_wrap=True)
    return row
