"""CUDA targets as specs: what templates ask about a GPU. `host_target` asks the driver and falls back to the chip we build for."""

from __future__ import annotations

from ...core.errors import ConfigError
from ...core.target_spec import TargetSpec

# architecture -> (multiprocessors, shared memory of a block, L2 bytes) of the largest common part
CHIPS = {"sm_80": (108, 163 << 10, 40 << 20), "sm_90a": (132, 227 << 10, 50 << 20), "sm_120": (188, 99 << 10, 96 << 20)}
DEFAULT = "sm_90a"
LANES_BITS = 128  # shared templates cut their tiles for vectors of this width


def cuda_target(arch: str = DEFAULT, multiprocessors: int | None = None) -> TargetSpec:
    """The spec of an architecture.

    >>> cuda_target("sm_90a").describe()
    'cuda sm_90a, 132 multiprocessors, 227K shared memory, L2 50M'
    """
    if arch not in CHIPS:
        raise ConfigError(f"target: CUDA architecture must be one of {' '.join(CHIPS)}, got {arch!r}")
    sms, shared, l2 = CHIPS[arch]
    return TargetSpec("cuda", "nvptx64-nvidia-cuda", arch, frozenset(), frozenset(), LANES_BITS, 64, shared, l2, 0, multiprocessors or sms)


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
