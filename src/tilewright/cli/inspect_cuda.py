"""`tilewright inspect` for a GPU: the program as a report, and for every kernel its tile IR, its PTX, and what it needs and waits for.

Works without a GPU. Registers and spills are those of `ptxas`, where there is one; otherwise the page says that they are unknown.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.files import write_folder
from ..kernels.cuda.whole import WholeKernel, shown
from ..kernels.launch import flatten
from ..runtime.cuda.report import BARRIERS
from ..target.cuda.device import occupancy
from ..target.cuda.ptx.ptxas import find_ptxas
from ..target.cuda.safety.async_safety import check, waits
from ..target.cuda.safety.token_launch import small_launch
from ..target.cuda.safety.token_state import Launch
from ..tile.ir import Kernel
from ..tile.text import to_text as kernel_text

if TYPE_CHECKING:
    from ..runtime.cuda.session import CudaSession

WAITS = re.compile(r"^\s*(?:@!?%\w+ )?(bar\.sync|barrier\.cluster\.wait|mbarrier\.try_wait|griddepcontrol\.wait)\b")
WRITES = re.compile(r"\b(st\.shared|stmatrix|cp\.async|wgmma|st\.async)")
READS = re.compile(r"\b(ld\.shared|ldmatrix|wgmma|cp\.async\.bulk\S*global)")
OTHER = {
    "griddepcontrol.wait": "the previous kernel has ended: what it wrote is read from here on",
    "mbarrier.try_wait": "a copy has landed in a stage, or a stage has been read",
    "barrier.cluster.wait": "blocks of the cluster have written or read each other's shared memory",
}


def inspect_cuda(session: CudaSession, folder: Path) -> tuple[int, list[str]]:
    """Fill `folder`; gives the number of files, and the findings of the lint."""
    from ..ir.text import to_text

    report = session.report()
    files = {"graph/final.txt": to_text(session.model.graph)}
    kernels: dict[str, Any] = {}
    tiles = {k.name: k for k in session.executable.kernels()}
    for name, code in session.executable.code.items():
        figures = report.data["kernels"][name]
        launch = small_launch(tiles[name], code.ptx)
        found = barriers(code.ptx) if launch is None else asynchronous(code.ptx, launch)
        room = occupancy(session.model.target.cpu, code.block, figures["registers"], figures["shared_bytes"])
        kernels[name] = {**figures, **room, "waits": found}
        if launch is not None:
            kernels[name]["unordered"] = [str(f) for f in check(code.ptx, launch).findings]
        files[f"kernels/{name}.tile"] = _tile_text(tiles[name])
        files[f"kernels/{name}.ptx"] = code.ptx
        files[f"kernels/{name}.txt"] = describe(name, code.block, kernels[name])
    files["report.json"] = json.dumps({**report.data, "kernels": kernels}, indent=1)
    parts = [str(report), "" if find_ptxas() is not None else "no ptxas here: registers, spills and occupancy are unknown", ""]
    files["report.txt"] = "\n".join([*parts, *(describe(n, session.executable.code[n].block, k) for n, k in kernels.items())])
    return write_folder(folder, files, subject="inspect"), report.data["lint"]


def asynchronous(ptx: str, launch: Launch) -> list[dict[str, Any]]:
    """Every wait and fence of a kernel with copies or products in flight: its line, and the accesses that it orders (`async_safety`)."""
    lines = ptx.splitlines()
    return [{"line": w.line, "op": short(w.op), "why": w.why(lines), "needed": bool(w.without)} for w in waits(ptx, launch)]


def short(opcode: str) -> str:
    return next((x for x in BARRIERS if opcode.startswith(x)), opcode)


def _tile_text(kernel: Kernel) -> str:
    """A kernel that loops over others shows how, and then those."""
    if not isinstance(kernel, WholeKernel):
        return kernel_text(kernel)
    inner = {x.kernel.name: x.kernel for x in flatten(list(kernel.items))}
    return "\n".join([f"one block of {kernel.block} threads:", *shown(kernel.items, 1), "", *map(kernel_text, inner.values())])


def barriers(ptx: str) -> list[dict[str, Any]]:
    """Every wait of a kernel: its line, and why it is there."""
    lines = ptx.splitlines()
    waits = [(i, m[1]) for i, line in enumerate(lines) if (m := WAITS.match(line)) is not None]
    found = []
    for n, (i, op) in enumerate(waits):
        if op != "bar.sync":
            found.append({"line": i + 1, "op": op, "why": OTHER[op]})
            continue
        before = range(waits[n - 1][0] + 1 if n else 0, i)
        after = range(i + 1, waits[n + 1][0] if n + 1 < len(waits) else len(lines))
        wrote = next((j for j in reversed(before) if WRITES.search(lines[j])), None)
        reads = next((j for j in after if READS.search(lines[j])), None)
        free = "shared memory has been read, it may be written again"
        said = [f"line {wrote + 1} has written shared memory" if wrote is not None else free]
        said += [f"line {reads + 1} reads it" if reads is not None else "other threads use it next"]
        found.append({"line": i + 1, "op": op, "why": ", ".join(said)})
    return found


def describe(name: str, threads: int, k: dict[str, Any]) -> str:
    def shown(key: str) -> str:
        return "unknown" if k[key] is None else str(k[key])

    needs = f"{shown('registers')} registers, {shown('spilled')} bytes spilled, {shown('shared_bytes')} bytes of shared memory"
    lines = [f"{name}: {threads} threads a block, {needs}"]
    share = "unknown" if k["occupancy"] is None else f"{k['occupancy']:.0%}"
    lines.append(f"  blocks on an SM: {shown('blocks')} (bound by {k['bound']}), occupancy {share}")
    lines += [f"  line {w['line']}: {w['op']}: {w['why']}" for w in k["waits"]] or ["  no barriers"]
    if "unordered" in k:
        lines += [f"  NOT ORDERED: {x}" for x in k["unordered"]] or ["  every asynchronous access is ordered by these"]
    return "\n".join(lines)
