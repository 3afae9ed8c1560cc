"""What this machine offers to Tilewright, and what is missing.

Exit code 1 means a real problem: code cannot be generated, the cache folder cannot be used. A missing optional package or
CPU feature is not a problem; the table says what it would enable.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata, util
from typing import Literal

from ..core.config import load
from ..core.errors import ConfigError

Status = Literal["ok", "note", "problem"]

ENABLES = {
    "torch": "compile PyTorch modules (tw.compile)",
    "scipy": "svd and eig of tw.linalg, by its LAPACK",
    "transformers": "GPT-2, BERT, Llama, ViT and ResNet in tests and benchmarks",
    "onnxruntime": "a peer in `make bench`",
    "openvino": "a peer in `make bench`",
    "cuda-bindings": "run on an NVIDIA GPU",
    "cuda-core": "arrays on a GPU without PyTorch",
    "tokenizers": "language models: text to tokens",
    "jinja2": "language models: chat templates",
    "safetensors": "checkpoints and Hugging Face folders",
    "onnx": "compile ONNX files",
}
DEVELOPMENT = ("dev", "bench", "bench-llm", "docs")  # extras that users need not have
# What each feature changes in the generated code, best first. Names are LLVM's.
FEATURES = {
    "avx512f": "512-bit vectors, 32 registers",
    "avx2": "256-bit vectors",
    "fma": "fused multiply-add",
    "f16c": "f16 loads and stores in one instruction",
    "avx512bf16": "bf16 conversions in one instruction",
    "avx512vnni": "int8 dot products (VNNI)",
    "amx-bf16": "bf16 matrix tiles (AMX)",
    "amx-int8": "int8 matrix tiles (AMX)",
}
PROBE = "define i64 @probe(i64 %x) {\n  %y = mul i64 %x, 3\n  %z = add i64 %y, 1\n  ret i64 %z\n}"
SYMBOL = {"ok": "[green]ok[/]", "note": "[yellow]-[/]", "problem": "[red]PROBLEM[/]"}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table."""

    section: str
    name: str
    value: str
    status: Status = "ok"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the same findings as JSON, for bug reports")


def run(args: argparse.Namespace) -> int:
    findings = examine()
    if args.json:
        print(json.dumps([asdict(f) for f in findings], indent=1))
    else:
        show(findings)
    return 1 if any(f.status == "problem" for f in findings) else 0


def examine() -> list[Finding]:
    """All findings. A check that itself fails is a problem, not a crash of the doctor."""
    found = versions()
    try:
        load()
        checks: list[tuple[str, Callable[[], list[Finding]]]] = [("cpu", cpu), ("threads", threads), ("code", code), ("cache", cache)]
    except ConfigError as e:  # every check below reads the settings: say it once
        found.append(Finding("settings", "environment", str(e), "problem"))
        checks = []
    for section, check in [*checks, ("optional", optional)]:
        try:
            found += check()
        except Exception as e:  # the doctor's work is to report what is broken
            found.append(Finding(section, section, f"{type(e).__name__}: {e}", "problem"))
    return found


def versions() -> list[Finding]:
    import ml_dtypes
    import numpy as np
    from llvmlite import __version__ as llvmlite_version
    from llvmlite import binding

    llvm = ".".join(str(n) for n in binding.llvm_version_info)
    own = metadata.version("tilewright") if _installed("tilewright") else "not installed (run from source)"
    found = [
        ("tilewright", own),
        ("python", f"{platform.python_version()} ({platform.system()} {platform.machine()})"),
        ("numpy", np.__version__),
        ("llvmlite", f"{llvmlite_version} (LLVM {llvm})"),
        ("ml_dtypes", ml_dtypes.__version__),
    ]
    return [Finding("versions", name, value) for name, value in found]


def cpu() -> list[Finding]:
    from ..target.cpu.host import host_target
    from .console import nbytes

    target = host_target()
    found = [
        Finding("cpu", "processor", f"{_model_name()} ({target.cpu})"),
        Finding("cpu", "vectors", f"{target.vector_bits} bits ({target.lanes(4)} f32), {target.registers} registers"),
    ]
    for name, meaning in FEATURES.items():
        here = target.has(name)
        found.append(Finding("cpu", name, meaning if here else f"not here: {meaning}", "ok" if here else "note"))
    return [*found, Finding("cpu", "caches", f"L1 {nbytes(target.l1d)}, L2 {nbytes(target.l2)} a core, L3 {nbytes(target.l3)}")]


def threads() -> list[Finding]:
    from ..target.cpu.host import available_cores

    usable, wanted = available_cores(), load().threads
    if wanted is not None and wanted > usable:
        return [
            Finding("threads", "threads", f"{wanted} (TILEWRIGHT_THREADS) on {usable} cores: barriers sleep instead of spinning", "note")
        ]
    return [Finding("threads", "threads", f"{wanted or usable} of {usable} usable cores")]


def code() -> list[Finding]:
    """Generates a function, runs it and checks the answer: if this fails, nothing else can work."""
    import ctypes
    import time

    from ..target.cpu.host import host_target
    from ..target.cpu.jit import Library, compile_ir

    start = time.perf_counter()
    library = Library([compile_ir(PROBE, host_target())], ["probe"])
    answer = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address("probe"))(14)
    library.close()
    right = answer == 43
    return [
        Finding(
            "code",
            "generated code",
            f"runs ({1e3 * (time.perf_counter() - start):.0f} ms)" if right else f"computed {answer} instead of 43",
            "ok" if right else "problem",
        )
    ]


def cache() -> list[Finding]:
    from ..target.cpu.cache import CodeCache
    from .console import nbytes

    store = CodeCache()
    if store.folder is None:
        return [Finding("cache", "folder", "; ".join(store.notes), "note" if store.limit == 0 else "problem")]
    if not os.access(store.folder, os.W_OK | os.X_OK):
        return [Finding("cache", "folder", f"{store.folder} is not writable: what is compiled is not stored", "problem")]
    entries = store.entries()
    return [
        Finding(
            "cache", "folder", f"{store.folder}: {len(entries)} entries, {nbytes(sum(e.nbytes for e in entries))} of {nbytes(store.limit)}"
        )
    ]


def extras() -> dict[str, list[str]]:
    """Package -> the extras that ask for it, as our own metadata has them; without metadata, the packages we know of."""
    found: dict[str, list[str]] = {}
    for line in metadata.requires("tilewright") or () if _installed("tilewright") else ():
        match = re.match(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]", line)
        if match:
            found.setdefault(match[1].replace("_", "-"), []).append(match[2])
    return found or {name: [] for name in ENABLES}


def optional() -> list[Finding]:
    found = []
    for name, groups in extras().items():
        users = [g for g in groups if g not in DEVELOPMENT]
        if groups and not users and name not in ENABLES:
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = ""
        enables = ENABLES.get(name, f"the extra {', '.join(users)}")
        how = f"; pip install 'tilewright[{users[0]}]'" if users else ""
        value = f"{version}: {enables}" if version else f"not installed: {enables}{how}"
        found.append(Finding("optional", name, value, "ok" if version else "note"))
    return found


def _installed(name: str) -> bool:
    if util.find_spec(name) is None:
        return False
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _model_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.processor())
    except OSError:
        return platform.processor() or "unknown"


def show(findings: list[Finding]) -> None:
    from rich.markup import escape

    from .console import console, table

    out = console()
    for section in dict.fromkeys(f.section for f in findings):
        rows = [(escape(f.name), SYMBOL[f.status], escape(f.value)) for f in findings if f.section == section]
        out.print(table(section, ("", "", ""), rows), "")
    bad = sum(f.status == "problem" for f in findings)
    out.print("[green]Everything needed is here.[/]" if not bad else f"[red]{bad} problem{'s' if bad > 1 else ''}.[/]")
