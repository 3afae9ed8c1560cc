"""The host as a TargetSpec: levels, switched-off features, caches, cores."""

from __future__ import annotations

import os
import re

import pytest

from tilewright.core.errors import ConfigError
from tilewright.core.target_spec import REFERENCE
from tilewright.target.cpu import host
from tilewright.target.cpu.host import available_cores, host_target


def test_levels_are_ordered() -> None:
    base, avx2, avx512, native = (host_target(level=level) for level in ("baseline", "avx2", "avx512", "native"))
    assert base.features < avx2.features < avx512.features <= native.features | {"64bit"}
    assert [t.vector_bits for t in (base, avx2, avx512)] == [128, 256, 512]
    assert [t.registers for t in (base, avx2, avx512)] == [16, 16, 32]
    assert [t.has_fma for t in (base, avx2, avx512)] == [False, True, True]
    assert [t.has_f16c for t in (base, avx2, avx512)] == [False, True, True]
    assert not (avx512.has_vnni or avx512.has_amx or avx512.has_avx512bf16)
    assert base.is_x86 and not base.is_arm and base.lanes(4) == 4 and avx512.lanes(2) == 32


def test_the_environment_chooses_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CPU", "avx2")
    assert host_target() == host_target(level="avx2") and host_target(level="baseline").vector_bits == 128
    monkeypatch.setenv("TILEWRIGHT_CPU", "sse9")
    with pytest.raises(ConfigError, match="config: TILEWRIGHT_CPU must be one of native, baseline, avx2, avx512, got 'sse9'"):
        host_target()


def test_switching_a_feature_off_takes_what_implies_it() -> None:
    target = host_target(["avx2"], level="avx512")
    assert target.vector_bits == 256 and not {f for f in target.features if f.startswith("avx512")} and target.has("avx", "fma")
    assert "-avx2" in target.feature_string.split(",") and "+avx512f" not in target.feature_string
    assert host_target(["fma"], level="avx2").has_fma is False
    with pytest.raises(ConfigError, match="config: features_off has warp, which LLVM does not know for"):
        host_target(["warp"])


def test_a_level_the_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    triple, cpu, known = host._llvm_host()
    monkeypatch.setattr(host, "_llvm_host", lambda: (triple, cpu, {**known, "avx512f": False}))
    host._host_target.cache_clear()
    try:
        with pytest.raises(ConfigError, match="TILEWRIGHT_CPU=avx512 needs avx512f, which this CPU does not have; use a lower level"):
            host_target(level="avx512")
        monkeypatch.setattr(host, "_llvm_host", lambda: ("aarch64-unknown-linux-gnu", "neoverse-n1", {"neon": True}))
        host._host_target.cache_clear()
        with pytest.raises(ConfigError, match="TILEWRIGHT_CPU=avx2 is a level of x86-64, this machine is aarch64"):
            host_target(level="avx2")
        arm = host_target(level="native")
        assert (arm.vector_bits, arm.registers, arm.has_fma, arm.has_f16c) == (128, 32, True, True)
    finally:
        host._host_target.cache_clear()


def test_description_names_what_matters() -> None:
    text = host_target(level="avx2").describe()
    assert re.fullmatch(r"cpu x86-64-v3, 256-bit vectors x 16, \d+ cores, L1 \d+K L2 \d+K L3 \d+M; fma f16c", text)
    assert REFERENCE.describe() == "reference (NumPy)"


def test_cores_respect_the_affinity_mask() -> None:
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, mask)
    assert 1 <= available_cores() <= len(mask)


@pytest.mark.parametrize("text, cores", [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 64), ("junk", 64)])
def test_cores_respect_the_cgroup(monkeypatch: pytest.MonkeyPatch, text: str, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("tilewright.target.cpu.host._text", lambda path: text)
    assert available_cores() == cores


def test_cache_sizes_are_plausible() -> None:
    target = host_target()
    assert 8 << 10 <= target.l1d < target.l2 <= target.l3 <= 4 << 30
