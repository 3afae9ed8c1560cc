"""How the shared memory of the Hopper matrix product is divided."""

from __future__ import annotations

from ....kernels.cuda.kernel import GemmKernel
from .gemm_results import slice_bytes

BK = 128  # bytes of K in a step


def dynamic_shared(kernel: GemmKernel) -> int:
    """Bytes of dynamic shared memory, with room to align the ring."""
    ring = stage_bytes(kernel) * kernel.stages + overread_bytes(kernel)
    return ring + results_bytes(kernel) + sums_bytes(kernel) + kept_bytes(kernel) + 1024


def stage_bytes(kernel: GemmKernel) -> int:
    return ((kernel.rows or kernel.bm) + (0 if kernel.kept else kernel.bn)) * BK


def overread_bytes(kernel: GemmKernel) -> int:
    """What the tensor cores read behind the last stage where fewer rows than theirs are copied: it must be memory of the block."""
    return max(0, kernel.bm * BK - stage_bytes(kernel)) if kernel.rows else 0


def kept_bytes(kernel: GemmKernel) -> int:
    """B, where it is read once."""
    return kernel.kept * kernel.bn * BK


def results_bytes(kernel: GemmKernel) -> int:
    """Slices of results, behind the ring."""
    return slice_bytes(kernel) * 2 * kernel.consumers


def sums_bytes(kernel: GemmKernel) -> int:
    """Sums of one block that the others of its cluster read."""
    return kernel.bm * kernel.bn * 4 if kernel.splits > 1 else 0
