"""f32, bf16 and int8 beside PyTorch, ONNX Runtime and OpenVINO: ResNet-50, MobileNetV2, BERT-base (1×128) and ViT-B/16, random weights.

    python benchmarks/quantized.py [resnet50 mobilenet_v2 bert vit] [--rounds 20] [--threads 2] [--peers eager,ort,onnx] [--json FILE]

int8: `tw.quantize` on four batches; the file of ONNX Runtime's static quantization (QDQ, per channel) runs in ONNX Runtime, in OpenVINO
and in Tilewright (`onnx int8`). bf16:
`dtype="bf16"`; OpenVINO with its bf16 hint; a copy of the module in bf16 for eager and `compile` (torch.compile with frozen weights). All
runners of a model take turns; a figure is the minimum over the rounds, of CPU time on one thread. `agreement` is the share of 32 random
inputs whose largest logit is the float model's. A peer that is not installed is named and left out.
"""
from __future__ import annotations

import argparse
import copy
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


class Layer(nn.Module):
    """An encoder layer: norms behind the residual (BERT) or in front of the branches (ViT)."""

    def __init__(self, d: int, heads: int, *, first: bool) -> None:
        super().__init__()
        self.heads, self.first = heads, first
        self.query, self.key, self.value, self.out = (nn.Linear(d, d) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed: torch.Tensor = self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return mixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.norms
        if self.first:
            x = x + self.attend(one(x))
            return x + self.mlp(two(x))
        x = one(x + self.attend(x))
        found: torch.Tensor = two(x + self.mlp(x))
        return found


class Bert(nn.Module):
    def __init__(self, d: int = 768, layers: int = 12, words: int = 30522) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(words, d), nn.Parameter(0.02 * torch.randn(512, d)), nn.LayerNorm(d)
        self.layers = nn.Sequential(*(Layer(d, 12, first=False) for _ in range(layers)))
        self.head = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(self.norm(self.words(x) + self.places[: x.shape[1]]))
        found: torch.Tensor = self.head(y[:, 0])
        return found


class Vit(nn.Module):
    def __init__(self, d: int = 768, layers: int = 12, patch: int = 16, places: int = 197) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, d, patch, patch), nn.Parameter(0.02 * torch.randn(1, 1, d))
        self.places, self.norm = nn.Parameter(0.02 * torch.randn(1, places, d)), nn.LayerNorm(d)
        self.layers, self.head = nn.Sequential(*(Layer(d, 12, first=True) for _ in range(layers))), nn.Linear(d, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1) + self.places
        found: torch.Tensor = self.head(self.norm(self.layers(y))[:, 0])
        return found


def bert() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    return Bert(), lambda: torch.randint(0, 30000, (1, 128))


def vit() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    return Vit(), lambda: torch.randn(1, 3, 224, 224)


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


def onnx_files(model: nn.Module, x: torch.Tensor, batches: list[torch.Tensor], folder: Path, *,
               int8: bool = True) -> tuple[Path, Path | None]:
    plain, ready, small = folder / "f32.onnx", folder / "ready.onnx", folder / "int8.onnx"
    torch.onnx.export(model, (x,), str(plain), input_names=["x"], output_names=["y"], dynamo=True, external_data=False)
    if not int8:
        return plain, None
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

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


Runner = Callable[[Any], Any]


def _torch(model: nn.Module, x: torch.Tensor, compiled: bool) -> dict[str, Runner]:
    """PyTorch in f32 and bf16 (a copy of the module), eager or compiled with frozen weights."""
    import torch._inductor.config as inductor

    inductor.freezing = compiled
    found: dict[str, Runner] = {}
    for kind, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        own = copy.deepcopy(model).to(dtype)
        call = torch.compile(own) if compiled else own

        def run(x: torch.Tensor, call: Any = call, dtype: torch.dtype = dtype) -> Array:
            with torch.no_grad():
                found: Array = call(x.to(dtype) if x.is_floating_point() else x).float().numpy()
            return found

        run(x)
        found[f"{'compile' if compiled else 'eager'} {kind}"] = run
    return found


def _ort(files: tuple[Path, Path | None], threads: int) -> dict[str, Runner]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    found: dict[str, Runner] = {}
    for name, path in zip(("ort f32", "ort int8"), files, strict=True):
        if path is not None:
            session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            found[name] = lambda x, s=session: s.run(None, {"x": np.asarray(x)})[0]
    return found


def _ours(files: tuple[Path, Path | None], threads: int) -> dict[str, Runner]:
    """The peers' int8 file in Tilewright."""
    if files[1] is None:
        return {}
    session = tw.compile(str(files[1]), threads=threads)
    return {"onnx int8": lambda x: session(np.asarray(x))}


def _openvino(files: tuple[Path, Path | None], threads: int) -> dict[str, Runner]:
    import openvino as ov

    core, (plain, small) = ov.Core(), files
    found: dict[str, Runner] = {}
    for name, path, hint in (("openvino f32", plain, "f32"), ("openvino bf16", plain, "bf16"), ("openvino int8", small, "f32"),
                             ("openvino int8+bf16", small, "bf16")):
        if path is not None:
            compiled = core.compile_model(core.read_model(str(path)), "CPU", {"INFERENCE_PRECISION_HINT": hint,
                                          "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"})
            found[name] = lambda x, c=compiled: c([np.asarray(x)])[0]
    return found


def runners(model: nn.Module, sample: Callable[[], torch.Tensor], threads: int, kinds: list[str], peers: list[str]) -> dict[str, Runner]:
    x = sample()
    batches = [sample() for _ in range(4)]
    ours: dict[str, Callable[[], Runner]] = {
        "f32": lambda: tw.compile(model, (x,), threads=threads),
        "bf16": lambda: tw.compile(model, (x,), dtype="bf16", threads=threads),
        "int8": lambda: tw.quantize(model, batches, threads=threads),
    }
    found = {f"ours {kind}": ours[kind]() for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        files: tuple[Path, Path | None] | None = None
        for peer in peers:
            try:
                if peer in ("eager", "compile"):
                    found |= _torch(model, x, peer == "compile")
                    continue
                files = files or onnx_files(model, x, batches, Path(folder), int8="int8" in kinds)
                found |= {"ort": _ort, "openvino": _openvino, "onnx": _ours}[peer](files, threads)
            except ImportError as e:
                print(f"  {peer} is left out: {e}")
    return {name: run for name, run in found.items() if name.split()[1].split("+")[0] in kinds}


def measured(found: dict[str, Runner], sample: Callable[[], torch.Tensor], rounds: int, threads: int) -> dict[str, float]:
    x = sample()
    best = dict.fromkeys(found, np.inf)
    clock = time.thread_time if threads == 1 else time.perf_counter
    for r in range(rounds + 2):
        for name, run in found.items():
            time.sleep(0.03)  # the threads of the runner before fall asleep
            run(x)
            start = clock()
            run(x)
            if r >= 2:
                best[name] = min(best[name], clock() - start)
    return {name: 1e3 * s for name, s in best.items()}


def agreement(model: nn.Module, found: dict[str, Runner], sample: Callable[[], torch.Tensor]) -> dict[str, float]:
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
    parser.add_argument("--kinds", default="f32,bf16,int8")
    parser.add_argument("--peers", default="eager,ort,openvino,onnx", help="of eager, compile, ort, openvino; onnx: their file in ours")
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
        print(name, flush=True)
        found = runners(model, sample, given.threads, given.kinds.split(","), [p for p in given.peers.split(",") if p])
        times = measured(found, sample, given.rounds, given.threads)
        right = agreement(model, found, sample)
        base = times[next(iter(found))]
        for runner, ms in times.items():
            print(f"  {runner:20s} {ms:8.2f} ms   {base / ms:5.2f} of {next(iter(found))}   agreement {right[runner]:.2f}", flush=True)
        if given.profile:
            for runner in (r for r in found if r.startswith("ours")):
                print(found[runner].report())  # type: ignore[attr-defined]
        rows.append({"model": name, "ms": times, "agreement": right})
    if given.json:
        given.json.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


if __name__ == "__main__":
    main()
