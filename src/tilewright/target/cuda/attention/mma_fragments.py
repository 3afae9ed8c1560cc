"""What the attention kernels on `mma.sync` share, forward and back: addresses of heads, fragments from shared memory, products."""

from __future__ import annotations

from ....kernels.attention.cuda.flash_kernels import MmaGradKernel
from ....kernels.cuda.kernel import MmaAttentionKernel
from ....tile.ir import Var
from ..ptx.text import KernelText
from ..threads.access import Address
from ..threads.emit import Emitter


class MmaFragments:
    kernel: MmaAttentionKernel | MmaGradKernel
    k: KernelText
    e: Emitter
    name: str  # of the instruction
    batch: str
    pitch: int  # bytes of a row in shared memory

    def _view(self, var: Var | None) -> Address:
        assert var is not None
        found = self.e.env[var]
        assert isinstance(found, Address)
        return found

    def _wide(self, x: str) -> str:
        return self.k.value("i64", f"cvt.u64.u32 {{}}, {x};")

    def _head(self, view: Address, head: str, item: int) -> str:
        """The address of a head's first element."""
        v, pointer = self.k.value, view.pointer
        for x, stride in ((self.batch, view.strides[0]), (head, view.strides[1])):
            if stride != "0":
                step = v("i64", f"mul.lo.s64 {{}}, {self._wide(x)}, {stride};")
                pointer = v("i64", f"mad.lo.s64 {{}}, {step}, {item}, {pointer};")
        return pointer

    def _matrices(self, at: str, trans: str = "") -> list[str]:
        regs = [self.k.reg("i32") for _ in range(4)]
        self.k.emit(f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{{', '.join(regs)}}}, [{at}];")
        return regs

    def _mma(self, acc: list[str], a: list[str], b: list[str]) -> None:
        c = ", ".join(acc)
        self.k.emit(f"{self.name} {{{c}}}, {{{', '.join(a)}}}, {{{', '.join(b)}}}, {{{c}}};")

    def _add_product(self, total: list[str], left: list[list[str]], right: str, start: int) -> None:
        """total += left · the matrix that begins `start` bytes after `right`; left has four numbers of a thread for eight columns."""

        def pair(low: str, high: str) -> str:
            return self.k.value("i32", f"cvt.rn.{self.kernel.dtype}x2.f32 {{}}, {high}, {low};")

        for c in range(0, 8 * len(left), 16):
            upper, lower = left[c // 8], left[c // 8 + 1]
            a = [pair(*upper[:2]), pair(*upper[2:]), pair(*lower[:2]), pair(*lower[2:])]
            for n in range(0, self.kernel.d, 16):
                b = self._matrices(f"{right}+{start + c * self.pitch + 2 * n}", ".trans")
                self._mma(total[n // 2 : n // 2 + 4], a, b[:2])
                self._mma(total[n // 2 + 4 : n // 2 + 8], a, b[2:])
