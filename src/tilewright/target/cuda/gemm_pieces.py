"""Pieces of the Hopper matrix kernels: the ring of stages, matrix descriptors, the `wgmma` instruction."""

from __future__ import annotations

from collections.abc import Sequence

from ...kernels.cuda.kernel import GemmKernel
from .ptx_text import KernelText


class Ring:
    """Stage and phase of a ring of shared-memory stages, in registers."""

    def __init__(self, k: KernelText, stages: int, *, phase: int) -> None:
        self.k, self.stages = k, stages
        self.stage, self.phase = k.reg("i32"), k.reg("i32")
        k.emit(f"mov.u32 {self.stage}, 0;")
        k.emit(f"mov.u32 {self.phase}, {phase};")

    def wait(self, barrier: str) -> None:
        """Until the barrier's phase `phase` has completed."""
        wait(self.k, barrier, self.phase)

    def advance(self) -> None:
        k = self.k
        k.emit(f"add.u32 {self.stage}, {self.stage}, 1;")
        wrapped = k.value("i1", f"setp.eq.u32 {{}}, {self.stage}, {self.stages};")
        k.emit(f"@{wrapped} mov.u32 {self.stage}, 0;")
        k.emit(f"@{wrapped} xor.b32 {self.phase}, {self.phase}, 1;")


def wait(k: KernelText, barrier: str, phase: str) -> None:
    again = k.label("wait")
    k.place(again)
    done = k.value("i1", f"mbarrier.try_wait.parity.shared::cta.b64 {{}}, [{barrier}], {phase};")
    k.emit(f"@!{done} bra {again};")


def descriptor(k: KernelText, address: str, *, transposed: bool) -> str:
    """A matrix in shared memory with rows of 128 bytes, swizzled. Rows along K (K contiguous): 8 rows are 1024 bytes apart. `transposed`:
    rows along M or N, blocks of 64 columns × 64 k of 8192 bytes."""
    low = k.value("i64", f"cvt.u64.u32 {{}}, {k.value('i32', f'bfe.u32 {{}}, {address}, 4, 14;')};")
    leading = (8192 >> 4) if transposed else 1
    return k.value("i64", f"or.b64 {{}}, {low}, {(leading << 16) | ((1024 >> 4) << 32) | (1 << 62)};")


def wgmma(k: KernelText, acc: Sequence[str], g: GemmKernel, a: str, b: str, add: str) -> None:
    """acc (+)= A[64,16] · B[16,n], both from shared memory."""
    kind = "f16.f16" if g.dtype == "f16" else "bf16.bf16"
    flags = f"{int(g.transposed_a)}, {int(not g.transposed_b)}"
    k.emit(f"wgmma.mma_async.sync.aligned.m64n{2 * len(acc)}k16.f32.{kind} {{{', '.join(acc)}}}, {a}, {b}, {add}, 1, 1, {flags};")
