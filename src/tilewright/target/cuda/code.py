"""Kernels of a program → PTX modules, one per distinct kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core.errors import CompileError
from ...core.target_spec import TargetSpec
from ...kernels.attention.cuda.flash_kernels import FlashGradKernel, FlashStatsKernel, MmaGradKernel
from ...kernels.conv.cuda.kernels import ConvKernel, HaloKernel, PatchKernel, WindowGradientKernel
from ...kernels.cuda.kernel import (
    BlockKernel,
    DecodeKernel,
    FlashKernel,
    GemmKernel,
    QDotKernel,
    QFewKernel,
    QGemmKernel,
    ThinKernel,
    TransposeKernel,
)
from ...kernels.cuda.tiled import TiledKernel
from ...kernels.cuda.whole import WholeKernel
from ...kernels.sort.cuda.radix import RadixKernel
from ...kernels.sort.cuda.sampling import SampleKernel
from ...tile.ir import Kernel
from .attention.decode import emit_decode
from .attention.flash import emit_flash, flash_shared
from .attention.flash_grad import emit_flash_grad, flash_grad_shared
from .attention.flash_stats import emit_flash_stats, flash_stats_shared
from .attention.mma_grad import emit_mma_grad, mma_grad_shared
from .conv.gemm import emit_conv, emit_window_gradient
from .conv.halo import emit_halo, halo_shared
from .conv.patch import emit_patch, patch_shared
from .matmul.gemm import dynamic_shared, emit_gemm
from .matmul.thin import emit_thin
from .matmul.transpose import emit_transpose
from .quant.qdot import emit_qdot
from .quant.qfew import emit_qfew, qfew_shared
from .quant.qgemm import emit_qgemm, qgemm_shared
from .quant.qgemm_hopper import emit_hopper_qgemm
from .sampling.sample import emit_sample
from .sort.radix import emit_radix
from .threads.emit import emit_block_kernel
from .threads.whole import emit_whole
from .tiled.emit import SHARED_BYTES, emit_tiled


def emit_cuda(kernel: Kernel, target: TargetSpec) -> str:
    """The PTX module of any kernel of this target."""
    if isinstance(kernel, TiledKernel):
        return emit_tiled(kernel, target)
    if isinstance(kernel, PatchKernel):
        return emit_patch(kernel, target)
    if isinstance(kernel, WindowGradientKernel):
        return emit_window_gradient(kernel, target)
    if isinstance(kernel, ConvKernel):
        return emit_conv(kernel, target)
    if isinstance(kernel, GemmKernel):
        return emit_gemm(kernel, target)
    if isinstance(kernel, FlashKernel):
        return emit_flash(kernel, target)
    if isinstance(kernel, FlashStatsKernel):
        return emit_flash_stats(kernel, target)
    if isinstance(kernel, FlashGradKernel):
        return emit_flash_grad(kernel, target)
    if isinstance(kernel, MmaGradKernel):
        return emit_mma_grad(kernel, target)
    if isinstance(kernel, DecodeKernel):
        return emit_decode(kernel, target)
    if isinstance(kernel, ThinKernel):
        return emit_thin(kernel, target)
    if isinstance(kernel, QDotKernel):
        return emit_qdot(kernel, target)
    if isinstance(kernel, QFewKernel):
        return emit_qfew(kernel, target)
    if isinstance(kernel, QGemmKernel):
        return emit_hopper_qgemm(kernel, target) if kernel.wgmma else emit_qgemm(kernel, target)
    if isinstance(kernel, HaloKernel):
        return emit_halo(kernel, target)
    if isinstance(kernel, SampleKernel):
        return emit_sample(kernel, target)
    if isinstance(kernel, RadixKernel):
        return emit_radix(kernel, target)
    if isinstance(kernel, TransposeKernel):
        return emit_transpose(kernel, target)
    if isinstance(kernel, BlockKernel):
        return emit_block_kernel(kernel, target)
    if isinstance(kernel, WholeKernel):
        return emit_whole(kernel, target)
    raise CompileError(f"cuda: kernel {kernel.name} has no place on the GPU: its template is not one of this target's")


def emit_all(kernels: Iterable[Kernel], target: TargetSpec) -> dict[str, tuple[str, int, int]]:
    """name -> (PTX, threads of a block, dynamic shared memory)."""
    out: dict[str, tuple[str, int, int]] = {}
    placed: dict[str, tuple[Any, ...]] = {}
    for k in kernels:
        early, maps = getattr(k, "early", False), len(getattr(k, "maps", ()))
        vector = k.vectors if isinstance(k, TiledKernel) else getattr(k, "vector", 0)
        place = (k.block, vector, maps, early, early and getattr(k, "ready", None))  # type: ignore[attr-defined]
        if placed.setdefault(k.name, place) != place:
            raise CompileError(f"cuda: two kernels {k.name} are placed differently; a kernel's name must tell them apart")
        if k.name not in out:
            out[k.name] = (emit_cuda(k, target), k.block, shared_bytes(k))  # type: ignore[attr-defined]
    return out


def shared_bytes(kernel: Kernel) -> int:
    """Dynamic shared memory of a launch; of a block program, once its text was emitted."""
    if isinstance(kernel, TiledKernel):
        return SHARED_BYTES[kernel.name]
    if isinstance(kernel, PatchKernel):
        return patch_shared(kernel)
    if isinstance(kernel, GemmKernel):
        return dynamic_shared(kernel)
    if isinstance(kernel, FlashKernel):
        return flash_shared(kernel)
    if isinstance(kernel, HaloKernel):
        return halo_shared(kernel)
    if isinstance(kernel, QFewKernel):
        return qfew_shared(kernel)
    if isinstance(kernel, QGemmKernel):
        return qgemm_shared(kernel)
    if isinstance(kernel, FlashGradKernel):
        return flash_grad_shared(kernel)
    if isinstance(kernel, MmaGradKernel):
        return mma_grad_shared(kernel)
    return flash_stats_shared(kernel) if isinstance(kernel, FlashStatsKernel) else 0
