"""A ring of stages in shared memory between TMA and the threads that read it, behind two mbarriers a stage.

Who fills a stage must come after everybody who reads what was in it, and who reads it after it was filled: both waits stand here and
nowhere else. Filling one says how many bytes come; a reader hands it back when the products that read it have ended (`groups`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ptx.text import KernelText

RING = ".extern .shared .align 1024 .b8 ring[];\n\n"  # swizzled matrices begin at multiples of 1024 bytes; the assembler keeps to it


def wait(k: KernelText, barrier: str, phase: str) -> None:
    again = k.label("wait")
    k.place(again)
    done = k.value("i1", f"mbarrier.try_wait.parity.shared::cta.b64 {{}}, [{barrier}], {phase};")
    k.emit(f"@!{done} bra {again};")


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


@dataclass(eq=False)
class Stages:
    """Where the barriers of a ring lie: bytes from `bars` to the first stage's full barrier and to its empty one."""

    k: KernelText
    bars: str
    count: int
    full: int
    empty: int
    readers: int  # arrivals that hand a stage back
    remote: str = ""  # the barriers of the block that a thread tells, in a cluster

    def init(self, stage: int) -> None:
        for first, arrivals in ((self.full, 1), (self.empty, self.readers)):
            self.k.emit(f"mbarrier.init.shared::cta.b64 [{self.bars}+{first + 8 * stage}], {arrivals};")

    def address(self, stage: str, base: str = "") -> str:
        return self.k.value("i32", f"mad.lo.u32 {{}}, {stage}, 8, {base or self.bars};")

    def release(self, stage: str, when: str = "") -> None:
        """This thread has read a stage, or its warpgroup has."""
        at, space = self.address(stage, self.remote), "cluster" if self.remote else "cta"
        self.k.emit(f"{f'@{when} ' if when else ''}mbarrier.arrive.shared::{space}.b64 _, [{at}+{self.empty}];")


class Producer(Ring):
    """The thread that fills the stages: the producer."""

    def __init__(self, k: KernelText, stages: Stages) -> None:
        super().__init__(k, stages.count, phase=1)
        self.of = stages

    def fill(self, nbytes: int) -> str:
        """Until the stage may be written; then so many bytes are expected. Gives the barrier that copies tell."""
        s = self.of
        at = s.address(self.stage)
        self.wait(f"{at}+{s.empty}")
        full = f"{s.address(self.stage)}+{s.full}" if s.full else at
        self.k.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{full}], {nbytes};")
        return full


class Consumer(Ring):
    """Threads that read the stages."""

    def __init__(self, k: KernelText, stages: Stages) -> None:
        super().__init__(k, stages.count, phase=0)
        self.of = stages

    def ready(self) -> None:
        """Until the stage is filled."""
        at = self.of.address(self.stage)
        self.wait(f"{at}+{self.of.full}" if self.of.full else at)
