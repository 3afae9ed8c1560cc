"""What a session consists of, as data and as text: kernels and their costs, arena, constants, compile stages, inserted copies."""
from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import html
from ..core.dims import evaluate
from ..core.errors import InputError
from .arguments import Bound, describe

if TYPE_CHECKING:
    from .session import Session

COLUMNS = ("launch", "name", "grid", "threads", "us", "predicted", "Mflop", "KiB", "GFLOP/s", "GB/s", "roofline", "note")
WIDE = 110  # columns of a terminal that takes all of these


@dataclass(eq=False)
class Report:
    """`data` holds everything as plain values; `str()` is for people: a rich table on a terminal, plain text elsewhere."""

    data: dict[str, Any]

    def __str__(self) -> str:
        return _rich(self.data) if sys.stdout.isatty() else _plain(self.data)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks."""
        if type(self) is not Report:
            return html.lines(str(self).splitlines())
        rows = [_cells(r) for r in self.data.get("launches", ())]
        return html.lines(_facts(self.data)) + (html.table(COLUMNS, rows, (1, len(COLUMNS) - 1)) if rows else "")


def make_report(session: Session, at: Mapping[str, int]) -> Report:
    """Costs at the sizes of `at`, of the last call, or typical ones; times from a run on zeros."""
    model, executable = session.model, session.executable
    data: dict[str, Any] = {
        "name": model.name,
        "target": model.target.describe(),
        "threads": session.threads,
        "inputs": {n: describe(t) for n, t in zip(session.interface.input_names, session.interface.inputs, strict=True)},
        "outputs": [describe(t) for t in session.interface.outputs],
        "stages_s": {k: round(v, 4) for k, v in model.stages.items()},
        "notes": [*model.notes, *([session.pool.note] if session.executable is not None and session.pool.note else [])],
        "input_copies": dict(session.copies),
    }
    if executable is None:
        return Report(data)
    known = {s.name: s for s in session.interface.symbols}
    for name, size in at.items():
        if name not in known or not known[name].lo <= size <= known[name].hi:
            ranges = ", ".join(f"{s.name} in {s.lo}..{s.hi}" for s in known.values()) or "none"
            raise InputError(f"report: there is no dim {name} of size {size}; the dynamic dims are {ranges}")
    env = {**(session.last_env() or {s.name: min(s.hi, max(s.lo, 128)) for s in known.values()}), **at}
    from .profile import measure_bound

    profile = measure_bound(session, _zeros(session, env), 3, zeros=True)
    placement = executable.place(env)
    workspace = session.take()
    instance = workspace.instance(tuple(env[s.name] for s in session.interface.symbols))
    session.give(workspace)
    naive = sum(placement.sizes[b] for b in executable.plan.temps)
    data |= {
        "shape": dict(env),
        "total_us": profile.total_us,
        "launches": profile.rows,
        "lint": [str(x) for x in profile.findings],
        "kernels": len(set(executable.code.symbols)),
        "compiled_kernels": executable.code.compiled,
        "barriers": sum(r["barrier"] for r in profile.rows),
        "arena": {"bytes": placement.size, "bound": placement.bound, "sum": naive, "strategy": placement.strategy,
                  "inplace": placement.inplace},
        "scratch_per_thread": instance.scratch,
        "constants_bytes": sum(int(c.nbytes) for c in executable.constants),
    }
    data["notes"] += [f"{r['name']}: {r['note']}" for r in profile.rows if "copy" in r["note"] or "copy" in r["name"]]
    return Report(data)


def _zeros(session: Session, env: dict[str, int]) -> Bound:
    """Inputs of zeros: valid as numbers, masks and indices alike."""
    arrays = [np.zeros(tuple(evaluate(d, env) for d in t.shape), t.dtype.np) for t in session.interface.inputs]
    return Bound([a.ctypes.data for a in arrays], list(arrays), dict(env))


def _rate(amount: int, us: float) -> str:
    return f"{amount / us / 1e3:.1f}" if us > 0 else "-"


def _cells(row: dict[str, Any]) -> list[str]:
    us = row.get("us", 0.0)
    share = f"{row.get('roofline', 0.0):.0%} {row.get('bound', '')}".rstrip()
    times = f"{us:.1f}", f"{row.get('predicted_us', 0.0):.1f}"
    return [str(row["launch"]), row["name"], str(row["grid"]), "1" if row["serial"] else "all", *times, f"{row['flops'] / 1e6:.2f}",
            f"{row['bytes'] / 1024:.0f}", _rate(row["flops"], us), _rate(row["bytes"], us), share, row["note"]]


def launch_table(rows: list[dict[str, Any]]) -> str:
    """Aligned plain text, one line per launch."""
    table = [list(COLUMNS), *(_cells(r) for r in rows)]
    widths = [max(len(r[c]) for r in table) for c in range(len(COLUMNS))]
    left = {1, len(COLUMNS) - 1}
    lines = []
    for row in table:
        cells = [v.ljust(w) if c in left else v.rjust(w) for c, (v, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _kib(n: int) -> str:
    return f"{n / 1024:.1f} KiB" if n < 1 << 20 else f"{n / (1 << 20):.1f} MiB"


def _facts(data: dict[str, Any]) -> list[str]:
    lines = [f"{data['name']} on {data['target']}, {data['threads']} thread{'s' if data['threads'] > 1 else ''}"]
    lines += [f"  input {n}: {t}" for n, t in data["inputs"].items()]
    lines += [f"  output {i}: {t}" for i, t in enumerate(data["outputs"])]
    if data["stages_s"]:
        lines.append("  compile: " + ", ".join(f"{k} {v:.3f} s" for k, v in data["stages_s"].items()))
    if "arena" in data:
        arena = data["arena"]
        shape = ", ".join(f"{k} = {v}" for k, v in data["shape"].items())
        counts = f"{len(data['launches'])} launches of {data['kernels']} kernels ({data['compiled_kernels']} compiled, the others cached)"
        lines.append(f"  {data['total_us']:.1f} us{' at ' + shape if shape else ''}; {counts}, {data['barriers']} barriers")
        how = f"{arena['strategy']}{', in place' if arena['inplace'] else ''}"
        sizes = f"arena {_kib(arena['bytes'])} (bound {_kib(arena['bound'])}, unshared {_kib(arena['sum'])}; {how})"
        lines.append(f"  {sizes}, scratch {_kib(data['scratch_per_thread'])} a thread, constants {_kib(data['constants_bytes'])}")
    lines += [f"  note: {n}" for n in data["notes"]]
    lines += [f"  slow: {x}" for x in data.get("lint", ())]
    lines += [f"  input {n!r} was copied in {k} call{'s' if k > 1 else ''}: it was not contiguous" for n, k in data["input_copies"].items()]
    return lines


def _plain(data: dict[str, Any]) -> str:
    table = launch_table(data["launches"]) if data.get("launches") else ""
    return "\n".join([*_facts(data), *([table] if table else [])])


def _rich(data: dict[str, Any]) -> str:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    out = io.StringIO()
    width = shutil.get_terminal_size().columns
    console = Console(file=out, force_terminal=True, width=width)
    for line in _facts(data):
        console.print(line, highlight=False, markup=False)
    if data.get("launches"):
        shown = [k for k, name in enumerate(COLUMNS) if width >= WIDE or name not in ("grid", "threads", "predicted", "Mflop", "KiB")]
        table = Table()
        for k in shown:
            table.add_column(COLUMNS[k], justify="left" if k in (1, len(COLUMNS) - 1) else "right", no_wrap=True)
        for row in data["launches"]:
            cells = _cells(row)
            table.add_row(*(escape(cells[k]) for k in shown))
        console.print(table)
    return out.getvalue().rstrip()
