"""`tw.quantize`: results beside the float module and beside the same quantized values in float64, options, report and errors."""
from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.core.errors import ConfigError, InputError, UnsupportedError
from tilewright.quantization.quantize import Seen, affine, bounds, symmetric


class Block(nn.Module):
    """A residual of convolutions, one of them depthwise, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2))
        self.depthwise = nn.Sequential(nn.Conv2d(24, 24, 3, 1, 1, groups=24), nn.ReLU6())
        self.last = nn.Conv2d(24, 24, 1)
        self.head = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = torch.relu(x + self.last(self.depthwise(x)))
        return self.head(x.mean((2, 3)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 40), nn.ReLU(), nn.Linear(40, 10)).eval()


def far(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


def batches(*shape: int, count: int = 4) -> list[torch.Tensor]:
    return [torch.randn(*shape) for _ in range(count)]


@pytest.mark.parametrize(("options", "most"), [
    ({}, 0.06), ({"observer": "mse"}, 0.06), ({"observer": "percentile", "percentile": 99.9}, 0.1), ({"activations": "row"}, 0.05),
    ({"smooth": 0.5}, 0.1), ({"smooth": 0.5, "activations": "row"}, 0.06), ({"bias_correction": True}, 0.06),
    ({"activations": "float", "group": 32}, 0.05), ({"activations": "float", "group": 32, "zero_points": True}, 0.05),
])
def test_linear_layers(options: dict[str, Any], most: float) -> None:
    module = mlp()
    session = tw.quantize(module, batches(32, 64), keep=("4",), **options)
    x = torch.randn(32, 64)
    with torch.no_grad():
        assert far(session(x), module(x)) < most
    report = session.quantization
    assert "0" in report.quantized and report["4"].form == "float" and report["4"].reason == "asked for"
    assert 0 < report["0"].error < 0.03


def test_int4_weights_by_groups() -> None:
    module = nn.Linear(256, 48).eval()
    x = torch.randn(5, 256)
    for group in (32, 64, 128):
        session = tw.quantize(module, [x], activations="float", weights="int4", group=group, max_error=None)
        assert session.quantization.layers[0].form == "int4 weights"
        assert far(session(x), module(x).detach()) < 0.12
    with pytest.raises(UnsupportedError, match="nothing in"):
        tw.quantize(nn.ReLU(), [x])


def test_convolutions_residuals_and_pools() -> None:
    module = Block().eval()
    data = batches(2, 3, 33, 31)
    session = tw.quantize(module, data)
    assert set(session.quantization.quantized) == {"first.0", "depthwise.0", "last", "head"}
    x = torch.randn(2, 3, 33, 31)
    with torch.no_grad():
        assert far(session(x), module(x)) < 0.06
    one, two = tw.quantize(module, data, threads=1), tw.quantize(module, data, threads=2)
    np.testing.assert_array_equal(one(x), two(x))


def test_codes_are_those_of_exact_arithmetic() -> None:
    """One layer, computed again in float64 from the same codes."""
    module = nn.Linear(40, 24).eval()
    data = [torch.randn(64, 40) + 0.7]
    session = tw.quantize(module, data, max_error=None)
    x = data[0].double().numpy()
    scale, zero = affine(min(float(x.astype(np.float32).min()), 0.0), max(float(x.astype(np.float32).max()), 0.0))
    codes = np.clip(np.rint(x.astype(np.float32) * np.float32(1) / np.float32(scale)) + zero, 0, 255)
    weights, scales = symmetric(module.weight.detach().double().numpy())
    want = ((codes - zero) @ weights.T.astype(np.float64)) * scale * scales + module.bias.detach().double().numpy()
    assert np.abs(session(data[0]).numpy() - want).max() < 2 * scale * scales.max() * 127  # a code at a rounding boundary, at most
    assert np.median(np.abs(session(data[0]).numpy() - want)) < 1e-5


def test_a_layer_with_a_large_error_stays_in_float() -> None:
    module = mlp()
    with torch.no_grad():
        module[2].weight[:, 0] *= 300  # type: ignore[index]  # channels of very different sizes
        module[2].weight[:, 1] *= 1e-3  # type: ignore[index]
    session = tw.quantize(module, batches(16, 64), max_error=1e-4)
    assert session.quantization["0"].form == "float" and "max_error" in session.quantization["0"].reason
    x = torch.randn(16, 64)
    with torch.no_grad():
        assert far(session(x), module(x)) < 1e-5
    text = str(session.quantization)
    assert re.search(r"0 of 3 layers quantized", text) and "max_error" in text


def test_smoothing_takes_outliers_from_activations() -> None:
    module = nn.Linear(64, 64).eval()
    size = torch.ones(64)
    size[3] = 200.0
    data = [torch.randn(64, 64) * size for _ in range(4)]
    plain = tw.quantize(module, data, max_error=None).quantization.layers[0].error
    smooth = tw.quantize(module, data, max_error=None, smooth=0.5).quantization.layers[0].error
    with torch.no_grad():
        quiet = module.weight[:, 3].abs().max() > 0
    assert quiet and smooth < plain


def test_observers() -> None:
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.standard_normal(100_000), [80.0]])
    seen = Seen()
    seen.widen(x.min(), x.max())
    seen.count(x)
    assert bounds(seen, "minmax", 99.99)[1] == 80.0
    assert 2.0 < bounds(seen, "percentile", 99.9)[1] < 6.0
    low, high = bounds(seen, "mse", 99.99)
    scale, zero = affine(low, high)

    def error(s: float, z: int) -> float:
        return float((((np.clip(np.rint(x / s) + z, 0, 255) - z) * s - x) ** 2).sum())

    assert error(scale, zero) <= error(*affine(x.min(), x.max()))
    assert affine(0.0, 0.0) == (1.0, 0)
    codes, scales = symmetric(np.array([[0.0, 0.0], [-2.0, 1.0]]))
    assert codes.tolist() == [[0, 0], [-127, 64]] and scales[0] == 1.0


@pytest.mark.parametrize(("calibration", "message"), [
    (None, "calibration must be an iterable of batches"), (torch.zeros(2, 64), "must be an iterable of batches"),
    ([], "calibration holds no batches"), ([torch.zeros(0, 64)], "batch 0: input 0 is empty"),
    ([torch.zeros(2, 64), torch.full((2, 64), float("nan"))], "batch 1: input 0 holds NaN or infinity"),
    ([torch.zeros(2, 64), torch.zeros(2, 63)], "batch 1: "), ([torch.zeros(2, 64), (torch.zeros(2, 64), 1)], "batch 1: "),
])
def test_bad_calibration(calibration: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tw.quantize(nn.Linear(64, 8), calibration)


@pytest.mark.parametrize(("options", "message"), [
    ({"weights": "int3"}, "weights must be one of 'int8', 'int4', got 'int3'"), ({"activations": "column"}, "activations must be one of"),
    ({"observer": "max"}, "observer must be one of 'minmax', 'percentile', 'mse'"), ({"group": 48}, "group must be one of 32, 64, 96, 128"),
    ({"weights": "int4"}, "needs activations='float'"), ({"percentile": 30}, "percentile must be above 50"),
    ({"smooth": 2}, "smooth must be between 0 and 1"), ({"keep": "nothing*"}, "keep names 'nothing\\*', which no layer has; layers are"),
    ({"max_error": 0}, "max_error must be positive"),
])
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tw.quantize(nn.Linear(64, 8), [torch.zeros(2, 64)], **options)


def test_layers_that_cannot_be_quantized_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"nothing in .* can be quantized: .*transposed convolutions"):
        tw.quantize(nn.ConvTranspose2d(4, 4, 2), [torch.zeros(1, 4, 4, 4)])
    module = mlp()
    with torch.no_grad():
        module[0].bias.fill_(float("inf"))  # type: ignore[index]
    with pytest.raises(InputError, match="layer '2': its input is NaN or infinite on the calibration data"):
        tw.quantize(module, batches(4, 64))


def test_any_number_of_rows() -> None:
    module = mlp()
    session = tw.quantize(module, batches(8, 64), dynamic={"input": {0: "N"}})
    x = torch.randn(21, 64)
    whole = session(x)
    with torch.no_grad():
        assert far(whole, module(x)) < 0.06
    np.testing.assert_array_equal(session(x[4:5]), whole[4:5])


@pytest.mark.parametrize("checks", ["0", "1"])
@pytest.mark.parametrize("options", [{}, {"activations": "row"}, {"activations": "float", "group": 32}], ids=["values", "rows", "weights"])
def test_numbers_that_integers_do_not_have(options: dict[str, Any], checks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities become the ends of the quantized values, NaN the lowest; a row that has none keeps its bits."""
    monkeypatch.setenv("TILEWRIGHT_CHECKS", checks)
    session = tw.quantize(mlp(), batches(8, 64), **options)
    x = torch.randn(8, 64)
    want = session(x)
    for value in (torch.nan, torch.inf, -torch.inf, 3e38):
        bad = x.clone()
        bad[3, 5] = bad[5] = value
        got = session(bad)
        for row in (0, 1, 2, 4, 6, 7):
            assert torch.equal(got[row], want[row])
        if options and value != 3e38:
            assert not got[5].isfinite().any()  # scales of rows, and weights alone, pass them on
        elif not options:
            low = x.clone()
            low[3, 5] = low[5] = -3e38 if value != value else value
            assert torch.equal(got, session(low))


def test_a_cpu_without_the_instruction_has_the_same_results() -> None:
    from tilewright.target.cpu.host import host_target

    torch.manual_seed(1)
    module, x = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 7)).eval(), torch.randn(5, 64)
    low = tw.quantize(module, [x], target=host_target(level="avx2"), max_error=None)
    assert any("no VNNI" in note for note in low.model.notes)
    assert far(low(x), tw.quantize(module, [x], max_error=None)(x)) < 1e-5


def test_a_quantized_session_is_saved_and_loaded(tmp_path: Any) -> None:
    module = Block().eval()
    x = torch.randn(1, 3, 20, 20)
    session = tw.quantize(module, [x])
    session.save(tmp_path / "block.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "block.tw")(x), session(x))
    half = tw.compile(module, (x,), dtype="bf16")
    half.save(tmp_path / "half.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "half.tw", trust=True)(x), half(x))
