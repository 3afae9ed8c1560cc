"""What a session consists of, as data and as text: launches and their costs, kernels, arena, constants, compile stages, inserted copies.

The parts that only a device knows come from the session's `describe`; the table of launches shows the columns that its rows have.
"""
from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core import html
from ..core.dims import evaluate
from ..core.errors import InputError
from .arguments import describe, limits

if TYPE_CHECKING:
    from .session import Compiled

Row = dict[str, Any]
WIDE = 110  # columns of a terminal that takes the whole table


@dataclass(frozen=True)
class Column:
    """A column of the table of launches, which stands where the rows have `key`."""

    heading: str
    key: str
    cell: Callable[[Row], str]
    left: bool = False
    always: bool = True  # on narrow terminals too


def _rate(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[key] / row['us'] / 1e3:.1f}" if row["us"] > 0 else "-"


def _note(row: Row) -> str:
    return "; ".join(filter(None, (f"in {row['inside']}" if row.get("inside") else "", row["note"])))


COLUMNS = (
    Column("launch", "launch", lambda row: str(row["launch"])),
    Column("name", "name", lambda row: row["name"], left=True),
    Column("kernel", "block", lambda row: row["kernel"], left=True, always=False),  # a CPU's is named by a hash, which tells nothing
    Column("grid", "grid", lambda row: str(row["grid"]), always=False),
    Column("block", "block", lambda row: str(row["block"]), always=False),
    Column("threads", "serial", lambda row: "1" if row["serial"] else "all", always=False),
    Column("us", "us", lambda row: f"{row['us']:.1f}"),
    Column("predicted", "predicted_us", lambda row: f"{row['predicted_us']:.1f}", always=False),
    Column("Mflop", "flops", lambda row: f"{row['flops'] / 1e6:.2f}", always=False),
    Column("KiB", "bytes", lambda row: f"{row['bytes'] / 1024:.0f}", always=False),
    Column("GFLOP/s", "us", _rate("flops")),
    Column("GB/s", "us", _rate("bytes")),
    Column("roofline", "roofline", lambda row: f"{row['roofline']:.0%} {row['bound']}"),
    Column("note", "note", _note, left=True),
)
KERNEL = ("kernel", "registers", "spilled", "shared", "barriers")  # what a kernel of a GPU needs


@dataclass(frozen=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int]

    def __str__(self) -> str:
        """Aligned plain text."""
        table = [self.headings, *self.rows]
        widths = [max(len(r[c]) for r in table) for c in range(len(self.headings))]
        return "\n".join("  ".join(v.ljust(w) if c in self.left else v.rjust(w) for c, (v, w) in enumerate(zip(row, widths, strict=True))
                                   ).rstrip() for row in table)  # fmt: skip


def launch_table(rows: Sequence[Row], *, narrow: bool = False) -> Table:
    """One line per launch."""
    shown = [c for c in COLUMNS if all(c.key in row for row in rows) and (c.always or not narrow)]
    left = frozenset(k for k, c in enumerate(shown) if c.left)
    return Table([c.heading for c in shown], [[c.cell(row) for c in shown] for row in rows], left)


@dataclass(eq=False)
class Report:
    """`data` holds everything as plain values; `str()` is for people: a rich table on a terminal, plain text elsewhere."""

    data: dict[str, Any]

    def tables(self, *, narrow: bool = False) -> list[Table]:
        found = [launch_table(self.data["launches"], narrow=narrow)] if self.data.get("launches") else []
        kernels = [_kernel(name, k) for name, k in self.data.get("kernels", {}).items() if "barriers" in k]
        return [*found, *([Table(KERNEL, kernels, frozenset((0, 4)))] if kernels else [])]

    def __str__(self) -> str:
        return _rich(self) if sys.stdout.isatty() else "\n".join([*_facts(self.data), *map(str, self.tables())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html.lines(_facts(self.data)) + "".join(html.table(t.headings, t.rows, t.left) for t in self.tables())


def make_report(session: Compiled, at: Mapping[str, int]) -> Report:
    """Costs at the sizes of `at`, of the last call, or typical ones."""
    model, interface, executable = session.model, session.interface, session.executable
    data: dict[str, Any] = {
        "name": model.name,
        "target": model.target.describe(),
        "threads": session.threads,
        "inputs": {n: describe(t) for n, t in zip(interface.input_names, interface.inputs, strict=True)},
        "outputs": [describe(t) for t in interface.outputs],
        "stages_s": {k: round(v, 4) for k, v in model.stages.items()},
        "notes": list(model.notes),
        "input_copies": dict(session.copies),
        "inputs_must_be": session.inputs_must_be,
    }
    if executable is None:
        return Report(data)
    known = {s.name: s for s in interface.symbols}
    ranges = ", ".join(limits(s) for s in known.values()) or "none"
    if not isinstance(at, Mapping):
        raise InputError(f"report: takes sizes of dynamic dims by name, like {{'N': 4}}, got {at!r}; dynamic dims: {ranges}")
    for name, size in at.items():
        if name not in known:
            raise InputError(f"report: there is no dim {name!r}; dynamic dims: {ranges}")
        if not known[name].lo <= size <= known[name].hi:
            raise InputError(f"report: {limits(known[name])} is needed, got {name} = {size}")
    env = {**(session.last_env() or {s.name: min(s.hi, max(s.lo, 128)) for s in known.values()}), **at}
    placement = executable.place(env)
    found = session.describe(env)
    notes = [*data["notes"], *found.pop("notes", ()), *(f"{r['name']}: {r['note']}" for r in found["launches"] if _copies(r))]
    arena = {"bytes": placement.size, "bound": placement.bound, "sum": sum(placement.sizes[b] for b in executable.plan.temps),
             "strategy": placement.strategy, "inplace": placement.inplace}
    constants = sum(evaluate(c.buffer.nbytes, env) for c in executable.program.constants)
    return Report({**data, "shape": dict(env), "arena": arena, "constants_bytes": constants, **found, "notes": notes})


def _copies(row: Row) -> bool:
    return "copy" in row["note"] or "copy" in row["name"]


def _kib(n: int) -> str:
    return f"{n / 1024:.1f} KiB" if n < 1 << 20 else f"{n / (1 << 20):.1f} MiB"


def _facts(data: dict[str, Any]) -> list[str]:
    threads = data["threads"]
    lines = [f"{data['name']} on {data['target']}" + (f", {threads} thread{'s' if threads > 1 else ''}" if threads else "")]
    lines += [f"  input {n}: {t}" for n, t in data["inputs"].items()]
    lines += [f"  output {i}: {t}" for i, t in enumerate(data["outputs"])]
    if data["stages_s"]:
        lines.append("  compile: " + ", ".join(f"{k} {v:.3f} s" for k, v in data["stages_s"].items()))
    if "launches" in data:
        lines += _program(data)
    lines += [f"  note: {n}" for n in data["notes"]]
    lines += [f"  slow: {x}" for x in data.get("lint", ())]
    lines += [f"  {message}; what does not fit spills" for k in data.get("kernels", {}).values() for message in k.get("limits", ())]
    for name, k in data["input_copies"].items():
        lines.append(f"  input {name!r} was copied in {k} call{'s' if k > 1 else ''}: it was not {data['inputs_must_be']}")
    return lines


def _program(data: dict[str, Any]) -> list[str]:
    """Counts and memory, and the loops and branches."""
    arena = data["arena"]
    shape = ", ".join(f"{k} = {v}" for k, v in data["shape"].items())
    time = f"{data['total_us']:.1f} us" if "total_us" in data else ""
    counts = f"{len(data['launches'])} launches of {len(data['kernels'])} kernels"
    counts += f" ({data['compiled_kernels']} compiled, the others from the cache)" if "compiled_kernels" in data else ""
    counts += f", {data['barriers']} barriers" if "barriers" in data else ""
    how = f"{arena['strategy']}{', in place' if arena['inplace'] else ''}"
    sizes = f"arena {_kib(arena['bytes'])} (bound {_kib(arena['bound'])}, unshared {_kib(arena['sum'])}; {how})"
    sizes += f", scratch {_kib(data['scratch_per_thread'])} a thread" if "scratch_per_thread" in data else ""
    head = " ".join(filter(None, (time, f"at {shape}" if shape else "")))
    lines = [f"  {head}{'; ' if head else ''}{counts}", f"  {sizes}, constants {_kib(data['constants_bytes'])}"]
    for c in data.get("control", ()):
        steps = "" if c["steps"] is None else f"{c['steps']} steps, " if c["kind"] == "scan" else f"at most {c['steps']} steps, "
        lines.append(f"  {'  ' * c['depth']}{c['kind']} {c['name']}: {steps}{len(c['launches'])} launches inside; {c['how']}")
    return lines


def _kernel(name: str, k: dict[str, Any]) -> list[str]:
    why = ", ".join(f"{count} {op} ({k['reasons'][op]})" for op, count in k["barriers"].items()) or "none"
    why += f"; one after every shared access would be {k['naive_barriers']}" if k["naive_barriers"] else ""
    return [name, *("?" if k[n] is None else str(k[n]) for n in ("registers", "spilled", "shared_bytes")), why]


def _rich(report: Report) -> str:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    out = io.StringIO()
    width = shutil.get_terminal_size().columns
    console = Console(file=out, force_terminal=True, width=width)
    for line in _facts(report.data):
        console.print(line, highlight=False, markup=False)
    for found in report.tables(narrow=width < WIDE):
        table = RichTable()
        for k, heading in enumerate(found.headings):
            table.add_column(heading, justify="left" if k in found.left else "right", no_wrap=heading != KERNEL[-1])
        for row in found.rows:
            table.add_row(*map(escape, row))
        console.print(table)
    return out.getvalue().rstrip()
