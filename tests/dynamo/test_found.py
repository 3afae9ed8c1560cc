"""What sweeps over PyTorch's OpInfo database in other dtypes than f32, and over many models, found: each with the call that showed it."""
from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tilewright.dynamo.backend import SplitWarning

from .check import check


def test_large_results_of_equal_sides_lie_as_they_should() -> None:
    """Results from 2 MB on get memory that was in use: its shape alone does not say how a square lies."""
    square = torch.randn(768, 768)
    check(lambda x: (x.t() + 1, x.t().contiguous() * 2, x.sin()), square, grad=False)
    convs = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.Tanh(), torch.nn.Conv2d(64, 64, 3, padding=1))
    check(convs, torch.randn(2, 64, 64, 64).to(memory_format=torch.channels_last))
    check(convs, torch.randn(2, 64, 64, 64, requires_grad=True), grad=True)


def test_complex_factors_are_conjugated() -> None:
    a, b = torch.randn(4, 4, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex64)
    whole = a @ a.mH + 4 * torch.eye(4)
    for upper in (False, True):
        check(lambda b, f, upper=upper: (torch.cholesky_solve(b, f, upper=upper), torch.cholesky_inverse(f, upper=upper)), b,
              torch.linalg.cholesky(whole, upper=upper), calls=1, strides=False)
    packed, tau = torch.geqrf(a)
    check(lambda p, t, b: (torch.linalg.householder_product(p, t), torch.ormqr(p, t, b), torch.ormqr(p, t, b, transpose=True),
                           torch.ormqr(p, t, b.mT, left=False)), packed, tau, b, calls=1, strides=False)


def test_running_sums_of_complex_numbers() -> None:
    check(lambda x: (x.cumsum(1), x.T.cumsum(0) * 2), torch.randn(3, 4, dtype=torch.complex64, requires_grad=True), calls=1, grad=True)


def test_lists_of_tensors() -> None:
    x, y, z = ([torch.rand(3, 4) + 0.5, torch.rand(5) + 0.5] for _ in range(3))

    def all_of(x: list[torch.Tensor], y: list[torch.Tensor], z: list[torch.Tensor]) -> list[Any]:
        return [torch._foreach_add(x, y, alpha=0.3), torch._foreach_mul(x, [0.3, 0.7]), torch._foreach_addcdiv(x, y, z, value=0.1),
                torch._foreach_addcmul(x, y, z, [0.1, 0.2]), torch._foreach_lerp(x, y, 0.7), torch._foreach_maximum(x, 0.9),
                torch._foreach_norm(x), torch._foreach_pow(0.5, x), torch._foreach_sqrt(x), torch._foreach_mul(x, torch.tensor(0.3))]

    check(all_of, x, y, z, calls=1)


def test_fake_quantization() -> None:
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 3, 100], dtype=torch.int32)
    check(lambda x: (torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
                     torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, 0, 255)),
          torch.randn(3, 37).requires_grad_(), calls=1, grad=True)


def test_a_chunked_loss_keeps_no_gradients_of_ours() -> None:
    """Linear layer and cross entropy by chunks: the op's further results are gradients, which are PyTorch's to compute."""
    from tilewright.frontend.torch.decompose import chunked_cross_entropy, decomposition

    ops = [op for op in dir(torch.ops.torch_nn) if op.startswith("_linear_cross_entropy_batch_chunked")]
    assert all(decomposition(getattr(torch.ops.torch_nn, op).default) is chunked_cross_entropy for op in ops)


def test_bags_and_resizing_train() -> None:
    ids, offsets, table, weights = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 2]), torch.randn(6, 5), torch.rand(6)

    def bags(table: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
        return [F.embedding_bag(ids, table, offsets, mode="mean"), F.embedding_bag(ids, table, offsets, mode="max"),
                F.embedding_bag(ids, table, offsets, mode="sum", per_sample_weights=weights, padding_idx=2)]

    check(bags, table.requires_grad_(), weights.requires_grad_(), calls=1, grad=True)
    check(lambda x: (F.interpolate(x, scale_factor=1.5, mode="bilinear"), F.interpolate(x, size=(7, 3), mode="bicubic")),
          torch.randn(1, 2, 4, 5, requires_grad=True), calls=1, grad=True)


def test_weight_norm_trains() -> None:
    def normed(v: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor]:
        return [torch._weight_norm(v, g, 0), torch._weight_norm(v, h, 2)]

    check(normed, torch.randn(5, 3, 4, requires_grad=True), torch.rand(5, 1, 1).requires_grad_(), torch.rand(1, 1, 4).requires_grad_(),
          calls=1, grad=True)


def test_a_decoder_takes_masks_without_a_look_at_them() -> None:
    """`nn.Transformer` asks whether a mask is the causal one: a graph break there left the whole model to PyTorch."""
    layer = torch.nn.TransformerDecoderLayer(16, 2, 24, 0.0, batch_first=True)
    model = torch.nn.TransformerDecoder(layer, 1)
    x, mask = torch.randn(2, 5, 16), torch.nn.Transformer.generate_square_subsequent_mask(5)
    away = torch.arange(5) >= torch.tensor([[5], [3]])
    check(lambda x, m: model(x, x, tgt_mask=m, memory_key_padding_mask=away), x, mask, calls=1, fullgraph=True)


def test_pools_at_random_places_and_volumes_train() -> None:
    x, y, draws = torch.randn(2, 3, 7, 9, requires_grad=True), torch.randn(1, 2, 4, 5, 6, requires_grad=True), torch.rand(2, 3, 2)
    grid = (torch.rand(1, 3, 4, 5, 3) * 2 - 1).requires_grad_()
    check(lambda x, s: F.fractional_max_pool2d(x, (2, 3), (5, 4), _random_samples=s), x, draws, calls=1, grad=True)
    check(lambda y, s: F.fractional_max_pool3d(y, 2, (2, 3, 1), _random_samples=s), y, torch.rand(1, 2, 3), calls=1, grad=True)
    check(lambda y, g, z: (F.grid_sample(y, g, align_corners=True), F.pdist(z, 1.5)), y, grid, torch.randn(4, 3, requires_grad=True),
          calls=1, grad=True)


def test_steps_through_complex_numbers() -> None:
    x = torch.randn(8, dtype=torch.complex64, requires_grad=True)
    check(lambda x: x[::2] + x[1::2].conj(), x, calls=1, grad=True)


def test_frequencies() -> None:
    check(lambda x: (torch.fft.fftfreq(8, 0.3) + x, torch.fft.fftfreq(7), torch.fft.rfftfreq(9), torch.fft.rfftfreq(8).double()),
          torch.randn(8), calls=1)


def test_negative_powers_of_integers_are_torchs_error() -> None:
    compiled = torch.compile(lambda x: (x + 1) ** -2, backend="tilewright")
    with pytest.warns(SplitWarning), pytest.raises(RuntimeError, match="negative integer powers are not allowed"):
        compiled(torch.arange(1, 5))


@pytest.mark.parametrize("labels", [[[1, 0, -1], [2, -1, 0], [0, 1, 2], [-1, 1, 1]], [2, 0, -1]])
def test_labels_behind_the_first_minus_one_do_not_count(labels: list[Any]) -> None:
    target = torch.tensor(labels)
    x = torch.randn(target.shape).requires_grad_()
    check(lambda x: [F.multilabel_margin_loss(x, target, reduction=kind) for kind in ("none", "mean", "sum")], x, calls=1, grad=True)


def test_zeros_that_take_the_features_of_another_tensor() -> None:
    """Forward-mode derivatives make them for tangents."""
    check(lambda x, y: torch.ops.aten._new_zeros_with_same_feature_meta(x + y, y) + y, torch.randn(6), torch.randn(6), calls=1)
