"""Mixtures of experts with packed weights: close to the same numbers in f32, the same bits however the prompt is cut."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.llm.families import relative
from tilewright.llm.model import LLM
from tilewright.llm.tiny import write_tiny_model

IDS = [5, 80, 33, 2, 17, 6, 9, 101, 44]


def notes(llm: LLM) -> set[str]:
    assert llm.session.executable is not None
    return {launch.note for launch in llm.session.executable.launches}


@pytest.mark.parametrize("name", ["Q4_1", *(pytest.param(n, marks=pytest.mark.slow) for n in ("Q8_0", "Q4_0"))])
def test_packed_experts_are_close_to_f32(name: str, tmp_path: Path) -> None:
    packed = tw.load_llm(write_tiny_model(tmp_path / "packed.gguf", format=name, experts=5), cache_dtype="f32")
    plain = tw.load_llm(write_tiny_model(tmp_path / "plain.gguf", format="F32", experts=5), cache_dtype="f32")
    assert f"{name} in integers, chosen matrices" in notes(packed)
    assert not any("chosen" in note for note in notes(plain))
    want = plain.feed(plain.start(), IDS[:1])
    error = relative(packed.feed(packed.start(), IDS[:1]), want)
    assert error < (0.05 if name == "Q8_0" else 0.6), "the rounding of weights and activations alone"
    whole = packed.feed(packed.start(), IDS)
    state = packed.start()
    for token in IDS:
        last = packed.feed(state, [token])
    assert np.array_equal(last, whole)


def test_experts_of_an_odd_height_are_unpacked() -> None:
    """A matrix of the stack that does not begin with a strip goes through unpacked rows, with the same meaning."""
    from tilewright import ops as o
    from tilewright.core.dtypes import f32, i64
    from tilewright.ir.types import TensorType
    from tilewright.ops.base import single
    from tilewright.passes.base import Log
    from tilewright.passes.lower_quantized import LowerQuantized

    def lowered(n: int) -> list[str]:
        w = np.zeros((3 * n, 34), np.uint8)
        graph = single(lambda g, v: o.QExperts(format="Q8_0", n=n, k=32, experts=3)(v[0], g.constant(w, "w"), v[1]),
                       TensorType(f32, (4, 1, 32)), TensorType(i64, (4, 2)))
        return [x.op.name for x in LowerQuantized().run(graph, Log()).nodes if x.operands]

    assert lowered(20) == ["qexperts"]
    assert lowered(32) == ["quantize_rows", "qexperts_dot"]
