"""Quantization-aware training, end to end: scikit-learn's digits, trained in f32, then with fake-quantized weights and activations (`max`
or learned scales, LSQ), exported to integers of 8, 4 or 2 bits, and run in integers.

    python examples/qat_digits.py            # a table of accuracies: f32, fake-quantized, integer
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.training import IntLinear, export_linear, weight_scale

SIZES = (64, 64, 48, 10)
LAYERS = range(len(SIZES) - 1)
BATCH = 64
ACTIVATION_BITS = 8


@dataclass(frozen=True)
class Data:
    x: Any
    y: Any
    test_x: Any
    test_y: Any


def digits(seed: int = 0) -> Data:
    """1797 images of 8x8, a quarter of them held back."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = (x[order] / 8 - 1).astype(np.float32), y[order].astype(np.int64)
    held = len(x) // 4
    return Data(x[held:], y[held:], x[:held], y[:held])


def fresh(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return [{"w": (rng.normal(size=(o, i)) * math.sqrt(2 / i)).astype(np.float32), "b": np.zeros(o, np.float32)}
            for i, o in zip(SIZES, SIZES[1:], strict=False)]


def forward(params: Any, x: Any, quantize: Any = None) -> Any:
    """The network; `quantize(layer number, params, w, x)` gives what stands in for a layer's weights and inputs."""
    for i in LAYERS:
        p = params[i]
        w, inputs = (p["w"], x) if quantize is None else quantize(i, p, p["w"], x)
        x = inputs @ w.T + p["b"]
        x = tw.relu(x) if i < LAYERS[-1] else x
    return x


def by_max(bits: int, scales: Any) -> Any:
    """Weights with the scale of their largest element, a row each; activations with fixed scales."""
    def quantize(i: int, p: Any, w: Any, x: Any) -> Any:
        return (tw.fake_quantize(w, bits=bits, axis=0, estimator="clipped"),
                tw.fake_quantize(x, scales[i], bits=ACTIVATION_BITS, estimator="clipped"))
    return quantize


def positive(scale: Any) -> Any:
    """A step of the optimizer may carry a scale across zero, where nothing is left to round to."""
    return tw.abs(scale) + 1e-4


def learned(bits: int) -> Any:
    """LSQ: the scales of weights and activations are parameters."""
    def quantize(i: int, p: Any, w: Any, x: Any) -> Any:
        rows = 1 / math.sqrt(SIZES[i] * (2 ** (bits - 1) - 1))
        each = 1 / math.sqrt(BATCH * SIZES[i] * (2 ** (ACTIVATION_BITS - 1) - 1))
        return (tw.fake_quantize_lsq(w, positive(p["ws"]), bits=bits, axis=0, gradient_scale=rows),
                tw.fake_quantize_lsq(x, positive(p["xs"]), bits=ACTIVATION_BITS, gradient_scale=each))
    return quantize


def activation_scales(params: Any, x: Any) -> list[Any]:
    """max|x| / 127 of what each layer reads, over a calibration set."""
    def peaks(params: Any, x: Any) -> Any:
        found = []
        def look(i: int, p: Any, w: Any, x: Any) -> Any:
            found.append(tw.max(tw.abs(x)) / 127.0)
            return w, x
        forward(params, x, look)
        return found
    return [np.asarray(s) for s in tw.jit(peaks)(params, x)]


def train(params: Any, data: Data, quantize: Any, *, steps: int, rate: float, seed: int) -> Any:
    opt = tw.optim.adam(tw.optim.cosine(rate, steps))
    rng = np.random.default_rng(seed)
    order = [rng.permutation(len(data.x))[:BATCH] for _ in range(steps)]

    def loss_of(p: Any, x: Any, y: Any) -> Any:
        return tw.softmax_cross_entropy(forward(p, x, quantize), y).mean()

    def step(state: Any, batch: Any) -> Any:
        params, kept = state
        loss, grads = tw.value_and_grad(loss_of)(params, *batch)
        return opt.update(params, grads, kept), loss

    start = [{k: np.array(v) for k, v in p.items()} for p in params]
    done = tw.training.fit(tw.jit(step, donate=0), (start, opt.init(start)), lambda i: (data.x[order[i]], data.y[order[i]]), steps=steps)
    return done.state[0]


def accuracy(logits: Any, labels: Any) -> float:
    return float((np.asarray(logits).argmax(1) == labels).mean())


@dataclass(frozen=True)
class IntNet:
    """The exported network. Between layers only bytes are kept: sums are rescaled to the quantized values of the next layer."""

    layers: list[IntLinear]
    scales: list[float]  # scales of the quantized values that each layer reads

    def __call__(self, x: Any) -> Any:
        quantized = tw.quantize_linear(x, np.float32(self.scales[0]))
        *hidden, last = self.layers
        for layer, scale in zip(hidden, self.scales[1:], strict=True):
            quantized = tw.maximum(tw.requantize(layer(quantized), layer.worth / np.float32(scale), axis=1), 0)
        return tw.astype(last(quantized), "f32") * last.worth

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)


def export(params: Any, scales: Any, bits: int) -> IntNet:
    """Codes of the weights with learned scales where there are any, else with those of the largest element."""
    layers = [export_linear(p["w"], p["b"], positive(p["ws"]) if "ws" in p else weight_scale(p["w"], bits), scales[i], bits=bits)
              for i, p in enumerate(params)]
    return IntNet(layers, [float(s) for s in scales])


@dataclass(frozen=True)
class Result:
    bits: int
    method: str
    f32: float
    fake: float
    integer: float
    nbytes: int


def pretrain(data: Data, *, steps: int = 500, seed: int = 0) -> Any:
    return train(fresh(seed), data, None, steps=steps, rate=3e-3, seed=seed)


def quantized(data: Data, params: Any, bits: int, method: str, *, steps: int = 400, seed: int = 0) -> Result:
    """Fine-tune with fake-quantized numbers, export, run in integers."""
    scales = activation_scales(params, data.x[:256])
    exact = accuracy(tw.jit(forward)(params, data.test_x), data.test_y)
    if method == "lsq":
        q = 2 ** (bits - 1) - 1
        params = [{**p, "ws": (2 * np.abs(p["w"]).mean(1) / math.sqrt(q)).astype(np.float32), "xs": np.asarray(s, np.float32)}
                  for p, s in zip(params, scales, strict=True)]
        rule = learned(bits)
    else:
        rule = by_max(bits, scales)
    trained = train(params, data, rule, steps=steps, rate=1e-3, seed=seed + 1)
    if method == "lsq":
        scales = [np.asarray(positive(p["xs"])) for p in trained]
    fake = accuracy(tw.jit(lambda p, x: forward(p, x, rule))(trained, data.test_x), data.test_y)
    net = export(trained, scales, bits)
    return Result(bits, method, exact, fake, accuracy(tw.jit(net)(data.test_x), data.test_y), net.nbytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    data = digits(args.seed)
    params = pretrain(data, seed=args.seed)
    print("| bits of weights | scales | f32 | fake-quantized | integer | bytes |\n|---|---|---|---|---|---|")
    for bits in (8, 4, 2):
        for method in ("max", "lsq"):
            r = quantized(data, params, bits, method, seed=args.seed)
            print(f"| {bits} | {method} | {r.f32:.1%} | {r.fake:.1%} | {r.integer:.1%} | {r.nbytes} |", flush=True)


if __name__ == "__main__":
    main()
