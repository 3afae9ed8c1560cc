"""The machine we run on, as a TargetSpec: LLVM's feature list, cache sizes from /sys, cores from the affinity mask and the cgroup.

Code for a lower instruction set (`level`, or TILEWRIGHT_CPU) runs on the same machine, so tests run every variant:
`baseline` is plain x86-64 (SSE2), `avx2` is x86-64-v3, `avx512` is x86-64-v4; `native` is everything the machine has.
"""
from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Collection

from ...core.config import CpuLevel, load
from ...core.errors import ConfigError
from ...core.hashing import blake2b
from ...core.target_spec import TargetSpec
from . import amx

_V1 = {"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"}
_V3 = _V1 | {"cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3", "crc32",
             "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS: dict[str, tuple[str, set[str]]] = {"baseline": ("x86-64", _V1), "avx2": ("x86-64-v3", _V3), "avx512": ("x86-64-v4", _V4)}

# What falls when a feature is switched off: everything LLVM would switch on again through it.
_IMPLIED_BY = {
    "sse3": r"ssse3|sse4|avx|fma|f16c|amx", "ssse3": r"sse4|avx|fma|f16c", "sse4.1": r"sse4\.2|avx|fma|f16c",
    "sse4.2": r"avx|fma|f16c", "avx": r"avx|fma|f16c|vaes|vpclmulqdq|sm3|sm4|sha512", "avx2": r"avx2|avx512|avx10|avxvnni|avxifma|avxne",
    "fma": r"avx512|avx10", "f16c": r"avx512|avx10", "avx512f": r"avx512|avx10",
    "avx512bw": r"avx512(vbmi|bitalg|bf16|fp16)", "amx-tile": r"amx-",
}


@functools.cache
def _llvm_host() -> tuple[str, str, dict[str, bool]]:
    """Triple, CPU and features as LLVM names them; from the cache where this CPU is known there, so that LLVM need not be loaded."""
    from .cache import CodeCache

    cache, key = CodeCache(), _cpu_key()
    stored = None if key is None else cache.get(key)
    if stored is not None:
        triple, cpu, *lines = stored.decode().splitlines()
        return triple, cpu, {line[1:]: line[0] == "+" for line in lines}
    from .jit import _llvm

    llvm = _llvm()
    found = llvm.get_process_triple(), llvm.get_host_cpu_name(), dict(llvm.get_host_cpu_features())
    if key is not None:
        cache.put(key, "\n".join([*found[:2], *("-+"[has] + name for name, has in found[2].items())]).encode())
    return found


def _cpu_key() -> str | None:
    """A name for all that LLVM's answer depends on: the CPU with its flags, the kernel that lets them be used, LLVM itself."""
    from .jit import llvm_version

    try:
        with open("/proc/cpuinfo", "rb") as file:
            lines = [line.decode(errors="replace") for line in itertools.takewhile(bytes.strip, file)]  # lines of the first core
    except OSError:
        return None
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU ", "Features")
    told = [line for line in lines if line.startswith(wanted)]
    if not any(line.startswith(("flags", "Features")) for line in told):
        return None
    text = "\0".join(["host lines", *os.uname()[2:], llvm_version(), *told])
    return blake2b(text.encode(), digest_size=20).hexdigest()


def _text(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return file.read().decode("ascii", "replace")


def available_cores() -> int:
    """Cores this process may use: its affinity mask, and the cgroup's quota where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _text("/sys/fs/cgroup/cpu.max").split()
        if quota != "max":
            cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no cgroup v2: the mask alone counts
    return max(1, cores)


@functools.cache
def _caches() -> tuple[int, int, int]:
    found = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}  # a modest machine, where /sys tells nothing
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    base = "/sys/devices/system/cpu/cpu0/cache"
    for index in sorted(os.listdir(base)) if os.path.isdir(base) else ():
        try:
            if _text(f"{base}/{index}/type").strip() == "Instruction":
                continue
            level, size = int(_text(f"{base}/{index}/level")), _text(f"{base}/{index}/size").strip()
        except (OSError, ValueError):
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if match and level in found:
            found[level] = int(match[1]) * units[match[2]]
    return found[1], found[2], found[3]


def host_target(features_off: Collection[str] = (), level: CpuLevel | None = None) -> TargetSpec:
    """This machine's TargetSpec, lowered to `level` (default: TILEWRIGHT_CPU, else everything) and without `features_off`."""
    config = load()
    return _host_target(frozenset(features_off), config.cpu if level is None else level, available_cores(), config.checks)


@functools.cache
def _host_target(off: frozenset[str], level: CpuLevel, cores: int, checks: bool) -> TargetSpec:
    triple, cpu, known = _llvm_host()
    on = {name for name, has in known.items() if has}
    if level != "native":
        if not triple.startswith("x86_64"):
            raise ConfigError(f"config: TILEWRIGHT_CPU={level} is a level of x86-64, this machine is {triple}; use native")
        cpu, wanted = _LEVELS[level]
        if missing := sorted(wanted - on - {"64bit"}):
            raise ConfigError(f"config: TILEWRIGHT_CPU={level} needs {' '.join(missing)}, which this CPU does not have; use a lower level")
        on = set(wanted)
    gone = set(off)
    if unknown := gone - known.keys():
        raise ConfigError(f"config: features_off has {' '.join(sorted(unknown))}, which LLVM does not know for {triple}")
    for name in off:
        gone |= {n for n in on if n != name and re.match(_IMPLIED_BY.get(name, r"(?!)"), n)}
    if "amx-tile" in on - gone and not amx.usable():
        gone |= {n for n in on if n.startswith("amx-")}
    features = frozenset(on - gone)
    masked = frozenset(gone) if level != "native" else frozenset(known) - features
    l1d, l2, l3 = _caches()
    bits = 512 if "avx512f" in features else 256 if "avx" in features else 128
    registers = 32 if "avx512f" in features or not triple.startswith("x86_64") else 16
    return TargetSpec("cpu", triple, cpu, features, masked, bits, registers, l1d, l2, l3, cores, checks)
