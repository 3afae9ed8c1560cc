"""Reads everything the inspect page shows out of a session: graph, passes, launches, kernels, arena."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ..ir.graph import Graph, Node, Value
from ..ops.fused import Fused
from ..passes.base import Log
from ..passes.pipeline import run_pipeline
from ..runtime.session import Session
from ..target.cpu.emit import emit_kernel
from ..target.cpu.jit import assembly
from ..tile.text import to_text as kernel_text
from .console import Step as Progress
from .console import nbytes, seconds
from .page.data import Block, Box, Inspection, KernelText, Stage, Step
from .page.units import percent

# What an op's box is called and coloured: a word in its name, or what a region around it is (`Op.fusion`).
WORDS = {"conv": "conv", "attention": "attention", "softmax": "softmax", "concat": "copy", "pad": "copy", "qmatmul": "matmul",
         "qexperts": "matmul", "qgather": "gather", "batch_norm": "norm"}
FUSIONS = {"contraction": "matmul", "norm": "norm", "gather": "gather", "reduction": "reduction"}


def inspect_session(session: Session, imported: Graph | None = None, disable: tuple[str, ...] = (), progress: Progress | None = None,
                    at: Mapping[str, int] | None = None) -> Inspection:
    """All about a session. With the graph it was compiled from, the passes are run again to show each one's result; a session
    that was loaded knows its final graph only. Times come from the session's report: a run on zeros."""
    say = progress or _quiet
    final = session.model.graph
    say("timing")
    report = session.report(at).data
    data = Inspection(session.name, report["target"])
    data.stages = _stages(session, imported, disable)
    data.compile_stages = list(report["stages_s"].items())
    data.boxes = boxes(final)
    data.lines = source_lines({b.place for b in data.boxes if b.place})
    if session.executable is None:
        return data
    kinds = {b.name: b.kind for b in data.boxes}
    data.steps, data.findings = [_step(row, kinds) for row in report["launches"]], report["lint"]
    say("kernels")
    names: dict[str, str] = {}  # what the page and the files call a kernel, by its symbol
    for step, launch in zip(data.steps, session.executable.launches, strict=True):
        if step.kernel not in names:
            tile = session.executable.kernel(step.kernel)  # a loaded session has it as text, and a variant is not the launch's own kernel
            llvm = emit_kernel(tile, session.model.target)
            name = launch.kernel.name
            if name in data.kernels:
                name = f"{name}-{step.kernel[-6:]}"
            names[step.kernel] = name
            data.kernels[name] = KernelText(name, kernel_text(tile), llvm, assembly(llvm, session.model.target))
            say(name)
    data.steps = [replace(s, kernel=names[s.kernel]) for s in data.steps]
    _arena(data, session, report)
    _facts(data, report)
    from ..runtime.machine import peaks

    limit = peaks(session.threads)
    data.peak_flops, data.peak_bandwidth = limit.flops * 1e9, limit.bytes * 1e9
    data.caches = [(level.name, level.bytes * 1e9) for level in limit.levels[:-1]]
    return data


def source_lines(places: Collection[str]) -> dict[str, str]:
    """The text of `file.py:12` for files that a loaded module comes from. A name that two modules share is left out."""
    import linecache
    import sys

    files: dict[str, set[str]] = {}
    wanted = {p.rpartition(":")[0] for p in places}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None) or ""
        for name in wanted:
            if path == name or path.endswith("/" + name):
                files.setdefault(name, set()).add(path)
    found = {}
    for place in places:
        name, _, line = place.rpartition(":")
        if len(files.get(name, ())) == 1 and line.isdigit():
            found[place] = linecache.getline(next(iter(files[name])), int(line)).strip()
    return {place: text for place, text in found.items() if text}


def boxes(graph: Graph) -> list[Box]:
    """What to draw: inputs, computed nodes and outputs. Views are seen through, constants are listed in their readers' boxes."""
    found: list[Box] = []
    for n in graph.nodes:
        if n.op.name == "constant" or n.op.traits.view:
            continue
        kind = "input" if n.op.name == "input" else kind_of(n)
        title = n.name if kind == "input" else title_of(n)
        weights = [f"{v.name}: {v.type}" for v in map(_root, n.operands) if v.op.name == "constant" and v.type.shape]
        detail = "\n".join([*_body(n), *(["reads " + ", ".join(weights)] if weights else [])])
        types = ", ".join(map(str, n.types))
        sources = dict.fromkeys(v.node.name for v in map(_root, n.operands) if v.op.name != "constant")
        place, _, module = n.place.rpartition(" at ")[2].partition(" in ")
        found.append(Box(n.name, kind, title, types, detail, tuple(sources), place, module))
    for i, v in enumerate(graph.outputs):
        source = _root(v)
        found.append(
            Box(f"output {i}", "output", f"output {i}", str(v.type), "", (source.node.name,) if source.op.name != "constant" else ())
        )
    return found


def kind_of(node: Node) -> str:
    """The kind of a node, or of the first one in a region's body that has a kind of its own."""
    ops = [n.op for n in node.op.body.nodes] if isinstance(node.op, Fused) else [node.op]
    found = [next((kind for word, kind in WORDS.items() if word in op.name), FUSIONS.get(op.fusion)) for op in ops]
    return next(filter(None, found), "pointwise" if any(op.traits.elementwise for op in ops) else "other")


def title_of(node: Node) -> str:
    """`matmul + add + gelu` for a region, the op's name otherwise."""
    if not isinstance(node.op, Fused):
        return node.op.name
    names = [n.op.name for n in node.op.body.nodes if not (n.op.traits.source or n.op.traits.view)]
    return " + ".join(names) or "copy"


def _body(node: Node) -> list[str]:
    if not isinstance(node.op, Fused):
        return [str(node.op)]
    lines = [repr(n)[:110] for n in node.op.body.nodes if n.op.name != "input"]
    return lines if len(lines) <= 16 else [*lines[:15], f"… {len(lines) - 15} more"]


def _root(v: Value) -> Value:
    while v.op.traits.view:
        v = v.node.operands[0]
    return v


def _stages(session: Session, imported: Graph | None, disable: tuple[str, ...]) -> list[Stage]:
    from ..ir.text import to_text

    if imported is None:
        return [Stage("final", to_text(session.model.graph), len(session.model.graph.nodes))]
    log, sizes = Log(keep_dumps=True), list[int]()
    run_pipeline(imported, session.model.target, disable, log, on_pass=lambda _, g: sizes.append(len(g.nodes)))
    found = [Stage("import", to_text(imported), len(imported.nodes))]
    seen: set[str] = set()
    for (key, text), count in zip(log.dumps.items(), sizes, strict=True):
        name = key.split("-", 1)[1]
        first = name not in seen  # hits and seconds of a pass that runs twice are kept together
        seen.add(name)
        rules = tuple(sorted(log.hits.get(name, {}).items())) if first else ()
        found.append(Stage(name, text, count, log.seconds.get(name, 0.0) if first else 0.0, rules))
    return found


def _step(row: dict[str, Any], kinds: dict[str, str]) -> Step:
    name = str(row["name"])
    box = name if name in kinds else name.removeprefix("copy_").rsplit(".", 1)[0]
    kind = "copy" if row["note"].startswith("copy") or name.endswith(".pack") else kinds.get(box, "other")
    return Step(row["launch"], name, kind, row["kernel"], box, row["grid"], row["flops"], row["bytes"], row["us"] / 1e6, row["roofline"],
                row["barrier"], row["serial"], row["note"], row["bound"], row["predicted_us"] / 1e6)  # fmt: skip


def _arena(data: Inspection, session: Session, report: dict[str, Any]) -> None:
    if session.executable is None:
        return
    placement = session.executable.place(report["shape"])
    data.arena_bytes, data.arena_bound = placement.size, placement.bound
    data.arena_note = placement.strategy + (", in place where it can be" if placement.inplace else "")
    for i in placement.intervals:
        size = max(placement.sizes[b] for b in i.buffers)
        if size:
            data.blocks.append(
                Block(
                    " = ".join(b.name for b in i.buffers), placement.offsets[i.buffers[0]], size, i.first, i.last, data.steps[i.first].kind
                )
            )


def _facts(data: Inspection, report: dict[str, Any]) -> None:
    shape = ", ".join(f"{k} = {v}" for k, v in report["shape"].items())
    total = sum(s.seconds or 0.0 for s in data.steps)
    ideal = sum((s.seconds or 0.0) * (s.roofline or 0.0) for s in data.steps)
    data.facts = [
        ("one call" + (f" at {shape}" if shape else ""), seconds(report["total_us"] / 1e6)),
        ("launches", str(len(data.steps))),
        ("kernels", str(len(report["kernels"]))),
        ("arena", nbytes(report["arena"]["bytes"])),
        ("scratch a thread", nbytes(report["scratch_per_thread"])),
        ("weights", nbytes(report["constants_bytes"])),
        ("of the roofline", percent(ideal / total if total else None)),
        ("threads", str(report["threads"])),
    ]


def _quiet(text: str) -> None:
    del text
