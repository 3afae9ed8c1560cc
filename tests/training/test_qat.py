"""Quantization-aware training end to end, by the documentation's example: the integer network is as good as the one that was trained."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tests.meta.source import ROOT
from tilewright.core.errors import InputError


@pytest.fixture(scope="module")
def example() -> Any:
    pytest.importorskip("sklearn", reason="its digits are the data (pip install tilewright[dev])")
    spec = importlib.util.spec_from_file_location("qat_digits", ROOT / "examples" / "qat_digits.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["qat_digits"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_four_bits_with_learned_scales(example: Any) -> None:
    data = example.digits(seed=1)
    params = example.pretrain(data, steps=200, seed=1)
    got = example.quantized(data, params, 4, "lsq", steps=150, seed=1)
    assert got.f32 > 0.93 and got.fake > 0.93
    assert abs(got.integer - got.fake) <= 0.01
    assert got.nbytes < 0.2 * sum(a.nbytes for p in params for a in p.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 7])
def test_all_bits_and_methods(example: Any, seed: int) -> None:
    data = example.digits(seed)
    params = example.pretrain(data, seed=seed)
    found = {(b, m): example.quantized(data, params, b, m, seed=seed) for b in (8, 4, 2) for m in ("max", "lsq")}
    for (bits, _), r in found.items():
        assert r.f32 > 0.95 and r.fake > (0.95 if bits > 2 else 0.9)
        assert abs(r.integer - r.fake) <= 0.01, r
    assert found[2, "lsq"].fake >= found[2, "max"].fake - 0.01  # learned scales matter most where there are few quantized values
    assert found[2, "lsq"].nbytes < found[4, "lsq"].nbytes < found[8, "lsq"].nbytes


def test_an_exported_layer_is_the_fake_quantized_one() -> None:
    """Weights, inputs and sums are the same integers: what is left is the rounding of f32 and of the bias."""
    rng = fresh_rng()
    w, bias, x = (rng.normal(size=s).astype(np.float32) for s in ((17, 30), (17,), (9, 30)))
    step = np.float32(np.abs(x).max() / 127)
    for bits in (8, 4, 2):
        scale = tw.training.weight_scale(w, bits)
        layer = tw.training.export_linear(w, bias, scale, step, bits=bits)
        sums = tw.jit(layer)(tw.quantize_linear(x, step))
        want = tw.fake_quantize(x, step) @ tw.fake_quantize(w, bits=bits, axis=0).T + bias
        np.testing.assert_allclose(np.asarray(sums) * layer.worth, want, rtol=1e-4, atol=float(layer.worth.max()))


def test_bad_exports() -> None:
    w = np.ones((3, 4), np.float32)
    with pytest.raises(InputError, match="bits must be one of 2 3 4 8, got 5"):
        tw.training.quantize_weights(w, np.ones(3), 5)
    with pytest.raises(InputError, match=r"needs one positive scale a row, got \(3,\) for \(3, 4\)"):
        tw.training.quantize_weights(w, np.zeros(3), 4)
    with pytest.raises(InputError, match="quantized values of 2, 4 or 8 bits can be packed, got 3"):
        tw.training.export_linear(w, np.zeros(3), np.ones(3), 1.0, bits=3)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_a_scale_of_the_largest_element_clips_nothing(dtype: Any) -> None:
    """The largest quotient of one row in ten rounds to more than its limit; its element must learn as others do."""
    x, g = (fresh_rng().standard_normal((200, 3)).astype(np.float32) for _ in range(2))
    got = tw.grad(lambda v: (tw.astype(tw.fake_quantize(v, axis=0, estimator="clipped"), "f32") * g).sum())(x.astype(dtype))
    np.testing.assert_array_equal(np.asarray(got), g.astype(dtype))
