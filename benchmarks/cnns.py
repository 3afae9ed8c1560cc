"""Convolutional networks and transformers of odd sizes with random weights, which no kernel was tuned for, in f32, bf16 and int8.

    python benchmarks/cnns.py [words] [--kinds f32,bf16,int8] [--batch 1,4] [--threads 2] [--rounds 9] [--no-peers] [--lint]

Peers: eager, ONNX Runtime and OpenVINO in f32; OpenVINO with its bf16 hint; both on ONNX Runtime's static int8 file. All runners of a row
take turns, and a figure is the minimum over all rounds, of CPU time on one thread: that is what a busy machine leaves comparable. Outputs
are held against eager's. `--lint` prints the launches that matter and are far from their roofline instead.
"""
from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quantized import onnx_files, spread_norms
from torch import nn
from torch.nn import functional as F

import tilewright as tw

Sample = Callable[[int], torch.Tensor]


def conv(c: int, out: int, k: int | tuple[int, int], stride: int = 1, groups: int = 1,
         act: type[nn.Module] | None = nn.ReLU) -> nn.Sequential:
    pad = k // 2 if isinstance(k, int) else (k[0] // 2, k[1] // 2)
    parts: list[nn.Module] = [nn.Conv2d(c, out, k, stride, pad, groups=groups, bias=False), nn.BatchNorm2d(out)]
    return nn.Sequential(*parts, *([act()] if act else []))


def head(c: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000)]


class Excite(nn.Module):
    """Squeeze and excite."""

    def __init__(self, c: int, inner: int, act: type[nn.Module] = nn.ReLU, gate: type[nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, inner, 1), act(), nn.Conv2d(inner, c, 1), gate())

    def forward(self, x: Any) -> Any:
        return x * self.scale(x)


class Shuffle(nn.Module):
    """A unit of ShuffleNetV2: half of the channels pass, then the halves are interleaved."""

    def __init__(self, c: int, out: int, stride: int) -> None:
        super().__init__()
        half, self.stride = out // 2, stride
        into = c if stride == 2 else c // 2
        self.side = nn.Sequential(conv(c, c, 3, 2, c, None), conv(c, half, 1)) if stride == 2 else nn.Identity()
        self.main = nn.Sequential(conv(into, half, 1), conv(half, half, 3, stride, half, None), conv(half, half, 1))

    def forward(self, x: Any) -> Any:
        a, b = x.chunk(2, 1) if self.stride == 1 else (x, x)
        x = torch.cat([self.side(a), self.main(b)], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet() -> nn.Module:
    parts: list[nn.Module] = [conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    c = 24
    for out, count in ((116, 4), (232, 8), (464, 4)):
        for i in range(count):
            parts.append(Shuffle(c, out, 2 if i == 0 else 1))
            c = out
    return nn.Sequential(*parts, conv(c, 1024, 1), *head(1024))


class Branches(nn.Module):
    """Branches side by side, joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Any) -> Any:
        return torch.cat([b(x) for b in self.branches], 1)


def inception() -> nn.Module:
    pool = lambda: nn.AvgPool2d(3, 1, 1)
    a = lambda c, p: Branches(conv(c, 64, 1), nn.Sequential(conv(c, 48, 1), conv(48, 64, 5)),
                              nn.Sequential(conv(c, 64, 1), conv(64, 96, 3), conv(96, 96, 3)), nn.Sequential(pool(), conv(c, p, 1)))
    b = lambda c, m: Branches(conv(c, 192, 1), nn.Sequential(conv(c, m, 1), conv(m, m, (1, 7)), conv(m, 192, (7, 1))),
                              nn.Sequential(conv(c, m, 1), conv(m, m, (7, 1)), conv(m, m, (1, 7)), conv(m, m, (7, 1)),
                                            conv(m, 192, (1, 7))),
                              nn.Sequential(pool(), conv(c, 192, 1)))
    down = Branches(conv(288, 384, 3, 2), nn.Sequential(conv(288, 64, 1), conv(64, 96, 3), conv(96, 96, 3, 2)), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(conv(3, 32, 3, 2), conv(32, 32, 3), conv(32, 64, 3), nn.MaxPool2d(3, 2), conv(64, 80, 1), conv(80, 192, 3),
                         nn.MaxPool2d(3, 2), a(192, 32), a(256, 64), a(288, 64), down, b(768, 128), b(768, 160), b(768, 192), *head(768))


class Block(nn.Module):
    """A residual bottleneck with groups and, in RegNetY, squeeze and excite."""

    def __init__(self, c: int, width: int, out: int, stride: int, groups: int, excite: bool = False) -> None:
        super().__init__()
        se = [Excite(width, c // 4)] if excite else []
        self.main = nn.Sequential(conv(c, width, 1), conv(width, width, 3, stride, groups), *se, conv(width, out, 1, act=None))
        self.side = conv(c, out, 1, stride, act=None) if stride != 1 or c != out else nn.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.main(x) + self.side(x))


def resnext() -> nn.Module:
    parts: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for width, count, stride in ((128, 3, 1), (256, 4, 2), (512, 6, 2), (1024, 3, 2)):
        for i in range(count):
            parts.append(Block(c, width, 2 * width, stride if i == 0 else 1, 32))
            c = 2 * width
    return nn.Sequential(*parts, *head(c))


def regnet() -> nn.Module:
    """RegNetY-1.6GF: groups of 24 channels."""
    parts: list[nn.Module] = [conv(3, 32, 3, 2)]
    c = 32
    for width, count in ((48, 2), (120, 6), (336, 17), (888, 2)):
        for i in range(count):
            parts.append(Block(c, width, width, 2 if i == 0 else 1, width // 24, excite=True))
            c = width
    return nn.Sequential(*parts, *head(c))


class UNet(nn.Module):
    """Down by max pools, up by bilinear resizing on one level and by transposed convolutions on the others."""

    def __init__(self, c: int = 24) -> None:
        super().__init__()
        two = lambda i, o: nn.Sequential(conv(i, o, 3), conv(o, o, 3))
        self.down = nn.ModuleList([two(3, c), two(c, 2 * c), two(2 * c, 4 * c), two(4 * c, 8 * c)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(8 * c, 4 * c, 2, 2), nn.ConvTranspose2d(4 * c, 2 * c, 4, 2, 1)])
        self.join = nn.ModuleList([two(8 * c, 4 * c), two(4 * c, 2 * c), two(3 * c, c)])
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for layer in self.down[:-1]:
            kept.append(layer(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join[:2], strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.out(self.join[2](torch.cat([x, kept.pop()], 1)))


class Inverted(nn.Module):
    """MBConv, fused MBConv (`fused`) or a block of MobileNetV3."""

    def __init__(self, c: int, hidden: int, out: int, k: int, stride: int, act: type[nn.Module], se: nn.Module | None,
                 fused: bool = False) -> None:
        super().__init__()
        first = [conv(c, hidden, k, stride, act=act)] if fused else [
            *([conv(c, hidden, 1, act=act)] if hidden != c else []), conv(hidden, hidden, k, stride, hidden, act)]
        self.main = nn.Sequential(*first, *([se] if se else []), conv(hidden, out, 1, act=None))
        self.same = stride == 1 and c == out

    def forward(self, x: Any) -> Any:
        return x + self.main(x) if self.same else self.main(x)


def efficientnet_v2() -> nn.Module:
    parts: list[nn.Module] = [conv(3, 24, 3, 2, act=nn.SiLU)]
    c = 24
    for fused, expand, out, count, stride in ((True, 2, 24, 2, 1), (True, 4, 48, 3, 2), (True, 4, 64, 3, 2), (False, 4, 128, 4, 2),
                                              (False, 6, 160, 4, 1), (False, 6, 256, 4, 2)):
        for i in range(count):
            hidden = c * expand
            se = None if fused else Excite(hidden, c // 4, nn.SiLU)
            parts.append(Inverted(c, hidden, out, 3, stride if i == 0 else 1, nn.SiLU, se, fused))
            c = out
    return nn.Sequential(*parts, conv(c, 1280, 1, act=nn.SiLU), *head(1280))


def mobilenet_v3() -> nn.Module:
    parts: list[nn.Module] = [conv(3, 16, 3, 2, act=nn.Hardswish)]
    c = 16
    relu, hard = nn.ReLU, nn.Hardswish
    for k, hidden, out, se, act, stride in (
            (3, 16, 16, 0, relu, 1), (3, 64, 24, 0, relu, 2), (3, 72, 24, 0, relu, 1), (5, 72, 40, 1, relu, 2), (5, 120, 40, 1, relu, 1),
            (5, 120, 40, 1, relu, 1), (3, 240, 80, 0, hard, 2), (3, 200, 80, 0, hard, 1), (3, 184, 80, 0, hard, 1),
            (3, 480, 112, 1, hard, 1), (3, 672, 112, 1, hard, 1), (5, 672, 160, 1, hard, 2), (5, 960, 160, 1, hard, 1)):
        parts.append(Inverted(c, hidden, out, k, stride, act, Excite(hidden, hidden // 4 // 8 * 8, gate=nn.Hardsigmoid) if se else None))
        c = out
    return nn.Sequential(*parts, conv(c, 960, 1, act=nn.Hardswish), *head(960))


class Ghost(nn.Module):
    """Half of the channels by a 1x1 convolution, the other half by a depthwise one of those."""

    def __init__(self, c: int, out: int, act: bool = True) -> None:
        super().__init__()
        kind = nn.ReLU if act else None
        self.first, self.cheap = conv(c, out // 2, 1, act=kind), conv(out // 2, out // 2, 3, 1, out // 2, kind)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return torch.cat([x, self.cheap(x)], 1)


class GhostBlock(nn.Module):
    def __init__(self, c: int, hidden: int, out: int, stride: int) -> None:
        super().__init__()
        middle = [conv(hidden, hidden, 3, 2, hidden, None)] if stride == 2 else []
        self.main = nn.Sequential(Ghost(c, hidden), *middle, Ghost(hidden, out, False))
        self.side = nn.Identity() if stride == 1 and c == out else nn.Sequential(conv(c, c, 3, stride, c, None), conv(c, out, 1, act=None))

    def forward(self, x: Any) -> Any:
        return self.main(x) + self.side(x)


def ghostnet() -> nn.Module:
    parts: list[nn.Module] = [conv(3, 16, 3, 2)]
    c = 16
    for hidden, out, stride in ((16, 16, 1), (48, 24, 2), (72, 24, 1), (72, 40, 2), (120, 40, 1), (240, 80, 2), (200, 80, 1), (184, 80, 1),
                                (480, 112, 1), (672, 112, 1), (672, 160, 2), (960, 160, 1)):
        parts.append(GhostBlock(c, hidden, out, stride))
        c = out
    return nn.Sequential(*parts, conv(c, 960, 1), *head(960))


class Audio(nn.Module):
    """A 1-D network on samples: strided convolutions, then dilated residual ones with group norms."""

    def __init__(self, c: int = 96) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, c, 25, 5, 12), nn.BatchNorm1d(c), nn.ReLU(),
                                  nn.Conv1d(c, c, 8, 4, 2), nn.BatchNorm1d(c), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(c, c, 3, padding=d, dilation=d), nn.GroupNorm(8, c), nn.GELU(), nn.Conv1d(c, c, 1))
            for d in (1, 2, 4, 8, 16, 32))
        self.head = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(c, 50))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Encoder(nn.Module):
    """A pre-norm transformer on vectors."""

    def __init__(self, width: int, heads: int, layers: int = 4, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.layers = nn.ModuleList(nn.ModuleDict({
            "n1": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width), "n2": nn.LayerNorm(width),
            "mlp": nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))}) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        n, s, c = x.shape
        for layer in self.layers:
            q, k, v = layer["qkv"](layer["n1"](x)).view(n, s, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
            x = x + layer["out"](F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(n, s, c))
            x = x + layer["mlp"](layer["n2"](x))
        return x


class Fire(nn.Module):
    """SqueezeNet's unit: few channels, then 1x1 and 3x3 side by side."""

    def __init__(self, c: int, few: int, out: int) -> None:
        super().__init__()
        self.main = nn.Sequential(conv(c, few, 1), Branches(conv(few, out, 1), conv(few, out, 3)))

    def forward(self, x: Any) -> Any:
        return self.main(x)


def squeezenet() -> nn.Module:
    return nn.Sequential(conv(3, 64, 3, 2), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(64, 16, 64), Fire(128, 16, 64),
                         nn.MaxPool2d(3, 2, ceil_mode=True), Fire(128, 32, 128), Fire(256, 32, 128), nn.MaxPool2d(3, 2, ceil_mode=True),
                         Fire(256, 48, 192), Fire(384, 64, 256), nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Resolutions(nn.Module):
    """Three resolutions side by side that exchange what they know, as in HRNet."""

    def __init__(self, c: int = 18) -> None:
        super().__init__()
        self.stem, sizes = nn.Sequential(conv(3, 64, 3, 2), conv(64, c, 3, 2)), (c, 2 * c, 4 * c)
        self.down = nn.ModuleList([conv(c, 2 * c, 3, 2), conv(2 * c, 4 * c, 3, 2)])
        self.own = nn.ModuleList(nn.ModuleList(nn.Sequential(conv(n, n, 3), conv(n, n, 3)) for n in sizes) for _ in range(2))
        self.across = nn.ModuleList(nn.ModuleList(nn.ModuleList(self._path(i, j, sizes) for i in range(3)) for j in range(3))
                                    for _ in range(2))
        self.head = nn.Conv2d(7 * c, 19, 1)

    @staticmethod
    def _path(i: int, j: int, sizes: tuple[int, ...]) -> nn.Module:
        if i == j:
            return nn.Identity()
        if i > j:
            return conv(sizes[i], sizes[j], 1, act=None)
        return nn.Sequential(*(conv(sizes[i], sizes[j] if k == j - 1 else sizes[i], 3, 2, act=None) for k in range(i, j)))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        levels = [x, self.down[0](x)]
        levels.append(self.down[1](levels[1]))
        for own, across in zip(self.own, self.across, strict=True):
            levels = [layer(x) for layer, x in zip(own, levels, strict=True)]
            joined = []
            for paths, to in zip(across, levels, strict=True):
                parts = [path(x) for path, x in zip(paths, levels, strict=True)]
                joined.append(F.relu(sum(F.interpolate(p, to.shape[-2:], mode="bilinear", align_corners=False)
                                         if p.shape[-1] != to.shape[-1] else p for p in parts)))
            levels = joined
        size = levels[0].shape[-2:]
        return self.head(torch.cat([levels[0], *(F.interpolate(x, size, mode="bilinear", align_corners=False) for x in levels[1:])], 1))


class Added(nn.Module):
    def __init__(self, main: nn.Module) -> None:
        super().__init__()
        self.main = main

    def forward(self, x: Any) -> Any:
        return x + self.main(x)


def convmixer(d: int = 192, k: int = 7) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(3, d, 7, 7), nn.GELU(), nn.BatchNorm2d(d)]
    for _ in range(6):
        parts += [Added(nn.Sequential(nn.Conv2d(d, d, k, padding=k // 2, groups=d), nn.GELU(), nn.BatchNorm2d(d))),
                  nn.Conv2d(d, d, 1), nn.GELU(), nn.BatchNorm2d(d)]
    return nn.Sequential(*parts, *head(d))


class MlpMixer(nn.Module):
    def __init__(self, d: int = 256, patch: int = 16, side: int = 224) -> None:
        super().__init__()
        n = (side // patch) ** 2
        two = lambda i, h: nn.Sequential(nn.Linear(i, h), nn.GELU(), nn.Linear(h, i))
        self.stem = nn.Conv2d(3, d, patch, patch)
        self.layers = nn.ModuleList(nn.ModuleList([nn.LayerNorm(d), two(n, 2 * n), nn.LayerNorm(d), two(d, 4 * d)]) for _ in range(4))
        self.head = nn.Linear(d, 1000)

    def forward(self, x: Any) -> Any:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for n1, tokens, n2, channels in self.layers:
            x = x + tokens(n1(x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(n2(x))
        return self.head(x.mean(1))


class Atrous(nn.Module):
    """A segmentation head with dilated convolutions and a pooled branch (ASPP) behind a strided network."""

    def __init__(self, c: int = 128) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 32, 3, 2), conv(32, 64, 3, 2), conv(64, c, 3, 2))
        self.branches = nn.ModuleList([conv(c, 64, 1), *(nn.Sequential(nn.Conv2d(c, 64, 3, padding=d, dilation=d, bias=False),
                                                                       nn.BatchNorm2d(64), nn.ReLU()) for d in (6, 12, 18))])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, 64, 1))
        self.join, self.out = conv(320, 64, 1), nn.Conv2d(64, 21, 1)

    def forward(self, x: Any) -> Any:
        size = x.shape[-2:]
        x = self.stem(x)
        parts = [b(x) for b in self.branches]
        parts.append(F.interpolate(self.pooled(x), x.shape[-2:], mode="nearest"))
        return F.interpolate(self.out(self.join(torch.cat(parts, 1))), size, mode="bilinear", align_corners=False)


def depthwise(k: int) -> nn.Module:
    """Large depthwise kernels between 1x1 convolutions, channels that fill no register."""
    parts: list[nn.Module] = [conv(3, 40, 3, 2)]
    c = 40
    for out, stride in ((40, 1), (80, 2), (80, 1), (120, 2), (120, 1), (200, 2)):
        parts += [conv(c, c, k, stride, c, nn.Hardswish), conv(c, out, 1)]
        c = out
    return nn.Sequential(*parts, *head(c))


image = lambda n, m=0: lambda b: torch.randn(b, 3, n, m or n)
MODELS: dict[str, tuple[Callable[[], nn.Module], Sample]] = {
    "shufflenet": (shufflenet, image(224)),
    "inception": (inception, image(299)),
    "resnext": (resnext, image(224)),
    "regnet": (regnet, image(224)),
    "unet": (UNet, image(256)),
    "efficientnet_v2": (efficientnet_v2, image(192)),
    "mobilenet_v3": (mobilenet_v3, image(224)),
    "ghostnet": (ghostnet, image(224)),
    "squeezenet 225": (squeezenet, image(225)),
    "resolutions 199x257": (Resolutions, image(199, 257)),
    "convmixer": (convmixer, image(224)),
    "convmixer 9x9, 199": (partial(convmixer, 96, 9), image(199)),
    "mlp mixer": (MlpMixer, image(224)),
    "atrous 257": (Atrous, image(257)),
    "depthwise 5x5, 225": (partial(depthwise, 5), image(225)),
    "depthwise 7x7, 199x257": (partial(depthwise, 7), image(199, 257)),
    "unet 240x176": (partial(UNet, 20), image(240, 176)),
    "audio": (Audio, lambda b: torch.randn(b, 1, 16000)),
    "heads of 48, 197 rows": (partial(Encoder, 384, 8), lambda b: torch.randn(b, 197, 384)),
    "heads of 80, 77 rows": (partial(Encoder, 640, 8, causal=True), lambda b: torch.randn(b, 77, 640)),
}


def runners(model: nn.Module, x: torch.Tensor, kind: str, sample: Callable[[], torch.Tensor], threads: int, peers: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    batches = [sample() for _ in range(4)]
    if kind == "int8":
        found["ours"] = tw.quantize(model, batches, threads=threads)
    else:
        found["ours"] = tw.compile(model, (x,), threads=threads, **({"dtype": "bf16"} if kind == "bf16" else {}))
    if not peers:
        return found
    import onnxruntime as ort
    import openvino as ov

    if kind == "f32":
        found["eager"] = model
    with tempfile.TemporaryDirectory() as folder:
        plain, small = onnx_files(model, x, batches, Path(folder)) if kind == "int8" else (Path(folder) / "f32.onnx", None)
        if kind != "int8":
            torch.onnx.export(model, (x,), str(plain), input_names=["x"], output_names=["y"], dynamo=True, external_data=False,
                              verbose=False)
        path = str(small or plain)
        if kind != "bf16":
            options = ort.SessionOptions()
            options.intra_op_num_threads = threads
            session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            found["ort"] = lambda x: session.run(None, {"x": x.numpy()})[0]
        for hint in {"f32": ["f32"], "bf16": ["bf16"], "int8": ["f32", "bf16"]}[kind]:
            compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads,
                                                             "PERFORMANCE_HINT": "LATENCY"})
            found[f"openvino {hint}"] = lambda x, c=compiled: c([x.numpy()])[0]
    return found


def minima(found: dict[str, Any], x: torch.Tensor, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    best = dict.fromkeys(found, float("inf"))
    for _ in range(rounds):
        for name, run in found.items():
            time.sleep(0.02)  # the threads of the runner before fall asleep
            run(x)
            end = clock() + 0.1
            while True:
                start = clock()
                run(x)
                now = clock()
                best[name] = min(best[name], now - start)
                if now > end:
                    break
    return {name: 1e3 * s for name, s in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--kinds", default="f32")
    parser.add_argument("--batch", default="1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--lint", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")  # the exporter's own
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    ratios: list[float] = []
    for name, (build, sample) in MODELS.items():
        if given.words and not any(w in name for w in given.words):
            continue
        torch.manual_seed(0)
        model = build().eval()
        spread_norms(model, lambda sample=sample: sample(1))
        for kind in given.kinds.split(","):
            for batch in map(int, given.batch.split(",")):
                x = sample(batch)
                with torch.no_grad():
                    if given.lint:
                        found = runners(model, x, kind, partial(sample, batch), given.threads, False)["ours"].profile(x, repeat=25)
                        print(f"{name} {kind} {batch}  {found.total_us / 1e3:.2f} ms", *(f"\n    {f}" for f in found.findings), flush=True)
                        continue
                    run = runners(model, x, kind, partial(sample, batch), given.threads, not given.no_peers)
                    want, got = model(x).numpy(), np.asarray(run["ours"](x))
                    times = minima(run, x, given.rounds, time.process_time if given.threads == 1 else time.perf_counter)
                error = float(np.abs(got - want).max() / np.abs(want).max())
                line = f"{name:22s} {kind:4s} x{batch}  " + "  ".join(f"{k} {ms:.2f}" for k, ms in times.items())
                if len(times) > 1:
                    ratios.append(min(ms for k, ms in times.items() if k != "ours") / times["ours"])
                    line += f"  ratio {ratios[-1]:.2f}"
                print(f"{line}  error {error:.1e}", flush=True)
    if ratios:
        print(f"{len(ratios)} rows, lowest ratio {min(ratios):.2f}, geometric mean {statistics.geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
