"""Models of still other kinds, which no kernel was made for: plain PyTorch, random weights. `benchmarks/zoo.py --outside` runs them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Build = Callable[[], tuple[nn.Module, tuple[Any, ...]]]


def block(c: int, out: int, k: int = 3, step: int = 1, groups: int = 1, act: type[nn.Module] = nn.ReLU, dilation: int = 1) -> nn.Sequential:
    pad = dilation * (k // 2)
    return nn.Sequential(nn.Conv2d(c, out, k, step, pad, dilation, groups, bias=False), nn.BatchNorm2d(out), act())


class Cosine(nn.Module):
    """Swin v2: windows whose scores are cosines with a learned temperature, a bias from an MLP over places, norms behind the branches."""

    def __init__(self, d: int = 96, heads: int = 3, w: int = 8) -> None:
        super().__init__()
        self.heads, self.w = heads, w
        self.qkv, self.out, self.norm1, self.norm2 = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.scale = nn.Parameter(torch.full((heads, 1, 1), 2.3))
        self.bias = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, heads, bias=False))
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        at = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
        self.register_buffer("off", (at[:, :, None] - at[:, None, :]).permute(1, 2, 0).float() / w)

    def forward(self, x: Any) -> Any:
        b, h, s, d = x.shape
        w = self.w
        y = x.reshape(b, h // w, w, s // w, w, d).transpose(2, 3).reshape(-1, w * w, d)
        q, k, v = self.qkv(y).reshape(-1, w * w, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.scale.clamp(max=4.6).exp()
        scores = scores + 16 * self.bias(self.off).permute(2, 0, 1).sigmoid()
        y = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, w * w, d))
        x = x + self.norm1(y.reshape(b, h // w, s // w, w, w, d).transpose(2, 3).reshape(b, h, s, d))
        return x + self.norm2(self.mlp(x))


class SwinV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.blocks = nn.Conv2d(3, 96, 4, 4), nn.Sequential(Cosine(), Cosine(), Cosine())

    def forward(self, x: Any) -> Any:
        return self.blocks(self.patch(x).permute(0, 2, 3, 1)).mean((1, 2))


class Pyramid(nn.Module):
    """PSPNet: means over 1, 2, 3 and 6 bins are resized and joined with the features."""

    def __init__(self, c: int = 256) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(3, 64, 3, 2), block(64, 128, 3, 2), block(128, c, 3, 2), block(c, c, dilation=2))
        self.bins = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(n), block(c, c // 4, 1)) for n in (1, 2, 3, 6))
        self.head = nn.Sequential(block(2 * c, c), nn.Conv2d(c, 21, 1))

    def forward(self, x: Any) -> Any:
        y = self.stem(x)
        found = [y, *(F.interpolate(b(y), y.shape[2:], mode="bilinear", align_corners=False) for b in self.bins)]
        return F.interpolate(self.head(torch.cat(found, 1)), x.shape[2:], mode="bilinear", align_corners=False)


class TasNet(nn.Module):
    """Conv-TasNet: a learned filter bank, dilated depthwise convolutions with norms over all of a row, masks, and the way back."""

    def __init__(self, n: int = 256, c: int = 128, h: int = 256, speakers: int = 2) -> None:
        super().__init__()
        self.speakers = speakers
        self.encode, self.decode = nn.Conv1d(1, n, 16, 8, bias=False), nn.ConvTranspose1d(n, 1, 16, 8, bias=False)
        self.norm, self.into, self.mask = nn.GroupNorm(1, n), nn.Conv1d(n, c, 1), nn.Conv1d(c, n * speakers, 1)
        self.blocks = nn.ModuleList(nn.Sequential(
            nn.Conv1d(c, h, 1), nn.PReLU(), nn.GroupNorm(1, h), nn.Conv1d(h, h, 3, padding=2**i, dilation=2**i, groups=h), nn.PReLU(),
            nn.GroupNorm(1, h), nn.Conv1d(h, c, 1)) for i in range(6))

    def forward(self, x: Any) -> Any:
        y = self.encode(x).relu()
        z = self.into(self.norm(y))
        for layer in self.blocks:
            z = z + layer(z)
        masks = self.mask(z).unflatten(1, (self.speakers, -1)).sigmoid()
        return self.decode((masks * y[:, None]).flatten(0, 1)).unflatten(0, (-1, self.speakers))


class Tcn(nn.Module):
    """A temporal convolutional network: causal by cutting what padding added."""

    def __init__(self, c: int = 100, layers: int = 6) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, c), nn.Linear(c, 1000)
        self.convs = nn.ModuleList(nn.ModuleList(nn.Conv1d(c, c, 3, padding=2 * 2**i,
            dilation=2**i) for _ in range(2)) for i in range(layers))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids).transpose(1, 2)
        for pair in self.convs:
            y = x
            for conv in pair:
                y = conv(y)[..., : -conv.padding[0]].relu()
            x = (x + y).relu()
        return self.head(x.transpose(1, 2))


class Tagger(nn.Module):
    """BiLSTM-CRF: scores of tags from an LSTM of two directions, and the logsumexp of all paths."""

    def __init__(self, tags: int = 17, d: int = 128) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, 100), nn.Linear(2 * d, tags)
        self.lstm = nn.LSTM(100, d, bidirectional=True, batch_first=True)
        self.steps = nn.Parameter(torch.randn(tags, tags) * 0.1)

    def forward(self, ids: Any) -> Any:
        scores = self.head(self.lstm(self.embed(ids))[0])
        alpha = scores[:, 0]
        for t in range(1, ids.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.steps, 1) + scores[:, t]
        return torch.logsumexp(alpha, 1), scores.argmax(-1).to(scores.dtype)


class Sage(nn.Module):
    """GraphSAGE: means over a fixed number of sampled neighbours, two hops, unit rows."""

    def __init__(self, d: int = 128) -> None:
        super().__init__()
        self.own, self.near = nn.ModuleList(nn.Linear(i, d) for i in (100, d)), nn.ModuleList(nn.Linear(i, d) for i in (100, d))

    def forward(self, x: Any, neighbours: Any) -> Any:
        for own, near in zip(self.own, self.near, strict=True):
            x = F.normalize(F.relu(own(x) + near(x[neighbours].mean(1))), dim=-1)
        return x


class Nerf(nn.Module):
    """A radiance field with waves of the place, a skip, and the sum along each ray."""

    def __init__(self, d: int = 128) -> None:
        super().__init__()
        self.low = nn.Sequential(nn.Linear(63, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU())
        self.high = nn.Sequential(nn.Linear(d + 63, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU())
        self.density, self.color = nn.Linear(d, 1), nn.Sequential(nn.Linear(d, d // 2), nn.ReLU(), nn.Linear(d // 2, 3))
        self.register_buffer("bands", 2.0 ** torch.arange(10))

    def forward(self, origin: Any, way: Any, depth: Any) -> Any:
        at = origin[:, None] + way[:, None] * depth[..., None]
        waves = (at[..., None] * self.bands).flatten(-2)
        x = torch.cat([at, waves.sin(), waves.cos()], -1)
        y = self.high(torch.cat([self.low(x), x], -1))
        gap = F.pad(depth[:, 1:] - depth[:, :-1], (0, 1), value=1e3)
        alpha = 1 - torch.exp(-F.relu(self.density(y)[..., 0]) * gap)
        light = torch.cumprod(F.pad(1 - alpha + 1e-10, (1, -1), value=1.0), -1)
        weight = alpha * light
        return (weight[..., None] * self.color(y).sigmoid()).sum(1), (weight * depth).sum(1)


class Linear(nn.Module):
    """EfficientViT: linear attention by ReLU features over three scales of depthwise sums."""

    def __init__(self, c: int = 64, d: int = 16) -> None:
        super().__init__()
        self.d, self.qkv, self.out = d, nn.Conv2d(c, 3 * c, 1, bias=False), nn.Sequential(nn.Conv2d(2 * c, c, 1, bias=False),
            nn.BatchNorm2d(c))
        self.near = nn.Sequential(nn.Conv2d(3 * c, 3 * c, 5, padding=2, groups=3 * c, bias=False), nn.Conv2d(3 * c, 3 * c, 1,
            groups=3 * c // d))
        self.mlp = nn.Sequential(block(c, 4 * c, 1, act=nn.Hardswish), block(4 * c, 4 * c, 3, groups=4 * c, act=nn.Hardswish),
                                 nn.Conv2d(4 * c, c, 1, bias=False), nn.BatchNorm2d(c))

    def forward(self, x: Any) -> Any:
        b, _, h, w = x.shape
        y = self.qkv(x)
        q, k, v = torch.cat([y, self.near(y)], 1).reshape(b, -1, 3 * self.d, h * w).chunk(3, 2)
        q, k, v = q.relu(), k.relu(), F.pad(v, (0, 0, 0, 1), value=1.0)
        found = v @ k.transpose(-1, -2) @ q
        found = found[:, :, :-1] / (found[:, :, -1:] + 1e-6)
        x = x + self.out(found.reshape(b, -1, h, w))
        return x + self.mlp(x)


def efficient_vit() -> nn.Module:
    return nn.Sequential(block(3, 16, 3, 2, act=nn.Hardswish), block(16, 32, 3, 2, act=nn.Hardswish), block(32, 64, 3, 2, act=nn.Hardswish),
                         Linear(), Linear(), block(64, 128, 3, 2, act=nn.Hardswish), Linear(128), Linear(128), nn.AdaptiveAvgPool2d(1),
                             nn.Flatten())


class Meta(nn.Module):
    """EfficientFormer: pooling blocks on images, then attention blocks with a learned bias on 49 tokens."""

    class Pool(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.pool, self.scale = nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.Parameter(torch.rand(c, 1, 1))
            self.mlp = nn.Sequential(block(c, 4 * c, 1, act=nn.GELU), nn.Conv2d(4 * c, c, 1), nn.BatchNorm2d(c))

        def forward(self, x: Any) -> Any:
            x = x + self.scale * (self.pool(x) - x)
            return x + self.scale * self.mlp(x)

    class Attend(nn.Module):
        def __init__(self, d: int, heads: int = 8, key: int = 32) -> None:
            super().__init__()
            self.heads, self.key, self.norm1, self.norm2 = heads, key, nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.out = nn.Linear(d, heads * 6 * key), nn.Linear(heads * 4 * key, d)
            self.bias, self.mlp = nn.Parameter(torch.randn(heads, 49, 49)), nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(),
                nn.Linear(4 * d, d))

        def forward(self, x: Any) -> Any:
            b, n, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).reshape(b, n, self.heads, -1).transpose(1, 2).split([self.key, self.key, 4 * self.key], -1)
            y = (q @ k.transpose(-1, -2) * self.key**-0.5 + self.bias).softmax(-1) @ v
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.mlp(self.norm2(x))

    def __init__(self) -> None:
        super().__init__()
        stages: list[nn.Module] = [block(3, 24, 3, 2), block(24, 48, 3, 2)]
        for c, out in ((48, 96), (96, 224), (224, 448)):
            stages += [self.Pool(c), self.Pool(c), nn.Conv2d(c, out, 3, 2, 1), nn.BatchNorm2d(out)]
        self.stages, self.last = nn.Sequential(*stages), nn.Sequential(self.Attend(448), self.Attend(448))

    def forward(self, x: Any) -> Any:
        return self.last(self.stages(x).flatten(2).transpose(1, 2)).mean(1)


class Fourier(nn.Module):
    """FNet: the real part of a Fourier transform over tokens and channels in place of attention."""

    def __init__(self, d: int = 384, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * layers))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(layers))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for i, mlp in enumerate(self.mlps):
            x = self.norms[2 * i](x + torch.fft.fft2(x).real)
            x = self.norms[2 * i + 1](x + mlp(x))
        return x


class Hyena(nn.Module):
    """Long convolutions by Fourier transforms between gates."""

    def __init__(self, d: int = 256, length: int = 1024, layers: int = 3) -> None:
        super().__init__()
        self.into, self.out = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(layers)), nn.ModuleList(nn.Linear(d,
            d) for _ in range(layers))
        self.short = nn.ModuleList(nn.Conv1d(3 * d, 3 * d, 3, padding=2, groups=3 * d) for _ in range(layers))
        self.filters = nn.ParameterList(torch.randn(d, length) * 0.02 for _ in range(layers))

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        for into, short, filter_, out in zip(self.into, self.short, self.filters, self.out, strict=True):
            a, b, v = short(into(x).transpose(1, 2))[..., :n].chunk(3, 1)
            y = torch.fft.irfft(torch.fft.rfft(v * b, 2 * n) * torch.fft.rfft(filter_, 2 * n), 2 * n)[..., :n]
            x = x + out((y * a).transpose(1, 2))
        return x


class Points(nn.Module):
    """PointNet++: features of the 16 nearest points are gathered, mapped and their maxima taken."""

    def __init__(self) -> None:
        super().__init__()
        mlp = lambda *w: nn.Sequential(*(m for a, b in zip(w, w[1:], strict=False) for m in (nn.Linear(a, b), nn.ReLU())))
        self.first, self.second, self.head = mlp(6, 32, 64), mlp(67, 128, 256), nn.Linear(256, 40)

    def forward(self, x: Any) -> Any:
        near = torch.cdist(x, x).topk(16, largest=False).indices
        at = x[near]
        y = self.first(torch.cat([at - x[:, None], at], -1)).amax(1)
        z = self.second(torch.cat([at - x[:, None], y[near]], -1)).amax(1)
        return self.head(z.amax(0))


class Upscale(nn.Module):
    """EDSR: residual blocks without norms, then pixel shuffles."""

    def __init__(self, c: int = 48, blocks: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 3, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, c, 3,
            padding=1)) for _ in range(blocks))
        self.up = nn.Sequential(nn.Conv2d(c, 4 * c, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(c, 4 * c, 3, padding=1),
            nn.PixelShuffle(2))

    def forward(self, x: Any) -> Any:
        x = y = self.first(x)
        for layer in self.blocks:
            y = y + 0.1 * layer(y)
        return self.last(self.up(x + y))


class Style(nn.Module):
    """StyleGAN2: weights modulated by a style for each sample, noise, bilinear upsampling and leaky rectifiers."""

    def __init__(self, c: int = 64, steps: int = 3) -> None:
        super().__init__()
        self.map = nn.Sequential(nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2))
        self.start = nn.Parameter(torch.randn(1, c, 16, 16))
        self.styles = nn.ModuleList(nn.Linear(128, c) for _ in range(steps))
        self.weights = nn.ParameterList(torch.randn(c, c, 3, 3) * 0.1 for _ in range(steps))
        self.rgb = nn.Conv2d(c, 3, 1)

    def forward(self, z: Any) -> Any:
        w = self.map(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))
        x = self.start.expand(z.shape[0], -1, -1, -1)
        for style, weight in zip(self.styles, self.weights, strict=True):
            b, c, h, s = x.shape
            mod = weight * (style(w) + 1)[:, None, :, None, None]
            mod = mod * torch.rsqrt(mod.square().sum((2, 3, 4), keepdim=True) + 1e-8)
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False).reshape(1, b * c, 2 * h, 2 * s)
            x = F.leaky_relu(F.conv2d(x, mod.flatten(0, 1), padding=1, groups=b).reshape(b, c, 2 * h, 2 * s), 0.2)
        return self.rgb(x)


class Naf(nn.Module):
    """NAFNet: norms over the channels of each pixel, gates by halves, a scale by the mean."""

    class Norm(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.rand(1, c, 1, 1)), nn.Parameter(torch.rand(1, c, 1, 1))

        def forward(self, x: Any) -> Any:
            mean = x.mean(1, keepdim=True)
            return (x - mean) / ((x - mean).pow(2).mean(1, keepdim=True) + 1e-6).sqrt() * self.weight + self.bias

    class Block(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = Naf.Norm(c), Naf.Norm(c)
            self.into, self.near, self.out = nn.Conv2d(c, 2 * c, 1), nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c), nn.Conv2d(c, c, 1)
            self.scale, self.up, self.down = nn.Conv2d(c, c, 1), nn.Conv2d(c, 2 * c, 1), nn.Conv2d(c, c, 1)

        def forward(self, x: Any) -> Any:
            a, b = self.near(self.into(self.norm1(x))).chunk(2, 1)
            y = a * b
            x = x + self.out(y * self.scale(y.mean((2, 3), keepdim=True)))
            a, b = self.up(self.norm2(x)).chunk(2, 1)
            return x + self.down(a * b)

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 3, 3, padding=1)
        self.high, self.low = nn.Sequential(self.Block(c), self.Block(c)), nn.Sequential(self.Block(2 * c), self.Block(2 * c))
        self.down, self.up = nn.Conv2d(c, 2 * c, 2, 2), nn.Sequential(nn.Conv2d(2 * c, 4 * c, 1, bias=False), nn.PixelShuffle(2))

    def forward(self, x: Any) -> Any:
        y = self.high(self.first(x))
        return x + self.last(y + self.up(self.low(self.down(y))))


class Triangle(nn.Module):
    """AlphaFold's pair update: products over the third corner of a triangle, then attention along rows with a bias from the pairs."""

    def __init__(self, d: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2, self.norm3 = heads, nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.ab, self.gate, self.mixed = nn.Linear(d, 4 * d), nn.Linear(d, d), nn.Linear(d, d)
        self.qkv, self.bias, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, heads, bias=False), nn.Linear(d, d)

    def forward(self, z: Any) -> Any:
        y = self.norm1(z)
        a, b, ga, gb = self.ab(y).chunk(4, -1)
        found = torch.einsum("ikd,jkd->ijd", a * ga.sigmoid(), b * gb.sigmoid())
        z = z + self.mixed(self.norm2(found)) * self.gate(y).sigmoid()
        y = self.norm3(z)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(y).chunk(3, -1))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(y).permute(2, 0, 1)[None].expand(z.shape[0], -1, -1, -1))
        return z + self.out(found.transpose(1, 2).flatten(2))


class Detector(nn.Module):
    """A YOLO head and neck: SPPF, joins of resized levels, boxes as means of distributions over anchors."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        act = nn.SiLU
        self.stem = nn.Sequential(block(3, c, 3, 2, act=act), block(c, 2 * c, 3, 2, act=act), block(2 * c, 2 * c, act=act), block(2 * c,
            4 * c, 3, 2, act=act))
        self.deep, self.spp = block(4 * c, 8 * c, 3, 2, act=act), block(32 * c // 2, 8 * c, 1, act=act)
        self.pre, self.neck = block(8 * c, 4 * c, 1, act=act), nn.Sequential(block(12 * c, 4 * c, 1, act=act), block(4 * c, 4 * c, act=act))
        self.heads = nn.ModuleList(nn.Sequential(block(i, 64, act=act), nn.Conv2d(64, 64 + 80, 1)) for i in (4 * c, 8 * c))
        self.register_buffer("bins", torch.arange(16.0))

    def forward(self, x: Any) -> Any:
        high = self.stem(x)
        y = self.pre(self.deep(high))
        pools = [y]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        low = self.spp(torch.cat(pools, 1))
        high = self.neck(torch.cat([F.interpolate(low, scale_factor=2.0), high], 1))
        found = torch.cat([head(level).flatten(2) for head, level in zip(self.heads, (high, low), strict=True)], 2)
        boxes, classes = found.split([64, 80], 1)
        sides = (boxes.unflatten(1, (4, 16)).softmax(2) * self.bins[:, None]).sum(2)
        return torch.cat([sides, classes.sigmoid()], 1)


class ConvLstm(nn.Module):
    """A recurrent cell whose gates are convolutions, over frames."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.c, self.gates = c, nn.Conv2d(3 + c, 4 * c, 3, padding=1)

    def forward(self, x: Any) -> Any:
        h = s = torch.zeros(x.shape[0], self.c, *x.shape[3:], dtype=x.dtype, device=x.device)
        for t in range(x.shape[1]):
            i, f, o, g = self.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            s = f.sigmoid() * s + i.sigmoid() * g.tanh()
            h = o.sigmoid() * s.tanh()
        return h


class Large(nn.Module):
    """RepLKNet: depthwise kernels of 31 x 31 between 1 x 1 convolutions."""

    def __init__(self, c: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(3, c, 3, 2), block(c, c, 3, 2, groups=c))
        self.blocks = nn.ModuleList(nn.Sequential(nn.BatchNorm2d(c), block(c, c, 1), block(c, c, 31, groups=c), nn.Conv2d(c, c, 1,
            bias=False),
                                                  nn.BatchNorm2d(c)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for layer in self.blocks:
            x = x + layer(x)
        return x.mean((2, 3))


class Crnn(nn.Module):
    """Text in an image: convolutions that shrink the height, an LSTM of two directions along the width."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(block(1, 64), nn.MaxPool2d(2), block(64, 128), nn.MaxPool2d(2), block(128, 256), block(256, 256),
                                   nn.MaxPool2d((2, 1)), block(256, 256), nn.MaxPool2d((4, 1)))
        self.lstm, self.head = nn.LSTM(256, 128, 2, bidirectional=True, batch_first=True), nn.Linear(256, 97)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(self.convs(x)[:, :, 0].transpose(1, 2))[0]).log_softmax(-1)


class Capsules(nn.Module):
    """Capsules: votes of 1152 capsules for 10, routed by agreement three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 64, 9), nn.Conv2d(64, 256, 9, 2)
        self.vote = nn.Parameter(torch.randn(1152, 10, 8, 16) * 0.1)

    def forward(self, x: Any) -> Any:
        squash = lambda v: v * v.square().sum(-1, keepdim=True) / (1 + v.square().sum(-1, keepdim=True)) * torch.rsqrt(v.square().sum(-1,
            keepdim=True) + 1e-8)
        u = squash(self.second(self.first(x).relu()).reshape(x.shape[0], 1152, 8))
        votes = torch.einsum("bid,ijde->bije", u, self.vote)
        logits = torch.zeros(votes.shape[:3], dtype=x.dtype, device=x.device)
        v = squash(votes.mean(1))
        for _ in range(3):
            v = squash((logits.softmax(2)[..., None] * votes).sum(1))
            logits = logits + (votes * v[:, None]).sum(-1)
        return v


class Splines(nn.Module):
    """KAN: every edge has a spline of its own."""

    def __init__(self, widths: tuple[int, ...] = (64, 64, 10), knots: int = 8) -> None:
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.coefficients = nn.ParameterList(torch.randn(b, a, knots + 3) * 0.1 for a, b in zip(widths, widths[1:], strict=False))
        self.register_buffer("grid", torch.linspace(-2.0, 2.0, knots + 7))

    def forward(self, x: Any) -> Any:
        for base, coefficients in zip(self.base, self.coefficients, strict=True):
            at, g = x[..., None], self.grid
            bases = ((at >= g[:-1]) & (at < g[1:])).to(x.dtype)
            for k in range(1, 4):
                bases = (at - g[: -k - 1]) / (g[k:-1] - g[: -k - 1]) * bases[...,
                    :-1] + (g[k + 1 :] - at) / (g[k + 1 :] - g[1:-k]) * bases[..., 1:]
            x = base(F.silu(x)) + torch.einsum("nik,oik->no", bases, coefficients)
        return x


class Series(nn.Module):
    """PatchTST and N-BEATS: patches of many series through attention, residual blocks of fully connected layers."""

    def __init__(self, d: int = 128) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(16, d), nn.Parameter(torch.randn(42, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 16, 256, dropout=0.0, activation="gelu", batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(42 * d, 96)

    def forward(self, x: Any) -> Any:
        mean, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        y = ((x - mean) / spread).transpose(1, 2).unfold(-1, 16, 8)[:, :, :42]
        y = self.head(self.layers((self.embed(y) + self.place).flatten(0, 1)).flatten(1)).unflatten(0, (x.shape[0], -1))
        return y.transpose(1, 2) * spread + mean


class Flow(nn.Module):
    """RAFT: products of all pairs of places, read around the estimate, and a convolutional GRU that updates it."""

    def __init__(self, c: int = 64, rounds: int = 4) -> None:
        super().__init__()
        self.rounds, self.encode = rounds, nn.Sequential(block(3, 32, 7, 2), block(32, c, 3, 2), block(c, c, 3, 2))
        self.zr, self.q, self.delta = nn.Conv2d(c + 51, 2 * c, 3, padding=1), nn.Conv2d(c + 51, c, 3, padding=1), nn.Conv2d(c, 2, 3,
            padding=1)
        self.c = c
        d = torch.arange(-3.0, 4.0)
        self.register_buffer("around", torch.stack(torch.meshgrid(d, d, indexing="xy"), -1)[None])

    def forward(self, one: Any, two: Any) -> Any:
        a, b = self.encode(one), self.encode(two)
        n, c, h, w = a.shape
        pairs = (a.flatten(2).transpose(1, 2) @ b.flatten(2) / c**0.5).reshape(n * h * w, 1, h, w)
        steps = [torch.arange(k, dtype=a.dtype, device=a.device) for k in (w, h)]
        at = torch.stack(torch.meshgrid(*steps, indexing="xy"), 0)[None]
        flow, state, size = torch.zeros_like(a[:, :2]), a.tanh(), torch.cat([a.new_full((1,), w - 1.0), a.new_full((1,), h - 1.0)])
        for _ in range(self.rounds):
            center = (at + flow).permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2)
            read = F.grid_sample(pairs, 2 * (center + self.around) / size - 1, align_corners=True).reshape(n, h, w, 49).permute(0, 3, 1, 2)
            x = torch.cat([read, flow], 1)
            z, r = self.zr(torch.cat([state, x], 1)).sigmoid().chunk(2, 1)
            q = self.q(torch.cat([r * state, x], 1)).tanh()
            state = (1 - z) * state + z * q
            flow = flow + self.delta(state)
        return flow


def models(large: bool) -> dict[str, Build]:
    """name -> () -> (module, inputs); `large` is for GPUs."""
    import transformers as T

    from benchmarks.zoo import First

    size = lambda small, big: big if large else small
    image = lambda n, side=224, c=3: (torch.randn(size(1, n), c, side, side),)
    ids = lambda b, s: (torch.randint(0, 1000, (b, s)),)
    small = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "vocab_size": 1000}

    class WhisperDecoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = T.WhisperConfig(d_model=384, decoder_layers=3, decoder_attention_heads=6, decoder_ffn_dim=1536, use_cache=False)
            self.model = T.models.whisper.modeling_whisper.WhisperDecoder(config)

        def forward(self, ids: Any, states: Any) -> Any:
            return self.model(ids, encoder_hidden_states=states, use_cache=False)[0]

    def spread(model: nn.Module, *inputs: Any) -> tuple[nn.Module, tuple[Any, ...]]:
        from benchmarks.quantized import spread_norms

        spread_norms(model, lambda: torch.randn_like(inputs[0]))
        return model, inputs

    return {
        "swin v2": lambda: (SwinV2(), image(32, 256)),
        "psp": lambda: spread(Pyramid(), *image(16)),
        "tasnet": lambda: (TasNet(), (torch.randn(size(1, 16), 1, 16000),)),
        "tcn": lambda: (Tcn(), ids(size(1, 16), 512)),
        "tagger": lambda: (Tagger(), ids(size(4, 64), 50)),
        "sage": lambda: (Sage(), (torch.randn(2000, 100), torch.randint(0, 2000, (2000, 16)))),
        "nerf": lambda: (Nerf(), (torch.randn(64, 3), torch.randn(64, 3), torch.rand(64, 64).sort(-1).values * 4)),
        "efficientvit": lambda: spread(efficient_vit(), *image(16)),
        "efficientformer": lambda: spread(Meta(), *image(16)),
        "fnet": lambda: (Fourier(), ids(size(1, 16), 512)),
        "hyena": lambda: (Hyena(), (torch.randn(size(1, 8), 1024, 256),)),
        "points": lambda: (Points(), (torch.randn(1024, 3),)),
        "edsr": lambda: (Upscale(), image(8, 96)),
        "stylegan": lambda: (Style(), (torch.randn(size(2, 16), 128),)),
        "nafnet": lambda: (Naf(), image(8, 128)),
        "triangle": lambda: (Triangle(), (torch.randn(96, 96, 64),)),
        "detector": lambda: spread(Detector(), *image(8, 320)),
        "convlstm": lambda: (ConvLstm(), (torch.randn(size(1, 8), 6, 3, 64, 64),)),
        "replknet": lambda: spread(Large(), *image(8)),
        "crnn": lambda: (Crnn(), (torch.randn(size(1, 16), 1, 32, 160),)),
        "capsules": lambda: (Capsules(), image(16, 28, 1)),
        "kan": lambda: (Splines(), (torch.randn(size(64, 4096), 64),)),
        "patchtst": lambda: (Series(), (torch.randn(size(1, 16), 352, 7),)),
        "raft": lambda: (Flow(), (torch.randn(size(1, 4), 3, 192, 256), torch.randn(size(1, 4), 3, 192, 256))),
        "hf albert": lambda: (First(T.AlbertModel(T.AlbertConfig(**small, num_hidden_layers=4, embedding_size=128))), ids(size(1, 16),
            128)),
        "hf modernbert": lambda: (First(T.ModernBertModel(T.ModernBertConfig(**small, num_hidden_layers=4, pad_token_id=0,
            eos_token_id=1, bos_token_id=2,
                                                                            cls_token_id=3, sep_token_id=4))), ids(size(1, 16), 512)),
        "whisper decoder": lambda: (WhisperDecoder(), (torch.randint(0, 1000, (size(1, 8), 32)), torch.randn(size(1, 8), 1500, 384))),
    }
