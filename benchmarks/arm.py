"""Hypothesis 100 of docs/internals/hypotheses.md: the same kernels as x86-64 and as AArch64 code agree. The ARM code runs in an emulator.

    pip install unicorn pyelftools; PYTHONPATH=src:. python benchmarks/arm.py [random kernels]

Kernels: every function of the tile language in f32 and f64, the classics of the tests, random kernels (loops, branches, masks, fused
multiply-adds, reductions). Each is emitted for the machine at hand, for x86-64 with AVX2, and for a Neoverse N1 with NEON.
"""

from __future__ import annotations

import ctypes
import io
import sys
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from elftools.elf.elffile import ELFFile
from unicorn import UC_ARCH_ARM64, UC_MODE_ARM, Uc
from unicorn import arm64_const as arm
from verdicts import claim, settle

from tests.tile.kernels import SIZE, layer_norm, matmul, random_kernel, softmax
from tilewright.core.dtypes import DType, f32, f64
from tilewright.core.target_spec import TargetSpec
from tilewright.target.cpu.emit import emit_kernel
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.jit import Library, compile_ir
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.ir import UNARY, Kernel
from tilewright.tile.passes import optimise

FEATURES = frozenset({"neon", "fullfp16"})
ARM = TargetSpec("cpu", "aarch64-unknown-linux-gnu", "neoverse-n1", FEATURES, frozenset(), 128, 32, 64 << 10, 1 << 20, 32 << 20, 1)
CODE, DATA, STACK, STOP, PAGE = 0x1000_0000, 0x4000_0000, 0x2000_0000, 0x3000_0000, 0x1000
CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def linked(code: bytes, name: str) -> tuple[bytes, int]:
    """The bytes of an object at CODE, and the address of a function."""
    elf = ELFFile(io.BytesIO(code))
    places: dict[int, int] = {}
    image = bytearray()
    for i, section in enumerate(elf.iter_sections()):
        if section["sh_flags"] & 2:  # it takes memory
            image += bytes(-len(image) % max(section["sh_addralign"], 16))
            places[i] = CODE + len(image)
            image += section.data() if section["sh_type"] != "SHT_NOBITS" else bytes(section["sh_size"])
    symbols = elf.get_section_by_name(".symtab")
    entry = 0

    def address(symbol: Any) -> int:
        if symbol["st_shndx"] not in places:
            raise LookupError(f"{name} needs {symbol.name}")
        return places[symbol["st_shndx"]] + int(symbol["st_value"])

    for symbol in symbols.iter_symbols():
        entry = address(symbol) if symbol.name == name else entry
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_RELA" or section["sh_info"] not in places:
            continue
        for r in section.iter_relocations():
            target = address(symbols.get_symbol(r["r_info_sym"])) + r["r_addend"]
            at = places[section["sh_info"]] + r["r_offset"]
            patch(image, at - CODE, at, target, r["r_info_type"])
    return bytes(image), entry


def patch(image: bytearray, offset: int, at: int, target: int, kind: int) -> None:
    """One relocation of the ELF for AArch64."""
    word = int.from_bytes(image[offset : offset + 4], "little")
    if kind in (257, 261):  # ABS64, PREL32
        size, value = (8, target) if kind == 257 else (4, (target - at) & 0xFFFFFFFF)
        image[offset : offset + size] = value.to_bytes(size, "little")
        return
    if kind == 275:  # ADR_PREL_PG_HI21
        pages = (target // PAGE - at // PAGE) & 0x1FFFFF
        word |= (pages & 3) << 29 | (pages >> 2) << 5
    elif kind in (277, 278, 284, 285, 286, 299):  # the low 12 bits, in units of the access
        word |= ((target % PAGE) >> {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}[kind]) << 10
    elif kind in (282, 283):  # JUMP26, CALL26
        word |= ((target - at) // 4) & 0x3FFFFFF
    else:
        raise LookupError(f"relocation {kind}")
    image[offset : offset + 4] = word.to_bytes(4, "little")


def on_arm(kernel: Kernel, arguments: Sequence[Any], target: TargetSpec) -> None:
    image, entry = linked(compile_ir(emit_kernel(kernel, target), target), kernel.name)
    machine = Uc(UC_ARCH_ARM64, UC_MODE_ARM)
    machine.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
    machine.mem_map(CODE, -(-len(image) // PAGE) * PAGE)
    machine.mem_write(CODE, image)
    machine.mem_map(STACK, 1 << 20)
    machine.mem_map(STOP, PAGE)
    machine.mem_map(DATA, 64 << 20)
    at = DATA + (1 << 20)  # words and scratch before it
    words = []
    for a in arguments:
        if isinstance(a, np.ndarray):
            machine.mem_write(at, a.tobytes())
            words.append(at)
            at += -(-a.nbytes // 4096) * 4096 + 4096
        else:
            words.append(a)
    machine.mem_write(DATA, b"".join(int(w).to_bytes(8, "little") for w in words))
    machine.reg_write(arm.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # floats are switched on
    registers = {"X0": DATA, "X1": 0, "X2": 1, "X3": DATA + 65536, "SP": STACK + (1 << 19), "LR": STOP}
    for register, value in registers.items():
        machine.reg_write(getattr(arm, f"UC_ARM64_REG_{register}"), value)
    machine.emu_start(entry, STOP)
    for a, w in zip(arguments, words, strict=True):
        if isinstance(a, np.ndarray):
            a[...] = np.frombuffer(machine.mem_read(w, a.nbytes), a.dtype).reshape(a.shape)


def on_x86(kernel: Kernel, arguments: Sequence[Any], target: TargetSpec) -> None:
    library = Library([compile_ir(emit_kernel(kernel, target), target)], [kernel.name])
    words = (ctypes.c_int64 * len(arguments))(*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments))
    scratch = np.zeros(1 << 16, np.uint8)
    CALL(library.address(kernel.name))(ctypes.addressof(words), 0, 1, scratch.ctypes.data)


def function(name: str, dtype: DType) -> Kernel:
    b = KernelBuilder(f"{name}_{dtype}")
    x, y = b.view("x", dtype, (1,)), b.view("y", dtype, (1,))
    with b.loop(0, 4096, 16) as loop:
        b.store(y, [loop.index], b.unary(name, b.load(x, [loop.index], (16,))))
    return b.build()


def cases(random: int) -> list[tuple[str, Kernel, list[Any]]]:
    rng = np.random.default_rng()
    found: list[tuple[str, Kernel, list[Any]]] = []
    for name in sorted(set(UNARY) - {"not", "isnan", "isinf"}):
        for dtype in (f32, f64):
            x = (rng.standard_normal(4096) * 10.0 ** rng.uniform(-6, 6, 4096)).astype(dtype.np)
            x[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, np.finfo(dtype.np).tiny / 4]
            found.append((f"{name} {dtype}", function(name, dtype), [x, np.zeros_like(x)]))

    def floats(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    found.append(("matmul", matmul(), [floats(4, 33), 33, floats(33, 50), 50, floats(4, 50), 50, 4, 50, 33]))
    found.append(("softmax", softmax(), [floats(1, 100), 100, floats(1, 100), 100, 100]))
    found.append(("layer_norm", layer_norm(), [floats(1, 100), 100, floats(100), floats(1, 100), 100, 100]))
    for seed in rng.integers(1 << 30, size=random):
        found.append((f"random {seed}", random_kernel(int(seed)), [floats(SIZE, SIZE), SIZE, floats(SIZE, SIZE), SIZE, 41]))
    return found


def main() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    others = {"AVX2": host_target(level="avx2"), "this machine": host_target()}
    counts, differ = dict.fromkeys(others, 0), []
    chosen = cases(int(sys.argv[1]) if sys.argv[1:] else 200)
    for name, kernel, given in chosen:
        made = optimise(kernel)
        mine = results(made, given, ARM)
        for level, target in others.items():
            x86 = results(made, given, target)
            wrong = ~((mine == x86) | (np.isnan(mine) & np.isnan(x86)))
            counts[level] += not wrong.any()
            if wrong.any():
                worst = float(np.max(np.abs(mine[wrong] - x86[wrong]) / np.abs(x86[wrong])))
                differ.append(f"{name}: {int(wrong.sum())} elements differ from {level}, at most {worst:.2g} of their size")
    for level, same in counts.items():
        text = f"{same} kernels of {len(chosen)} have the same bits on AArch64 and on {level}"
        claim(100, same == len(chosen), text) if level == "AVX2" else print(f"100   {text}")
    print("\n".join("      " + line for line in differ))
    settle()


def results(kernel: Kernel, given: Sequence[Any], target: TargetSpec) -> Any:
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in given]
    (on_arm if target is ARM else on_x86)(kernel, arguments, target)
    return np.concatenate([a.ravel() for a in arguments if isinstance(a, np.ndarray)])


if __name__ == "__main__":
    main()
