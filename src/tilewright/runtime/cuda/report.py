"""What a program on a GPU consists of: launches with blocks and threads, kernels with their barriers and the registers that `ptxas` names,
the arena. Needs no GPU; without a `ptxas` the registers are missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...build.packing import packed_bytes
from ...core.dims import evaluate
from ...core.errors import CompileError
from ...core.target_spec import TargetSpec
from ...kernels.cuda.kernel import BlockKernel
from ...kernels.launch import Launch
from ...target.cuda.ptx.ptxas import assemble, find_ptxas
from ...target.cuda.threads.emit import warnings
from ...tile.ir import Kernel
from ..arguments import describe
from ..cost import LIMITS, Cost, lint
from ..report import Report
from .cost import predict
from .executable import KernelCode
from .flow import describe_control, enclosing

if TYPE_CHECKING:
    from .session import CudaSession

BARRIERS = {
    "bar.sync": "threads of a block share memory",
    "bar.warp.sync": "threads of a warp share memory",
    "barrier.cluster.wait": "blocks of a cluster share memory",
    "mbarrier.try_wait": "a copy has landed, or a stage has been read",
    "wgmma.wait_group": "products have ended",
    "cp.async.wait_group": "copies have landed",
    "cp.async.bulk.wait_group": "results have been read, or have left",
    "fence.proxy.async": "TMA or the tensor core sees what threads stored",
    "griddepcontrol.wait": "the kernel before has ended",
}


# accesses of memory that threads of a block share; the naive way puts a barrier or a wait after each
SHARED = re.compile(
    r"^\s*(?:@!?%\w+ )?(?:(?:ld|st|atom)\S*\.shared|stmatrix|cp\.async\.c[ag]|wgmma\.mma_async"
    r"|cp\.(?:reduce\.)?async\.bulk\.(?!commit|wait|prefetch))",
    re.M,
)


HOST = Cost(0.0, 0.0, "", "")  # of a launch that has no code


class CudaReport(Report):
    """`data` holds everything as plain values; `str()` is a table."""

    def __str__(self) -> str:
        d = self.data
        counts = f"{len(d['launches'])} launches, {len(d['kernels'])} kernels, arena {d['arena_bytes']} bytes"
        lines = [f"{d['name']} on {d['target']}: {counts}"]
        for c in d["control"]:
            steps = "" if c["steps"] is None else f"{c['steps']} steps, " if c["kind"] == "scan" else f"at most {c['steps']} steps, "
            lines.append(f"{'  ' * c['depth']}{c['kind']} {c['name']}: {steps}{len(c['launches'])} launches inside; {c['how']}")
        head = f"{'launch':32s} {'kernel':36s} {'blocks':>8s} {'threads':>7s} {'MFLOP':>9s} {'KB':>9s}"
        lines.append(f"{head} {'predicted us':>12s} {'roofline':>8s}  note")
        for x in d["launches"]:
            figures = f"{x['blocks']:8d} {x['threads']:7d} {x['flops'] / 1e6:9.1f} {x['bytes'] / 1e3:9.1f}"
            figures += f" {x['predicted_us']:12.1f} {100 * x['roofline']:6.0f} %"
            note = "; ".join(part for part in (f"in {x['inside']}" if x["inside"] else "", x["note"]) if part)
            lines.append(f"{x['name'][:32]:32s} {x['kernel'][:36]:36s} {figures}  {note}")
        lines.append(f"{'kernel':36s} {'registers':>9s} {'spilled':>7s} {'shared':>7s}  barriers")
        for name, k in d["kernels"].items():
            shown = [str(k[n]) if k[n] is not None else "?" for n in ("registers", "spilled", "shared_bytes")]
            why = ", ".join(f"{count} {op} ({BARRIERS[op]})" for op, count in k["barriers"].items()) or "none"
            why += f"; one after every shared access would be {k['naive_barriers']}" if k["naive_barriers"] else ""
            lines.append(f"{name[:36]:36s} {shown[0]:>9s} {shown[1]:>7s} {shown[2]:>7s}  {why}")
        lines += [f"slow: {finding}" for finding in d["lint"]]
        lines += [f"{message}; what does not fit spills" for k in d["kernels"].values() for message in k["limits"]]
        for name, count in d["input_copies"].items():
            calls = f"{count} call{'s' if count > 1 else ''}"
            lines.append(f"input {name!r} was copied in {calls}: it lay on the host, or was not contiguous and aligned")
        return "\n".join(lines)

    __repr__ = __str__


def make_cuda_report(session: CudaSession) -> CudaReport:
    """Costs at the shape of the last call, or at a typical one."""
    model, executable = session.model, session.executable
    env = session.last_env() or {s.name: min(s.hi, max(s.lo, 128)) for s in session.interface.symbols}
    launches, findings = describe_launches(session, env)
    tiles = {k.name: k for k in executable.kernels()}
    return CudaReport(
        {
            "name": model.name,
            "target": model.target.describe(),
            "inputs": {n: describe(t) for n, t in zip(session.interface.input_names, session.interface.inputs, strict=True)},
            "outputs": [describe(t) for t in session.interface.outputs],
            "stages_s": {k: round(v, 4) for k, v in model.stages.items()},
            "shape": dict(env),
            "input_copies": dict(session.copies),
            "control": describe_control(executable.program.block or executable.program.launches, env),
            "launches": launches,
            "lint": findings,
            "kernels": {name: _kernel(code, tiles[name], model.target) for name, code in executable.code.items()},
            "arena_bytes": executable.plan.place(env).size,
            "constants_bytes": sum(packed_bytes(c.data.type, c.packed) for c in executable.program.constants),
        }
    )


def launch_costs(session: CudaSession, env: Mapping[str, int]) -> dict[Launch, Cost]:
    """The predicted cost of every launch that has code; the host computes the others."""
    executable, found = session.executable, dict[Launch, Cost]()
    tiles = {k.name: k for k in executable.kernels()}
    for x in executable.program.launches:
        code = executable.code.get(x.kernel.name)
        if code is not None:
            work = evaluate(x.flops, env), evaluate(x.bytes, env)
            found[x] = predict(tiles[x.kernel.name], _blocks(x, env), code.block, *work, session.model.target, code.ptx)
    return found


def _blocks(launch: Launch, env: Mapping[str, int]) -> int:
    programs = launch.kernel.programs if isinstance(launch.kernel, BlockKernel) else 1
    return -(-evaluate(launch.grid, env) // programs)


def describe_launches(session: CudaSession, env: Mapping[str, int]) -> tuple[list[dict[str, Any]], list[str]]:
    """Every launch with its predicted time and share of the roofline, and the findings of the lint."""
    executable, costs = session.executable, launch_costs(session, env)
    launches: list[dict[str, Any]] = []
    around = enclosing(executable.program.block)
    for x in executable.program.launches:
        code = executable.code.get(x.kernel.name)
        launches.append(
            {
                "name": x.name,
                "kernel": x.kernel.name,
                "blocks": _blocks(x, env),
                "threads": 0 if code is None else code.block,
                "flops": evaluate(x.flops, env),
                "bytes": evaluate(x.bytes, env),
                "inside": around.get(x, ""),
                "note": x.note,
                **costs.get(x, HOST).columns(),
            }
        )
    return launches, [str(f) for f in lint(((x.name, cost, None) for x, cost in costs.items()), LIMITS["cuda"])]


def _kernel(code: KernelCode, kernel: Kernel, target: TargetSpec) -> dict[str, Any]:
    found: dict[str, Any] = {"registers": None, "spilled": None, "shared_bytes": None}
    if find_ptxas() is not None:
        try:
            usage = assemble(code.ptx, target.cpu)
        except CompileError:  # an older assembler than the kernel needs says nothing about it
            usage = None
        if usage is not None:
            found = {"registers": usage.registers, "spilled": usage.spilled, "shared_bytes": usage.shared + code.dynamic_shared}
    counts = {op: len(re.findall(rf"^\s*(?:@!?%\w+ )?{re.escape(op)}\b", code.ptx, re.M)) for op in BARRIERS}
    found["limits"] = warnings(kernel, target) if isinstance(kernel, BlockKernel) else []
    return {**found, "barriers": {op: n for op, n in counts.items() if n}, "naive_barriers": len(SHARED.findall(code.ptx))}
