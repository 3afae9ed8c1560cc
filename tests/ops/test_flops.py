"""Costs: two operations a multiply-add, none for views and moves."""

from __future__ import annotations

from tilewright.core.dims import sym
from tilewright.ops import Add, Attention, Conv, Gather, LayerNorm, Matmul, Reshape, Sum
from tilewright.ops.families import f32, i64


def test_flops() -> None:
    s = sym("S", 1, 64)
    assert Matmul().flops(f32(4, s, 8), f32(8, 3)) == 2 * 4 * s * 8 * 3
    assert Matmul(transpose_a=True).flops(f32(8, 5), f32(8, 3)) == 2 * 5 * 8 * 3
    assert Conv(stride=(1,), padding=((0, 0),), dilation=(1,)).flops(f32(1, 3, 5), f32(2, 3, 3)) == 2 * (2 * 3) * 3 * 3
    assert Attention(scale=1.0).flops(f32(1, 2, s, 4), f32(1, 2, s, 4), f32(1, 2, s, 4)) == 2 * s * s * (2 * 8 + 5)
    assert LayerNorm().flops(f32(2, 3)) == 48
    assert Add().flops(f32(2, 1), f32(3)) == 6
    assert Sum(axes=(1,)).flops(f32(2, 3)) == 6
    assert Reshape(shape=(6,)).flops(f32(2, 3)) == 0
    assert Gather().flops(f32(2, 3), i64(2)) == 0
