"""Our workloads against other runtimes, interleaved in one run; a row counts only when all outputs agree with PyTorch. Errors are the
largest difference from float64 over the largest value, ours and PyTorch's own.

    python benchmarks/bench.py --peers eager,compile,ort,openvino     every workload
    python benchmarks/bench.py mlp block                              workloads whose name contains one of the words
    python benchmarks/bench.py --ablate block                         with each optional pass switched off in turn: what is it worth?
    python benchmarks/bench.py ops relu pool                          single ops at a million elements, with their share of the roofline
    python benchmarks/bench.py ops pool small bf16 --wide             three sizes and two dtypes of every op, lowest ratio first

Passes without which the same program comes out are named and not timed.
"""
from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import tilewright as tw  # noqa: E402
from benchmarks.peers import PEERS  # noqa: E402
from benchmarks.workloads import workloads  # noqa: E402
from tilewright.cli.console import console, progress, seconds  # noqa: E402
from tilewright.cli.console import table as make_table  # noqa: E402
from tilewright.cli.timing import Call, measure, ratio  # noqa: E402
from tilewright.core.errors import ConfigError, TilewrightError  # noqa: E402
from tilewright.core.files import append_text  # noqa: E402
from tilewright.passes.pipeline import optional_passes  # noqa: E402
from tilewright.runtime.archive.program_data import program_data  # noqa: E402

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.runtime.session import Session

CLOSE = 5e-4  # how close results are, as a share of the largest value, against PyTorch eager


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORDS", help="workloads whose name contains one of these (default: all)")
    parser.add_argument("--peers", default="eager", help="comma-separated: eager, compile, ort, openvino (default: eager)")
    parser.add_argument("--ablate", action="store_true", help="switch each optional pass off in turn")
    parser.add_argument("--wide", action="store_true", help="of `bench ops`: three sizes and two dtypes of every op")
    parser.add_argument("--threads", type=int, help="of `bench ops`, for both sides (default: all)")
    parser.add_argument("--rounds", type=int, default=11, help="rounds per workload (default: 11)")
    parser.add_argument("--json", metavar="F", help="append one JSON object a row to this file")
    parser.add_argument("--list", action="store_true", help="only list the workloads")
    args = parser.parse_args(argv)
    try:
        return _ops(args) if args.words[:1] == ["ops"] else _workloads(args)
    except ConfigError as e:
        print(e, file=sys.stderr)
        return 1


def _workloads(args: argparse.Namespace) -> int:
    table = {name: build for name, build in workloads().items() if not args.words or any(w in name for w in args.words)}
    peers = [p for p in args.peers.split(",") if p]
    if not table:
        raise ConfigError(f"bench: no workload contains {' or '.join(args.words)}; `--list` shows all")
    if unknown := [p for p in peers if p not in PEERS]:
        raise ConfigError(f"bench: peers must be among {', '.join(PEERS)}, got {', '.join(unknown)}")
    if args.rounds < 1:
        raise ConfigError(f"bench: rounds must be at least 1, got {args.rounds}")
    if args.list:
        print("\n".join(table))
        return 0
    out, rows = console(), list[dict[str, Any]]()
    for name, build in table.items():
        module, inputs = build()
        found = ablate(out, name, module, inputs, args.rounds) if args.ablate else compare(out, name, module, inputs, peers, args.rounds)
        rows += found
        if args.json:
            append_text(args.json, "".join(json.dumps(row) + "\n" for row in found), subject="bench")
    summary(out, rows)
    return 1 if any(row.get("problem") for row in rows) else 0


def _ops(args: argparse.Namespace) -> int:
    from benchmarks.op_cases import cases
    from benchmarks.ops import run_ops

    if args.list:
        print("\n".join(cases()))
        return 0
    rows = run_ops(console(), args.words[1:], args.rounds, wide=args.wide, threads=args.threads, json_path=args.json)
    return 1 if any(row.get("problem") for row in rows) else 0


def compare(out: Console, name: str, module: Any, inputs: tuple[Any, ...], peers: Sequence[str], rounds: int,
            threads: int | None = None) -> list[dict[str, Any]]:
    """One workload against its peers: one row. With one thread the times are the least processor times."""
    least = min if threads == 1 else statistics.median
    with torch.no_grad(), progress(name) as say:
        want = flat(module(*inputs))
        start = time.perf_counter()
        session = tw.compile(module, inputs, progress=say, threads=threads)
        session(*inputs)
        row: dict[str, Any] = {"name": name, "ready_s": time.perf_counter() - start, "error": distance(flat(session(*inputs)), want)}
        calls: dict[str, Call] = {"tilewright": lambda: session(*inputs)}
        for peer in peers:
            try:
                calls[peer] = PEERS[peer](module, inputs, session.threads)
                if not distance(flat(calls[peer]()), want) < 1e-2:
                    raise ArithmeticError("disagrees with eager")
            except Exception as e:  # whatever goes wrong inside a peer, the row is timed without it and says so
                calls.pop(peer, None)
                row.setdefault("left_out", {})[peer] = f"{type(e).__name__}: {e}"[:200]
        say("timing")
        times = measure(calls, rounds=rounds, processor=threads == 1)
        exact = _exact(module, inputs)
        row |= {"exact_error": distance(flat(session(*inputs)), exact), "eager_exact_error": distance(want, exact)}
    row["us"] = {k: least(v) * 1e6 for k, v in times.items()}
    row |= _problem(row["error"])
    others = [k for k in times if k != "tilewright"]
    line = f"{name:24s} {seconds(row['us']['tilewright'] / 1e6):>10s}"
    if others:
        best = min(others, key=lambda k: row["us"][k])
        faster = ratio(times["tilewright"], times[best])
        times_as_fast = row["us"][best] / row["us"]["tilewright"] if threads == 1 else faster.median
        row |= {"best": best, "ratio": times_as_fast, "low": faster.low, "high": faster.high}
        line += f"  {best:>8s} {seconds(row['us'][best] / 1e6):>10s}  ratio {row['ratio']:.2f} ({faster.low:.2f}–{faster.high:.2f})"
    errors = f"error {row['exact_error']:.1e} (PyTorch {row['eager_exact_error']:.1e})"
    out.print(f"{line}  {errors}  ready {row['ready_s']:.2f} s", soft_wrap=True)
    for text in [*(f"{k} left out: {v}" for k, v in row.get("left_out", {}).items()), *([row["problem"]] if "problem" in row else [])]:
        out.print(f"    [red]{text}[/]", soft_wrap=True)
    return [row]


def ablate(out: Console, name: str, module: Any, inputs: tuple[Any, ...], rounds: int) -> list[dict[str, Any]]:
    """The workload complete, and without each optional pass that changes its schedule."""
    rows: list[dict[str, Any]] = []
    with torch.no_grad(), progress(name) as say:
        want = flat(module(*inputs))
        sessions = {"": tw.compile(module, inputs)}
        for off in optional_passes():
            say(f"without {off}")
            try:
                sessions[off] = tw.compile(module, inputs, passes=[off])
            except TilewrightError as e:
                rows.append({"name": name, "without": off, "problem": f"{type(e).__name__}: {e}"[:200]})
        programs = {off: _program(session) for off, session in sessions.items()}
        same = [off for off in sessions if off and programs[off] == programs[""]]  # their times would only show the noise
        say("timing")
        timed = {off: session for off, session in sessions.items() if off not in same}
        times = measure({off: partial(session, *inputs) for off, session in timed.items()}, rounds=rounds, slice_s=0.05)
        rows += [_without(name, off, session, inputs, want, times) for off, session in timed.items()]
        rows += [{"name": name, "without": off, "same_program": True} for off in same]
    rows.sort(key=lambda r: (r["without"] != "", -r.get("slower", 0.0)))
    shown = [
        (
            r["without"] or "(complete)",
            f"{r['slower']:.2f} ({r['low']:.2f}–{r['high']:.2f})",
            seconds(r["us"] / 1e6),
            str(r["launches"]),
            f"{r['arena'] / 1024:.0f}",
            f"{r['error']:.1e}",
        )
        for r in rows
        if "us" in r
    ]
    columns = ("pass", ">times the time", ">time", ">launches", ">arena KiB", ">error")
    out.print(make_table(f"{name}, without …", columns, shown))
    if same:
        out.print(f"the same program without {', '.join(sorted(same))}", soft_wrap=True)
    for r in rows:
        if r.get("problem"):
            out.print(f"    [red]without {r['without']}: {r['problem']}[/]", soft_wrap=True)
    out.print()
    return rows


def _exact(module: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """The module's results in float64."""
    return flat(copy.deepcopy(module).double()(*(x.double() if x.is_floating_point() else x for x in inputs)))


def _program(session: Session) -> list[Any]:
    """Everything that a call of the session runs: kernels with their arguments, in order."""
    assert session.executable is not None
    launches = program_data(session.executable.program, session.executable.code.symbols)["launches"]
    return [(x["code"], x["args"], x["grid"]) for x in launches]


def _without(name: str, off: str, session: Session, inputs: tuple[Any, ...], want: list[Any],
             times: dict[str, list[float]]) -> dict[str, Any]:
    slower = ratio(times[""], times[off])
    row = {
        "name": name,
        "without": off,
        "us": statistics.median(times[off]) * 1e6,
        "slower": slower.median,
        "low": slower.low,
        "high": slower.high,
        "launches": len(session.executable.launches) if session.executable else 0,
        "arena": session.report().data.get("arena", {}).get("bytes", 0),
        "error": distance(flat(session(*inputs)), want),
    }
    return row | _problem(row["error"])


def _problem(error: float) -> dict[str, str]:
    return {} if error < CLOSE else {"problem": f"differs from eager by {error:.1e} of the largest value"}


def summary(out: Console, rows: list[dict[str, Any]]) -> None:
    timed = [r for r in rows if "ratio" in r]
    if timed:
        mean = statistics.geometric_mean([r["ratio"] for r in timed])
        out.print(f"{len(timed)} workloads, {sum(r['low'] >= 1 for r in timed)} ahead, geometric mean {mean:.2f}")


def flat(result: Any) -> list[Any]:
    """All arrays of a result, in order, in float64."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (tuple, list)):
        return [a for r in result for a in flat(r)]
    return [result.detach().double().numpy() if hasattr(result, "detach") else np.asarray(result).astype(np.float64)]


def distance(got: list[Any], want: list[Any]) -> float:
    """The largest difference, as a share of the largest value (or of 1, for small ones)."""
    if len(got) != len(want) or any(a.shape != b.shape for a, b in zip(got, want, strict=True)):
        return float("inf")
    return max(
        (float(np.abs(a - b).max()) / max(1.0, float(np.abs(b).max())) for a, b in zip(got, want, strict=True) if a.size), default=0.0
    )


if __name__ == "__main__":
    sys.exit(main())
