"""Consecutive launches as one kernel whose blocks meet in between: the bits of the launches apart, and no wait can be left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.emulator import Fault
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import Emulated, graph
from tests.cuda.small_llama import Model, Sizes
from tilewright.core.dtypes import bf16, f32
from tilewright.core.errors import CompileError, ConfigError
from tilewright.ir.graph import Graph
from tilewright.kernels.cuda.fragments import FORMS, Fragments
from tilewright.kernels.cuda.joined import BESIDE, JoinedKernel, Joining, cells_of, joinable, joining_of, unit_parts
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.kernels.launch import Launch
from tilewright.llm.tiny import write_tiny_model
from tilewright.runtime.cuda_array import upload
from tilewright.target.cuda import barrier_safety
from tilewright.target.cuda.async_safety import check
from tilewright.target.cuda.code import emit_cuda
from tilewright.target.cuda.device import MULTIPROCESSOR, RESERVED, cuda_target
from tilewright.target.cuda.ptx_flow import parse
from tilewright.target.cuda.ptxas import assemble, find_ptxas
from tilewright.target.cuda.token_launch import small_launch

Array = Any
TINY = Sizes(layers=1, width=136, heads=1, kv_heads=1, head=16, inner=16, vocab=8, capacity=12, position=9)
PACKED = Sizes(layers=1, width=64, heads=1, kv_heads=1, head=32, inner=96, vocab=24, capacity=12, position=9)
K_FORMAT = Sizes(layers=2, width=512, inner=2304, heads=8, kv_heads=2, head=64, vocab=300)
BENCHMARK = Sizes(layers=1, width=2048, heads=32, kv_heads=8, head=64, inner=8192, vocab=512, capacity=1024, position=512)


def same(got: list[Array], want: list[Array]) -> bool:
    return all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in zip(got, want, strict=True))


def joined(g: Graph, settings: str = "", arch: str = "sm_90a", cores: int = 3) -> tuple[Emulated, JoinedKernel]:
    e = Emulated(g, arch, [Joining.parse(settings).text], cores)
    (launch,) = e.program.launches
    assert isinstance(launch.kernel, JoinedKernel)
    return e, launch.kernel


CASES = [
    (TINY, "", "sm_90a", ("",)), (PACKED, "Q8_0", "sm_80", ("barrier=flags,depth=2",)),
    pytest.param(
        Sizes(), "", "sm_90a", ("", "depth=0", "barrier=flags,rows=1,depth=4", "threads=1024", "blocks=2,depth=2"), marks=pytest.mark.slow
    ),
    pytest.param(K_FORMAT, "Q4_K", "sm_90a", ("", "barrier=flags,depth=2", "depth=0"), marks=pytest.mark.slow),
    pytest.param(Sizes(layers=1, width=256, heads=4, head=64, inner=256), "Q6_K", "sm_120", ("",), marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize("sizes, packed, arch, settings", CASES, ids=["tiny", "packed", "small", "Q4_K", "Q6_K"])
def test_a_step_in_one_kernel_has_the_bits_of_its_launches(
    sizes: Sizes, packed: str, arch: str, settings: tuple[str, ...], rng: np.random.Generator
) -> None:
    m = Model(sizes, rng, packed, f32 if sizes is TINY else bf16)
    apart = Emulated(m.graph, arch, cores=4)
    want = apart(*m.arrays)
    assert apart.launched >= 2 + 5 * sizes.layers and np.isfinite(want[0].astype(np.float32)).all()
    for setting in settings:
        e, kernel = joined(m.graph, setting, arch)
        ahead = Joining.parse(setting).depth > 0 and not (packed and arch == "sm_120")  # which has no room for two units of a block
        assert (kernel.depth > 0) == ahead == any(kernel.cells)
        assert len(kernel.kinds) <= 8 and len(kernel.members) == apart.launched
        assert same(e(*m.arrays), want)
        assert packed or barrier_safety.check(e.texts[kernel.name]) == []  # the text of packed products is long: see below


def chain(x: Any, w: Any, first: Any, second: Any) -> Any:
    h = o.RmsNorm(eps=1e-5, affine="weight")(x, w)
    return o.Matmul(transpose_b=True)(o.relu(o.Matmul(transpose_b=True)(h, first)), second)


def chain_inputs(rng: np.random.Generator) -> list[Array]:
    shapes = ((1, 264), (264,), (24, 264), (16, 24))
    return [(rng.standard_normal(s) * 0.2).astype(np.float32).astype(bf16.np) for s in shapes]


def chain_graph(arrays: list[Array]) -> Graph:
    return graph(chain, *((bf16, a.shape) for a in arrays))


@pytest.mark.parametrize(
    "settings, change, what",
    [
        ("", (r"@%p\d+ red\.release[^;]*;", ""), "blocks wait for one another"),
        pytest.param("barrier=flags", (r"@%p\d+ st\.release[^;]*;", ""), "blocks wait for one another", marks=pytest.mark.slow),
        pytest.param("", (r"(@%p\d+) bra (wait_\d+);", ""), "", marks=pytest.mark.slow),  # another block's results are not there yet
        ("barrier=flags", (r"(@%p\d+) bra (wait_\d+);", ""), ""),
        ("", (r"cp\.async\.wait_group 2;", "cp.async.wait_group 3;"), ""),  # a piece too early
    ],
    ids=["no arrival", "no flag", "no wait", "no wait for flags", "too early"],
)
def test_what_is_left_out_shows(settings: str, change: tuple[str, str], what: str, rng: np.random.Generator) -> None:
    arrays = chain_inputs(rng)
    g = chain_graph(arrays)
    want = Emulated(g, cores=4)(*arrays)
    e, kernel = joined(g, "threads=256" + (f",{settings}" if settings else ""))
    assert same(e(*arrays), want) and same(e(*arrays), want)  # the words in which blocks meet are as the first launch left them
    text = e.texts[kernel.name]
    e.texts[kernel.name], n = re.subn(*change, text)
    assert n
    if what:
        with pytest.raises(Fault, match=what):
            e(*arrays)
    else:
        assert not same(e(*arrays), want)


def test_what_a_stage_before_has_written_is_no_constant(rng: np.random.Generator) -> None:
    """A product with a matrix that the same kernel computes loads it like anything else: `.nc` is for what nobody writes meanwhile."""

    def f(x: Any, a: Any, b: Any) -> Any:
        return o.Matmul(transpose_b=True)(o.Matmul(transpose_b=True)(x, a), o.relu(b))

    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((1, 264), (264, 264), (8, 264))]
    g = graph(f, *((f32, a.shape) for a in arrays))
    e, kernel = joined(g, "threads=256")
    assert same(e(*arrays), Emulated(g, cores=4)(*arrays))
    assert [getattr(k, "early", False) for k in kernel.kinds] == [c > 0 for c in kernel.cells] == [True, False, False]
    assert "ld.global.nc.L1" not in e.texts[kernel.name]  # the first matrix comes by copies ahead of time


def test_programs_side_by_side_have_a_barrier_each() -> None:
    """A block has sixteen, one of them for all threads: sixteen programs of 64 threads are too many."""
    launch = Launch("k", BlockKernel("k", threads=64), (), 1, (), ())
    assert [joinable(launch, Joining(threads=n)) for n in (512, 1024)] == [True, False]


@pytest.mark.slow
def test_programs_that_differ_in_size_and_number(rng: np.random.Generator) -> None:
    """More programs than groups of threads, fewer, none left over; rows that end inside a piece; f32 too."""

    def three(x: Any, a: Any, b: Any, c: Any) -> Any:
        y = o.Matmul(transpose_b=True)(x, a)
        return o.Matmul(transpose_b=True)(o.relu(o.Matmul(transpose_b=True)(y, b)), c), y

    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((1, 1032), (136, 1032), (8, 136), (4, 8))]
    g = graph(three, *((f32, a.shape) for a in arrays))
    e, kernel = joined(g)
    assert len(kernel.kinds) == 3 and sorted(c > 0 for c in kernel.cells) == [False, True, True]  # the last has a warp per program
    assert same(e(*arrays), Emulated(g, cores=4)(*arrays))


def test_sessions_launch_it_with_all_its_blocks(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone and in a graph; inputs that move change the table, not the launch, also where a later call takes the short way."""
    arrays, others = chain_inputs(rng), chain_inputs(rng)

    def more(x: Any, w: Any, first: Any, second: Any) -> Any:  # two rows: a kernel that is not joined
        y = chain(x, w, first, second)
        return y, o.Matmul(transpose_b=True)(o.concat([y, o.neg(y)], 0), o.slice_(first, 1, 0, 16))

    ways: list[tuple[Callable[..., Any], bool]] = [(chain, True), (more, False)]
    for fn, alone in ways:
        found = []
        for setting in ("off", "threads=256,depth=2"):
            monkeypatch.setenv("TILEWRIGHT_JOIN", setting)
            with fake_gpu() as gpu:
                session: Any = tw.compile(graph(fn, *((bf16, a.shape) for a in arrays)), target="cuda")
                results = [session(*a) for a in (arrays, others)]
                results.append(session(*(upload(x, bf16, 0) for x in arrays)))  # by now it knows a short way for arrays on the GPU
                found.append([[np.asarray(y.numpy()) for y in (r if isinstance(r, (list, tuple)) else [r])] for r in results])
                names = [n.partition("_")[0] for n in gpu.launches]
                assert any("in one kernel" in x.note for x in session.executable.program.launches) == (setting != "off")
        assert names.count("joined") == 3 and (len(names) == 3) == alone
        assert all(same(a, b) for a, b in zip(*found, strict=True))


def test_a_smaller_chip_is_refused(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_JOIN", "on")
    arrays = chain_inputs(rng)
    with fake_gpu(run=False), pytest.raises(CompileError, match=r"made for 108 blocks at once, this GPU has room for 4; compile on it"):
        tw.compile(chain_graph(arrays), target="sm_80")(*arrays)


@pytest.mark.parametrize("setting", ["depth=1", "threads=100", "barrier=tree", "speed=9", "blocks=4,threads=1024"])
def test_settings_that_make_no_sense(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_JOIN", setting)
    with pytest.raises(ConfigError, match="join: "):
        tw.compile(graph(lambda x: o.Neg()(x), (f32, (4,))), target="sm_80")


def test_blocks_that_a_chip_has_no_room_for() -> None:
    """All blocks must be there at once: threads of a multiprocessor, and its shared memory with what goes beside the pieces."""
    spec = replace(cuda_target("sm_120"), features=frozenset([Joining.parse("blocks=4,threads=512").text]))
    with pytest.raises(ConfigError, match="a multiprocessor of sm_120 has 1536 threads, got 4 blocks of 512"):
        joining_of(spec)
    assert joining_of(replace(spec, cpu="sm_90a", features=spec.features)) is not None
    for arch, (_, _, _, memory) in MULTIPROCESSOR.items():
        for blocks in (1, 2, 3):
            spec = cuda_target(arch)
            assert blocks * (spec.l1d // blocks - BESIDE + RESERVED + 16 * 128) <= memory  # sixteen warps with a dozen words each


class _Zeros:
    """No need for random numbers where only the text of a kernel matters."""

    def standard_normal(self, shape: Any) -> Array:
        return np.zeros(shape, np.float32)

    def uniform(self, low: float, high: float, shape: Any) -> Array:
        return np.zeros(shape)

    def bytes(self, n: int) -> bytes:
        return bytes(n)


TEXTS = [
    *((p, a, "") for p in ("", "Q4_K") for a in ("sm_80", "sm_90a", "sm_120")),
    *((p, "sm_90a", s) for p in ("", "Q4_K") for s in ("barrier=flags", "depth=0", "rows=2,depth=8")),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("packed, arch, setting", TEXTS, ids=str)
def test_the_benchmarks_step_assembles_without_spills(packed: str, arch: str, setting: str) -> None:
    m = Model(BENCHMARK, _Zeros(), packed)  # type: ignore[arg-type]
    _, kernel = joined(m.graph, setting, arch, cores=132)
    text = emit_cuda(kernel, cuda_target(arch, 132))
    assert barrier_safety.check(text) == []
    if find_ptxas() is None:
        pytest.skip("no ptxas here")
    usage = assemble(text, arch)
    assert usage.spilled == 0 and usage.registers * kernel.block * kernel.how.blocks <= 65536
    assert kernel.depth * kernel.slot + usage.shared + 2048 <= cuda_target(arch).l1d // kernel.how.blocks


def test_accesses_of_a_unit_are_what_the_emitter_makes() -> None:
    from tilewright.target.cuda.ptx_text import KernelText
    from tilewright.target.cuda.qdot_small import unit_of

    for name in FORMS:
        for k in (32, 64, 256, 1024):
            f = Fragments(name, k)
            if k % f.blocks or (f.super_scales and k % 256):
                continue
            for spread in (False, True)[: 2 if f.blocks == 8 and not name.startswith("F8") else 1]:
                made: list[int] = []
                unit = unit_of(KernelText("k", []), f, "%r1", "%r2", spread)
                unit.each("%rd1", lambda part, base, at, made=made: made.append(len(part)))  # type: ignore[misc]
                assert made == unit_parts(f, spread), (name, k)


def test_by_default_nothing_is_joined() -> None:
    m = Model(TINY, _Zeros(), dtype=f32)  # type: ignore[arg-type]
    kernels = [x.kernel for x in Emulated(m.graph, cores=4).program.launches]
    assert not any(isinstance(k, JoinedKernel) for k in kernels) and any(cells_of(k) for k in kernels)


@pytest.mark.parametrize("setting", [pytest.param("depth=2", marks=pytest.mark.slow), "depth=3,barrier=flags"])
def test_copies_ahead_and_meetings_are_proved_from_the_text(setting: str, rng: np.random.Generator) -> None:
    e, kernel = joined(chain_graph(chain_inputs(rng)), f"threads=256,{setting}", cores=2)
    text = emit_cuda(kernel, e.target)
    launch = small_launch(kernel, text)
    assert launch is not None and check(text, launch).findings == ()
    (function,) = parse(text)
    needed = {"griddepcontrol.wait", "cp.async.wait_group", "cp.async.commit_group", "bar.warp.sync", "bar.sync"}
    found = {op.opcode for i, op in enumerate(function.ops) if op.opcode in needed and check(text, launch, [i]).findings}
    assert found == needed
    weaker = re.sub(r"wait_group (\d);", lambda m: f"wait_group {int(m[1]) + 1};", text)
    assert "race" in {f.kind for f in check(weaker, launch).findings}
    lonely = re.sub(r"@%p\d+ (red|st)\.release[^;]*;", "", text)
    assert {f.kind for f in check(lonely, launch).findings} == {"stuck"}


@pytest.mark.slow
def test_a_language_model_takes_its_steps_in_one_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position that every call gives anew is in the table, too."""
    path = write_tiny_model(tmp_path / "tiny.gguf", format="Q4_0", layers=1, context=32)
    want = "".join(tw.load_llm(path, cache_dtype="f32").generate("ab", max_tokens=3))
    monkeypatch.setenv("TILEWRIGHT_JOIN", "on")
    with fake_gpu() as gpu:
        assert "".join(tw.load_llm(path, cache_dtype="f32", target="cuda").generate("ab", max_tokens=3)) == want
        names = [n.partition("_")[0] for n in gpu.launches]
        assert names.count("joined") >= 2 and "decode" not in names
