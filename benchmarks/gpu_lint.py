#!/usr/bin/env python3
"""Predicted times of the launches of many models and layers on a GPU, without one: which kernels are far below the roofline?

    python benchmarks/gpu_lint.py                          every layer below, forward and backward graphs of `torch.compile`
    python benchmarks/gpu_lint.py --models                 the models of zoo.py (`--outside`: of outside.py), two layers deep
    python benchmarks/gpu_lint.py sort fft --all           names that contain a word; every launch, not only the slow ones
    python benchmarks/gpu_lint.py --dtype f32 --target sm_80 --infer

Graphs come from dynamo and AOTAutograd on the CPU and are compiled for the chip; nothing is run: calls return zeros. A row of the table is
a launch that loses more than --lost microseconds and is predicted below a quarter of its roofline.
"""
from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tilewright.compile import compile_graph, graph_signature, target_spec
from tilewright.dynamo import attention
from tilewright.dynamo.backend import Compiled, Compiler, Step, _plain_ops
from tilewright.dynamo.joint import partition
from tilewright.dynamo.options import Options
from tilewright.runtime.cuda.report import describe_launches

Build = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


class Predicting(Compiler):
    """Compiles graphs of CPU tensors for a GPU, keeps the sessions, and returns zeros for results."""

    def __init__(self, target: str) -> None:
        super().__init__(Options())
        self.target, self.sessions = target, list[tuple[str, Any]]()

    def _ours(self, fragment: Any, nodes: list[Any]) -> tuple[Step | None, str]:
        if fragment.graph.outputs:
            try:
                spec = target_spec(self.target, None, pytorch=True)
                self.sessions.append(("", compile_graph(fragment.graph, graph_signature(fragment.graph), spec)))
            except Exception as e:
                print(f"    does not compile: {type(e).__name__}: {e}\n{traceback.format_exc()[-600:]}")
        return Step(lambda args: args, True, nodes), ""

    def _compiled(self, module: Any, kind: str, constants: Mapping[int, Any], traced: Mapping[int, Any]) -> Compiled:
        before = len(self.sessions)
        made = super()._compiled(module, kind, constants, traced)
        self.sessions[before:] = [(kind, s) for _, s in self.sessions[before:]]
        (results,) = next(n for n in module.graph.nodes if n.op == "output").args

        def zeros(args: list[Any]) -> list[Any]:
            args.clear()
            values = [r.meta.get("val") if isinstance(r, torch.fx.Node) else r for r in results]
            return [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype).zero_() if isinstance(v, torch.Tensor) else v for v in values]

        return Compiled(made.kind, made.steps, zeros)

    def __call__(self, module: Any, inputs: Any) -> Any:
        def run(kind: str) -> Any:
            def make(graph: Any, examples: Any) -> Any:
                made = self.graph(graph, kind, None, examples if kind == "backward" else ())
                call = lambda args: made.call(args)
                call._boxed_call = True  # type: ignore[attr-defined]
                return call

            return make

        attention.exchange(module)
        with _plain_ops():
            return aot_autograd(fw_compiler=run("forward"), bw_compiler=run("backward"), inference_compiler=run("inference"),
                                partition_fn=partition, keep_inference_input_mutations=True, decompositions={})(module, inputs)


class Attending(nn.Module):
    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.inner, self.weights = nn.MultiheadAttention(512, 8, batch_first=True), weights

    def forward(self, x: Any, mask: Any = None, pad: Any = None) -> Any:
        return self.inner(x, x, x, attn_mask=mask, key_padding_mask=pad, need_weights=self.weights)[0]


class First(nn.Module):
    """The first result of a module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *x: Any) -> Any:
        return self.inner(*x)[0]


def layers() -> dict[str, Build]:
    """name -> () -> (module or function, inputs), at sizes that fill a GPU."""
    r, ints = torch.randn, torch.randint
    image = lambda c=64, n=56, b=32: (r(b, c, n, n),)
    text = lambda b=16, s=512, d=768: (r(b, s, d),)
    grid = lambda b, h, w: (r(b, 32, h, w), torch.rand(b, h, w, 2) * 2 - 1)
    first = First
    found: dict[str, Build] = {}

    def add(name: str, build: Callable[[], Any], *inputs: Any) -> None:
        found[name] = lambda: (build(), inputs)

    for name, layer, given in [
        ("conv1d", lambda: nn.Conv1d(256, 256, 5, padding=2), (r(16, 256, 1024),)),
        ("conv1d depthwise", lambda: nn.Conv1d(256, 256, 31, padding=15, groups=256), (r(16, 256, 1024),)),
        ("conv2d", lambda: nn.Conv2d(64, 128, 3, padding=1), image()),
        ("conv2d grouped", lambda: nn.Conv2d(128, 128, 3, padding=1, groups=8), image(128)),
        ("conv2d grouped 32x4", lambda: nn.Conv2d(128, 128, 3, padding=1, groups=32), image(128)),
        ("conv2d depthwise", lambda: nn.Conv2d(128, 128, 5, padding=2, groups=128), image(128)),
        ("conv2d depthwise multiplier", lambda: nn.Conv2d(64, 128, 3, padding=1, groups=64), image()),
        ("conv2d dilated", lambda: nn.Conv2d(64, 64, 3, padding=4, dilation=4), image()),
        ("conv2d stem", lambda: nn.Conv2d(3, 64, 7, 2, 3), image(3, 224)),
        ("conv2d to one channel", lambda: nn.Conv2d(64, 1, 3, padding=1), image()),
        ("conv2d odd channels", lambda: nn.Conv2d(37, 51, 3, padding=1), image(37)),
        ("conv3d", lambda: nn.Conv3d(32, 64, 3, padding=1), (r(4, 32, 8, 56, 56),)),
        ("conv3d depthwise", lambda: nn.Conv3d(32, 32, 3, padding=1, groups=32), (r(4, 32, 8, 56, 56),)),
        ("conv transpose 1d", lambda: nn.ConvTranspose1d(128, 64, 16, 8, 4), (r(8, 128, 512),)),
        ("conv transpose 2d", lambda: nn.ConvTranspose2d(64, 64, 4, 2, 1), image()),
        ("conv transpose 2d grouped", lambda: nn.ConvTranspose2d(64, 64, 3, 2, 1, groups=4), image()),
        ("conv transpose 3d", lambda: nn.ConvTranspose3d(32, 32, 2, 2), (r(4, 32, 8, 28, 28),)),
        ("batch norm", lambda: nn.BatchNorm2d(64), image()),
        ("batch norm 1d", lambda: nn.BatchNorm1d(512), (r(4096, 512),)),
        ("batch norm 3d", lambda: nn.BatchNorm3d(32), (r(4, 32, 8, 56, 56),)),
        ("conv bn relu", lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()), image()),
        ("group norm", lambda: nn.GroupNorm(8, 64), image()),
        ("instance norm", lambda: nn.InstanceNorm2d(64, affine=True), image()),
        ("layer norm", lambda: nn.LayerNorm(768), text()),
        ("layer norm 2 axes", lambda: nn.LayerNorm((56, 56)), image()),
        ("rms norm", lambda: nn.RMSNorm(768), text()),
        ("local response norm", lambda: nn.LocalResponseNorm(5), image()),
        ("max pool", lambda: nn.MaxPool2d(3, 2, 1), image()),
        ("max pool 1d", lambda: nn.MaxPool1d(3, 2, 1), (r(16, 256, 1024),)),
        ("max pool 3d", lambda: nn.MaxPool3d(2), (r(4, 32, 8, 56, 56),)),
        ("avg pool", lambda: nn.AvgPool2d(3, 2, 1), image()),
        ("avg pool 3d", lambda: nn.AvgPool3d(2), (r(4, 32, 8, 56, 56),)),
        ("lp pool", lambda: nn.LPPool2d(2, 2), image()),
        ("adaptive avg pool", lambda: nn.AdaptiveAvgPool2d(7), image()),
        ("adaptive avg pool uneven", lambda: nn.AdaptiveAvgPool2d(5), image()),
        ("adaptive max pool", lambda: nn.AdaptiveMaxPool2d(7), image()),
        ("global avg pool", lambda: nn.AdaptiveAvgPool2d(1), image()),
        ("fractional max pool", lambda: nn.FractionalMaxPool2d(2, output_ratio=0.5, _random_samples=torch.rand(32, 64, 2)), image()),
        ("pixel shuffle", lambda: nn.PixelShuffle(2), image()),
        ("pixel unshuffle", lambda: nn.PixelUnshuffle(2), image()),
        ("channel shuffle", lambda: nn.ChannelShuffle(4), image()),
        ("reflection pad", lambda: nn.ReflectionPad2d(3), image()),
        ("replication pad", lambda: nn.ReplicationPad2d(3), image()),
        ("circular pad", lambda: nn.CircularPad2d(3), image()),
        ("zero pad", lambda: nn.ZeroPad2d(3), image()),
        ("unfold", lambda: nn.Unfold(3, padding=1), image()),
        ("fold", lambda: nn.Fold((56, 56), 3, padding=1), (r(32, 288, 3136),)),
        ("embedding", lambda: nn.Embedding(50000, 768), (ints(0, 50000, (16, 512)),)),
        ("embedding bag", lambda: nn.EmbeddingBag(50000, 64), (ints(0, 50000, (2048, 32)),)),
        ("embedding bag max", lambda: nn.EmbeddingBag(50000, 64, mode="max"), (ints(0, 50000, (2048, 32)),)),
        ("lstm", lambda: first(nn.LSTM(256, 256, batch_first=True)), (r(32, 64, 256),)),
        ("gru", lambda: first(nn.GRU(256, 256, batch_first=True)), (r(32, 64, 256),)),
        ("rnn", lambda: first(nn.RNN(256, 256, batch_first=True)), (r(32, 64, 256),)),
        ("lstm bidirectional", lambda: first(nn.LSTM(128, 128, 2, bidirectional=True, batch_first=True)), (r(32, 64, 128),)),
        ("multihead attention", lambda: Attending(False), text(8, 512, 512)),
        ("multihead attention weights", lambda: Attending(True), text(8, 512, 512)),
        ("multihead attention masks", lambda: Attending(False), (r(8, 512, 512), r(512, 512), torch.zeros(8, 512))),
        ("transformer encoder layer", lambda: nn.TransformerEncoderLayer(512, 8, batch_first=True, dropout=0.0), text(8, 512, 512)),
        ("transformer decoder layer", lambda: nn.TransformerDecoderLayer(512, 8, batch_first=True, dropout=0.0),
         (r(8, 256, 512), r(8, 512, 512))),
        ("bilinear", lambda: nn.Bilinear(64, 64, 128), (r(4096, 64), r(4096, 64))),
        ("linear one out", lambda: nn.Linear(768, 1), text()),
        ("linear odd", lambda: nn.Linear(513, 127), (r(8192, 513),)),
        ("prelu", lambda: nn.PReLU(64), image()),
        ("glu", lambda: nn.GLU(), text()),
        ("softmax2d", lambda: nn.Softmax2d(), image()),
        ("log softmax wide", lambda: nn.LogSoftmax(-1), (r(512, 50000),)),
        ("dropout", lambda: nn.Dropout(), text()),
        ("weight norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(1024, 1024)), (r(1024, 1024),)),
        ("spectral norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(1024, 1024)), (r(1024, 1024),)),
    ]:
        add(name, layer, *given)
    q = r(4, 16, 1024, 64)
    some = lambda f: lambda: f
    up = lambda mode, **k: some(lambda x: F.interpolate(x, scale_factor=2.0, mode=mode, **k))
    for name, call, given in [
        ("sdpa causal", some(lambda a, b, c: F.scaled_dot_product_attention(a, b, c, is_causal=True)), (q, q, q)),
        ("sdpa gqa", some(lambda a, b, c: F.scaled_dot_product_attention(a, b, c, is_causal=True, enable_gqa=True)),
         (r(1, 32, 2048, 128), r(1, 4, 2048, 128), r(1, 4, 2048, 128))),
        ("sdpa head 80", some(F.scaled_dot_product_attention), (r(4, 16, 1024, 80),) * 3),
        ("sdpa head 256", some(F.scaled_dot_product_attention), (r(2, 8, 1024, 256),) * 3),
        ("sdpa one head", some(F.scaled_dot_product_attention), (r(4, 1, 2048, 512),) * 3),
        ("sdpa few keys", some(F.scaled_dot_product_attention), (r(16, 1, 3136, 64), r(16, 1, 49, 64), r(16, 1, 49, 64))),
        ("sdpa bias", some(lambda a, b, c, m: F.scaled_dot_product_attention(a, b, c, m)), (q, q, q, r(1, 16, 1024, 1024))),
        ("linear attention", some(lambda a, b, c: F.elu(a) @ (F.elu(b).transpose(-1, -2) @ c)), (q, q, q)),
        ("cdist", some(torch.cdist), (r(8, 1024, 64), r(8, 1024, 64))),
        ("cdist 1", some(lambda a, b: torch.cdist(a, b, p=1.0)), (r(4, 512, 64), r(4, 512, 64))),
        ("pdist", some(F.pdist), (r(1024, 64),)),
        ("cosine similarity", some(F.cosine_similarity), (r(8192, 768), r(8192, 768))),
        ("cosine similarity matrix", some(lambda a, b: F.normalize(a) @ F.normalize(b).T), (r(2048, 512), r(2048, 512))),
        ("pairwise distance", some(F.pairwise_distance), (r(8192, 768), r(8192, 768))),
        ("triplet", some(F.triplet_margin_loss), (r(8192, 128),) * 3),
        ("cumsum", some(lambda x: torch.cumsum(x, -1)), (r(4096, 1024),)),
        ("cumsum axis 0", some(lambda x: torch.cumsum(x, 0)), (r(1024, 4096),)),
        ("cumsum axis 1", some(lambda x: torch.cumsum(x, 1)), (r(8, 1024, 512),)),
        ("cumsum long", some(lambda x: torch.cumsum(x, -1)), (r(4, 1 << 20),)),
        ("cumprod", some(lambda x: torch.cumprod(x, -1)), (r(4096, 256),)),
        ("cummax", some(lambda x: torch.cummax(x, -1)[0]), (r(4096, 1024),)),
        ("logcumsumexp", some(lambda x: torch.logcumsumexp(x, -1)), (r(4096, 1024),)),
        ("logcumsumexp axis 1", some(lambda x: torch.logcumsumexp(x, 1)), (r(8, 1024, 512),)),
        ("sort", some(lambda x: torch.sort(x, -1)[0]), (r(4096, 1024),)),
        ("sort long", some(lambda x: torch.sort(x, -1)[0]), (r(4, 1 << 20),)),
        ("sort axis 0", some(lambda x: torch.sort(x, 0)[0]), (r(1024, 4096),)),
        ("argsort", some(lambda x: x.gather(-1, torch.argsort(x.detach(), -1))), (r(4096, 1024),)),
        ("topk", some(lambda x: torch.topk(x, 8)[0]), (r(4096, 1024),)),
        ("topk router", some(lambda x: torch.topk(x.softmax(-1), 2)[0]), (r(16384, 8),)),
        ("topk vocabulary", some(lambda x: torch.topk(x, 50)[0]), (r(16, 50000),)),
        ("kthvalue", some(lambda x: torch.kthvalue(x, 10)[0]), (r(4096, 1024),)),
        ("median", some(lambda x: torch.median(x, -1)[0]), (r(4096, 1024),)),
        ("gather", some(lambda x, i: torch.gather(x, 1, i)), (r(4096, 1024), ints(0, 1024, (4096, 256)))),
        ("gather axis 0", some(lambda x, i: torch.gather(x, 0, i)), (r(4096, 512), ints(0, 4096, (4096, 512)))),
        ("scatter", some(lambda x, i, s: torch.scatter(x, 1, i, s)), (r(4096, 1024), ints(0, 1024, (4096, 256)), r(4096, 256))),
        ("scatter add", some(lambda x, i, s: torch.scatter_add(x, 1, i, s)), (r(4096, 1024), ints(0, 1024, (4096, 256)), r(4096, 256))),
        ("scatter add axis 0", some(lambda x, i, s: torch.scatter_add(x, 0, i, s)),
         (r(2000, 64), ints(0, 2000, (1, 1)).expand(160000, 64), r(160000, 64))),
        ("scatter reduce", some(lambda x, i, s: torch.scatter_reduce(x, 1, i, s, "amax")),
         (r(4096, 1024), ints(0, 1024, (4096, 256)), r(4096, 256))),
        ("index add", some(lambda x, i, s: torch.index_add(x, 0, i, s)), (r(20000, 64), ints(0, 20000, (160000,)), r(160000, 64))),
        ("index put accumulate", some(lambda x, i, j, s: torch.index_put(x, (i, j), s, accumulate=True)),
         (r(1000, 1000), ints(0, 1000, (200000,)), ints(0, 1000, (200000,)), r(200000))),
        ("index two axes", some(lambda x, i, j: x[:, i, j]), (r(64, 128, 128), ints(0, 128, (4096,)), ints(0, 128, (4096,)))),
        ("masked fill", some(lambda x, m: x.masked_fill(m > 0, 1.0)), (r(4096, 1024), r(4096, 1024))),
        ("argmax", some(lambda x: (x * F.one_hot(x.argmax(-1), x.shape[-1])).sum(-1)), (r(4096, 1024),)),
        ("argmax vocabulary", some(lambda x: x.gather(-1, x.argmax(-1, keepdim=True))), (r(64, 50000),)),
        ("argmax channels", some(lambda x: x.gather(1, x.argmax(1, keepdim=True))), image()),
        ("max values indices", some(lambda x: x.max(-1)[0]), (r(4096, 1024),)),
        ("fft", some(lambda x: torch.fft.fft(x).abs()), (r(256, 4096),)),
        ("rfft2", some(lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2.0)), (r(16, 64, 64, 64),)),
        ("fft odd", some(lambda x: torch.fft.rfft(x).abs()), (r(256, 1000),)),
        ("fft mixing", some(lambda x: torch.fft.fft2(x, dim=(-1, -2)).real), (r(8, 512, 768),)),
        ("stft", some(lambda x: torch.stft(x, 512, 128, window=x.new_ones(512), return_complex=True).abs()), (r(16, 80000),)),
        ("upsample nearest", up("nearest"), image()),
        ("upsample bilinear", up("bilinear"), image()),
        ("upsample bilinear corners", up("bilinear", align_corners=True), image()),
        ("upsample bicubic", up("bicubic"), image()),
        ("upsample area", some(lambda x: F.interpolate(x, (20, 20), mode="area")), image()),
        ("upsample linear", up("linear"), (r(16, 64, 4096),)),
        ("upsample trilinear", up("trilinear"), (r(4, 32, 8, 28, 28),)),
        ("downsample antialias", some(lambda x: F.interpolate(x, (24, 24), mode="bilinear", antialias=True)), image()),
        ("grid sample", some(lambda x, g: F.grid_sample(x, g, align_corners=False)), grid(16, 64, 64)),
        ("grid sample nearest", some(lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False)), grid(16, 64, 64)),
        ("grid sample bicubic", some(lambda x, g: F.grid_sample(x, g, mode="bicubic", align_corners=False)), grid(16, 64, 64)),
        ("affine grid", some(lambda x, t: F.grid_sample(x, F.affine_grid(t, list(x.shape), align_corners=False), align_corners=False)),
         (r(16, 32, 64, 64), r(16, 2, 3))),
        ("roll", some(lambda x: torch.roll(x, (3, 3), (2, 3))), image()),
        ("cross entropy vocabulary", some(F.cross_entropy), (r(4096, 50257), ints(0, 50257, (4096,)))),
        ("cross entropy smooth", some(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1)), (r(4096, 32000), ints(0, 32000, (4096,)))),
        ("cross entropy soft", some(F.cross_entropy), (r(4096, 1000), torch.rand(4096, 1000))),
        ("cross entropy 2d", some(F.cross_entropy), (r(16, 21, 128, 128), ints(0, 21, (16, 128, 128)))),
        ("nll", some(lambda x, t: F.nll_loss(F.log_softmax(x, -1), t)), (r(8192, 1000), ints(0, 1000, (8192,)))),
        ("ctc", some(lambda x, t, a, b: F.ctc_loss(x.log_softmax(-1), t, a, b)),
         (r(100, 16, 40), ints(1, 40, (16, 20)), torch.full((16,), 100), torch.full((16,), 20))),
        ("bce", some(F.binary_cross_entropy_with_logits), (r(4096, 1000), torch.rand(4096, 1000))),
        ("kl", some(lambda x, t: F.kl_div(x.log_softmax(-1), t, reduction="batchmean")), (r(4096, 1000), torch.rand(4096, 1000))),
        ("mse", some(F.mse_loss), (r(4096, 4096), r(4096, 4096))),
        ("smooth l1", some(F.smooth_l1_loss), (r(4096, 4096), r(4096, 4096))),
        ("multi margin", some(F.multi_margin_loss), (r(4096, 1000), ints(0, 1000, (4096,)))),
        ("var", some(lambda x: x.var((0, 2, 3))), image()),
        ("std rows", some(lambda x: x.std(-1)), (r(4096, 1024),)),
        ("norm", some(lambda x: x.norm(dim=1)), image()),
        ("logsumexp axis 1", some(lambda x: x.logsumexp(1)), (r(64, 1024, 256),)),
        ("softmax axis 1", some(lambda x: x.softmax(1)), (r(64, 1024, 256),)),
        ("sum all", some(lambda x: (x * x).sum()), (r(4096, 4096),)),
        ("sum axis 0", some(lambda x: x.sum(0)), (r(65536, 64),)),
        ("prod", some(lambda x: x.prod(-1)), (r(65536, 32),)),
        ("amax", some(lambda x: x.amax((2, 3))), image()),
        ("einsum batched", some(lambda a, b: torch.einsum("bhid,bhjd->bijh", a, b)), (r(4, 8, 512, 64), r(4, 8, 512, 64))),
        ("outer products", some(lambda a, b: (a[:, :, None] * b[:, None, :]).sum(0)), (r(4096, 64), r(4096, 64))),
        ("bmm small", some(torch.bmm), (r(8192, 16, 16), r(8192, 16, 16))),
        ("matmul thin", some(torch.matmul), (r(65536, 8), r(8, 8))),
        ("matmul long k", some(torch.matmul), (r(16, 65536), r(65536, 16))),
        ("cat", some(lambda a, b: torch.cat([a, b], 1)), (r(32, 64, 56, 56), r(32, 32, 56, 56))),
        ("transpose", some(lambda x: x.transpose(1, 2).contiguous() * 2), (r(32, 1024, 1024),)),
        ("repeat interleave", some(lambda x: x.repeat_interleave(4, 1)), (r(64, 64, 1024),)),
        ("triu", some(lambda x: torch.triu(x) + torch.tril(x, -1)), (r(16, 1024, 1024),)),
        ("bucketize", some(lambda x, b: x * torch.bucketize(x.detach(), b)), (r(4096, 1024), torch.linspace(-3, 3, 64))),
        ("histogram", some(lambda x: torch.bincount(x, minlength=256)), (ints(0, 256, (1 << 20,)),)),
        ("cholesky", some(lambda x: torch.linalg.cholesky(x @ x.transpose(-1, -2) + 64 * torch.eye(32, device=x.device))),
         (r(1024, 32, 32),)),
        ("inverse", some(torch.linalg.inv), (r(1024, 16, 16),)),
        ("solve", some(torch.linalg.solve), (r(1024, 16, 16), r(1024, 16, 4))),
        ("det", some(torch.linalg.det), (r(1024, 16, 16),)),
        ("inverse 256", some(torch.linalg.inv), (r(4, 256, 256),)),
        ("solve 512", some(torch.linalg.solve), (r(512, 512), r(512, 32))),
        ("cholesky 256", some(lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(256, device=x.device))), (r(4, 256, 256),)),
        ("triangular solve", some(lambda a, b: torch.linalg.solve_triangular(a, b, upper=False)), (r(4, 256, 256), r(4, 256, 64))),
        ("searchsorted rows", some(lambda a, x: x * torch.searchsorted(a, x.detach())), (r(512, 1024).sort(-1)[0], r(512, 1024))),
        ("stack slices", some(lambda x: torch.stack([x[:, i] for i in range(0, 64, 2)], 1)), (r(64, 64, 1024),)),
        ("linear gru scan", some(lambda a, x: torch.cumsum(x / torch.cumprod(a.sigmoid(), 1), 1)), (r(8, 256, 512), r(8, 256, 512))),
    ]:
        add(name, call, *given)
    return found


def sessions(call: Any, inputs: tuple[Any, ...], args: argparse.Namespace) -> list[tuple[str, Any]]:
    """(kind of graph, session) of a call and, unless --infer, of its backward pass."""
    torch._dynamo.reset()
    compiler = Predicting(args.target)
    whole = {"bf16": torch.bfloat16, "f16": torch.float16}.get(args.dtype)
    if isinstance(call, nn.Module):
        call = call.train(not args.infer)
        for m in call.modules():
            m.training = m.training and (not isinstance(m, nn.modules.dropout._DropoutNd) or args.dropout)
        call = call if whole is None else call.to(whole)
    moved = []
    for x in inputs:
        x = x.to(whole) if whole is not None and x.is_floating_point() else x
        moved.append(x.detach().requires_grad_(x.is_floating_point() and not args.infer))
    with torch.set_grad_enabled(not args.infer), torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "autocast"):
        out = torch.compile(call, backend=compiler)(*moved)
    if not args.infer and isinstance(out, torch.Tensor) and out.requires_grad:
        out.backward(torch.zeros_like(out))
    return compiler.sessions


def show(name: str, kind: str, session: Any, args: argparse.Namespace) -> tuple[float, float]:
    """Prints a graph's slow launches; its predicted time and the sum of its rooflines."""
    rows = describe_launches(session, {})[0]
    total, best = sum(x["predicted_us"] for x in rows), sum(x["predicted_us"] * x["roofline"] for x in rows)
    slow = [x for x in rows if x["roofline"] < 0.25 and x["predicted_us"] * (1 - x["roofline"]) > args.lost]
    host = [x for x in rows if not x["block"] and x["bytes"]]
    if args.all or slow or host or len(rows) > args.launches:
        print(f"{name} {kind}: {total:.0f} us predicted, {best:.0f} at the roofline, {len(rows)} launches", flush=True)
    for x in rows if args.all else [*slow, *host]:
        print(f"    {x['predicted_us']:9.1f} us {100 * x['roofline']:4.0f} %  {x['grid']:6d} x {x['block']:<4d} {x['name'][:60]} "
              f"[{x['kernel'][:40]}] {x['reason']}", flush=True)
    return total, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--outside", action="store_true")
    parser.add_argument("--dtype", choices=("autocast", "bf16", "f16", "f32"), default="autocast")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--infer", action="store_true", help="inference graphs instead of forward and backward graphs")
    parser.add_argument("--dropout", action="store_true")
    parser.add_argument("--lost", type=float, default=10.0, help="microseconds a launch must lose to be shown")
    parser.add_argument("--launches", type=int, default=12, help="graphs with more launches are shown (of layers)")
    parser.add_argument("--all", action="store_true", help="show every launch")
    parser.add_argument("--depth", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    attention.SAVING = ("cpu",)
    if args.outside:
        from benchmarks.outside import models as outside

        cases: Mapping[str, Build] = outside(True)
    elif args.models:
        from benchmarks.zoo import models

        cases, args.launches = models(True, args.depth), 9999
    else:
        cases = layers()
    table = []
    for name, build in cases.items():
        if args.words and not any(w in name for w in args.words):
            continue
        try:
            call, inputs = build()
            for kind, session in sessions(call, inputs, args):
                table.append((name, kind, *show(name, kind, session, args)))
        except Exception as e:
            print(f"{name}: {type(e).__name__}: {str(e)[:300]}", flush=True)
    table.sort(key=lambda x: x[3] - x[2])
    print(f"\n{'lost us':>10s} {'predicted':>10s} {'share':>6s}  (of {len(table)} graphs)")
    for name, kind, total, best in table[:40]:
        print(f"{total - best:10.0f} {total:10.0f} {100 * best / max(total, 1e-9):5.0f} %  {name} {kind}")


if __name__ == "__main__":
    main()
