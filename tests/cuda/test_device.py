"""On a GPU: products, attention, rows, functions and sessions against float64, odd sizes, poisoned memory. Skipped where there is none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda import attention_cases
from tests.cuda.launching import graph
from tilewright.core.dims import sym
from tilewright.core.dtypes import DType, bf16, bool_, f16, f32, i64
from tilewright.core.errors import ExecutionError, InputError
from tilewright.ops.attention.forward import Attention
from tilewright.ops.rows.norms import LayerNorm, RmsNorm, Softmax
from tilewright.runtime.cuda import driver as cuda_driver

pytestmark = pytest.mark.skipif(bool(cuda_driver.available()), reason=f"no GPU: {cuda_driver.available()}")
TORCH = {bf16: torch.bfloat16, f16: torch.float16, f32: torch.float32}
TOLERANCE = {bf16: 6e-3, f16: 1e-3, f32: 2e-6}  # norm of the difference over the norm of the reference


def rand(dtype: DType, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(TORCH[dtype])


def poison() -> None:
    """Memory that the next results will come from is full of NaN."""
    blocks = [torch.full((1 << 20,), math.nan, device="cuda") for _ in range(4)]
    del blocks


def check(got: torch.Tensor, want: torch.Tensor, dtype: DType, times: float = 1.0) -> None:
    torch.cuda.synchronize()
    assert got.shape == want.shape and not torch.isnan(got).any()
    norm = want.double().norm()
    assert (got.double() - want.double()).norm() <= times * TOLERANCE[dtype] * norm + 1e-12


SHAPES = [
    (1, 8, 8), (1, 520, 2056), (5, 256, 2048), (33, 520, 1000), (64, 64, 64), (100, 768, 4096),
    (129, 264, 72), (300, 520, 200), (1000, 136, 2056), (4096, 512, 64),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul(shape: tuple[int, int, int], dtype: DType) -> None:
    m, n, k = shape
    for ta in (False, True):
        for tb in (False, True):
            a, b = rand(dtype, *((k, m) if ta else (m, k))), rand(dtype, *((n, k) if tb else (k, n)))
            g = graph(
                lambda x, y, p=ta, q=tb: o.Matmul(transpose_a=p, transpose_b=q)(x, y), (dtype, tuple(a.shape)), (dtype, tuple(b.shape))
            )
            poison()
            check(tw.compile(g, target="cuda")(a, b), (a.double().T if ta else a.double()) @ (b.double().T if tb else b.double()), dtype)


def test_matmul_with_epilogue_and_dynamic_rows() -> None:
    s = sym("S", 1, 4096)
    types = ((bf16, (s, 256)), (bf16, (520, 256)), (bf16, (520,)), (bf16, (s, 520)))
    g = graph(lambda x, w, b, r: o.Add()(r, o.Gelu()(o.Add()(o.Matmul(transpose_b=True, alpha=0.5)(x, w), b))), *types)
    session = tw.compile(g, target="cuda")
    for m in (1, 77, 128, 1000):
        x, w, b, r = rand(bf16, m, 256), rand(bf16, 520, 256), rand(bf16, 520), rand(bf16, m, 520)
        poison()
        want = torch.nn.functional.gelu(0.5 * (x.double() @ w.double().T) + b.double()) + r.double()
        check(session(x, w, b, r), want, bf16)


def test_one_column() -> None:
    for dtype in (bf16, f16, f32):
        a, b = rand(dtype, 130, 200), rand(dtype, 1, 200)
        poison()
        got = tw.compile(graph(lambda x, y: o.Matmul(transpose_b=True)(x, y), (dtype, (130, 200)), (dtype, (1, 200))), target="cuda")(a, b)
        check(got, a.double() @ b.double().T, dtype)


def test_matmul_batched() -> None:
    a, b = rand(f16, 5, 100, 72), rand(f16, 5, 72, 200)
    check(
        tw.compile(graph(lambda x, y: o.Matmul()(x, y), (f16, (5, 100, 72)), (f16, (5, 72, 200))), target="cuda")(a, b),
        a.double() @ b.double(),
        f16,
    )


def test_products_have_the_same_bits_in_every_batch() -> None:
    """A row alone gives what it gives among others, and every run gives the same."""
    m = sym("M", 1, 1024)
    session = tw.compile(graph(lambda x, y: o.Matmul(transpose_b=True)(x, y), (bf16, (m, 512)), (bf16, (1024, 512))), target="cuda")
    a, b = rand(bf16, 700, 512), rand(bf16, 1024, 512)
    whole = session(a, b)
    assert torch.equal(whole, session(a, b))
    for row in (0, 63, 64, 699):
        assert torch.equal(session(a[row : row + 1].clone(), b)[0], whole[row])


# batch, channels, height, width, results, taps, stride, padding, dilation
CONVOLUTIONS = [
    (2, 64, 14, 14, 64, (1, 1), (1, 1), (0, 0), (1, 1)), (3, 64, 14, 15, 72, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 128, 9, 13, 64, (3, 3), (2, 2), (1, 1), (1, 1)), (2, 64, 13, 13, 256, (1, 1), (2, 2), (0, 0), (1, 1)),
    (2, 3, 33, 37, 64, (7, 7), (2, 2), (3, 3), (1, 1)), (1, 16, 20, 20, 130, (3, 3), (1, 1), (2, 2), (2, 2)),
    (1, 13, 8, 8, 6, (3, 3), (1, 1), (1, 1), (1, 1)), (5, 256, 7, 7, 512, (3, 3), (1, 1), (1, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution_with_epilogue(case: tuple[Any, ...], dtype: DType) -> None:
    n, c, h, w, out, taps, stride, padding, dilation = case
    x, k, b = rand(dtype, n, c, h, w), rand(dtype, out, c, *taps), rand(dtype, out, 1, 1)
    want = torch.nn.functional.conv2d(x.double(), k.double(), None, stride, padding, dilation)
    r = rand(dtype, *want.shape)
    op = o.Conv(stride=stride, padding=tuple((p, p) for p in padding), dilation=dilation)
    g = graph(lambda x, k, b, r: o.Relu()(o.Add()(o.Add()(op(x, k), b), r)), *((dtype, tuple(t.shape)) for t in (x, k, b, r)))
    poison()
    check(tw.compile(g, target="cuda")(x, k, b, r), torch.relu(want + b.double() + r.double()), dtype)


MASKED: list[tuple[Any, ...]] = [
    (8, 12, 12, 128, 128, 32, {"has_bias": True}), (2, 4, 2, 77, 200, 64, {"has_mask": True, "causal": True, "offset": 123}),
    (1, 2, 2, 300, 300, 128, {"softcap": 5.0, "window": 50}), (2, 3, 3, 130, 65, 40, {"has_mask": True, "has_bias": True}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("case", MASKED, ids=str)
def test_attention_with_masks_and_biases(case: tuple[Any, ...], dtype: DType) -> None:
    b, h, hk, sq, sk, d, options = case
    op = Attention(scale=d**-0.5, **options)
    tensors = [rand(dtype, b, h, sq, d), rand(dtype, b, hk, sk, d), rand(dtype, b, hk, sk, d)]
    types: list[Any] = [(dtype, tuple(t.shape)) for t in tensors]
    if op.has_mask:
        tensors.append(torch.rand(b, 1, sq, sk, device="cuda") < 0.7)
        types.append((bool_, (b, 1, sq, sk)))
    if op.has_bias:
        tensors.append(rand(dtype, b, 1, 1, sk))
        types.append((dtype, (b, 1, 1, sk)))
    poison()
    got = tw.compile(graph(lambda *x: op(*x), *types), target="cuda")(*tensors)
    want = op.ref(*(t.cpu().numpy() if t.dtype is torch.bool else t.double().cpu().numpy() for t in tensors))
    check(got, torch.from_numpy(want).cuda(), dtype, 1.5)


@pytest.mark.parametrize("d", [8, 32, 40, 96])
def test_attention_of_other_head_sizes(d: int) -> None:
    q, k, v = (rand(bf16, 2, 3, 130, d) for _ in range(3))
    op = Attention(scale=d**-0.5, causal=True)
    poison()
    got = tw.compile(graph(lambda *x: op(*x), *((bf16, tuple(q.shape)),) * 3), target="cuda")(q, k, v)
    check(got, torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True), bf16)


def test_turning_copies() -> None:
    for dtype, shape, perm in ((bf16, (3, 70, 5, 33), (0, 2, 3, 1)), (f32, (100, 130), (1, 0)), (i64, (40, 2, 50), (2, 1, 0))):
        x = (torch.randn(shape, device="cuda") * 100).to(TORCH.get(dtype, torch.int64))
        poison()
        assert torch.equal(tw.compile(graph(lambda v, p=perm: o.transpose(v, p), (dtype, shape)), target="cuda")(x), x.permute(perm))


ATTENTION = [
    (1, 2, 128, 128, False, 2, None, 128, 0), (2, 4, 300, 128, False, 2, None, 333, 0), (2, 4, 300, 64, True, 4, None, 300, 0),
    (1, 4, 513, 64, True, 1, None, 513, 0), (1, 2, 1000, 128, True, 2, 200, 1000, 0), (1, 2, 5, 128, True, 2, None, 700, 695),
    (1, 8, 1, 64, True, 2, None, 700, 699), (2, 4, 1, 128, False, 4, None, 5000, 0), (1, 2, 1, 64, True, 2, 30, 90, 80),
    (1, 2, 300, 64, True, 2, None, 200, -50), (1, 2, 700, 64, False, 2, 100, 700, 0), (1, 1, 1, 64, False, 1, None, 1, 0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention(case: tuple[Any, ...], dtype: DType) -> None:
    b, h, sq, d, causal, hk, window, sk, offset = case
    q, k, v = rand(dtype, b, h, sq, d), rand(dtype, b, hk, sk, d), rand(dtype, b, hk, sk, d)
    op = Attention(scale=d**-0.5, causal=causal, window=window, offset=offset)
    poison()
    got = tw.compile(graph(lambda *x: op(*x), *((dtype, tuple(t.shape)) for t in (q, k, v))), target="cuda")(q, k, v)
    kk, vv = (t.double().repeat_interleave(h // hk, 1) for t in (k, v))
    scores = q.double() @ kk.transpose(-1, -2) * d**-0.5
    i, j = torch.arange(sq, device="cuda")[:, None] + offset, torch.arange(sk, device="cuda")[None]
    seen = torch.ones_like(scores, dtype=torch.bool)
    seen &= (j <= i) if causal else True
    seen &= (j > i - window) if window is not None else True
    check(got, torch.softmax(scores.masked_fill(~seen, -math.inf), -1).nan_to_num(0.0) @ vv, dtype)


EXTRAS: list[dict[str, Any]] = [
    {"softcap": 3.0}, {"bias": (2, 1, 1)}, {"bias": (2, 2, 300, 333), "causal": True, "offset": 33}, {"mask": (300, 333)},
    {"mask": (2, 1, 1, 333), "bias": (333,), "softcap": 20.0, "window": 70}, {"mask": (2, 2, 300, 1), "causal": True, "softcap": 8.0},
]  # fmt: skip


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("case", EXTRAS, ids=str)
def test_attention_with_masks_biases_and_soft_caps(case: dict[str, Any], d: int, dtype: DType) -> None:
    q, k, v = rand(dtype, 2, 2, 300, d), rand(dtype, 2, 1, 333, d), rand(dtype, 2, 1, 333, d)
    mask = torch.rand(case["mask"], device="cuda") < 0.5 if "mask" in case else None
    bias = rand(dtype, *case["bias"]) if "bias" in case else None
    attrs = {n: x for n, x in case.items() if n in ("softcap", "causal", "offset", "window")}
    op = Attention(scale=d**-0.5, has_mask=mask is not None, has_bias=bias is not None, **attrs)
    given = [t for t in (q, k, v, mask, bias) if t is not None]
    kinds = [bool_ if t.dtype is torch.bool else dtype for t in given]
    session: Any = tw.compile(graph(lambda *x: op(*x), *((n, tuple(t.shape)) for n, t in zip(kinds, given, strict=True))), target="cuda")
    assert any("wgmma" in str(x) for x in session.report().data["launches"])
    poison()
    s = q.double() @ k.double().repeat_interleave(2, 1).transpose(-1, -2) * d**-0.5
    s = s if op.softcap is None else op.softcap * torch.tanh(s / op.softcap)
    s = s if bias is None else s + bias.double()
    i, j = torch.arange(300, device="cuda")[:, None] + case.get("offset", 0), torch.arange(333, device="cuda")[None]
    seen = (j <= i) if op.causal else torch.ones_like(j <= i)
    seen = seen if op.window is None else seen & (j > i - op.window)
    seen = seen if mask is None else seen & mask
    want = torch.softmax(s.masked_fill(~seen, -math.inf), -1).nan_to_num(0.0) @ v.double().repeat_interleave(2, 1)
    check(session(*given), want, dtype)


BACKWARD = [
    (1, 2, 2, 128, 128, 64, False, 0, None), (2, 4, 2, 300, 333, 128, True, 33, None), (1, 2, 1, 70, 200, 64, True, 130, None),
    (1, 2, 2, 200, 100, 128, True, -30, None), (1, 2, 2, 300, 100, 64, True, -160, None),
    (1, 4, 4, 513, 513, 128, False, 0, None), (1, 4, 1, 1, 77, 64, True, 76, None), (3, 8, 8, 1000, 1000, 128, True, 0, None),
    (1, 4, 2, 700, 700, 64, True, 0, 100), (1, 2, 2, 600, 600, 128, True, 0, 300), (1, 2, 2, 500, 250, 128, False, 0, 60),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("case", BACKWARD, ids=str)
def test_attention_backward(case: tuple[Any, ...], dtype: DType) -> None:
    """Alone, and behind its forward pass, which then saves the logsumexps."""
    b, h, hk, sq, sk, d, causal, offset, window = case
    q, g, k, v = rand(dtype, b, h, sq, d), rand(dtype, b, h, sq, d), rand(dtype, b, hk, sk, d), rand(dtype, b, hk, sk, d)
    attrs: dict[str, Any] = {"scale": d**-0.5, "causal": causal, "offset": offset, "window": window}
    op, forward = o.AttentionBackward(**attrs), Attention(**attrs)
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    kk, vv = (t.repeat_interleave(h // hk, 1) for t in wide[1:])
    i, j = torch.arange(sq, device="cuda")[:, None] + offset, torch.arange(sk, device="cuda")[None]
    seen = (j <= i) if causal else torch.ones_like(j <= i)
    seen = seen if window is None else seen & (j > i - window)
    scores = (wide[0] @ kk.transpose(-1, -2) * d**-0.5).masked_fill(~seen & seen.any(-1, keepdim=True), -math.inf)
    out = torch.where(seen, torch.softmax(scores, -1), 0.0) @ vv
    want = [out.detach(), *torch.autograd.grad(out, wide, g.double())]
    types = tuple((dtype, tuple(t.shape)) for t in (q, k, v, g))
    both = graph(lambda *x: (forward(*x[:3]), *op(*x)), *types)
    for made in ([] if window is not None else [graph(lambda *x: op(*x), *types)]) + [both]:
        session: Any = tw.compile(made, target="cuda")
        poison()
        got = session(q, k, v, g)
        for a, w in zip(got, want[-len(got) :], strict=True):
            check(a, w, dtype)
        for _ in range(3):
            assert all(torch.equal(a, c) for a, c in zip(got, session(q, k, v, g), strict=True))


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # PyTorch's own thread of the backward pass
@pytest.mark.parametrize("target", ["cuda", "sm_80"])
@pytest.mark.parametrize("case", [*attention_cases.BACKWARD, *attention_cases.LARGE], ids=str)
def test_attention_backward_with_everything(case: attention_cases.Case, target: str) -> None:
    """Masks, biases and their cotangents, soft caps, head sizes: what the emulator runs, and larger ones."""
    dtype = bf16 if case.sq % 2 else f16
    x = [rand(dtype, *s) for s in case.shapes]
    if case.mask is not None:
        x[3] = torch.rand(case.mask, device="cuda") < 0.7
    session: Any = tw.compile(case.graph(dtype), target=target)
    poison()
    got = session(*x)
    for a, w in zip(got, case.reference(x), strict=True):
        check(a, w, dtype, 1.5)
    for _ in range(3):
        assert all(torch.equal(a, c) for a, c in zip(got, session(*x), strict=True))


@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize("n", [1, 7, 64, 100, 1000, 4096, 8192, 32768, 50000])
def test_rows(n: int, dtype: DType) -> None:
    x, w, b = rand(dtype, 33, n), rand(dtype, n), rand(dtype, n)
    T, W = (dtype, (33, n)), (dtype, (n,))
    poison()
    check(tw.compile(graph(lambda v: Softmax(axis=1)(v), T), target="cuda")(x), torch.softmax(x.double(), -1), dtype)
    y = tw.compile(graph(lambda v, a: RmsNorm(eps=1e-5, affine="weight")(v, a), T, W), target="cuda")(x, w)
    check(y, torch.nn.functional.rms_norm(x.double(), (n,), w.double(), 1e-5), dtype)
    if n > 1:
        y = tw.compile(graph(lambda v, a, c: LayerNorm(eps=1e-5, affine="both")(v, a, c), T, W, W), target="cuda")(x, w, b)
        check(y, torch.nn.functional.layer_norm(x.double(), (n,), w.double(), b.double(), 1e-5), dtype, 4.0)


FUNCTIONS = {"Exp": 2, "Tanh": 2, "Sigmoid": 4, "Erf": 2, "Sin": 1, "Cos": 1, "Tan": 1, "Log": 1, "Log1p": 2, "Expm1": 2, "Sqrt": 1}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_their_promise(name: str) -> None:
    """The units of the last place that target/cuda/arithmetic/math.py states."""
    x = torch.cat([torch.randn(1 << 18), torch.randn(1 << 18) * 30, torch.randn(1 << 16) * 1e6, torch.randn(1 << 16) * 1e30]).cuda()
    got = tw.compile(graph(lambda v: getattr(o, name)()(v), (f32, tuple(x.shape))), target="cuda")(x).double().cpu()
    want = getattr(torch, name.lower())(x.double().cpu())
    fine = torch.isfinite(want) & (want.abs() < 3.4e38) & (want.abs() > 1.2e-38)
    unit = torch.from_numpy(np.spacing(want[fine].abs().float().numpy())).double()
    assert ((got[fine] - want[fine]).abs() / unit).max() <= FUNCTIONS[name]
    assert torch.equal(torch.isnan(got), torch.isnan(want))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 256)
        self.up, self.down = torch.nn.Linear(256, 512), torch.nn.Linear(512, 256)
        self.norm = torch.nn.LayerNorm(256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        return torch.softmax(self.norm(x + self.down(torch.nn.functional.gelu(self.up(x)))), -1)


@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_a_module(dtype: str | None) -> None:
    model, ids = Model().eval(), torch.randint(0, 100, (3, 17))
    session = tw.compile(model, (ids,), target="cuda", dtype=dtype)
    got = session(ids.cuda())
    check(got.float().cpu(), model.double()(ids).float(), bf16 if dtype else f32, 4.0)


def test_a_module_on_the_gpu_is_compiled_for_it() -> None:
    model, ids = Model().eval().cuda(), torch.randint(0, 100, (3, 17), device="cuda")
    session: Any = tw.compile(model, (ids,))
    assert session.model.target.kind == "cuda"
    check(session(ids), model(ids), f32, 4.0)
    assert "launches" in str(session.report())


def test_sessions() -> None:
    """Inputs that move, other streams, errors of kernels and of callers."""
    session: Any = tw.compile(graph(lambda t, i: o.Gather(axis=0)(t, i), (f32, (11, 40)), (i64, (4,))), target="cuda")
    table = rand(f32, 11, 40)
    for ids in ([1, 2, 3, 4], [10, 0, 10, 0]):
        index = torch.tensor(ids, device="cuda")
        assert torch.equal(session(table.clone(), index), table[index])
    with torch.cuda.stream(torch.cuda.Stream()):
        out = session(table, torch.tensor([1, 1, 2, 2], device="cuda"))
    torch.cuda.synchronize()
    assert torch.equal(out, table[[1, 1, 2, 2]])
    session(table, torch.tensor([1, 11, 2, 2], device="cuda"))
    with pytest.raises(ExecutionError, match="index out of range, got 11"):
        session.synchronize()
    session.synchronize()
    with pytest.raises(InputError, match=r"input 'x0' must be on the GPU, got f32\[11,40\] on cpu; pass x0.cuda\(\)"):
        session(table.cpu(), torch.tensor([1, 1, 2, 2], device="cuda"))
    with pytest.raises(InputError, match=r"input 'x1' must be i64\[4\], got f32\[4\]"):
        session(table, torch.tensor([1, 1, 2, 2], device="cuda", dtype=torch.float32))
    assert torch.equal(session(table, torch.tensor([1, 1, 2, 2], device="cuda", dtype=torch.int32)), table[[1, 1, 2, 2]])
    assert session.copies.pop("x1") == 1
    strided = torch.cat([table, table], 1)[:, :40]
    assert torch.equal(session(strided, torch.tensor([1, 1, 2, 2], device="cuda")), table[[1, 1, 2, 2]]) and session.copies == {"x0": 1}


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("name", ["F32", "Q8_0"])
def test_a_language_model_gives_the_tokens_of_the_cpu(name: str, cache: str, tmp_path: Any) -> None:
    """Packed matrices round activations to eight bits, and so does a cache in eight bits: one code that falls on the other side moves the
    logits of a random model. What both may move adds up."""
    from tilewright.llm.tiny import write_tiny_model

    path = write_tiny_model(tmp_path / "tiny.gguf", format=name, width=128, layers=2, context=128)
    here, there = tw.load_llm(path, cache_dtype=cache), tw.load_llm(path, target="cuda", cache_dtype=cache)
    a, b = here.start(), there.start()
    tolerance = 1e-4 + (6e-2 if name == "Q8_0" else 0) + (2e-2 if cache == "q8_0" else 0)
    for ids in (list(range(1, 40)), [5], [9, 8, 7]):
        x, y = here.feed(a, ids), there.feed(b, ids)
        assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(x), len(ids)
    assert (name, cache) != ("F32", "f16") or [*here.generate("the cat", max_tokens=40)] == [*there.generate("the cat", max_tokens=40)]


def test_a_saved_session_runs_and_is_profiled(tmp_path: Any) -> None:
    x, y = rand(bf16, 64, 64), rand(bf16, 64, 64)
    types = ((bf16, (64, 64)), (bf16, (64, 64)))
    session: Any = tw.compile(graph(lambda a, b: Softmax(axis=1)(o.Matmul(transpose_b=True)(a, b)), *types), target="cuda")
    first = session(x, y)
    session.save(tmp_path / "m.tw")
    again: Any = tw.load(tmp_path / "m.tw")
    assert torch.equal(again(x, y), first)
    profile = session.profile(x, y, repeat=3)
    assert len(profile.rows) == 2 and profile.total_us > 0 and "launches" in str(profile)
