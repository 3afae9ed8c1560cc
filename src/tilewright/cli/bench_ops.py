"""`tilewright bench ops`: single ops at about a million elements against the same op in PyTorch, in one run, with the share of this
machine's roofline that each of ours reaches."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from .timing import measure, ratio

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

CLOSE = 1e-4  # of the largest value, against PyTorch


def run_ops(out: Console, words: list[str], rounds: int) -> list[dict[str, Any]]:
    """One row a case whose name contains one of the words; those behind PyTorch are shown again at the end, each with the reason."""
    from ..core.errors import ConfigError
    from .op_cases import cases, why

    table = {name: case for name, case in cases().items() if not words or any(w in name for w in words)}
    if not table:
        raise ConfigError(f"bench ops: no op contains {' or '.join(words)}; `tilewright bench ops --list` shows all")
    out.print(f"{'op':24s} {'ours':>10s} {'PyTorch':>10s}  ratio              roofline  bound")
    rows = [_row(out, name, *case(), rounds) for name, case in table.items()]
    timed = [r for r in rows if "ratio" in r]
    if timed:
        mean = statistics.geometric_mean([r["ratio"] for r in timed])
        behind = sorted((r for r in timed if r["ratio"] < 1), key=lambda r: r["ratio"])
        out.print(f"{len(timed)} ops, geometric mean {mean:.2f}, {len(behind)} below 1{':' if behind else ''}")
        for r in behind:
            r["why"] = why(r["name"], r["bound"], r["roofline"])
            out.print(f"  {r['name']} {r['ratio']:.2f}: {r['why']}", soft_wrap=True)
    return rows


def _row(out: Console, name: str, fn: Callable[..., Any], inputs: tuple[Any, ...], rounds: int) -> dict[str, Any]:
    import torch

    import tilewright as tw

    from ..core.errors import TilewrightError
    from .bench import distance, flat
    from .console import seconds

    class Module(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return fn(*args)

    row: dict[str, Any] = {"name": name}
    with torch.no_grad():
        want = flat(fn(*inputs))
        try:
            session = tw.compile(Module(), inputs)
        except TilewrightError as e:
            row["problem"] = f"{type(e).__name__}: {e}".splitlines()[0][:160]
            out.print(f"{name:24s} [red]{row['problem']}[/]", soft_wrap=True)
            return row
        row["error"] = distance(flat(session(*inputs)), want)
        if not row["error"] < CLOSE:
            row["problem"] = f"differs from PyTorch by {row['error']:.1e} of the largest value"
        times = measure({"ours": lambda: session(*inputs), "torch": lambda: fn(*inputs)}, rounds=rounds, slice_s=0.03)
        kernels = session.profile(*inputs).rows
    faster = ratio(times["ours"], times["torch"])
    spent = sum(k["us"] for k in kernels) or 1.0
    longest = max(kernels, key=lambda k: float(k["us"]), default=None)
    row |= {
        "us": {k: statistics.median(v) * 1e6 for k, v in times.items()},
        "ratio": faster.median, "low": faster.low, "high": faster.high,
        "roofline": sum(k["roofline"] * k["us"] for k in kernels) / spent,
        "bound": longest["bound"] if longest else "",
    }
    ours, theirs = seconds(row["us"]["ours"] / 1e6), seconds(row["us"]["torch"] / 1e6)
    line = f"{name:24s} {ours:>10s} {theirs:>10s}  {faster!s:18s} {row['roofline']:7.0%}   {row['bound']}"
    out.print(line + (f"  [red]{row['problem']}[/]" if "problem" in row else ""), soft_wrap=True)
    return row
