"""Programs in the code cache: the second start compiles nothing and computes the same bits; what shapes a program is part of its key."""
from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.quantized_model import CONFIG, model, tensors
from tilewright.compile import compile_graph
from tilewright.ir.text import to_text
from tilewright.llm import loading, program_store
from tilewright.llm.model import LLM
from tilewright.llm.weights import Weights, plain_tensor
from tilewright.target.cpu.cache import CodeCache
from tilewright.target.cpu.host import host_target

IDS = [3, 100, 7, 7, 42, 9]


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A cache of its own; the names of graphs that were compiled."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    names: list[str] = []

    def noting(graph: Any, *args: Any, **options: Any) -> Any:
        names.append(graph.name)
        return compile_graph(graph, *args, **options)

    monkeypatch.setattr(loading, "compile_graph", noting)
    return names


def logits(llm: LLM) -> list[np.ndarray[Any, Any]]:
    state = llm.start()
    return [llm.feed(state, IDS), llm.feed(state, [5]), llm.feed(state, IDS * 20)]


def same(a: list[Any], b: list[Any]) -> bool:
    return all(np.array_equal(x.view(np.int32), y.view(np.int32)) for x, y in zip(a, b, strict=True))


def test_a_second_start_compiles_nothing_and_gives_the_same_bits(compiles: list[str]) -> None:
    first = model()
    texts = first.generate_batch(["ab", "cde", "f"], max_tokens=8)
    want = logits(first)
    assert compiles == ["llama", "llama_4"]
    again = model()
    assert same(logits(again), want)
    assert again.generate_batch(["ab", "cde", "f"], max_tokens=8) == texts
    assert compiles == ["llama", "llama_4"]
    one, two = first.session.executable, again.session.executable
    assert one is not None and two is not None
    assert dict(one.code.tiles) == dict(two.code.tiles) and len(two.code.tiles) > 5
    assert to_text(again.session.model.graph) == to_text(first.session.model.graph)


def test_other_weights_of_the_same_shapes_use_the_same_program(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices are not part of a program; vectors may be folded into its constants, so they are."""
    before = logits(model(0))
    base, other = tensors(0), tensors(1)
    weights = Weights({n: other[n] if len(t.shape) > 1 else t for n, t in base.items()}, CONFIG)
    ours = logits(model(weights=weights))
    assert compiles == ["llama"]
    monkeypatch.setattr(loading, "load_program", lambda *_, **__: None)
    fresh = logits(model(weights=Weights(weights.tensors, CONFIG)))
    assert compiles == ["llama", "llama"]
    assert same(ours, fresh) and not same(ours, before)


@pytest.mark.parametrize("kind", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_plain_matrices_are_named_not_stored(kind: str, compiles: list[str]) -> None:
    """They become ordinary products, some of them joined; an entry of the cache still holds no matrix."""
    plain = {n: plain_tensor(n, t.dequantize().astype(kind)) if len(t.shape) == 2 else t for n, t in tensors(0).items()}
    want = logits(model(weights=Weights(dict(plain), CONFIG)))
    assert same(logits(model(weights=Weights(dict(plain), CONFIG))), want) and compiles == ["llama"]
    folder = CodeCache().folder
    assert folder is not None
    stored = [path.read_bytes() for path in folder.iterdir()]
    vector = next(t.data for t in plain.values() if len(t.shape) == 1)
    assert any(vector.tobytes()[:64] in data for data in stored), "what is folded into constants is stored, so the search finds something"
    for t in plain.values():
        assert len(t.shape) == 1 or not any(t.data.tobytes()[:64] in data for data in stored), t.name


def test_what_is_part_of_the_key() -> None:
    base = tensors(0)
    spec = host_target()
    weights = Weights(base, CONFIG)
    keys = [program_store.program_key(CONFIG, weights, spec, 256, "f16", None)]
    assert keys[0] == program_store.program_key(CONFIG, Weights(tensors(0), CONFIG), spec, 256, "f16", None)
    for parts in ((128, "f16", None), (256, "f32", None), (256, "f16", 2)):
        keys.append(program_store.program_key(CONFIG, weights, spec, *parts))
    keys.append(program_store.program_key(dataclasses.replace(CONFIG, norm_eps=1e-6), weights, spec, 256, "f16", None))
    keys.append(program_store.program_key(CONFIG, weights, dataclasses.replace(spec, cores=spec.cores + 1), 256, "f16", None))
    changed = base["output_norm.weight"].dequantize().copy()
    changed[5] = np.nextafter(changed[5], np.float32(9))
    vector = {**base, "output_norm.weight": plain_tensor("output_norm.weight", changed)}
    keys.append(program_store.program_key(CONFIG, Weights(vector, CONFIG), spec, 256, "f16", None))
    keys.append(program_store.program_key(CONFIG, Weights(tensors(0, ("Q4_0", "Q8_0")), CONFIG), spec, 256, "f16", None))
    assert len(set(keys)) == len(keys)


@pytest.mark.slow
def test_an_entry_that_makes_no_sense_is_compiled_again(compiles: list[str]) -> None:
    want = logits(model())
    cache = CodeCache()
    key = program_store.program_key(CONFIG, Weights(tensors(0), CONFIG), host_target(), CONFIG.context, "f16", None)
    entry = cache.get(key)
    assert entry is not None
    for n, bad in enumerate((b"", entry[:100], entry + b"x", entry[:20] + b"]" + entry[21:])):
        cache.put(key, bad)
        for _ in range(2):
            assert same(logits(model()), want) and compiles == ["llama"] * (n + 2)
