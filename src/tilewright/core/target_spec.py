"""What a target can do: instruction set, register file, caches, cores. Templates and the emitter ask this and nothing else."""
from __future__ import annotations

from typing import Literal

from .records import dataclass

TargetKind = Literal["cpu", "cuda", "reference"]


@dataclass(frozen=True)
class TargetSpec:
    """A machine to generate code for. Equal specs give equal code; only `features`, `cpu` and `triple` reach LLVM."""

    kind: TargetKind
    triple: str
    cpu: str  # LLVM's name: decides scheduling, and features that nobody switched off
    features: frozenset[str]  # LLVM's feature names that are on
    masked: frozenset[str]  # features that `cpu` implies by name and that are switched off here
    vector_bits: int
    registers: int  # vector registers of the register file
    l1d: int  # bytes of one core
    l2: int  # bytes of one core
    l3: int  # bytes, shared
    cores: int  # cores this process may use
    checks: bool = False  # kernels check every access to memory against their buffers

    def has(self, *features: str) -> bool:
        return self.features.issuperset(features)

    @property
    def has_fma(self) -> bool:
        return self.has("fma") or self.is_arm

    @property
    def has_f16c(self) -> bool:
        """f16 ↔ f32 conversion in vector registers."""
        return self.has("f16c") or self.has("avx512f") or self.is_arm

    @property
    def divides_fast(self) -> bool:
        """The dividers of Zen cores are faster than Newton steps from an estimate."""
        return self.cpu.startswith("znver")

    @property
    def has_avx512(self) -> bool:
        """The foundation that every server core since Skylake has: F, BW, DQ and VL."""
        return self.has("avx512f", "avx512bw", "avx512dq", "avx512vl")

    @property
    def has_sse41(self) -> bool:
        return self.has("sse4.1")

    @property
    def has_avx512bf16(self) -> bool:
        return self.has("avx512bf16")

    @property
    def multiplies_pairs(self) -> bool:
        """Vectors of bf16 pairs are multiplied as fast as vectors of f32: on Zen cores. Intel's take several times as long and have AMX."""
        return self.has_avx512bf16 and not self.has_amx

    @property
    def has_vnni(self) -> bool:
        return self.has("avx512vnni") or self.has("avxvnni")

    @property
    def has_amx(self) -> bool:
        return self.has("amx-tile")

    @property
    def is_arm(self) -> bool:
        return self.triple.startswith(("aarch64", "arm64"))

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    @property
    def feature_string(self) -> str:
        """For LLVM: `+a,+b,-c`, sorted, so that it can stand in cache keys."""
        return ",".join([f"+{name}" for name in sorted(self.features)] + [f"-{name}" for name in sorted(self.masked)])

    @property
    def attributes(self) -> str:
        """LLVM function attributes of a kernel for this target. Without the width LLVM's tuning may split 512-bit vectors in two."""
        return f'nounwind "prefer-vector-width"="{self.vector_bits}" "min-legal-vector-width"="{self.vector_bits}"'

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return self.vector_bits // (8 * itemsize)

    def describe(self) -> str:
        """One line for reports: `cpu emeraldrapids, 512-bit vectors x 32, 2 cores, L1 48K L2 2048K L3 260M; fma vnni`."""
        if self.kind == "reference":
            return "reference (NumPy)"
        if self.kind == "cuda":
            extra = "; f32 products in tf32" if self.has("tf32") else ""
            return f"cuda {self.cpu}, {self.cores} SMs, {self.l1d >> 10}K shared memory, L2 {self.l2 >> 20}M{extra}"
        flags = [n for n, on in (("fma", self.has_fma), ("f16c", self.has_f16c), ("avx512bf16", self.has_avx512bf16),
                                 ("vnni", self.has_vnni), ("amx", self.has_amx)) if on]
        return (f"{self.kind} {self.cpu}, {self.vector_bits}-bit vectors x {self.registers}, {self.cores} cores, "
                f"L1 {self.l1d >> 10}K L2 {self.l2 >> 10}K L3 {self.l3 >> 20}M; {' '.join(flags) or 'no extras'}")


REFERENCE = TargetSpec("reference", "", "", frozenset(), frozenset(), 128, 16, 32 << 10, 256 << 10, 8 << 20, 1)
