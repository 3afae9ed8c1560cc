"""Models of many kinds with random weights, ours beside the peers: how wide is the range in which Tilewright is fast?

    python benchmarks/zoo.py                       every model in f32 beside eager, torch.compile, ONNX Runtime and OpenVINO
    python benchmarks/zoo.py llama vgg --peers eager,ort --rounds 5
    python benchmarks/zoo.py --device cuda         bf16 (or --dtype f32) on a GPU, larger batches, beside eager and torch.compile
    python benchmarks/zoo.py --outside             models of further kinds, that nobody tuned for
    python benchmarks/zoo.py --onnx                the same models from PyTorch and from ONNX files, both ours
    python benchmarks/zoo.py --lint                no peers: the launches that matter and are far from their roofline, with the reason

The lowest ratio matters, not the mean. Nothing is downloaded. Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
Build = Callable[[], tuple[nn.Module, tuple[Any, ...]]]


class First(nn.Module):
    """The first tensor that a model of transformers returns."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def double(self) -> First:
        """PyTorch's grouped products have no f64: experts are a loop there."""
        self.model.config._experts_implementation = "eager"
        return super().double()

    def forward(self, *inputs: Any) -> Any:
        out = self.model(*inputs, **self.options)
        return out if isinstance(out, torch.Tensor) else next(v for v in out.values() if v is not None)


class Dense(nn.Module):
    """Blocks whose layers read the concatenation of all layers before them."""

    def __init__(self, growth: int = 24) -> None:
        super().__init__()
        self.stem, channels, stages = nn.Conv2d(3, 48, 7, 2, 3, bias=False), 48, []
        for _ in range(3):
            layers = []
            for _ in range(6):
                layers.append(nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4 * growth, 1, bias=False),
                                            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)))
                channels += growth
            half = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2))
            stages.append(nn.ModuleList([*layers, half]))
            channels //= 2
        self.stages, self.head = nn.ModuleList(stages), nn.Linear(channels, 1000)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        for stage in self.stages:
            *layers, half = stage
            for layer in layers:
                x = torch.cat([x, layer(x)], 1)
            x = half(x)
        return self.head(x.mean((2, 3)))


def vgg() -> nn.Module:
    parts: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3)):
        for _ in range(count):
            parts += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 1000))


def video() -> nn.Module:
    layer = lambda i, o, step=1: nn.Sequential(nn.Conv3d(i, o, 3, step, 1, bias=False), nn.BatchNorm3d(o), nn.ReLU())
    return nn.Sequential(layer(3, 32), nn.MaxPool3d((1, 2, 2)), layer(32, 64), layer(64, 64, 2), layer(64, 128), nn.AdaptiveAvgPool3d(1),
                         nn.Flatten(), nn.Linear(128, 400))


class Residual(nn.Module):
    """A residual block of a denoiser: group norms, SiLU, and the time added to every channel."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(16, into), nn.SiLU(), nn.Conv2d(into, out, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(16, out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1))
        self.time, self.skip = nn.Linear(256, out), nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        return self.second(self.first(x) + self.time(F.silu(time))[:, :, None, None]) + self.skip(x)


class Denoiser(nn.Module):
    """A small U-Net with attention at its bottom, and an embedding of the time."""

    def __init__(self, c: int = 64) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.stem, self.out = nn.Conv2d(4, c, 3, padding=1), nn.Conv2d(c, 4, 3, padding=1)
        self.down = nn.ModuleList([nn.Conv2d(c, c, 3, 2, 1), nn.Conv2d(2 * c, 2 * c, 3, 2, 1)])
        self.blocks = nn.ModuleList(Residual(i * c, o * c) for i, o in ((1, 1), (1, 2), (2, 2), (4, 2), (3, 1)))
        self.norm, self.qkv, self.mix = nn.GroupNorm(16, 2 * c), nn.Conv2d(2 * c, 6 * c, 1), nn.Conv2d(2 * c, 2 * c, 1)

    def forward(self, x: Any, t: Any) -> Any:
        waves = t[:, None] * torch.exp(torch.arange(32, device=x.device) * (-math.log(10000.0) / 32)).to(x.dtype)
        time = self.time(torch.cat([waves.sin(), waves.cos()], -1))
        high = self.blocks[0](self.stem(x), time)
        middle = self.blocks[1](self.down[0](high), time)
        low = self.blocks[2](self.down[1](middle), time)
        n, c, h, w = low.shape
        q, k, v = self.qkv(self.norm(low)).reshape(n, 3, 4, c // 4, h * w).transpose(-1, -2).unbind(1)
        low = low + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(n, c, h, w))
        middle = self.blocks[3](torch.cat([F.interpolate(low, scale_factor=2.0), middle], 1), time)
        return self.out(self.blocks[4](torch.cat([F.interpolate(middle, scale_factor=2.0), high], 1), time))


class Vocoder(nn.Module):
    """From spectra to samples by transposed and dilated convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, channels = nn.Conv1d(80, 256, 7, padding=3), 256
        self.up, self.wide = nn.ModuleList(), nn.ModuleList()
        for rate in (8, 8, 2, 2):
            self.up.append(nn.ConvTranspose1d(channels, channels // 2, 2 * rate, rate, rate // 2))
            channels //= 2
            self.wide.append(nn.ModuleList(nn.Conv1d(channels, channels, 3, dilation=d, padding=d) for d in (1, 3, 5)))
        self.out = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for up, wide in zip(self.up, self.wide, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            for layer in wide:
                x = x + layer(F.leaky_relu(x, 0.1))
        return torch.tanh(self.out(F.leaky_relu(x)))


class Recommender(nn.Module):
    """Means of embeddings, dense features through an MLP, products of all pairs."""

    def __init__(self, tables: int = 12) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20000, 64) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + tables * (tables + 1) // 2, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense: Any, ids: Any) -> Any:
        below = self.bottom(dense)
        rows = torch.stack([below, *(table(ids[:, i]).mean(1) for i, table in enumerate(self.tables))], 1)
        i, j = torch.tril_indices(rows.shape[1], rows.shape[1], -1, device=rows.device)
        return torch.sigmoid(self.top(torch.cat([below, (rows @ rows.transpose(1, 2))[:, i, j]], 1)))


class GraphAttention(nn.Module):
    """Messages along edges, weighted by exponentials and summed at nodes."""

    def __init__(self, d: int = 64) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(32, d), nn.Linear(d, 10)
        self.values, self.scores = nn.ModuleList(nn.Linear(d, d) for _ in range(3)), nn.ModuleList(nn.Linear(2 * d, 1) for _ in range(3))

    def forward(self, x: Any, source: Any, target: Any) -> Any:
        x = self.into(x)
        for value, score in zip(self.values, self.scores, strict=True):
            h = value(x)
            weight = F.leaky_relu(score(torch.cat([h[source], h[target]], -1))).clamp(-8, 8).exp()
            total, messages = weight.new_zeros(len(h), 1).index_add(0, target, weight), h[source] * weight
            x = x + F.elu(messages.new_zeros(h.shape).index_add(0, target, messages) / (total + 1e-6))
        return self.out(x)


class Radiance(nn.Module):
    """Sines and cosines of positions through a wide MLP, for many points."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(63, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(191, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, points: Any) -> Any:
        waves = (points[..., None] * 2.0 ** torch.arange(10, device=points.device, dtype=points.dtype)).flatten(-2)
        encoded = torch.cat([points, waves.sin(), waves.cos()], -1)
        return self.second(torch.cat([self.first(encoded), encoded], -1))


class Recurrent(nn.Module):
    def __init__(self, d: int = 256) -> None:
        super().__init__()
        self.tokens, self.gru, self.head = nn.Embedding(1000, d), nn.GRU(d, d, 2, batch_first=True), nn.Linear(d, 1000)

    def forward(self, ids: Any) -> Any:
        return self.head(self.gru(self.tokens(ids))[0])


def models(large: bool, depth: int = 99) -> dict[str, Build]:
    """name -> () -> (module, inputs); `large` is for GPUs, `depth` bounds the number of equal layers."""
    import transformers as T
    from transformers.models.bart.modeling_bart import BartEncoder
    from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import Wav2Vec2ConformerEncoder

    size = lambda small, big: big if large else small
    ids = lambda b, s: (torch.randint(0, 1000, (b, s)),)
    image = lambda b, n=224: (torch.randn(b, 3, n, n),)
    few = lambda layers: min(layers, depth)
    common = {"num_hidden_layers": few(6), "num_attention_heads": 12, "hidden_size": 768, "vocab_size": 16000, "use_cache": False}
    llama = lambda: First(T.LlamaForCausalLM(T.LlamaConfig(**common, intermediate_size=2048, num_key_value_heads=4)), use_cache=False)
    falcon = {"new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "bias": False}
    olmoe = {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": few(4), "num_attention_heads": 8,
             "num_key_value_heads": 8, "num_experts": 16, "num_experts_per_tok": 4, "vocab_size": 16000, "use_cache": False}
    mamba = {"hidden_size": 512, "num_hidden_layers": few(4), "num_heads": 16, "head_dim": 64, "state_size": 64, "n_groups": 1,
             "chunk_size": 64, "vocab_size": 16000, "use_cache": False}
    efficientnet = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224, "hidden_dim": 1280}
    bart = {"d_model": 768, "encoder_layers": few(6), "encoder_attention_heads": 12, "encoder_ffn_dim": 3072}
    beit = {"hidden_size": 384, "num_hidden_layers": few(6), "num_attention_heads": 6, "intermediate_size": 1536}
    conformer = {"hidden_size": 256, "num_hidden_layers": few(4), "num_attention_heads": 4, "intermediate_size": 1024, "layerdrop": 0.0}
    nodes, edges = size(2000, 20000), size(16000, 160000)
    return {
        "llama": lambda: (llama(), ids(size(1, 4), size(128, 1024))),
        "llama one token": lambda: (llama(), ids(1, 1)),
        "falcon": lambda: (First(T.FalconForCausalLM(T.FalconConfig(**common, **falcon)), use_cache=False),
                           ids(size(1, 4), size(128, 1024))),
        "olmoe": lambda: (First(T.OlmoeForCausalLM(T.OlmoeConfig(**olmoe)), use_cache=False), ids(size(1, 4), size(64, 512))),
        "mamba2": lambda: (First(T.Mamba2ForCausalLM(T.Mamba2Config(**mamba)), use_cache=False), ids(size(1, 4), size(64, 512))),
        "roberta": lambda: (First(T.RobertaModel(T.RobertaConfig(num_hidden_layers=few(12)))), ids(size(1, 16), 64)),
        "electra": lambda: (First(T.ElectraModel(T.ElectraConfig(num_hidden_layers=few(12)))), ids(size(8, 64), 128)),
        "bart": lambda: (First(BartEncoder(T.BartConfig(**bart))),
                         ids(size(1, 8), 256)),
        "efficientnet": lambda: (First(T.EfficientNetModel(T.EfficientNetConfig(**efficientnet))), image(size(1, 32))),
        "mobilevit": lambda: (First(T.MobileViTModel(T.MobileViTConfig())), image(size(1, 16), 256)),
        "pvt": lambda: (First(T.PvtModel(T.PvtConfig())), image(size(1, 16))),
        "poolformer": lambda: (First(T.PoolFormerModel(T.PoolFormerConfig())), image(size(1, 16))),
        "levit": lambda: (First(T.LevitModel(T.LevitConfig())), image(size(1, 32))),
        "beit": lambda: (First(T.BeitModel(T.BeitConfig(**beit))), image(size(1, 16))),
        "densenet": lambda: (Dense(), image(size(1, 16))),
        "vgg": lambda: (vgg(), image(size(1, 16), 128)),
        "video": lambda: (video(), (torch.randn(size(1, 4), 3, 8, 64, 64),)),
        "diffusion": lambda: (Denoiser(), (torch.randn(size(1, 8), 4, 64, 64), torch.rand(size(1, 8)))),
        "vocoder": lambda: (Vocoder(), (torch.randn(size(1, 8), 80, 64),)),
        "conformer": lambda: (First(Wav2Vec2ConformerEncoder(T.Wav2Vec2ConformerConfig(**conformer))),
                              (torch.randn(size(1, 8), 200, 256),)),
        "gru": lambda: (Recurrent(), ids(size(1, 16), 64)),
        "recommender": lambda: (Recommender(), (torch.randn(size(64, 2048), 13), torch.randint(0, 20000, (size(64, 2048), 12, 8)))),
        "graph attention": lambda: (GraphAttention(), (torch.randn(nodes, 32), torch.randint(0, nodes, (edges,)),
                                                      torch.randint(0, nodes, (edges,)))),
        "radiance field": lambda: (Radiance(), (torch.randn(size(8192, 262144), 3),)),
    }


def on_gpu(name: str, module: nn.Module, inputs: tuple[Any, ...], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Ours beside eager and torch.compile, each also in a CUDA graph where it can be captured."""
    import copy

    from gpu_tools import alone, slowest
    from triton.testing import do_bench

    import tilewright as tw

    dtype = torch.float32 if args.dtype == "f32" else torch.bfloat16
    module, inputs = module.cuda(), tuple(x.cuda() for x in inputs)
    first = lambda y: y[0] if isinstance(y, tuple) else y
    with torch.no_grad():
        exact = first(copy.deepcopy(module).double()(*(x.double() if x.is_floating_point() else x for x in inputs)))
        module, inputs = module.to(dtype), tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
        session = tw.compile(module, inputs)
        errors = {k: float((first(f(*inputs)).double() - exact).norm() / exact.norm()) for k, f in (("ours", session), ("eager", module))}
        calls: dict[str, Callable[[], Any]] = {"tilewright": lambda: session(*inputs), "eager": lambda: module(*inputs)}
        if "compile" in args.peers:
            compiled = torch.compile(module)
            calls["compile"] = lambda: compiled(*inputs)
        for k in [k for k in calls if k != "tilewright"]:
            for _ in range(3):
                calls[k]()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    calls[k]()
                calls[f"{k} in a graph"] = graph.replay
            except RuntimeError:
                torch.cuda.synchronize()
        with alone(args.after):
            times = {k: do_bench(f, warmup=20, rep=60, return_mode="median") for k, f in calls.items()}
            why = list(slowest(session.profile(*inputs), args.why)) if args.why else []
    best = min((k for k in times if k != "tilewright"), key=times.__getitem__)
    ratio = times[best] / times["tilewright"]
    print(f"{name:18s} {times['tilewright'] * 1e3:10.1f} us  {best} {times[best] * 1e3:.1f} us  ratio {ratio:.2f}  "
          f"error {errors['ours']:.1e} (PyTorch {errors['eager']:.1e})", *why, sep="\n", flush=True)
    return [{"name": name, "ratio": ratio, "low": ratio}]


def findings(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """What the lint says of a model's launches, measured; the fastest of many runs, so that a busy machine disturbs less."""
    import tilewright as tw

    found = tw.compile(module, inputs).profile(*inputs, repeat=25)
    print(f"{name:18s} {found.total_us / 1e3:10.2f} ms", *(f"\n    {x}" for x in found.findings), flush=True)


def beside_onnx(name: str, module: nn.Module, inputs: tuple[Any, ...], rounds: int) -> list[dict[str, Any]]:
    """The same model from PyTorch and from the ONNX file that PyTorch exports, both ours, on one thread: the least CPU time of interleaved
    calls, which other processes disturb little."""
    import time

    import numpy as np

    import tilewright as tw
    from benchmarks.peers import exported

    session = tw.compile(module, inputs, threads=1)
    with exported(module, inputs) as path:
        other = tw.compile(path, threads=1)
    values = [x.numpy() for x in inputs]
    wanted = session(*inputs).numpy()
    error = float(np.linalg.norm(np.asarray(other(*values)) - wanted) / np.linalg.norm(wanted))
    calls = {"torch": lambda: session(*inputs), "onnx": lambda: other(*values)}
    best = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for k, f in calls.items():
            for _ in range(3):
                start = time.thread_time()
                f()
                best[k] = min(best[k], time.thread_time() - start)
    ratio = best["torch"] / best["onnx"]
    print(f"{name:18s} torch {best['torch'] * 1e3:9.3f} ms  onnx {best['onnx'] * 1e3:9.3f} ms  ratio {ratio:.2f}  difference {error:.1e}",
          flush=True)
    return [{"name": name, "ratio": ratio, "low": ratio}]


def main() -> None:
    from benchmarks.bench import compare
    from tilewright.cli.console import console

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="bf16")
    parser.add_argument("--peers", default="eager,compile,ort,openvino")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="with 1 the least processor time counts, as on a busy machine")
    parser.add_argument("--lint", action="store_true")
    parser.add_argument("--why", type=int, default=0, help="on a GPU: so many launches of each model that take most time")
    parser.add_argument("--after", default="", help="on a GPU: timings wait until this file is there")
    parser.add_argument("--onnx", action="store_true", help="the same models from PyTorch and from ONNX files, both ours")
    parser.add_argument("--outside", action="store_true", help="the models of outside.py instead")
    args = parser.parse_args()
    rows, failed = list[dict[str, Any]](), list[str]()
    torch.set_num_threads(args.threads or torch.get_num_threads())
    if args.outside:
        from benchmarks import outside
    for name, build in (outside.models if args.outside else models)(args.device == "cuda").items():
        if args.words and not any(w in name for w in args.words):
            continue
        torch.manual_seed(0)
        module, inputs = build()
        try:
            if args.lint:
                findings(name, module.eval(), inputs)
                continue
            if args.onnx:
                rows += beside_onnx(name, module.eval(), inputs, args.rounds)
                continue
            rows += (on_gpu(name, module.eval(), inputs, args) if args.device == "cuda"
                     else compare(console(), name, module.eval(), inputs, args.peers.split(","), args.rounds, args.threads))
        except Exception as e:  # a model that fails is named, the others are timed
            failed.append(name)
            print(f"{name:18s} {type(e).__name__}: {str(e)[:300]}", flush=True)
    ratios = [r["ratio"] for r in rows if "ratio" in r]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"{len(ratios)} models, lowest ratio {min(ratios):.2f}, geometric mean {mean:.2f}, failed: {failed or 'none'}")


if __name__ == "__main__":
    main()
