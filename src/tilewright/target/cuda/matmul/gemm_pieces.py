"""Pieces of the Hopper matrix kernels: matrix descriptors, the `wgmma` instruction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....kernels.cuda.kernel import GemmKernel
from ..ptx.text import KernelText


def descriptor(k: KernelText, address: str, *, transposed: bool) -> str:
    """A tile of 128 bytes of k. `transposed`: rows along M or N, blocks of 64 columns × 64 k of 8192 bytes."""
    return matrix_descriptor(k, address, 8192 if transposed else 16)


def matrix_descriptor(k: KernelText, address: str, leading: int) -> str:
    """A matrix in shared memory with rows of 128 bytes, swizzled; 8 rows are 1024 bytes apart. Rows along K (K contiguous) need no
    `leading`; rows along M or N (K outside) have the bytes between blocks of 64 columns there."""
    low = k.value("i64", f"cvt.u64.u32 {{}}, {k.value('i32', f'bfe.u32 {{}}, {address}, 4, 14;')};")
    return k.value("i64", f"or.b64 {{}}, {low}, {(max(leading >> 4, 1) << 16) | ((1024 >> 4) << 32) | (1 << 62)};")


UNITS = {"f32": "tf32", "f8e4m3": "e4m3", "f8e5m2": "e5m2", "i8": "s8", "u8": "u8"}  # what the tensor core calls these operands


def wgmma(k: KernelText, acc: Sequence[str], g: GemmKernel, a: str, b: str, add: str) -> None:
    """acc (+)= A[64, 32 bytes] · B[32 bytes, n], both from shared memory."""
    if g.dtype not in UNITS:
        wgmma_shared(k, acc, g.dtype, a, b, add, f"{int(g.transposed_a)}, {int(not g.transposed_b)}")
        return
    left, right = UNITS[g.dtype], UNITS[g.dtype_b]
    whole = left in ("s8", "u8")
    name = f"wgmma.mma_async.sync.aligned.m64n{2 * len(acc)}k{8 if left == 'tf32' else 32}.{'s32' if whole else 'f32'}.{left}.{right}"
    k.emit(f"{name} {{{', '.join(acc)}}}, {a}, {b}, {add}{'' if whole else ', 1, 1'};")


def wgmma_shared(k: KernelText, acc: Sequence[str], dtype: str, a: str, b: str, add: str, flags: str = "0, 0") -> None:
    k.emit(f"{_name(acc, dtype)} {{{', '.join(acc)}}}, {a}, {b}, {add}, 1, 1, {flags};")


def wgmma_registers(k: KernelText, acc: Sequence[str], dtype: str, a: Sequence[str], b: str, add: str, along_n: bool = True) -> None:
    """acc (+)= A[64,16] from registers · B[16,n] whose rows are along N, or along K."""
    k.emit(f"{_name(acc, dtype)} {{{', '.join(acc)}}}, {{{', '.join(a)}}}, {b}, {add}, 1, 1, {int(along_n)};")


def _name(acc: Sequence[str], dtype: str) -> str:
    return f"wgmma.mma_async.sync.aligned.m64n{2 * len(acc)}k16.f32.{dtype}.{dtype}"


def promote(k: KernelText, g: GemmKernel, acc: Sequence[str], total: Sequence[str], at: tuple[str, str], ended: Callable[[], None]) -> None:
    """Add the tensor cores' sums to the totals every `promote` steps and after the last; the unit starts again at zero. `at` is the number
    of steps done and whether there are more; `ended` waits for the sums."""
    step, ahead = at
    skip = k.label("skip")
    if g.promote > 1:
        inside = k.value("i1", f"setp.ne.u32 {{}}, {k.value('i32', f'and.b32 {{}}, {step}, {g.promote - 1};')}, 0;")
        k.emit(f"@{k.value('i1', f'and.pred {{}}, {inside}, {ahead};')} bra {skip};")
    ended()
    for a, t in zip(acc, total, strict=True):
        k.emit(f"add.rn.f32 {t}, {t}, {a};")
    if g.promote > 1:
        k.place(skip)
