"""Products of many rows with packed matrices on Hopper: codes become bf16 in registers, which `wgmma` takes as its left operand.

As in `qgemm`, with one or two warpgroups of four strips each and all of the block's rows of activations as the right operand, in shared
memory, swizzled. While a step's 64 columns are multiplied, the next ones are unpacked into other registers; a stage of activations is
filled again two steps after it was read.
"""

from __future__ import annotations

from ...core.target_spec import TargetSpec
from ...kernels.cuda.kernel import QGemmKernel
from .gemm_pieces import matrix_descriptor, wgmma_registers
from .groups import PIECES, PRODUCTS, Groups
from .qgemm import HOPPER_STAGES as STAGES
from .qgemm import QGemm
from .stages import RING


def emit_hopper_qgemm(kernel: QGemmKernel, target: TargetSpec) -> str:
    return HopperQGemm(kernel).module(target)


class HopperQGemm(QGemm):
    ring = RING

    def _place(self, piece: str) -> str:
        """Pieces of a row lie where the swizzle has them."""
        return self.k.value("i32", f"xor.b32 {{}}, {piece}, {self.k.value('i32', f'and.b32 {{}}, {self.own_row}, 7;')};")

    def _loop(self) -> None:
        """Step s: wait for its stage, ask for stage s + STAGES - 2 in the place of the one before the last, unpack, multiply, and wait for
        the products of the step before."""
        k, v, f = self.k, self.k.value, self.f
        steps, ahead = f.blocks // self.per, self.units - 1
        total = f.units * steps
        copies, flying, products = Groups(k, *PIECES), [], Groups(k, *PRODUCTS)
        for i in range(STAGES - 2):
            if i < min(ahead, f.units):
                self._copy_unit(str(i * self.unit_bytes), None)
            if i < total:
                self._copy_rows(str(i * self.stage_bytes), None)
            flying.append(copies.commit())
        self.right = matrix_descriptor(k, self.stages_at, 16)
        self.acc = [r for four in self.sums[0] for r in four]
        read, write, unit_read, unit_write, unit, step = (k.reg("i32") for _ in range(6))
        firsts = (0, (STAGES - 2) * self.stage_bytes, 0, ahead * self.unit_bytes, 0, STAGES - 2)
        for reg, value in zip((read, write, unit_read, unit_write, unit, step), firsts, strict=True):
            k.emit(f"mov.u32 {reg}, {value};")
        top = k.label("unit")
        k.place(top)
        before = products.carried()
        start, under_way = copies.under_way, products.under_way
        for j in range(steps):
            copies.wait(flying.pop(0))
            k.emit("fence.proxy.async.shared::cta;")
            k.emit("bar.sync 0;")
            more = v("i1", f"setp.lt.u32 {{}}, {step}, {total};")
            if j == 0:
                next_unit = v("i32", f"add.u32 {{}}, {unit}, {ahead};")
                self._copy_unit(unit_write, v("i1", f"setp.lt.u32 {{}}, {next_unit}, {f.units};"))
            self._copy_rows(write, more)
            flying.append(copies.commit())
            self._multiply(j, v("i32", f"add.u32 {{}}, {self.mine}, {unit_read};"), read)
            now = products.commit()
            products.wait(before)
            before = now
            k.emit(f"add.u32 {step}, {step}, 1;")
            for reg in (read, write):
                self._turn(reg, self.stage_bytes, STAGES)
        for reg in (unit_read, unit_write):
            self._turn(reg, self.unit_bytes, self.units)
        k.emit(f"add.u32 {unit}, {unit}, 1;")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {unit}, {f.units};')} bra {top};")
        copies.again(start)
        products.again(under_way)
        copies.drain()
        products.drain()

    def _multiply(self, step: int, unit: str, rows: str) -> None:
        k, v = self.k, self.k.value
        self.numbers.load(0, unit, 0, step * self.per, self.per)
        halves = [self.numbers.registers(0, step * self.per + b, half) for b in range(self.per) for half in range(2)]
        hop = v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'shr.u32 {{}}, {rows}, 4;')};")
        stage = v("i64", f"add.s64 {{}}, {self.right}, {hop};")
        k.emit("wgmma.fence.sync.aligned;")
        for i, a in enumerate(halves):
            b = v("i64", f"add.s64 {{}}, {stage}, {2 * i};") if i else stage
            wgmma_registers(k, self.acc, "bf16", a, b, k.truth(True), along_n=False)
