"""CUDA targets as specs: what templates ask about a GPU. `host_target` asks the driver and falls back to the chip we build for."""

from __future__ import annotations

from typing import Any

from ...core.errors import ConfigError
from ...core.target_spec import TargetSpec

# architecture -> (SMs, shared memory of a block, L2 bytes) of the largest common part
CHIPS = {"sm_80": (108, 163 << 10, 40 << 20), "sm_90a": (132, 227 << 10, 50 << 20), "sm_120": (188, 99 << 10, 96 << 20)}
# architecture -> (registers, threads, blocks, shared memory) of an SM
SM_LIMITS = {
    "sm_80": (65536, 2048, 32, 164 << 10),
    "sm_90a": (65536, 2048, 32, 228 << 10),
    "sm_120": (65536, 1536, 24, 100 << 10),
}
RESERVED = 1 << 10  # shared memory that the system takes of a block
DEFAULT = "sm_90a"
LANES_BITS = 128  # shared templates cut their tiles for vectors of this width


def cuda_target(arch: str = DEFAULT, sms: int | None = None, shared: int | None = None) -> TargetSpec:
    """The spec of an architecture, or of a part of it with as many SMs and as much shared memory a block as given.

    >>> cuda_target("sm_90a").describe()
    'cuda sm_90a, 132 SMs, 227K shared memory, L2 50M'
    """
    if arch not in CHIPS:
        raise ConfigError(f"target: CUDA architecture must be one of {' '.join(CHIPS)}, got {arch!r}")
    whole, most, l2 = CHIPS[arch]
    memory = min(shared or most, most)  # chips of capability 8.6 and 8.9 have 99 KB where 8.0 has 163
    return TargetSpec("cuda", "nvptx64-nvidia-cuda", arch, frozenset(), frozenset(), LANES_BITS, 64, memory, l2, 0, sms or whole)


def arch_of(capability: tuple[int, int]) -> str:
    """The architecture we emit for a compute capability: the newest one that runs on it."""
    if capability == (9, 0):
        return "sm_90a"
    if capability[0] == 12:
        return "sm_120"
    if capability >= (8, 0):
        return "sm_80"
    raise ConfigError(
        f"target: compute capability {capability[0]}.{capability[1]} is older than 8.0, which is the oldest this target knows"
    )


def occupancy(arch: str, threads: int, registers: int | None, shared: int | None) -> dict[str, Any]:
    """Blocks of a kernel that fit on an SM at once, what bounds them, and the share of its threads that they are.

    >>> occupancy("sm_90a", 256, 64, 3072)
    {'blocks': 4, 'bound': 'registers', 'occupancy': 0.5}
    """
    if registers is None or shared is None:
        return {"blocks": None, "bound": "what the assembler would say", "occupancy": None}
    most_registers, most_threads, most_blocks, memory = SM_LIMITS[arch]
    warps = -(-threads // 32)
    of_a_warp = -(-max(registers, 1) * 32 // 256) * 256
    fits = {
        "registers": most_registers // (of_a_warp * warps), "threads": most_threads // (32 * warps), "blocks": most_blocks,
        "shared memory": memory // (shared + RESERVED),
    }  # fmt: skip
    bound = min(fits, key=lambda k: fits[k])
    return {"blocks": fits[bound], "bound": bound, "occupancy": fits[bound] * 32 * warps / most_threads}
