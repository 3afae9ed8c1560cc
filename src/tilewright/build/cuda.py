"""From an optimised graph to a session on a GPU. Needs no GPU: modules go to the device when the session first runs."""

from __future__ import annotations

from typing import Any

from ..core.target_spec import TargetSpec
from ..kernels.launch import Program
from ..runtime.cuda import driver as gpu
from ..runtime.cuda.constants import host_constants
from ..runtime.cuda.executable import CudaExecutable, KernelCode
from ..runtime.cuda.session import CudaSession
from ..runtime.session import Model
from ..target.cpu.host import available_cores
from ..target.cuda.device import DEFAULT, arch_of, cuda_target
from .cuda_beside import run_beside
from .cuda_late import make_late


def cuda_target_of(name: str) -> TargetSpec:
    """ "cuda" is the GPU of this machine, or Hopper where there is none; otherwise an architecture by name."""
    if name != "cuda":
        return cuda_target(name)
    if gpu.available():
        return cuda_target(DEFAULT)
    return cuda_target(arch_of(gpu.compute_capability()), gpu.sms(), gpu.shared_memory())


def build_cuda(model: Model, stages: Any) -> CudaSession:
    from ..kernels.select import select  # a program from the cache does without templates and emitters
    from ..target.cuda.code import emit_all

    with stages.stage("select"):
        program = select(model.graph, model.target)
        run_beside(program, set(model.interface.called))
        late = make_late(program, set(model.interface.called))
    with stages.stage("code"):
        made = emit_all((k for x in program.launches if not x.on_host for k in x.kernels), model.target)
        code = {name: KernelCode(name, ptx, block, shared) for name, (ptx, block, shared) in made.items()}
    return session_of(model, program, code, late=late, stages=stages)


def session_of(model: Model, program: Program, code: dict[str, KernelCode], *, late: bool, stages: Any) -> CudaSession:
    """What is left to do for a program whose kernels are there."""
    with stages.stage("pack"):
        constants = host_constants(program.constants, threads=min(8, available_cores()))
    with stages.stage("plan"):
        executable = CudaExecutable(program, model.interface, code, constants, late=late)
    return CudaSession(model, executable)
