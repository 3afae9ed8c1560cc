"""The PTX of every kind of kernel: accepted by the assembler for each architecture, without spills where we promise none, safe at its
barriers, and pinned as text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tilewright as tw
from tests.cuda.kernels import CASES, GOLDENS, case
from tests.cuda.launching import program
from tilewright.core.errors import CompileError, ConfigError, ExecutionError
from tilewright.kernels.cuda.kernel import FlashKernel, GemmKernel
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.target.cuda.code import emit_all, emit_cuda
from tilewright.target.cuda.device import CHIPS, arch_of, cuda_target
from tilewright.target.cuda.ptx.ptxas import Usage, _usage, assemble, find_ptxas
from tilewright.target.cuda.safety import async_safety
from tilewright.target.cuda.safety.barrier_safety import check
from tilewright.target.cuda.safety.token_launch import small_launch
from tilewright.tile.ir import Kernel

NO_SPILLS = (
    "gemm", "gemv", "ring", "thin", "decode", "flash", "conv", "mma_grad", "turn", "pointwise",
    "softmax", "layer_norm", "rms_norm", "whole",
)  # fmt: skip
needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="no ptxas here (CUDA toolkit or the package nvidia-cuda-nvcc)")


def modules(name: str, arch: str) -> dict[str, str]:
    found = emit_all(kernels(name, arch), cuda_target(arch))
    return {kernel: text for kernel, (text, _, _) in found.items()}


def kernels(name: str, arch: str) -> list[Kernel]:
    return [k for x in program(case(name), arch).launches for k in x.kernels]


@needs_ptxas
@pytest.mark.parametrize("arch", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_the_assembler_takes_it(name: str, arch: str) -> None:
    for kernel, text in modules(name, arch).items():
        usage = assemble(text, arch)
        if kernel.startswith(NO_SPILLS):
            most = 64 if (name, arch) == ("attention_extras", "sm_90a") else 0  # mask, bias and soft cap at once
            assert usage.spilled <= most and usage.stack <= most, (kernel, usage)
        assert not usage.warnings, (kernel, usage.warnings)


@pytest.mark.parametrize("name", CASES)
def test_barriers_are_safe_and_asynchronous_work_is_ordered(name: str) -> None:
    """No thread misses a barrier; every access of a stage, a result or a register of the tensor core is behind its wait, and no read of
    shared memory goes unobserved."""
    for arch in ("sm_80", "sm_90a"):
        for kernel in {k.name: k for k in kernels(name, arch)}.values():
            text = emit_cuda(kernel, cuda_target(arch))
            assert check(text) == [], kernel.name
            launch = small_launch(kernel, text)
            if isinstance(kernel, TiledKernel):
                continue  # their barriers follow from the accesses, and the emulator watches races
            assert (launch is not None) == async_safety.orders(text), kernel.name
            if launch is not None:
                found = async_safety.check(text, launch)
                assert found.findings == () and found.met and all(found.met.values()), kernel.name


def test_a_block_reduction_has_a_barrier_and_a_planted_exit_is_found() -> None:
    (text,) = modules("softmax_long", "sm_90a").values()
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if "bar.sync" in line)
    planted = [*lines[:at], "  mov.u32 %r1, %tid.x;", "  setp.eq.u32 %p1, %r1, 3;", "  @%p1 exit;", *lines[at:]]
    assert check(text) == []
    assert [f.kind for f in check("\n".join(planted))] == ["exit"]


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens(name: str, golden: Callable[[str, str], None]) -> None:
    (text,) = modules(name, GOLDENS[name]).values()
    golden(f"{name}.ptx", text)


def kinds(name: str, arch: str = "sm_90a") -> list[type[Kernel]]:
    return [type(x.kernel) for x in program(case(name), arch).launches]


def test_the_tensor_cores_are_used_where_they_are() -> None:
    for name in ("matmul_bf16", "matmul_large", "matmul_batched", "linear_rows_dynamic"):
        assert kinds(name) == [GemmKernel], name
        assert kinds(name, "sm_80") and GemmKernel not in kinds(name, "sm_80")
    for name in ("attention", "attention_causal", "attention_window"):
        assert kinds(name)[0] is FlashKernel
    assert kinds("matmul_f32") == kinds("matmul_fma") == [TiledKernel]


def test_a_row_is_read_once() -> None:
    """One load per operand piece and thread: 32 bf16 elements in four accesses of 16 bytes."""
    (text,) = modules("softmax_long", "sm_90a").values()
    assert text.count("ld.global.v4.b32") == 4 and text.count("st.global.v4.b32") == 4


def test_a_kernel_of_another_target_is_refused() -> None:
    with pytest.raises(CompileError, match="kernel k has no place on the GPU"):
        emit_cuda(Kernel("k"), cuda_target())


def test_architectures() -> None:
    assert [arch_of(c) for c in ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))] == ["sm_80", "sm_80", "sm_80", "sm_90a", "sm_120"]
    with pytest.raises(ConfigError, match=r"compute capability 7\.5 is older than 8\.0"):
        arch_of((7, 5))
    with pytest.raises(ConfigError, match="CUDA architecture must be one of sm_80 sm_90a sm_120, got 'sm_70'"):
        tw.compile(case("gelu_odd"), target="sm_70")


@pytest.mark.skipif(not cuda_driver.available(), reason="there is a GPU here")
def test_without_a_gpu_it_compiles_and_running_is_one_clear_error() -> None:
    import torch

    session = tw.compile(case("gelu_odd"), target="cuda")
    with pytest.raises(ExecutionError, match=r"^cuda: (running needs the package cuda-bindings|no NVIDIA driver|no usable GPU)"):
        session(torch.zeros(7, 33))


def test_the_assembler_report_is_read() -> None:
    text = """ptxas info    : 0 bytes gmem
ptxas info    : Function properties for k
    8 bytes stack frame, 16 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 128 bytes smem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"""
    usage = _usage(text)
    assert usage == Usage(40, 16, 8, 128, 1, usage.warnings) and len(usage.warnings) == 1


@needs_ptxas
def test_the_assembler_rejects_nonsense() -> None:
    with pytest.raises(CompileError, match="ptxas: rejects the kernel for sm_90a"):
        assemble(".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() { nonsense; }", "sm_90a")
