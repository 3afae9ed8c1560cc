"""int8 and bf16 beside ONNX Runtime and OpenVINO: ResNet-50, MobileNetV2, BERT-base (1×128) and ViT-B/16 with random weights.

    python benchmarks/quantized.py [resnet50 mobilenet_v2 bert vit] [--rounds 20] [--threads 2] [--json FILE]

int8: `tw.quantize` on four batches; ONNX Runtime's static quantization (QDQ, per channel) runs in ONNX Runtime and in OpenVINO. bf16:
`dtype="bf16"`; OpenVINO with its bf16 hint. All runners of a model take turns; a figure is the minimum over the rounds. `agreement` is the
share of 32 random inputs whose largest logit is the float model's.
"""
from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import tilewright as tw

Array = np.ndarray[Any, Any]


class Bottleneck(nn.Module):
    def __init__(self, c: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.main = nn.Sequential(_conv(c, width, 1), nn.ReLU(), _conv(width, width, 3, stride), nn.ReLU(), _conv(width, out, 1))
        self.side = _conv(c, out, 1, stride) if stride != 1 or c != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.side(x))


class Inverted(nn.Module):
    def __init__(self, c: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = c * expand
        first = [_conv(c, hidden, 1), nn.ReLU6()] if expand != 1 else []
        self.main = nn.Sequential(*first, _conv(hidden, hidden, 3, stride, hidden), nn.ReLU6(), _conv(hidden, out, 1))
        self.same = stride == 1 and c == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.main(x) if self.same else self.main(x)


def _conv(c: int, out: int, k: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c, out, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(out))


def resnet50() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(c, width, stride if i == 0 else 1))
            c = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000)), lambda: torch.randn(1, 3, 224, 224)


def mobilenet_v2() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    layers: list[nn.Module] = [_conv(3, 32, 3, 2), nn.ReLU6()]
    c = 32
    for t, out, n, s in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for i in range(n):
            layers.append(Inverted(c, out, s if i == 0 else 1, t))
            c = out
    layers += [_conv(c, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers), lambda: torch.randn(1, 3, 224, 224)


class First(nn.Module):
    """One output of a model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(x)[0]
        return found


def bert() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(num_labels=16, attn_implementation="sdpa"))
    return First(model), lambda: torch.randint(0, 30000, (1, 128))


def vit() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    from transformers import ViTConfig, ViTForImageClassification

    return First(ViTForImageClassification(ViTConfig(num_labels=1000, attn_implementation="sdpa"))), lambda: torch.randn(1, 3, 224, 224)


MODELS = {"resnet50": resnet50, "mobilenet_v2": mobilenet_v2, "bert": bert, "vit": vit}


def spread_norms(model: nn.Module, sample: Callable[[], torch.Tensor]) -> None:
    """Random batch norms with the statistics of random inputs: activations stay in a range as trained ones do."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    if not norms:
        return
    model.train()
    with torch.no_grad():
        for m in norms:
            m.weight.uniform_(0.5, 1.5)
            m.bias.normal_(0, 0.2)
            m.momentum = None
        for _ in range(3):
            model(torch.cat([sample(), sample()]))
    model.eval()


def onnx_files(model: nn.Module, x: torch.Tensor, batches: list[torch.Tensor], folder: Path) -> tuple[Path, Path]:
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain, ready, small = folder / "f32.onnx", folder / "ready.onnx", folder / "int8.onnx"
    torch.onnx.export(model, (x,), str(plain), input_names=["x"], output_names=["y"], dynamo=True, external_data=False)
    try:
        quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)
    except Exception:
        onnx.save(onnx.load(str(plain)), str(ready))

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(batches)

        def get_next(self) -> dict[str, Array] | None:
            item = next(self.rest, None)
            return None if item is None else {"x": item.numpy()}

    quantize_static(str(ready), str(small), Reader(), quant_format=QuantFormat.QDQ, per_channel=True, activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8, op_types_to_quantize=["Conv", "MatMul", "Gemm", "Add", "MaxPool"])
    return plain, small


def runners(model: nn.Module, sample: Callable[[], torch.Tensor], threads: int, peers: bool) -> dict[str, Callable[[Any], Any]]:
    x = sample()
    batches = [sample() for _ in range(4)]
    found: dict[str, Callable[[Any], Any]] = {
        "ours f32": tw.compile(model, (x,), threads=threads),
        "ours bf16": tw.compile(model, (x,), dtype="bf16", threads=threads),
        "ours int8": tw.quantize(model, batches, threads=threads),
    }
    if not peers:
        return found
    import onnxruntime as ort
    import openvino as ov

    with tempfile.TemporaryDirectory() as folder:
        plain, small = onnx_files(model, x, batches, Path(folder))
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        for name, path in (("ort f32", plain), ("ort int8", small)):
            session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            found[name] = lambda x, s=session: s.run(None, {"x": np.asarray(x)})[0]
        core = ov.Core()
        for name, path, hint in (("openvino f32", plain, "f32"), ("openvino bf16", plain, "bf16"), ("openvino int8", small, "f32"),
                                 ("openvino int8+bf16", small, "bf16")):
            compiled = core.compile_model(core.read_model(str(path)), "CPU", {"INFERENCE_PRECISION_HINT": hint,
                                          "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"})
            found[name] = lambda x, c=compiled: c([np.asarray(x)])[0]
    return found


def measured(found: dict[str, Callable[[Any], Any]], sample: Callable[[], torch.Tensor], rounds: int) -> dict[str, float]:
    x = sample()
    best = dict.fromkeys(found, np.inf)
    for r in range(rounds + 2):
        for name, run in found.items():
            time.sleep(0.03)  # the threads of the runner before fall asleep
            run(x)
            start = time.perf_counter()
            run(x)
            if r >= 2:
                best[name] = min(best[name], time.perf_counter() - start)
    return {name: 1e3 * s for name, s in best.items()}


def agreement(model: nn.Module, found: dict[str, Callable[[Any], Any]], sample: Callable[[], torch.Tensor]) -> dict[str, float]:
    inputs = [sample() for _ in range(32)]
    with torch.no_grad():
        want = [int(model(x).argmax()) for x in inputs]
    return {name: float(np.mean([int(np.asarray(run(x)).argmax()) == w for x, w in zip(inputs, want, strict=True)]))
            for name, run in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print what each launch of our int8 and bf16 sessions takes")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    rows = []
    for name in given.models:
        model, sample = MODELS[name]()
        model.eval()
        spread_norms(model, sample)
        found = runners(model, sample, given.threads, not given.no_peers)
        times = measured(found, sample, given.rounds)
        right = agreement(model, found, sample)
        print(name)
        for runner, ms in times.items():
            print(f"  {runner:20s} {ms:8.2f} ms   {times['ours f32'] / ms:5.2f} of our f32   agreement {right[runner]:.2f}")
        if given.profile:
            for runner in ("ours bf16", "ours int8"):
                print(found[runner].report())  # type: ignore[attr-defined]
        rows.append({"model": name, "ms": times, "agreement": right})
    if given.json:
        given.json.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


if __name__ == "__main__":
    main()
