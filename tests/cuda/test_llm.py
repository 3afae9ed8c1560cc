"""A language model for a GPU, in the emulator: both programs on the same caches give the logits of the CPU's program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import Emulated, program
from tilewright.build.cuda_late import make_late
from tilewright.compile import compile_graph
from tilewright.ir.text import to_text
from tilewright.kernels.cuda.kernel import DecodeKernel, FlashKernel
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.llm.cuda import CudaCall
from tilewright.llm.cuda_store import kernel_data
from tilewright.llm.decoder import Decoder
from tilewright.llm.loading import assemble, open_model
from tilewright.llm.lora import Adapter
from tilewright.llm.settings import Sampler
from tilewright.llm.tiny import write_tiny_model
from tilewright.target.cpu.cache import CodeCache

Array = Any
FAR = 0.05  # how far logits may be: a prompt's activations are bf16 beside packed matrices and int8 on the CPU (0.01 to 0.02)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", format="Q4_0", layers=1, context=32)


@pytest.mark.slow
def test_a_prompt_and_a_token_give_the_logits_of_the_cpu(path: Path) -> None:
    config, weights, _ = open_model(path)
    llm = tw.load_llm(path, cache_dtype="f32")
    many, one = (Emulated(Decoder(config, weights, 32, "f32", sampled=False, rows=n).build()) for n in (None, 1))
    assert make_late(many.program, {"P"}) and make_late(one.program, {"P"})
    assert sum(isinstance(x.kernel, DecodeKernel) for x in one.program.launches) == config.layers
    caches: list[Array] = [np.zeros([int(d) for d in v.shape], np.float32) for v in many.graph.inputs[1:]]
    state, ids = llm.start(), [3, 200, 17, 64]
    logits, *caches = many(np.array(ids[:3]), *caches, env={"P": 0})
    want = llm.feed(state, ids[:3])
    assert np.linalg.norm(logits - want) <= FAR * np.linalg.norm(want)
    logits, *caches = one(np.array(ids[3:]), *caches, env={"P": 3})
    want = llm.feed(state, ids[3:])
    assert np.linalg.norm(logits - want) <= FAR * np.linalg.norm(want)


@pytest.mark.slow
def test_a_whole_model_on_the_stand_in_for_the_driver(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tw.load_llm(target="cuda")` without PyTorch: the tokens of the CPU's program, and states that go their own ways."""
    want = "".join(tw.load_llm(path, cache_dtype="f32").generate("ab", max_tokens=4))
    monkeypatch.setitem(sys.modules, "torch", None)
    with fake_gpu():
        llm = tw.load_llm(path, cache_dtype="f32", target="cuda")
        assert "".join(llm.generate("ab", max_tokens=4)) == want
        again = tw.load_llm(path, cache_dtype="f32", target="cuda")  # from the code cache
        assert "".join(again.generate("ab", max_tokens=4)) == want
        state = llm.start()
        llm.feed(state, [3, 200])
        copy = state.copy()
        first, second = llm.feed(state, [17]), llm.feed(copy, [17])
        np.testing.assert_array_equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["f16", "q8_0"])
def test_prompts_meet_the_tensor_cores_at_every_position(cache: str, tmp_path: Path) -> None:
    """Two layers, of which the first attends for every row of a prompt. Pieces of one length go through one graph, whose kernels on the
    tensor cores learn the position by new parameters."""
    path = write_tiny_model(tmp_path / "tiny.gguf", format="Q4_0", layers=2, context=32)
    cpu = tw.load_llm(path, cache_dtype=cache)
    with fake_gpu() as gpu:
        llm = tw.load_llm(path, target="cuda", cache_dtype=cache)
        many = llm._call.many
        assert sum("mma.sync" in x.note and x.name.startswith("attention") for x in many.executable.program.launches) == 1
        ours, theirs = llm.start(), cpu.start()
        for piece in ([3, 200, 17], [64, 5, 99], [7, 7, 250], [30, 40], [9]):
            logits, want = llm.feed(ours, piece), cpu.feed(theirs, piece)
            assert np.linalg.norm(logits - want) <= FAR * np.linalg.norm(want)
        assert gpu.calls["cuGraphExecKernelNodeSetParams_v2"] >= 2 and len(many._schedules) == 2


@pytest.mark.slow
def test_a_token_is_chosen_on_the_gpu_and_stays_there(path: Path) -> None:
    """With every setting on: the reference's choice from the same logits. Without any: nothing but the position goes to the GPU."""
    with fake_gpu() as gpu:
        llm = tw.load_llm(path, cache_dtype="f32", target="cuda")
        stream = llm.generate("ab", max_tokens=3, temperature=0.9, top_k=60, top_p=0.95, min_p=0.01, repetition_penalty=1.4, seed=5)
        list(stream)
        one, many = (s.executable for s in (llm._call.session, llm._call.many))
        packed = [x.address for x, c in zip(one._weights, one.program.constants, strict=True) if c.packed.form == "fragments"]
        assert len({*packed} & {x.address for x in many._weights}) >= len(packed) - 1 > 3  # once there, but for the last q, k and v
        state, sampler = llm.start(), Sampler(stream.sampler.sampling, llm.vocab)
        fed: list[int] = list(stream.prompt)
        for token in stream.ids:
            sampler.note(fed)
            logits = llm.feed(state, fed)
            sampler.numbers[2] = state.length
            assert token == int(o.Sample().ref(logits, sampler.seen, sampler.settings, sampler.numbers))
            fed = [token]
        greedy = llm.generate("ab", max_tokens=3)
        greedy.step(), greedy.step()
        before = dict(gpu.calls)
        greedy.step()
        copies = [gpu.calls[n] - before[n] for n in ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")]
        assert copies == [1, 1] and "choice" in (said := str(llm.report())) and "on the host:" in said


@pytest.mark.slow
def test_sequences_side_by_side_are_those_one_by_one(path: Path) -> None:
    """Three prompts on four lanes, one of which ends sooner, one drawn with a penalty and a temperature."""
    with fake_gpu() as gpu:
        llm = tw.load_llm(path, cache_dtype="f32", target="cuda")
        drawn: dict[str, Any] = {"temperature": 0.8, "top_k": 30, "repetition_penalty": 1.2, "seed": 4}
        for options in ({}, drawn):
            prompts = ["ab", "c", "the"]
            want = ["".join(llm.generate(p, max_tokens=3, **options)) for p in prompts]
            gpu.launches.clear()
            assert llm.generate_batch(prompts, max_tokens=3, **options) == want
            assert sum(name.startswith("sample_block") for name in gpu.launches) == 3 + 2  # the lanes of a step are one launch


@pytest.mark.slow
def test_an_adapter_changes_the_logits_as_on_the_cpu(path: Path, rng: np.random.Generator) -> None:
    width = open_model(path)[0].width
    a, b, c = (rng.standard_normal(shape).astype(np.float32) * 0.3 for shape in ((width, 3), (3, width), (2 * width, 3)))
    adapter = Adapter("some", 3, {"blk.0.attn_q": (a, b), "blk.0.ffn_down": (c, b)})
    cpu = tw.load_llm(path, cache_dtype="f32")
    with fake_gpu():
        llm = tw.load_llm(path, cache_dtype="f32", target="cuda")
        plain = llm.feed(llm.start(), [3, 200])
        found = []
        for model in (llm, cpu):
            model.use_adapter(adapter)
            state = model.start()
            found.append([model.feed(state, piece) for piece in ([3, 200], [17])])
        for got, want in zip(*found, strict=True):
            assert np.linalg.norm(got - want) <= FAR * np.linalg.norm(want)
        assert np.linalg.norm(found[0][0] - plain) > 3 * FAR * np.linalg.norm(plain)
        llm.use_adapter(None)
        np.testing.assert_array_equal(llm.feed(llm.start(), [3, 200]), plain)


@pytest.mark.slow
def test_prompts_on_hopper_give_the_logits_of_the_cpu(tmp_path: Path) -> None:
    """The same with `wgmma` and tensor maps, emulated: pieces of a prompt at several positions of an f16 cache."""
    path = write_tiny_model(tmp_path / "tiny.gguf", format="Q4_0", layers=2, context=32)
    config, weights, _ = open_model(path)
    cpu = tw.load_llm(path)
    many = Emulated(Decoder(config, weights, 32, "f16", sampled=False, narrow=True).build())
    assert any(isinstance(x.kernel, FlashKernel) for x in many.program.launches)
    caches: list[Array] = [np.zeros([int(d) for d in v.shape], np.float16) for v in many.graph.inputs[1:]]
    state, at = cpu.start(), 0
    for piece in ([3, 200, 17], [64, 5], [99, 7, 7, 250, 30]):
        logits, *caches = many(np.array(piece), *caches, env={"P": at})
        want = cpu.feed(state, piece)
        assert np.linalg.norm(logits - want) <= FAR * np.linalg.norm(want)
        at += len(piece)


def test_attention_of_prompts_is_on_the_tensor_cores(tmp_path: Path) -> None:
    """On each chip its own kernel, over the cache's dtype; an f32 cache keeps the exact kernel."""
    config, weights, _ = open_model(write_tiny_model(tmp_path / "tiny.gguf", layers=2, context=32))
    for arch, kernel in (("sm_80", TiledKernel), ("sm_90a", FlashKernel), ("sm_120", TiledKernel)):
        for cache, wanted in (("bf16", kernel), ("f32", TiledKernel)):
            decoder = Decoder(config, weights, 32, cache, sampled=False, narrow=True)
            found = next(x for x in program(decoder.build(), arch).launches if x.name.startswith("attention0"))
            assert type(found.kernel) is wanted, (arch, cache)


def test_a_model_in_f32_is_computed_in_f32(tmp_path: Path) -> None:
    """Queries of a prompt are not rounded to the dtype of the cache, which tensor cores would want."""
    for name, wanted in (("F32", "attention_"), ("Q8_0", "flash_")):
        config, weights, tokenizer = open_model(write_tiny_model(tmp_path / f"{name}.gguf", format=name, layers=2, context=32))
        llm: Any = assemble(config, weights, tokenizer, target="sm_90a")
        found = next(x for x in llm._call.many.executable.program.launches if x.name.startswith("attention0"))
        assert found.kernel.name.startswith(wanted), name


def test_a_second_start_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are read from the code cache, tensor maps included; an entry that cannot be read is compiled again."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    names: list[str] = []

    def noting(graph: Any, *args: Any, **options: Any) -> Any:
        names.append(graph.name)
        return compile_graph(graph, *args, **options)

    monkeypatch.setattr("tilewright.llm.cuda.compile_graph", noting)
    config, weights, tokenizer = open_model(write_tiny_model(tmp_path / "tiny.gguf", layers=2, context=32))
    first, second = (assemble(config, weights, tokenizer, target="sm_90a")._call for _ in range(2))
    assert names == ["llama", "llama", "choice"]
    for a, b in zip(programs(first), programs(second), strict=True):
        assert a.code == b.code and a.rebinds == b.rebinds
        kept, read = ([(c.packed, c.data.array.tobytes()) for c in e.program.constants] for e in (a, b))
        assert kept == read
        for x, y in zip(a.program.launches, b.program.launches, strict=True):
            assert (x.name, x.grid, x.note, x.flops) == (y.name, y.grid, y.note, y.flops)
            assert [kernel_data(w.kernel) for w in x.ways] == [kernel_data(w.kernel) for w in y.ways]
    assert any(getattr(x.kernel, "maps", ()) for x in second.many.executable.program.launches)
    said = ([line for line in str(x.report()).splitlines() if "compile:" not in line] for x in (first, second))
    assert next(said) == next(said)
    assert to_text(second.session.model.graph) == to_text(first.session.model.graph)
    for entry in CodeCache().entries():
        CodeCache().put(entry.key, b"nonsense")
    assemble(config, weights, tokenizer, target="sm_90a")
    assert len(names) == 6


def programs(call: CudaCall) -> list[Any]:
    return [s.executable for s in (call.session, call.many, call.choose)]


def test_the_programs_compile_for_every_cache(path: Path) -> None:
    config, weights, tokenizer = open_model(path)
    llm = assemble(config, weights, tokenizer, target="sm_90a")
    assert isinstance(llm._call, CudaCall) and llm._call.session.executable.rebinds and llm._call.many.executable.rebinds
    eight = assemble(config, weights, tokenizer, target="sm_90a", cache_dtype="q8_0")._call
    assert eight.session.executable.rebinds and eight.many.executable.rebinds
    assert sum(x.kernel.name.startswith("decode_") for x in eight.session.executable.program.launches) == config.layers
    assert llm._call.lanes_for(2).session.executable.rebinds  # one graph for all positions of both sequences
