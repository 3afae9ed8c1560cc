"""Predicted times of launches on CPUs and the lint over them: models without a slow launch that matters, and planted slow kernels, each
named with its reason. Nothing is timed: the machine is the one of `machine` below."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tilewright as tw
from tests.small_models import MODELS
from tilewright.core.dtypes import bf16, f32
from tilewright.core.target_spec import TargetSpec
from tilewright.runtime.cost import LIMITS, Cost, Finding, lint
from tilewright.runtime.cpu_cost import Facts, launch_costs, predict
from tilewright.runtime.machine import Level, Peaks
from tilewright.target.cpu.host import host_target
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.ir import Kernel

THREADS = 2
KNOWN = {  # models of the zoo, with AVX-512: what is slow and known
    "mamba2": {"gated_delta_rule"},  # steps of a recurrence; it reaches 45 %
    "levit": {"index"},  # a bias looked up for every pair of places
    "vocoder": {"conv1d_13_region"},  # one result channel
    "recommender": {"mean_12", "index_10"},  # means of eight rows, apart from the lookups before them
    "graph attention": {"index_add", "gather_1"},  # a column of sums in one order, by one program; single elements looked up
}


def machine(threads: int, target: TargetSpec) -> Peaks:
    """The host's instruction set at 3.7 GHz, two multiply-adds a cycle, with caches of a usual size."""
    wide = threads * target.vector_bits / 512
    levels = Level("L1", 24e3 * threads, 235 * wide), Level("L2", 786e3 * threads, 110 * wide), Level("L3", 25e6, 65.0 * threads)
    packed = ({"bf16": 2.0} if target.has_avx512bf16 else {}) | ({"i8": 4.0} if target.has_vnni else {})
    return Peaks(threads, 118.0 * wide, (*levels, Level("memory", float("inf"), 15.0 * threads)), packed, 75.0)


def costs(session: Any) -> list[tuple[str, Cost]]:
    """The cost of every launch, predicted for `machine`; nothing runs."""
    target, workspace = session.model.target, session.take()
    instance = workspace.instance(tuple(128 for _ in session.interface.symbols))
    session.give(workspace)
    found = launch_costs(session.executable, instance, target, machine(THREADS, target), machine(1, target))
    return [(launch.name, cost) for launch, cost in zip(session.executable.launches, found, strict=True)]


def findings(session: Any) -> list[Finding]:
    return lint([(name, cost, None) for name, cost in costs(session)], LIMITS["cpu"])


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "upscale" else n for n in MODELS])
def test_no_launch_that_matters_is_predicted_slow(name: str) -> None:
    module, x = MODELS[name]()
    session = tw.compile(module.eval(), (x[:1] if x.is_floating_point() else x,), threads=THREADS)
    assert [str(f) for f in findings(session)] == []
    assert all(0 < cost.share <= 1 and cost.us > 0 for _, cost in costs(session))


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "attention, channels first": (lambda q, k, v: v @ torch.softmax(q.mT @ k, 2).mT, (torch.randn(1, 32, 1024),) * 3),
    "windows of a line": (lambda x: torch.nn.functional.unfold(x, (9, 1), padding=(4, 0)), (torch.randn(1, 128, 128, 1),)),
    "windows of an image": (lambda x: torch.nn.functional.unfold(x, 3), (torch.randn(1, 64, 58, 58),)),
    "a few heads side by side": (lambda x: x.permute(1, 2, 0).reshape(512, 256), (torch.randn(4, 512, 64),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_launch_of_a_function_goes_by_single_elements(name: str) -> None:
    """What it took before: 1.5 to 40 times the time that is predicted now."""
    fn, inputs = FUNCTIONS[name]

    class Module(torch.nn.Module):
        def forward(self, *x: torch.Tensor) -> torch.Tensor:
            return fn(*x)

    session = tw.compile(Module(), inputs, threads=THREADS)
    torch.testing.assert_close(session(*inputs), fn(*inputs), rtol=1e-4, atol=1e-4)
    assert [str(f) for f in findings(session) if "one by one" in str(f)] == []


def zoo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("zoo", Path(__file__).parents[2] / "benchmarks" / "zoo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_zoo_has_no_launch_that_matters_and_is_predicted_slow() -> None:
    """One layer of each model at its real sizes. What is known to be slow stands in KNOWN, and leaves it when it is mended."""
    if not host_target().has_avx512:
        pytest.skip("the list is that of AVX-512")
    found = {}
    for name, build in zoo().models(large=False, depth=1).items():
        torch.manual_seed(0)
        module, inputs = build()
        session = tw.compile(module.eval(), inputs, threads=THREADS)
        if slow := {f.names[0] for f in findings(session)}:
            found[name] = slow
    assert found == KNOWN


def elements(name: str, body: Callable[[KernelBuilder, Any, Any], None], *, numbers: Any = f32) -> Kernel:
    b = KernelBuilder(name)
    body(b, b.view("x", numbers, (1,)), b.view("out", f32, (1,)))
    return b.build()


def single(b: KernelBuilder, x: Any, out: Any) -> None:
    with b.loop(0, 4096) as loop:
        b.store(out, (b.pid * 4096 + loop.index,), b.load(x, (b.pid * 4096 + loop.index,), ()) * 2.0 + 1.0)


def chained(b: KernelBuilder, x: Any, out: Any) -> None:
    with b.loop(0, 4096, carried=[b.full((), 0.0)]) as loop:
        loop.next(loop.carried[0] + b.load(x, (b.pid * 4096 + loop.index,), ()))
    b.store(out, (b.pid,), loop.results[0])


def gathered(b: KernelBuilder, x: Any, out: Any) -> None:
    with b.loop(0, 256) as loop:
        at = b.iota((16,), 0) * 1024
        b.store(out, (b.pid * 4096 + loop.index * 16,), b.gather(x, (b.pid + loop.index,), 0, at))


def widened(b: KernelBuilder, x: Any, out: Any) -> None:
    with b.loop(0, 4096, carried=[b.full((64,), 0.0)] * 6) as loop:
        right = b.cast(b.load(x, (loop.index * 64,), (64,)), f32)
        loop.next(*(b.fma(b.cast(b.load(x, (loop.index * 6 + k,), (1,)), f32), right, c) for k, c in enumerate(loop.carried)))
    for k, c in enumerate(loop.results):
        b.store(out, (b.pid * 384 + k * 64,), c)


def functions(b: KernelBuilder, x: Any, out: Any) -> None:
    with b.loop(0, 64) as loop:
        at = (b.pid * 4096 + loop.index * 64,)
        b.store(out, at, b.unary("tanh", b.unary("sin", b.load(x, at, (64,)))))


CHAIN, SINGLE = "one dependent chain: every step waits for the one before", "elements are read or written one by one (strided or gathered)"
SLOW: dict[str, tuple[Kernel, int, int, int, str]] = {  # kernel, programs, flops and bytes of a program, what is said
    "scalar": (elements("scalar", single), 64, 8192, 32768, "scalar code: 1.0 of"),
    "chain": (elements("chain", chained), 64, 4096, 16384, CHAIN),
    "gather": (elements("gather", gathered), 64, 0, 32768, SINGLE),
    "few": (elements("few", chained), 1, 4096, 1 << 17, f"1 program for {THREADS} threads"),
    "widened": (elements("widened", widened, numbers=bf16), 64, 2 * 4096 * 384, 4096 * 12, "16-bit operands are widened to f32"),
}


@pytest.mark.parametrize("case", SLOW)
def test_a_slow_kernel_is_named_with_its_reason(case: str) -> None:
    kernel, grid, flops, nbytes, why = SLOW[case]
    target = host_target()
    if case == "widened" and not target.has_avx512bf16:
        pytest.skip("this CPU multiplies no bf16")
    cost = predict(kernel, Facts((None, None), grid, grid * flops, grid * nbytes), target, machine(THREADS, target), machine(1, target))
    (finding,) = lint([("slow", cost, None)], LIMITS["cpu"])
    assert why in str(finding) and "100 % of the call" in str(finding)


def test_functions_are_part_of_the_roofline() -> None:
    """Sines cost what they cost: a kernel that computes little else is at its roofline, and the reason says so."""
    target = host_target()
    cost = predict(elements("functions", functions), Facts((None, None), 64, 64 * 8192, 64 * 32768), target, machine(2, target),
                   machine(1, target))
    assert cost.bound == "math" and cost.share > 0.8 and "vector functions" in cost.reason


def test_packing_in_the_call_and_weights_that_wait_in_memory() -> None:
    target = host_target()
    facts = {"words": (None, None), "grid": 64, "flops": 64, "bytes": 64 * 32768}
    ask = lambda **more: predict(elements("scalar", single), Facts(**facts, **more), target, machine(2, target), machine(1, target))  # type: ignore[arg-type]
    near, far = ask(packs=True), ask(constants=64 * 32768, resident=1 << 30)
    assert "packs an operand" in near.reason and (near.bound, far.bound) == ("L3", "memory") and far.roofline_us > 4 * near.roofline_us


def test_a_planted_slow_kernel_is_found_in_a_model() -> None:
    module, x = MODELS["attends"]()
    session: Any = tw.compile(module.eval(), (x[:1],), threads=THREADS)
    launch = max(session.executable.launches, key=lambda launch: launch.flops)
    b = KernelBuilder("planted")
    for p in launch.kernel.params:
        b.kernel.params.append(p)
    with b.loop(0, 1 << 20, carried=[b.full((), 0.0)]) as loop:
        loop.next(loop.carried[0] * 0.5 + 1.0)
    before, launch.kernel = launch.kernel, b.build()
    (finding,) = findings(session)
    launch.kernel = before
    assert finding.names == (launch.name,) and CHAIN in str(finding)


def test_profiles_and_reports_show_prediction_and_share() -> None:
    session = tw.compile(torch.nn.Linear(64, 64), (torch.zeros(32, 64),))
    profile = session.profile(torch.zeros(32, 64), repeat=2)
    row = profile.rows[0]
    assert row["predicted_us"] > 0 and 0 < row["roofline"] <= 1 and "predicted" in str(profile)
    report = session.report()
    assert report.data["lint"] == [] or all("of the roofline" in x for x in report.data["lint"])
    assert report.data["launches"][0]["reason"] == row["reason"]


def test_launches_of_equal_cost_are_one_finding() -> None:
    slow, fast = Cost(10.0, 2.0, "L2", "because"), Cost(50.0, 40.0, "flops", "")
    (found,) = lint([("a", slow, None), ("big", fast, None), ("b", slow, None), ("tiny", Cost(0.1, 0.001, "L1", ""), None)], 0.4)
    assert str(found) == "a and 1 like it: 20.0 us predicted, 29 % of the call, 20 % of the roofline by L2: because"
    (timed,) = lint([("a", fast, 400.0)], 0.4)
    text = "a: 400.0 us, 100 % of the call, 10 % of the roofline by flops: 50.0 us were predicted: the model does not see why"
    assert str(timed) == text
