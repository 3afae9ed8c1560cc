"""The assembler of NVIDIA's toolkit, where one is installed: checks PTX without a GPU and reports what a kernel uses.

Looked for on the PATH and in the packages that carry it (`nvidia-cuda-nvcc`, `triton`). Nothing at run time needs it: the driver has
its own.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ....core.errors import CompileError

_INSIDE = ("cu13/bin/ptxas", "cuda_nvcc/bin/ptxas", "backends/nvidia/bin/ptxas")


@dataclass(frozen=True)
class Usage:
    """What one kernel takes of an SM."""

    registers: int
    spilled: int  # bytes stored to local memory because registers ran out
    stack: int
    shared: int
    barriers: int
    warnings: tuple[str, ...] = ()


@cache
def find_ptxas() -> str | None:
    """The path of `ptxas`, or None."""
    found = shutil.which("ptxas")
    if found is not None:
        return found
    for package in ("nvidia", "triton"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            for inside in _INSIDE:
                path = Path(folder) / inside
                if path.is_file():
                    return str(path)
    return None


def assemble(ptx: str, arch: str) -> Usage:
    """Assemble a module of one kernel for an architecture. Errors carry the assembler's message."""
    program = find_ptxas()
    if program is None:
        raise CompileError("ptxas: not found; install the CUDA toolkit or the package nvidia-cuda-nvcc")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        command = [program, "-v", f"-arch={arch}", str(source), "-o", str(Path(folder) / "kernel.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"ptxas: rejects the kernel for {arch}: {done.stderr.strip()[:2000]}")
    return _usage(done.stdout + done.stderr)


def _usage(text: str) -> Usage:
    def number(pattern: str) -> int:
        found = re.findall(pattern, text)
        return int(found[-1]) if found else 0

    warnings = tuple(line.strip() for line in text.splitlines() if "warning" in line.lower() or "Potential Performance Loss" in line)
    return Usage(
        number(r"Used (\d+) registers"), number(r"(\d+) bytes spill stores"), number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes smem"), number(r"used (\d+) barriers"), warnings,
    )  # fmt: skip
