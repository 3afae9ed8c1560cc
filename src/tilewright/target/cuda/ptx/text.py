"""PTX as text: one kernel under construction. Registers are virtual and typed by class; `ptxas` or the driver assigns real ones.

Types are named as in the CPU target's text (`"float"`, `"i64"`, `"i1"`), so that the scalar mathematics of both targets is one code;
`half` and `bf16` hold 16 raw bits, `i8` and `i16` live in 32-bit registers with undefined upper bits.

>>> k = KernelText("scale", ["x"])
>>> x = k.reg("float")
>>> k.emit(f"mul.rn.f32 {x}, {x}, 0f40000000;")
>>> print(k.entry())
.visible .entry scale(
  .param .u64 p0
)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

CLASSES = {
    "float": ("f", ".f32"),
    "double": ("fd", ".f64"),
    "half": ("h", ".b16"),
    "bf16": ("h", ".b16"),
    "i1": ("p", ".pred"),
    "i8": ("r", ".b32"),
    "i16": ("r", ".b32"),
    "i32": ("r", ".b32"),
    "i64": ("rd", ".b64"),
}
DECLARED = {"f": ".f32", "fd": ".f64", "h": ".b16", "p": ".pred", "r": ".b32", "rd": ".b64"}

# The next kernel may take free places from now on (and wait in turn); after the wait, all that the previous kernel wrote is in memory.
START, WAIT = "  griddepcontrol.launch_dependents;", "  griddepcontrol.wait;"


def literal(ty: str, value: float) -> str:
    """A constant as exact PTX text; predicates have no literals (`KernelText.truth`)."""
    if ty == "float":
        return f"0f{struct.unpack('<I', np.float32(value).tobytes())[0]:08X}"
    if ty == "double":
        return f"0d{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    if ty == "i1":
        return "true" if value else "false"
    return str(int(value))


class KernelText:
    """Lines and registers of one kernel. Parameters are 8-byte words, in order, then tensor maps of 128 bytes."""

    def __init__(self, name: str, params: Sequence[str], maps: int = 0) -> None:
        self.name, self.params, self.maps, self.beside = name, list(params), maps, 1
        self.prologue: list[str] = []  # constants that every block may use
        self.lines: list[str] = []
        self.shared = 0  # bytes of static shared memory asked for so far
        self.late = False  # the emitter places the wait of programmatic dependent launch (PDL) itself
        self.starts_after_wait = False  # ... and lets the next kernel start no earlier than that
        self._counts = dict.fromkeys(DECLARED, 0)
        self._labels = 0
        self._truth: dict[bool, str] = {}

    def reg(self, ty: str) -> str:
        stem = CLASSES[ty][0]
        self._counts[stem] += 1
        return f"%{stem}{self._counts[stem]}"

    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def value(self, ty: str, text: str) -> str:
        """Append `text` with `{}` standing for a new register of type ty; gives the register."""
        out = self.reg(ty)
        self.emit(text.replace("{}", out, 1))
        return out

    def label(self, stem: str) -> str:
        self._labels += 1
        return f"{stem}_{self._labels}"

    def place(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def truth(self, value: bool) -> str:
        """A predicate register that holds a constant."""
        if value not in self._truth:
            p = self._truth[value] = self.reg("i1")
            self.prologue.append(f"  setp.{'eq' if value else 'ne'}.u32 {p}, 0, 0;")
        return self._truth[value]

    def alloc_shared(self, nbytes: int) -> int:
        """An offset in the kernel's static shared memory, a multiple of 16."""
        at = -(-self.shared // 16) * 16
        self.shared = at + nbytes
        return at

    def entry(self) -> str:
        words = [f"  .param .u64 p{i}" for i in range(len(self.params))]
        if self.beside > 1:  # launches side by side: a block finds its own words by a register
            words = [f"  .param .align 8 .b8 words[{8 * self.beside * len(self.params)}]"]
        words += [f"  .param .align 64 .b8 map{i}[128]" for i in range(self.maps)]
        return f".visible .entry {self.name}(\n" + ",\n".join(words) + "\n)"

    def text(self, directives: Sequence[str] = (), arch: str = "sm_80") -> str:
        declared = [f"  .reg {ty} %{stem}<{self._counts[stem] + 1}>;" for stem, ty in DECLARED.items() if self._counts[stem]]
        if self.shared:
            declared.append(f"  .shared .align 128 .b8 scratch[{self.shared}];")
        start = () if arch_number(arch) < 90 or self.starts_after_wait else (START,) if self.late else (START, WAIT)
        return "\n".join([self.entry(), *directives, "{", *declared, *self.prologue, *start, *self.lines, "  ret;", "}"]) + "\n"


def module_text(arch: str, *kernels: str, version: str = "8.0") -> str:
    """A PTX module for an architecture (`sm_90a`), in the version of the language that its instructions need."""
    return f".version {max(version, isa_version(arch))}\n.target {arch}\n.address_size 64\n\n" + "\n".join(kernels)


def isa_version(arch: str) -> str:
    """The oldest PTX version that knows the architecture and what we emit for it."""
    return "8.7" if arch_number(arch) >= 100 else "8.0"


def arch_number(arch: str) -> int:
    return int("".join(c for c in arch.removeprefix("sm_") if c.isdigit()))
