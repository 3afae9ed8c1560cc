"""Modules of PyTorch itself with their less common options, losses, and small models of kinds that libraries do not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

Build = Callable[[], tuple[nn.Module, tuple[Any, ...]]]
r, ints = torch.randn, torch.randint


class Call(nn.Module):
    """A function of inputs and perhaps of modules."""

    def __init__(self, f: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.f, self.parts = f, nn.ModuleList(parts)

    def forward(self, *inputs: Any) -> Any:
        return self.f(*self.parts, *inputs)


class SSD(nn.Module):
    """A detector of one stage: boxes and classes from three levels, decoded from anchors, the best kept by scores."""

    def __init__(self) -> None:
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.SiLU())
        self.stem, self.levels = block(3, 16), nn.ModuleList([block(16, 24), block(24, 32), block(32, 48)])
        self.lateral = nn.ModuleList(nn.Conv2d(c, 24, 1) for c in (24, 32, 48))
        self.heads = nn.Conv2d(24, 3 * (4 + 6), 3, padding=1)

    def forward(self, x: Any) -> Any:
        x, seen = self.stem(x), []
        for level in self.levels:
            x = level(x)
            seen.append(x)
        top, found = None, []
        for lateral, x in zip(reversed(self.lateral), reversed(seen), strict=True):
            y = lateral(x)
            top = y if top is None else y + F.interpolate(top, size=y.shape[-2:], mode="nearest")
            b, _, h, w = top.shape
            p = self.heads(top).reshape(b, 3, 10, h, w).permute(0, 3, 4, 1, 2)
            yy, xx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            centre = torch.stack([xx, yy], -1)[None, :, :, None].to(p.dtype) + p[..., :2].sigmoid()
            found.append(torch.cat([centre / w, p[..., 2:4].exp().clamp(max=8.0), p[..., 4:]], -1).reshape(b, -1, 10))
        boxes = torch.cat(found, 1)
        scores = boxes[..., 4:].softmax(-1).amax(-1)
        best = scores.topk(20, 1).indices
        return boxes, boxes.gather(1, best[..., None].expand(-1, -1, 10))


class DeepLab(nn.Module):
    """Atrous pyramid pooling with separable convolutions, a global branch, and a decoder that resizes."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU6())
        self.high = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.Hardswish())
        self.branches = nn.ModuleList(nn.Conv2d(32, 16, 3, padding=d, dilation=d, groups=4) for d in (1, 2, 4))
        self.all, self.join = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 16, 1)), nn.Conv2d(64 + 16, 11, 1)

    def forward(self, x: Any) -> Any:
        low = self.low(x)
        high = self.high(low)
        size = low.shape[-2:]
        parts = [b(high) for b in self.branches] + [self.all(high).expand(-1, -1, *high.shape[-2:])]
        up = F.interpolate(torch.cat(parts, 1), size=size, mode="bilinear", align_corners=False)
        return F.interpolate(self.join(torch.cat([up, low], 1)), size=x.shape[-2:], mode="bicubic", align_corners=True)


class NBeats(nn.Module):
    """Blocks that explain a part of a series and hand on the rest."""

    def __init__(self, n: int = 48, ahead: int = 12) -> None:
        super().__init__()
        self.n, self.blocks = n, nn.ModuleList(nn.Sequential(nn.Linear(n, 64), nn.ReLU(), nn.Linear(64, n + ahead)) for _ in range(4))

    def forward(self, x: Any) -> Any:
        total: Any = 0.0
        for block in self.blocks:
            back, ahead = block(x).split([self.n, block[2].out_features - self.n], -1)
            x, total = x - back, total + ahead
        return total


class Tcn(nn.Module):
    """Causal dilated convolutions with weight norm and channel dropout."""

    def __init__(self, c: int = 24) -> None:
        super().__init__()
        self.layers = nn.ModuleList(parametrizations.weight_norm(nn.Conv1d(c, c, 3, dilation=2**i)) for i in range(4))

    def forward(self, x: Any) -> Any:
        for i, layer in enumerate(self.layers):
            x = x + F.relu(layer(F.pad(x, (2 * 2**i, 0))))
        return x


class Autoformer(nn.Module):
    """Series are decomposed by moving means, and attend to themselves by Fourier transforms."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.q, self.k, self.v, self.mean = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.AvgPool1d(5, 1, 2,
         count_include_pad=False)

    def forward(self, x: Any) -> Any:
        trend = self.mean(x.transpose(1, 2)).transpose(1, 2)
        x = x - trend
        q, k, v = (f(x).transpose(1, 2) for f in (self.q, self.k, self.v))
        score = torch.fft.irfft(torch.fft.rfft(q) * torch.fft.rfft(k).conj(), n=q.shape[-1]).mean(1)
        weight, delay = score.topk(3, -1)
        at = (torch.arange(q.shape[-1]) + delay[..., None]) % q.shape[-1]
        rolled = v[:, None].expand(-1, 3, -1, -1).gather(3, at[:, :, None].expand(-1, -1, v.shape[1], -1))
        return trend + (rolled * weight.softmax(-1)[..., None, None]).sum(1).transpose(1, 2)


class Fno(nn.Module):
    """A layer of a Fourier neural operator: low frequencies are mixed by complex weights."""

    def __init__(self, c: int = 8, modes: int = 6) -> None:
        super().__init__()
        self.modes, self.weight, self.local = modes, nn.Parameter(r(c, c, modes, modes, 2) * 0.1), nn.Conv2d(c, c, 1)

    def forward(self, x: Any) -> Any:
        spectrum, w = torch.fft.rfft2(x), torch.view_as_complex(self.weight)
        mixed = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, : self.modes, : self.modes], w)
        padded = F.pad(mixed, (0, spectrum.shape[-1] - self.modes, 0, spectrum.shape[-2] - self.modes))
        return F.gelu(torch.fft.irfft2(padded, s=x.shape[-2:]) + self.local(x))


class PointNet(nn.Module):
    """Neighbours of points by distance, gathered and pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Sequential(nn.Conv2d(6, 32, 1), nn.BatchNorm2d(32), nn.LeakyReLU(0.2)), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        near = torch.cdist(x, x).topk(8, -1, largest=False).indices
        b = x.shape[0]
        around = x[torch.arange(b)[:, None, None], near]
        edges = torch.cat([around - x[:, :, None], x[:, :, None].expand(-1, -1, 8, -1)], -1)
        return self.b(self.a(edges.permute(0, 3, 1, 2)).amax(-1).amax(-1))


class Capsules(nn.Module):
    """Routing by agreement, three rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = nn.Conv2d(1, 32, 5, 2), nn.Parameter(r(1, 72, 5, 16, 8) * 0.1)

    @staticmethod
    def squash(x: Any) -> Any:
        n = (x * x).sum(-1, keepdim=True)
        return n / (1 + n) * x / (n + 1e-6).sqrt()

    def forward(self, x: Any) -> Any:
        u = self.squash(F.relu(self.first(x))[:, :, :5, :5].reshape(x.shape[0], -1)[:, : 72 * 8].reshape(x.shape[0], 72, 8))
        votes = (self.weight @ u[:, :, None, :, None]).squeeze(-1)
        logits = torch.zeros_like(votes[..., :1])
        for _ in range(3):
            v = self.squash((logits.softmax(2) * votes).sum(1, keepdim=True))
            logits = logits + (votes * v).sum(-1, keepdim=True)
        return v.norm(dim=-1)


class Flow(nn.Module):
    """An affine coupling and an invertible 1x1 convolution: values and log-determinants."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.mix, self.net = nn.Parameter(torch.linalg.qr(r(c, c))[0].contiguous()), nn.Sequential(nn.Conv2d(c // 2, 16, 3, padding=1),
         nn.ReLU(),
                                                                                        nn.Conv2d(16, c, 3, padding=1))

    def forward(self, x: Any) -> Any:
        x = F.conv2d(x, self.mix[:, :, None, None])
        a, b = x.chunk(2, 1)
        shift, scale = self.net(a).chunk(2, 1)
        scale = torch.tanh(scale)
        volume = torch.linalg.slogdet(self.mix).logabsdet * x.shape[-1] * x.shape[-2]
        return torch.cat([a, b * scale.exp() + shift], 1), scale.flatten(1).sum(1) + volume


class Crf(nn.Module):
    """The log-partition of a chain, by a loop over time with log-sum-exp."""

    def __init__(self, tags: int = 7) -> None:
        super().__init__()
        self.emit, self.move = nn.Linear(16, tags), nn.Parameter(r(tags, tags))

    def forward(self, x: Any) -> Any:
        e = self.emit(x)
        a = e[:, 0]
        for t in range(1, x.shape[1]):
            a = torch.logsumexp(a[:, :, None] + self.move, 1) + e[:, t]
        return torch.logsumexp(a, -1)


class Vae(nn.Module):
    """Codes of a codebook by nearest neighbour, straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.codes, self.out = nn.Conv2d(3, 16, 4, 4), nn.Embedding(64, 16), nn.ConvTranspose2d(16, 3, 4, 4)

    def forward(self, x: Any) -> Any:
        z = self.into(x)
        flat = z.permute(0, 2, 3, 1).reshape(-1, 16)
        code = (flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.weight.T + self.codes.weight.pow(2).sum(1)).argmin(1)
        q = self.codes(code).reshape(z.shape[0], *z.shape[2:], 16).permute(0, 3, 1, 2)
        return self.out(z + (q - z).detach()), F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())


class S4d(nn.Module):
    """A diagonal state space as a long convolution by Fourier transforms."""

    def __init__(self, h: int = 16, n: int = 8) -> None:
        super().__init__()
        self.re, self.im, self.c = nn.Parameter(r(h, n)), nn.Parameter(r(h, n)), nn.Parameter(r(h, n, 2))
        self.step, self.out = nn.Parameter(torch.rand(h) * 0.1), nn.Linear(h, h)

    def forward(self, u: Any) -> Any:
        length = u.shape[-1]
        a = torch.complex(-self.re.exp(), self.im) * self.step[:, None]
        kernel = 2 * torch.einsum("hn,hnl->hl", torch.view_as_complex(self.c), (a[..., None] * torch.arange(length)).exp()).real
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length), n=2 * length)[..., :length]
        return self.out(F.gelu(y).transpose(-1, -2))


def models() -> dict[str, Build]:
    """name -> () -> (module, inputs)."""
    found: dict[str, Build] = {}

    def add(name: str, make: Callable[[], nn.Module], *given: Callable[[], Any]) -> None:
        def build() -> tuple[nn.Module, tuple[Any, ...]]:
            torch.manual_seed(0)
            return make().eval(), tuple(g() for g in given)

        found["modules " + name] = build

    call = lambda f: lambda: Call(f)
    image = lambda c=6, n=15, b=2: lambda: r(b, c, n, n + 2)
    rows = lambda *s: lambda: r(*s)
    padding = lambda: torch.arange(9)[None] >= torch.tensor([9, 5, 7])[:, None]
    causal = lambda: nn.Transformer.generate_square_subsequent_mask(9)
    for bidirectional in (False, True):
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            add(f"{kind.__name__} {'both ways' if bidirectional else 'two layers'}",
                lambda kind=kind, b=bidirectional: kind(10, 12, 2, batch_first=not b, bidirectional=b), rows(5, 7, 10))
    add("LSTM projected", lambda: nn.LSTM(10, 12, 1, proj_size=5), rows(5, 7, 10))
    add("LSTM with state", lambda: nn.LSTM(10, 12), rows(5, 3, 10), lambda: (r(1, 3, 12), r(1, 3, 12)))
    add("RNN relu", lambda: nn.RNN(10, 12, nonlinearity="relu"), rows(5, 3, 10))
    for cell in (nn.LSTMCell, nn.GRUCell, nn.RNNCell):
        add(cell.__name__, lambda cell=cell: cell(10, 12), rows(3, 10))
    add("packed LSTM", lambda: Call(lambda m, x, n: nn.utils.rnn.pad_packed_sequence(m(nn.utils.rnn.pack_padded_sequence(
        x, n, batch_first=True))[0], batch_first=True)[0], nn.LSTM(6, 8, batch_first=True)), rows(3, 9, 6), lambda: torch.tensor([9, 7, 2]))
    for name, options in (("", {}), ("norm first gelu", {"norm_first": True, "activation": "gelu"}), ("batch first", {"batch_first": True}),
                          ("no bias", {"bias": False})):
        size = (3, 9, 32) if options.get("batch_first") else (9, 3, 32)
        add(f"Transformer {name}", lambda o=options: nn.Transformer(32, 4, 2, 2, 48, 0.0, **o), rows(*size), rows(*size))
    encoder = lambda **o: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True, **o), 2,
     enable_nested_tensor=False)
    add("TransformerEncoder padding", lambda: Call(lambda m, x, p: m(x, src_key_padding_mask=p), encoder()), rows(3, 9, 32), padding)
    add("TransformerEncoder causal and padding", lambda: Call(lambda m, x, c, p: m(x, c, p, is_causal=True), encoder(norm_first=True)),
        rows(3, 9, 32), lambda: causal() == -torch.inf, padding)
    add("Transformer all masks", lambda: Call(lambda m, s, t, c, p: m(s, t, tgt_mask=c, src_key_padding_mask=p, memory_key_padding_mask=p,
        tgt_key_padding_mask=p), nn.Transformer(32, 4, 1, 1, 48, 0.0, batch_first=True)), rows(3, 9, 32), rows(3, 9, 32),
        lambda: causal() == -torch.inf, padding)
    attend = lambda **o: nn.MultiheadAttention(32, 4, batch_first=True, **o)
    add("MultiheadAttention weights", lambda: Call(lambda m, x: m(x, x, x, average_attn_weights=False), attend()), rows(3, 9, 32))
    add("MultiheadAttention bias_kv zero", lambda: Call(lambda m, x, p: m(x, x, x, p), attend(add_bias_kv=True, add_zero_attn=True)),
        rows(3, 9, 32), padding)
    add("MultiheadAttention kdim", lambda: Call(lambda m, q, k, v: m(q, k, v, need_weights=False), attend(kdim=10, vdim=12)), rows(3, 5,
     32),
        rows(3, 9, 10), rows(3, 9, 12))
    add("MultiheadAttention mask per head", lambda: Call(lambda m, x, a: m(x, x, x, attn_mask=a)[0], attend()), rows(3, 9, 32), rows(12,
     9, 9))
    for mode in ("sum", "mean", "max"):
        add(f"EmbeddingBag {mode}", lambda m=mode: nn.EmbeddingBag(30, 8, mode=m, padding_idx=3), lambda: ints(0, 30, (4, 5)))
        add(f"EmbeddingBag {mode} offsets", lambda m=mode: nn.EmbeddingBag(30, 8, mode=m, include_last_offset=m == "sum"),
            lambda: ints(0, 30, (11,)), lambda m=mode: torch.tensor([0, 3, 3, 7] + ([11] if m == "sum" else [])))
    add("EmbeddingBag weights", lambda: Call(lambda m, i, w: m(i, per_sample_weights=w), nn.EmbeddingBag(30, 8, mode="sum")),
        lambda: ints(0, 30, (4, 5)), rows(4, 5))
    add("Embedding max_norm", lambda: nn.Embedding(30, 8, padding_idx=0, max_norm=1.0), lambda: ints(0, 30, (4, 5)))
    add("Bilinear", lambda: nn.Bilinear(5, 6, 7), rows(4, 3, 5), rows(4, 3, 6))
    classes, logs = lambda: ints(0, 6, (5,)), lambda: r(7, 3, 6).log_softmax(-1)
    ctc = lambda red: lambda: Call(lambda x, t, i, j: F.ctc_loss(x, t, i, j, reduction=red, zero_infinity=True))
    for red in ("mean", "sum", "none"):
        add(f"ctc_loss {red}", ctc(red), logs, lambda: ints(1, 6, (3, 3)), lambda: torch.tensor([7, 6, 5]), lambda: torch.tensor([3, 2, 1]))
    for name, loss, given in (
        ("cross_entropy smoothing weight", lambda x, t: F.cross_entropy(x, t, torch.linspace(0.5, 1, 6), ignore_index=2,
         label_smoothing=0.1),
         (rows(5, 6), classes)),
        ("cross_entropy probabilities", lambda x, t: F.cross_entropy(x, t.softmax(-1)), (rows(5, 6), rows(5, 6))),
        ("cross_entropy image", lambda x, t: F.cross_entropy(x, t, reduction="none"), (rows(2, 6, 4, 5), lambda: ints(0, 6, (2, 4, 5)))),
        ("nll 2d", lambda x, t: F.nll_loss(x.log_softmax(1), t, ignore_index=1), (rows(2, 6, 4, 5), lambda: ints(0, 6, (2, 4, 5)))),
        ("bce logits pos_weight", lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid(), pos_weight=torch.tensor([2.0] * 6)),
         (rows(5, 6), rows(5, 6))),
        ("bce", lambda x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid()), (rows(5, 6), rows(5, 6))),
        ("huber", lambda x, t: F.huber_loss(x, t, delta=0.7), (rows(5, 6), rows(5, 6))),
        ("smooth l1", lambda x, t: F.smooth_l1_loss(x, t, beta=0.5), (rows(5, 6), rows(5, 6))),
        ("kl_div log", lambda x, t: F.kl_div(x.log_softmax(-1), t.log_softmax(-1), reduction="batchmean", log_target=True), (rows(5,
         6),) * 2),
        ("kl_div", lambda x, t: F.kl_div(x.log_softmax(-1), t.softmax(-1), reduction="batchmean"), (rows(5, 6),) * 2),
        ("poisson nll", lambda x, t: F.poisson_nll_loss(x, t.abs(), full=True), (rows(5, 6),) * 2),
        ("gaussian nll", lambda x, t: F.gaussian_nll_loss(x, t, x.abs() + 0.1), (rows(5, 6),) * 2),
        ("triplet", lambda a, b, c: F.triplet_margin_loss(a, b, c, swap=True), (rows(5, 6),) * 3),
        ("triplet distance", lambda a, b, c: F.triplet_margin_with_distance_loss(a, b, c, distance_function=lambda x, y: 1 -
         F.cosine_similarity(x, y)), (rows(5, 6),) * 3),
        ("cosine embedding", lambda a, b: F.cosine_embedding_loss(a, b, torch.tensor([1, -1, 1, -1, 1])), (rows(5, 6),) * 2),
        ("margin ranking", lambda a, b: F.margin_ranking_loss(a, b, torch.ones(5)), (rows(5), rows(5))),
        ("hinge embedding", lambda a: F.hinge_embedding_loss(a, torch.tensor([1.0, -1, 1, -1, 1])[:, None]), (rows(5, 6),)),
        ("multi margin", lambda x, t: F.multi_margin_loss(x, t, p=2), (rows(5, 6), classes)),
        ("multilabel margin", lambda x: F.multilabel_margin_loss(x, torch.tensor([[0, 3, -1, 1, 2, 2]] * 5)), (rows(5, 6),)),
        ("multilabel soft margin", lambda x, t: F.multilabel_soft_margin_loss(x, (t > 0).float()), (rows(5, 6),) * 2),
        ("soft margin", lambda x, t: F.soft_margin_loss(x, t.sign()), (rows(5, 6),) * 2),
        ("linear_cross_entropy", lambda x, w, t: F.cross_entropy(x @ w.T, t), (rows(5, 8), rows(6, 8), classes)),
        ("pairwise", lambda a, b: F.pairwise_distance(a, b, p=1.5, keepdim=True), (rows(5, 6),) * 2),
        ("pdist", lambda a: F.pdist(a), (rows(5, 6),)),
        ("grid_sample border", lambda x: F.grid_sample(x, F.affine_grid(torch.tensor([[[1.1, 0.2, 0], [0, 0.9, 0.3]]] * 2), [2, 6, 9, 8],
         align_corners=False), padding_mode="border", mode="bicubic", align_corners=False), (image(),)),
        ("grid_sample 3d", lambda x, g: F.grid_sample(x, g.tanh(), padding_mode="reflection", align_corners=True), (rows(2, 3, 4, 5, 6),
         rows(2, 3, 4, 5, 3))),
        ("fold of unfold", lambda x: F.fold(F.unfold(x, (3, 2), dilation=2, padding=1, stride=2), (15, 17), (3, 2), 2, 1, 2), (image(),)),
        ("unfold tensor", lambda x: x.unfold(2, 5, 3).unfold(3, 4, 2), (image(),)),
        ("max_unpool", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape[-2:]), (image(),)),
        ("lp_pool", lambda x: F.lp_pool2d(x, 3.0, 3, 2, ceil_mode=True), (image(),)),
        ("lp_pool1d", lambda x: F.lp_pool1d(x, 1.5, 3), (lambda: r(2, 3, 11).abs() + 0.1,)),
        ("adaptive pools", lambda x: (F.adaptive_max_pool2d(x, (4, 3)), F.adaptive_avg_pool2d(x, (5, None))), (image(),)),
        ("adaptive pools 3d", lambda x: (F.adaptive_max_pool3d(x, (2, 4, 3)), F.adaptive_avg_pool3d(x, (2, 3, 1))), (rows(2, 3, 5, 6, 7),)),
        ("adaptive max indices", lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True), (rows(2, 3, 11),)),
        ("fractional pool", lambda x: F.fractional_max_pool2d(x, 2, output_ratio=(0.6, 0.6), _random_samples=torch.full((2, 6, 2), 0.4)),
         (image(),)),
        ("fractional pool 3d", lambda x: F.fractional_max_pool3d(x, 2, output_size=(2, 3, 3), _random_samples=torch.full((2, 3, 3), 0.4)),
         (rows(2, 3, 5, 6, 7),)),
        ("pools with ceil", lambda x: (F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True), F.avg_pool2d(x, (3, 2), 2, 1, True, False)),
         (image(),)),
        ("gumbel hard", lambda x: F.softmax(x, -1).argmax(-1), (rows(5, 6),)),
        ("local response norm", lambda x: F.local_response_norm(x, 4), (image(),)),
        ("celu selu hardshrink", lambda x: F.celu(x, 0.7) + F.selu(x) + F.hardshrink(x) + F.softshrink(x) + F.tanhshrink(x) + F.softsign(x)
         + F.mish(x) + F.hardtanh(x, -0.3, 0.8) + F.logsigmoid(x) + F.threshold(x, 0.1, 2.0) + F.rrelu(x) + F.softplus(x, 2, 3),
          (image(),)),
        ("channel shuffle glu", lambda x: F.glu(F.channel_shuffle(x, 3), 1), (image(),)),
        ("pad modes", lambda x: F.pad(x, (2, 1, 1, 3), "reflect") + F.pad(x, (2, 1, 1, 3), "replicate") + F.pad(x, (2, 1, 1, 3),
         "circular"),
         (image(),)),
        ("pad 3d", lambda x: F.pad(x, (1, 2, 1, 1, 2, 1), "reflect") + F.pad(x, (1, 2, 1, 1, 2, 1), "replicate"), (rows(2, 3, 5, 6, 7),)),
        ("interpolates", lambda x: (F.interpolate(x, scale_factor=1.7, mode="bicubic", antialias=True), F.interpolate(x, size=(7, 9),
         mode="area"),
         F.interpolate(x, size=(7, 9), mode="bilinear", antialias=True), F.interpolate(x, scale_factor=2, mode="nearest-exact")),
          (image(),)),
        ("interpolate 3d", lambda x: F.interpolate(x, scale_factor=(2, 1.5, 1), mode="trilinear", align_corners=True), (rows(2, 3, 5, 6,
         7),)),
        ("stft istft", lambda x: torch.istft(torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True), 16, 4,
         window=torch.hann_window(16)), (rows(2, 64),)),
        ("cum ops", lambda x: (x.cumsum(-1), x.sigmoid().cumprod(1), x.logcumsumexp(0), x.cummax(1).values, x.cummin(-1).values),
         (rows(4, 5, 6),)),
        ("sorts", lambda x: (x.sort(1, descending=True).values, x.median(-1).values, x.kthvalue(2, 0).values, x.quantile(0.3, 1), x.msort(),
         x.nanmedian(1).values, x.mode(0).values), (rows(4, 5, 6),)),
        ("linalg", lambda x: (torch.linalg.inv(x @ x.mT + torch.eye(4)), torch.linalg.det(x),
         torch.linalg.cholesky(x @ x.mT + torch.eye(4)),
         torch.linalg.matrix_norm(x), torch.linalg.solve(x + 4 * torch.eye(4), x), torch.matrix_exp(x * 0.1), torch.linalg.pinv(x)),
          (rows(3, 4, 4),)),
        ("einsums", lambda a, b: (torch.einsum("bij,bkj->bik", a, b), torch.einsum("bij,ckj->", a, b), torch.einsum("bii->bi", a[:, :, :5]),
         torch.tensordot(a, b, ([2], [2]))), (rows(3, 5, 6), rows(3, 5, 6))),
        ("scatter reduces", lambda x: (torch.zeros(4, 6).scatter_reduce(0, torch.tensor([[0, 1, 2, 3, 0, 1]] * 5), x, "amax"),
         torch.zeros(4, 6).index_reduce(0, torch.tensor([0, 1, 2, 0, 1]), x, "prod"), x.index_fill(1, torch.tensor([2]), 3.0),
         torch.zeros(5, 6).index_put((torch.tensor([0, 2]),), x[:2], accumulate=True)), (rows(5, 6),)),
        ("bucketize histc", lambda x: (torch.bucketize(x, torch.linspace(-1, 1, 7)).float(), torch.searchsorted(x.sort().values,
         x * 0.5).float(),
         torch.histc(x, 9, -2, 2)), (rows(5, 6),)),
        ("masked", lambda x: (x.masked_fill(x > 0, -1.0), x.where(x < 0.5, x * 2), torch.nan_to_num(x.log()), x.clamp(min=0).masked_scatter(
         x > 0.3, x * 3)), (rows(5, 6),)),
        ("repeat roll flip", lambda x: (x.repeat_interleave(2, 1), x.roll((1, -2), (0, 1)), x.flip(0, 1).rot90(), x.tile(2, 1),
         x.diagonal(1),
         torch.diag_embed(x), x.triu(1), torch.block_diag(x, x), torch.cartesian_prod(x[0], x[1]), torch.combinations(x[0])), (rows(5,
          6),)),
        ("special", lambda x: (torch.special.erfinv(x.tanh()), torch.lgamma(x.abs() + 0.1), torch.digamma(x.abs() + 0.5), torch.i0(x),
         torch.special.i1e(x), torch.special.log_ndtr(x), torch.sinc(x), torch.xlogy(x.abs(), x.abs() + 1), torch.logaddexp(x, -x),
         torch.special.zeta(x.abs() + 1.5, torch.tensor(2.0)), torch.polygamma(1, x.abs() + 0.5), torch.hypot(x, x + 1)), (rows(5, 6),)),
        ("distributions", lambda x: (torch.distributions.Normal(x, x.abs() + 0.1).log_prob(x * 0.5), torch.distributions.Categorical(
         logits=x).entropy(), torch.distributions.kl_divergence(torch.distributions.Beta(x.abs() + 1, x.abs() + 2),
          torch.distributions.Beta(
         x.abs() + 2, x.abs() + 1)), torch.distributions.Dirichlet(x.abs() + 1).log_prob(x.softmax(-1)),
          torch.distributions.MultivariateNormal(
         torch.zeros(6), torch.eye(6) * 2).log_prob(x)), (rows(5, 6),)),
        ("complex", lambda x: (torch.polar(x.abs(), x).real, torch.fft.fft2(x).abs(), torch.view_as_real(torch.fft.rfftn(x)),
         torch.fft.fftshift(torch.fft.ifft(x)).angle()), (rows(5, 6),)),
        ("vmap grad", lambda x: torch.func.vmap(torch.func.grad(lambda v: (v.sin() * v).sum()))(x), (rows(5, 6),)),
        ("checkpoint", lambda x: torch.utils.checkpoint.checkpoint(lambda v: (v @ v.mT).tanh(), x, use_reentrant=False), (rows(5, 6),)),
        ("while of numbers", lambda x: sum((x * i).sin() for i in range(5)), (rows(5, 6),)),
        ("norms", lambda x: (x.norm(p=3, dim=1), torch.linalg.vector_norm(x, float("inf"), 0), x.renorm(2, 0, 1.0), x.std(1), x.var_mean(0),
         F.normalize(x, p=1.0), torch.linalg.norm(x, "nuc")), (rows(5, 6),)),
    ):
        add(name, call(loss), *given)
    spec = parametrizations
    for name, make, given in (
        ("GroupNorm", lambda: nn.GroupNorm(3, 6), image()), ("InstanceNorm tracked", lambda: nn.InstanceNorm2d(6, True, True, True),
         image()),
        ("BatchNorm3d", lambda: nn.BatchNorm3d(3), rows(2, 3, 4, 5, 6)), ("RMSNorm", lambda: nn.RMSNorm((6, 5)), rows(3, 6, 5)),
        ("weight_norm conv", lambda: spec.weight_norm(nn.ConvTranspose2d(6, 4, 3, 2)), image()),
        ("old weight_norm", lambda: nn.utils.weight_norm(nn.Conv1d(6, 4, 3)), rows(2, 6, 9)),
        ("spectral_norm", lambda: spec.spectral_norm(nn.Conv2d(6, 4, 3)), image()),
        ("old spectral_norm", lambda: nn.utils.spectral_norm(nn.Linear(6, 4)), rows(5, 6)),
        ("orthogonal", lambda: spec.orthogonal(nn.Linear(6, 6)), rows(5, 6)),
        ("orthogonal cayley", lambda: spec.orthogonal(nn.Linear(6, 6), orthogonal_map="cayley"), rows(5, 6)),
        ("PixelShuffle", lambda: nn.Sequential(nn.Conv2d(6, 18, 1), nn.PixelShuffle(3), nn.PixelUnshuffle(1)), image()),
        ("Conv padding same circular", lambda: nn.Conv2d(6, 4, 3, padding="same", padding_mode="circular", dilation=2), image()),
        ("Conv grouped reflect", lambda: nn.Conv2d(6, 12, (5, 1), 2, (2, 0), groups=3, padding_mode="reflect"), image()),
        ("ConvTranspose3d", lambda: nn.ConvTranspose3d(3, 4, 3, (1, 2, 2), 1, (0, 1, 1), groups=1, dilation=(1, 2, 1)), rows(2, 3, 4, 5,
         6)),
        ("ConvTranspose1d grouped", lambda: nn.ConvTranspose1d(6, 4, 5, 3, 2, 1, groups=2), rows(2, 6, 9)),
        ("AdaptiveLogSoftmax", lambda: Call(lambda m, x: m.log_prob(x), nn.AdaptiveLogSoftmaxWithLoss(8, 30, [5, 15])), rows(5, 8)),
        ("AdaptiveLogSoftmax loss", lambda: Call(lambda m, x: m(x, torch.arange(5) * 6)[1], nn.AdaptiveLogSoftmaxWithLoss(8, 30, [5, 15])),
         rows(5, 8)),
        ("prune", lambda: nn.utils.prune.l1_unstructured(nn.Linear(6, 4), "weight", 0.5), rows(5, 6)),
        ("ssd", SSD, image(3, 64)), ("deeplab", DeepLab, image(3, 33)), ("nbeats", NBeats, rows(3, 48)), ("tcn", Tcn, rows(2, 24, 30)),
        ("autoformer", Autoformer, rows(2, 32, 16)), ("fno", Fno, image(8, 16)), ("pointnet", PointNet, rows(2, 40, 3)),
        ("capsules", Capsules, lambda: r(2, 1, 15, 15)), ("flow", Flow, image(8, 8)), ("crf", Crf, rows(2, 9, 16)), ("vq vae", Vae,
         image(3, 32)),
        ("s4d", S4d, rows(2, 16, 40)),
    ):
        add(name, make, given)
    return found
