"""Every model family, natively, against torch: dtypes, static and dynamic shapes, batch sizes, CPU levels, the reference target."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import tilewright as tw
from tests.e2e.compare import assert_as_exact_as_torch, assert_close, assert_right, distance, eager, exact, mean_error
from tests.e2e.families import ALL, FAMILIES, imported, module_of
from tilewright.compile import compile_graph, target_spec
from tilewright.core.config import CpuLevel
from tilewright.core.errors import ConfigError
from tilewright.target.cpu.host import host_target

DRAWS = 8  # inputs for a mean error
DTYPES = [torch.float64, torch.float16, torch.bfloat16]


def slow_unless(*names: str) -> list[Any]:
    """All families, those not named marked slow: a new kind of kernel costs a compile."""
    return [n if n in names else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES]


@pytest.mark.parametrize(("name", "b", "s"), [
    *(pytest.param(n, 1, 1, marks=pytest.mark.slow) for n in FAMILIES),
    *(pytest.param(n, 3, 17, marks=() if n in FAMILIES else pytest.mark.slow) for n in ALL),
])
def test_static(name: str, b: int, s: int) -> None:
    family, module = ALL[name], module_of(name)
    args = family.args(b, s)
    session = tw.compile(module, args, validation="strict")
    for _ in range(2):  # the complete way, then the generated one
        assert_right(module, args, session(*args))
        args = family.args(b, s)
    if b > 1:  # one position has too few numbers for a mean
        assert_as_exact_as_torch(module, session, [family.args(b, s) for _ in range(DRAWS)])


@pytest.mark.parametrize("name", ALL)
def test_dynamic(name: str) -> None:
    family, module = ALL[name], module_of(name)
    session = tw.compile(module, family.args(2, 7), dynamic=family.dynamic, validation="strict")
    lengths = [(1, 1), (1, 2), (3, 9), (2, 33), (1, 64), (16, 5), (2, 7)] if family.varies else [(1, 1), (2, 1), (7, 1), (16, 1)]
    for b, s in lengths:
        args = family.args(b, s)
        assert_right(module, args, session(*args))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", slow_unless("mlp", "llama", "vit", "gpt2"))
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    """A module in another dtype. Small floats are held against float64: torch rounds where it likes, and so do we."""
    family = FAMILIES[name]
    module = copy.deepcopy(module_of(name)).to(dtype)
    draws = [tuple(a.to(dtype) if a.is_floating_point() else a for a in family.args(2, 11)) for _ in range(DRAWS)]
    args = draws[0]
    session = tw.compile(module, args)
    got = session(*args)
    assert got.dtype == dtype
    in_f32 = name in ("llama", "llama-block") and dtype == torch.float64  # rope tables and norms stay in f32 whatever the module's dtype
    assert_close(got, eager(module, args), 1e-5 if in_f32 else None)
    if dtype != torch.float64:
        assert_as_exact_as_torch(module, session, draws)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", slow_unless("mlp", "llama", "vit", "gpt2", "convnet"))
def test_dtype_option(name: str, dtype: str) -> None:
    """`dtype=` stores small floats and computes in f32: the interface stays f32, the error is that of the storage."""
    family, module = FAMILIES[name], module_of(name)
    draws = [family.args(2, 11) for _ in range(DRAWS)]
    session = tw.compile(module, draws[0], dtype=dtype)
    got = [session(*args) for args in draws]
    assert got[0].dtype == torch.float32
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    small = copy.deepcopy(module).to(kind)
    want = [exact(module, args) for args in draws]
    theirs = [eager(small, tuple(a.to(kind) if a.is_floating_point() else a for a in args)).float() for args in draws]
    error, limit = mean_error(list(zip(got, want, strict=True))), mean_error(list(zip(theirs, want, strict=True)))
    floor = torch.finfo(kind).eps  # with few outputs torch may be lucky
    assert 1e-6 < error <= max(2.5 * limit, floor), f"error {error:.1e}, torch's own in {dtype} {limit:.1e}"


@pytest.mark.parametrize("name", slow_unless("mlp", "block", "gpt2"))
def test_dtype_option_with_dynamic_shapes(name: str) -> None:
    family, module = FAMILIES[name], module_of(name)
    session = tw.compile(module, family.args(2, 7), dynamic=family.dynamic, dtype="bf16")
    for b, s in [(1, 1), (3, 20)]:
        args = family.args(b, s)
        assert distance(session(*args), eager(module, args)) < 5e-2


LEVELS: list[CpuLevel] = ["baseline", "avx2", "avx512"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", slow_unless("mlp", "llama-block", "convnet"))
def test_cpu_levels(name: str, level: CpuLevel) -> None:
    try:
        target = host_target(level=level)
    except ConfigError as problem:
        pytest.skip(str(problem))
    family, module, found = FAMILIES[name], module_of(name), imported(name, dynamic=True)
    session = compile_graph(found.graph, found.signature, target)
    for b, s in [(1, 1), (2, 19)]:
        args = family.args(b, s)
        assert_right(module, args, session(*args))


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_cpu_levels_with_small_floats(level: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CPU", level)
    family = FAMILIES["block"]
    module = copy.deepcopy(module_of("block")).to(dtype)
    draws = [tuple(a.to(dtype) for a in family.args(2, 11)) for _ in range(DRAWS)]
    session = tw.compile(module, draws[0])
    assert session.model.target.vector_bits == {"baseline": 128, "avx2": 256}[level]
    assert_as_exact_as_torch(module, session, draws)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_reference_target_gives_the_same(name: str, dynamic: bool) -> None:
    family, found = FAMILIES[name], imported(name, dynamic=dynamic)
    sessions = [compile_graph(found.graph, found.signature, target_spec(t)) for t in ("cpu", "reference")]
    assert sessions[1].executable is None
    args = family.args(2, 7)
    cpu, reference = (s(*args) for s in sessions)
    assert_close(cpu, reference)


def test_the_comparison_can_fail() -> None:
    """A weight changed by one part in a thousand must be seen."""
    family = FAMILIES["block"]
    broken: Any = copy.deepcopy(module_of("block"))
    args = family.args(2, 7)
    with torch.no_grad():
        broken.f2.weight[0] *= 1.001
    session = tw.compile(broken, args)
    with pytest.raises(AssertionError, match="differs by"):
        assert_close(session(*args), eager(module_of("block"), args))
    with pytest.raises(AssertionError, match="torch's own"):
        assert_as_exact_as_torch(module_of("block"), session, [args])
