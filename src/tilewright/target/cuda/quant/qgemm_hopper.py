"""Products of many rows with packed matrices on Hopper: quantized values become bf16 in registers, which `wgmma` takes as its left operand.

As in `qgemm`, with one or two warpgroups of four panels each and all of the block's rows of activations as the right operand, in shared
memory, swizzled. While a step's 64 columns are multiplied, the next ones are unpacked into other registers; a stage of activations is
filled again two steps after it was read.
"""

from __future__ import annotations

from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import QGemmKernel
from ....kernels.quant.cuda.qgemm import HOPPER_STAGES
from ..matmul.gemm_pieces import matrix_descriptor, wgmma_registers
from ..matmul.groups import PRODUCTS, Groups
from ..matmul.stages import RING
from .qgemm import QGemm


def emit_hopper_qgemm(kernel: QGemmKernel, target: TargetSpec) -> str:
    return HopperQGemm(kernel).module(target)


class HopperQGemm(QGemm):
    ring = RING
    stages, asked = HOPPER_STAGES, HOPPER_STAGES - 2
    shown = ("fence.proxy.async.shared::cta;", "bar.sync 0;")

    def _place(self, piece: str) -> str:
        """Pieces of a row lie where the swizzle has them."""
        return self.k.value("i32", f"xor.b32 {{}}, {piece}, {self.k.value('i32', f'and.b32 {{}}, {self.own_row}, 7;')};")

    def _begin(self) -> None:
        self.right = matrix_descriptor(self.k, self.stages_at, 16)
        self.acc = [r for four in self.sums[0] for r in four]
        self.products = Groups(self.k, *PRODUCTS)
        self.before = self.products.carried()
        self.in_flight = self.products.in_flight

    def _end(self) -> None:
        self.products.again(self.in_flight)
        self.products.drain()

    def _multiply(self, step: int, unit: str, rows: str) -> None:
        """Unpack, multiply, and wait for the products of the step before."""
        k, v = self.k, self.k.value
        self.numbers.load(0, unit, 0, step * self.per, self.per)
        halves = [self.numbers.registers(0, step * self.per + b, half) for b in range(self.per) for half in range(2)]
        hop = v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'shr.u32 {{}}, {rows}, 4;')};")
        stage = v("i64", f"add.s64 {{}}, {self.right}, {hop};")
        k.emit("wgmma.fence.sync.aligned;")
        for i, a in enumerate(halves):
            b = v("i64", f"add.s64 {{}}, {stage}, {2 * i};") if i else stage
            wgmma_registers(k, self.acc, "bf16", a, b, k.truth(True), along_n=False)
        now = self.products.commit()
        self.products.wait(self.before)
        self.before = now
