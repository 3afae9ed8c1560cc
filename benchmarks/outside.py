"""Models of kinds that nobody tuned for, beside the zoo: plain PyTorch, random weights. `benchmarks/zoo.py --outside` runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Build = Callable[[], tuple[nn.Module, tuple[Any, ...]]]


class SwinBlock(nn.Module):
    """Attention inside 7 x 7 windows, every second block shifted, with a learned bias by relative place."""

    def __init__(self, d: int, heads: int, shift: int, side: int, w: int = 7) -> None:
        super().__init__()
        self.heads, self.shift, self.w = heads, shift, w
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.table = nn.Parameter(torch.randn((2 * w - 1) ** 2, heads) * 0.1)
        at = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
        off = at[:, :, None] - at[:, None, :] + w - 1
        self.register_buffer("index", off[0] * (2 * w - 1) + off[1])
        kind = torch.zeros(side, side)
        for i, rows in enumerate((slice(0, -w), slice(-w, -shift), slice(-shift, None)) if shift else ()):
            for j, columns in enumerate((slice(0, -w), slice(-w, -shift), slice(-shift, None))):
                kind[rows, columns] = 3 * i + j
        kinds = kind.reshape(side // w, w, side // w, w).transpose(1, 2).reshape(-1, w * w)
        self.register_buffer("mask", (kinds[:, None, :] != kinds[:, :, None]) * -100.0)

    def forward(self, x: Any) -> Any:
        b, h, s, d = x.shape
        w, y = self.w, self.norm1(x)
        y = torch.roll(y, (-self.shift, -self.shift), (1, 2)) if self.shift else y
        y = y.reshape(b, h // w, w, s // w, w, d).transpose(2, 3).reshape(-1, w * w, d)
        q, k, v = self.qkv(y).reshape(-1, w * w, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.reshape(-1)].reshape(w * w, w * w, self.heads).permute(2, 0, 1)
        scores = q * (d // self.heads) ** -0.5 @ k.transpose(-2, -1) + bias
        if self.shift:
            scores = (scores.reshape(b, -1, self.heads, w * w, w * w) + self.mask[:, None]).reshape(scores.shape)
        y = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, w * w, d))
        y = y.reshape(b, h // w, s // w, w, w, d).transpose(2, 3).reshape(b, h, s, d)
        x = x + (torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Swin(nn.Module):
    def __init__(self, d: int = 96) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.first = nn.Sequential(SwinBlock(d, 3, 0, 56), SwinBlock(d, 3, 3, 56))
        self.merge = nn.Linear(4 * d, 2 * d, bias=False)
        self.second = nn.Sequential(SwinBlock(2 * d, 6, 0, 28), SwinBlock(2 * d, 6, 3, 28))
        self.head = nn.Linear(2 * d, 1000)

    def forward(self, x: Any) -> Any:
        x = self.first(self.patch(x).permute(0, 2, 3, 1))
        x = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)
        return self.head(self.second(self.merge(x)).mean((1, 2)))


class ConvNeXt(nn.Module):
    """Depthwise 7 x 7 convolutions, norms over channels, and a scale for each channel."""

    class Block(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.spread, self.norm = nn.Conv2d(d, d, 7, padding=3, groups=d), nn.LayerNorm(d)
            self.up, self.down, self.scale = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Parameter(torch.ones(d) * 0.1)

        def forward(self, x: Any) -> Any:
            y = self.norm(self.spread(x).permute(0, 2, 3, 1))
            return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 96, 4, 4)
        self.first = nn.Sequential(*(self.Block(96) for _ in range(3)))
        self.step = nn.Conv2d(96, 192, 2, 2)
        self.second = nn.Sequential(*(self.Block(192) for _ in range(3)))

    def forward(self, x: Any) -> Any:
        return self.second(self.step(self.first(self.stem(x)))).mean((2, 3))


class Queries(nn.Module):
    """DETR's decoder: 100 learned queries look at each other and at an image's features."""

    def __init__(self, d: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.input, self.queries = nn.Conv2d(512, d, 1), nn.Parameter(torch.randn(100, d))
        layer = nn.TransformerDecoderLayer(d, 8, 1024, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, layers)
        self.classes, self.boxes = nn.Linear(d, 92), nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 4))

    def forward(self, x: Any) -> Any:
        memory = self.input(x).flatten(2).transpose(1, 2)
        y = self.decoder(self.queries.expand(x.shape[0], -1, -1), memory)
        return torch.cat([self.classes(y), self.boxes(y).sigmoid()], -1)


class WaveNet(nn.Module):
    """Causal convolutions of growing dilation whose halves gate each other."""

    def __init__(self, d: int = 64, layers: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, d, 1)
        self.gated = nn.ModuleList(nn.Conv1d(d, 2 * d, 2, dilation=2 ** (i % 8)) for i in range(layers))
        self.out = nn.ModuleList(nn.Conv1d(d, d, 1) for _ in range(layers))
        self.skip = nn.ModuleList(nn.Conv1d(d, 128, 1) for _ in range(layers))
        self.last = nn.Conv1d(128, 256, 1)

    def forward(self, x: Any) -> Any:
        x, total = self.first(x), 0.0
        for i, (gated, out, skip) in enumerate(zip(self.gated, self.out, self.skip, strict=True)):
            a, b = gated(F.pad(x, (2 ** (i % 8), 0))).chunk(2, 1)
            y = a.tanh() * b.sigmoid()
            total = total + skip(y)
            x = x + out(y)
        return self.last(F.relu(total))


class Vit(nn.Module):
    """Heads of 80 numbers, as in the largest vision transformers."""

    def __init__(self, d: int = 640, heads: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.patch, self.place = nn.Conv2d(3, d, 14, 14), nn.Parameter(torch.randn(1, 257, d) * 0.02)
        self.first = nn.Parameter(torch.randn(1, 1, d))
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers, self.norm = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.norm(self.layers(x))[:, 0]


class Mixer(nn.Module):
    """Products along tokens and along channels in turn."""

    class Block(nn.Module):
        def __init__(self, d: int, tokens: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.tokens = nn.Sequential(nn.Linear(tokens, 256), nn.GELU(), nn.Linear(256, tokens))
            self.channels = nn.Sequential(nn.Linear(d, 2048), nn.GELU(), nn.Linear(2048, d))

        def forward(self, x: Any) -> Any:
            x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm2(x))

    def __init__(self, d: int = 512, layers: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, d, 16, 16)
        self.blocks, self.norm = nn.Sequential(*(self.Block(d, 196) for _ in range(layers))), nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        return self.norm(self.blocks(self.patch(x).flatten(2).transpose(1, 2))).mean(1)


class Perceiver(nn.Module):
    """A few latents read a long row of bytes once, then each other."""

    def __init__(self, d: int = 512, latents: int = 256) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(262, 256), nn.Parameter(torch.randn(4096, 256) * 0.02)
        self.latents = nn.Parameter(torch.randn(latents, d))
        self.read = nn.MultiheadAttention(d, 8, kdim=256, vdim=256, batch_first=True)
        layer = nn.TransformerEncoderLayer(d, 8, d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.inner = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids) + self.place
        y = self.latents.expand(ids.shape[0], -1, -1)
        return self.inner(y + self.read(y, x, x, need_weights=False)[0]).mean(1)


class Nested(nn.Module):
    """U-Net++: every level is resized bilinearly and joined with all before it."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        n = len(widths)
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
        self.down = nn.ModuleList(block(3 if i == 0 else widths[i - 1], w) for i, w in enumerate(widths))
        self.up = nn.ModuleDict({f"{i}_{j}": block(widths[i] * j + widths[i + 1], widths[i]) for j in range(1, n) for i in range(n - j)})
        self.n, self.head = n, nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Any) -> Any:
        known = {}
        for i, block in enumerate(self.down):
            x = known[i, 0] = block(x if i == 0 else F.max_pool2d(x, 2))
        for j in range(1, self.n):
            for i in range(self.n - j):
                up = F.interpolate(known[i + 1, j - 1], scale_factor=2, mode="bilinear", align_corners=True)
                known[i, j] = self.up[f"{i}_{j}"](torch.cat([known[i, k] for k in range(j)] + [up], 1))
        return self.head(known[0, self.n - 1])


class Dlrm(nn.Module):
    """Bags of embeddings, products of all pairs of them, and layers before and behind."""

    def __init__(self, tables: int = 26, d: int = 64) -> None:
        super().__init__()
        mlp = lambda *w: nn.Sequential(*(m for a, b in zip(w, w[1:], strict=False) for m in (nn.Linear(a, b), nn.ReLU())))
        self.tables = nn.ModuleList(nn.Embedding(10000, d) for _ in range(tables))
        self.low, self.high, self.last = mlp(13, 512, 256, d), mlp(d + tables * (tables + 1) // 2, 512, 256), nn.Linear(256, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, x: Any, ids: Any) -> Any:
        x = self.low(x)
        all_ = torch.stack([x] + [t(ids[:, i]) for i, t in enumerate(self.tables)], 1)
        products = all_ @ all_.transpose(1, 2)
        return self.last(self.high(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1)))


class Deformable(nn.Module):
    """Features read at places that the queries choose (deformable attention over one level)."""

    def __init__(self, d: int = 256, heads: int = 8, points: int = 4) -> None:
        super().__init__()
        self.heads, self.points = heads, points
        self.offset, self.weight = nn.Linear(d, heads * points * 2), nn.Linear(d, heads * points)
        self.value, self.out = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Any, query: Any) -> Any:
        (b, c, h, w), n = x.shape, query.shape[1]
        value = self.value(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(b * self.heads, c // self.heads, h, w)
        grid = self.offset(query).reshape(b, n, self.heads, self.points, 2).tanh().transpose(1, 2).reshape(-1, n, self.points, 2)
        weight = self.weight(query).reshape(b, n, self.heads, self.points).softmax(-1).transpose(1, 2).reshape(b * self.heads, 1, n, -1)
        found = F.grid_sample(value, grid, align_corners=False)
        return self.out((found * weight).sum(-1).reshape(b, c, n).transpose(1, 2))


class TimeMix(nn.Module):
    """RWKV's recurrence over time, written as a loop, between projections."""

    def __init__(self, d: int = 512) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(d), nn.Parameter(torch.rand(3, d))
        self.key, self.value, self.gate, self.out = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.decay, self.first = nn.Parameter(torch.rand(d)), nn.Parameter(torch.rand(d))

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        before = F.pad(y, (0, 0, 1, -1))
        k, v, r = (f(y * m + before * (1 - m)) for f, m in zip((self.key, self.value, self.gate), self.mix, strict=True))
        top = bottom = torch.zeros_like(k[:, 0])
        outs = []
        for t in range(x.shape[1]):
            e = (self.first + k[:, t]).exp()
            outs.append((top + e * v[:, t]) / (bottom + e))
            keep, e = (-self.decay.exp()).exp(), k[:, t].exp()
            top, bottom = keep * top + e * v[:, t], keep * bottom + e
        return x + self.out(torch.stack(outs, 1) * r.sigmoid())


class Messages(nn.Module):
    """Sums, means and maxima of messages over the edges of a graph."""

    def __init__(self, d: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(32, d)
        self.message = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(layers))
        self.update = nn.ModuleList(nn.Linear(3 * d, d) for _ in range(layers))

    def forward(self, x: Any, source: Any, target: Any) -> Any:
        x = self.first(x)
        for message, update in zip(self.message, self.update, strict=True):
            m = F.relu(message(torch.cat([x[source], x[target]], -1)))
            total = torch.zeros_like(x).index_add(0, target, m)
            count = torch.zeros_like(x[:, :1]).index_add(0, target, torch.ones_like(m[:, :1]))
            x = x + F.relu(update(torch.cat([x, total, total / count.clamp(min=1)], -1)))
        return x


def models(large: bool) -> dict[str, Build]:
    """name -> () -> (module, inputs); `large` is for GPUs."""
    import transformers as T

    from benchmarks import further
    from benchmarks.zoo import First

    size = lambda small, big: big if large else small
    image = lambda n: (torch.randn(size(1, n), 3, 224, 224),)
    ids = lambda b, s: (torch.randint(0, 1000, (b, s)),)
    t5 = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 4, "num_heads": 8, "vocab_size": 16000, "use_cache": False}
    mixtral = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
               "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 16000, "use_cache": False}
    nodes, edges = size(2000, 50000), size(16000, 400000)
    small = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    deberta = {**small, "num_hidden_layers": 3, "vocab_size": 1000, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
               "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    whisper = {"d_model": 384, "encoder_layers": 2, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536}
    yolos = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 768, "image_size": [320, 320],
             "num_detection_tokens": 50}
    regnet = {"embedding_size": 32, "hidden_sizes": [48, 120, 336, 888], "depths": [1, 2, 4, 1], "groups_width": 24}

    def spread(model: nn.Module, n: int = 224) -> tuple[nn.Module, tuple[Any, ...]]:
        """Batch norms with statistics of their own: the activations of an untrained network would vanish."""
        from benchmarks.quantized import spread_norms

        spread_norms(model, lambda: torch.randn(1, 3, n, n))
        return First(model), (torch.randn(size(1, 16), 3, n, n),)

    return {
        "hf regnet": lambda: spread(T.RegNetModel(T.RegNetConfig(**regnet))),
        "hf convnextv2": lambda: spread(T.ConvNextV2Model(T.ConvNextV2Config(depths=[2, 2, 3, 2]))),
        "hf mobilenetv1": lambda: spread(T.MobileNetV1Model(T.MobileNetV1Config())),
        "hf mobilenetv2": lambda: spread(T.MobileNetV2Model(T.MobileNetV2Config())),
        "hf swin": lambda: spread(T.SwinModel(T.SwinConfig(depths=[2, 2, 2, 2]))),
        "hf segformer": lambda: spread(T.SegformerModel(T.SegformerConfig()), 256),
        "hf yolos": lambda: spread(T.YolosModel(T.YolosConfig(**yolos)), 320),
        "hf clip vision": lambda: spread(T.CLIPVisionModel(T.CLIPVisionConfig(num_hidden_layers=3))),
        "hf whisper encoder": lambda: (First(T.models.whisper.modeling_whisper.WhisperEncoder(T.WhisperConfig(**whisper))),
                                       (torch.randn(size(1, 4), 80, 3000),)),
        "hf t5 encoder": lambda: (First(T.T5EncoderModel(T.T5Config(num_layers=3))), ids(size(1, 16), 128)),
        "hf deberta": lambda: (First(T.DebertaV2Model(T.DebertaV2Config(**deberta))), ids(size(1, 16), 128)),
        "swin": lambda: (Swin(), image(32)),
        "convnext": lambda: (ConvNeXt(), image(32)),
        "detr decoder": lambda: (Queries(), (torch.randn(size(1, 16), 512, 25, 34),)),
        "t5 encoder": lambda: (First(T.T5EncoderModel(T.T5Config(**t5))), ids(size(1, 16), 512)),
        "wavenet": lambda: (WaveNet(), (torch.randn(size(1, 8), 1, 8192),)),
        "vit head 80": lambda: (Vit(), image(16)),
        "mixer": lambda: (Mixer(), image(64)),
        "perceiver": lambda: (Perceiver(), (torch.randint(0, 262, (size(1, 8), 4096)),)),
        "unet++": lambda: (Nested(), (torch.randn(size(1, 8), 3, 256, 256),)),
        "dlrm": lambda: (Dlrm(), (torch.randn(size(64, 4096), 13), torch.randint(0, 10000, (size(64, 4096), 26)))),
        "mixtral": lambda: (First(T.MixtralForCausalLM(T.MixtralConfig(**mixtral)), use_cache=False), ids(size(1, 4), 512)),
        "deformable": lambda: (Deformable(), (torch.randn(size(1, 16), 256, 64, 64), torch.randn(size(1, 16), 900, 256))),
        "rwkv": lambda: (TimeMix(), (torch.randn(size(1, 16), 128, 512),)),
        "messages": lambda: (Messages(), (torch.randn(nodes, 32), torch.randint(0, nodes, (edges,)), torch.randint(0, nodes, (edges,)))),
        **further.models(large),
    }
