"""What a report says of a program on a GPU: launches with blocks and predicted times, kernels with their barriers and the registers that
`ptxas` names. Needs no GPU; without a `ptxas` the registers are missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.dims import evaluate
from ...core.errors import CompileError
from ...core.target_spec import TargetSpec
from ...kernels.cuda.kernel import BlockKernel
from ...kernels.launch import Launch, Word
from ...target.cuda.ptx.ptxas import assemble, find_ptxas
from ...target.cuda.threads.emit import warnings
from ...tile.ir import Kernel
from ..cost import LIMITS, Cost, lint
from .cost import predict, steps_of
from .executable import KernelCode
from .flow import describe_control, enclosing
from .threads import per_thread

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
    "griddepcontrol.wait": "the previous kernel has ended",
}


# accesses of memory that threads of a block share; the naive way puts a barrier or a wait after each
SHARED = re.compile(
    r"^\s*(?:@!?%\w+ )?(?:(?:ld|st|atom)\S*\.shared|stmatrix|cp\.async\.c[ag]|wgmma\.mma_async"
    r"|cp\.(?:reduce\.)?async\.bulk\.(?!commit|wait|prefetch))",
    re.M,
)


HOST = Cost(0.0, 0.0, "", "")  # the cost of a launch that has no code


def describe(session: CudaSession, env: Mapping[str, int]) -> dict[str, Any]:
    """What a report says of a program on a GPU beside what it says of all: predicted times, kernels with their barriers, loops."""
    executable = session.executable
    launches, findings = describe_launches(session, env)
    tiles = {k.name: k for k in executable.kernels()}
    return {
        "launches": launches,
        "lint": findings,
        "kernels": {name: _kernel(code, tiles[name], session.model.target) for name, code in executable.code.items()},
        "control": describe_control(executable.program.block or executable.launches, env),
    }


def launch_costs(session: CudaSession, env: Mapping[str, int]) -> dict[Launch, Cost]:
    """The predicted cost of every launch that has code; the host computes the others."""
    executable, found = session.executable, dict[Launch, Cost]()
    tiles = {k.name: k for k in executable.kernels()}
    for x in executable.launches:
        code = executable.code.get(x.kernel.name)
        if code is not None:
            work = evaluate(x.flops, env), evaluate(x.bytes, env)
            kernel, beside = tiles[x.kernel.name], getattr(x.kernel, "beside", 1)
            words = tuple(evaluate(a.value, env) if isinstance(a, Word) else None for a in x.arguments[::beside])
            each = None if x.variants else per_thread(kernel, words, evaluate(x.grid, env))
            found[x] = predict(kernel, _blocks(x, env), code.block, *work, session.model.target, code.ptx, each,
                               steps_of(kernel, words), code.dynamic_shared)
    return found


def _blocks(launch: Launch, env: Mapping[str, int]) -> int:
    programs = launch.kernel.programs if isinstance(launch.kernel, BlockKernel) else 1
    return -(-evaluate(launch.grid, env) // programs) * getattr(launch.kernel, "beside", 1)


def describe_launches(session: CudaSession, env: Mapping[str, int]) -> tuple[list[dict[str, Any]], list[str]]:
    """Every launch with its predicted time and share of the roofline, and the findings of the lint."""
    executable, costs = session.executable, launch_costs(session, env)
    around = enclosing(executable.program.block)
    launches = []
    for k, x in enumerate(executable.launches):
        code = executable.code.get(x.kernel.name)
        launches.append({"launch": k, "name": x.name, "kernel": x.kernel.name, "grid": _blocks(x, env),
                         "block": 0 if code is None else code.block, "flops": evaluate(x.flops, env), "bytes": evaluate(x.bytes, env),
                         "inside": around.get(x, ""), "note": x.note, **costs.get(x, HOST).columns()})  # fmt: skip
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
    used = {op: n for op, n in counts.items() if n}
    return {**found, "barriers": used, "reasons": {op: BARRIERS[op] for op in used}, "naive_barriers": len(SHARED.findall(code.ptx))}
