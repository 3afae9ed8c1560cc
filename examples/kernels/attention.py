"""Flash attention: softmax(q kᵀ / sqrt(D)) v without the matrix of scores, one tile of keys after the other."""
from __future__ import annotations

import math

import numpy as np

import tilewright as tw
from tilewright import lang as tl

INFINITY = float("inf")
WIDTH = (4 if tl.registers() >= 32 else 2) * tl.lanes()  # six rows of it, and two registers more, fit the vector registers


@tw.kernel("T[H, S, D], T[H, L, D], T[H, L, D] -> T[H, S, D]", grid=lambda H, S, BM: (H, tl.cdiv(S, BM)))
def attention_tiles(q, k, v, y, *, D, BM=64, BN=64):
    """All of a block of queries in registers: what a GPU wants."""
    head, i = tl.program_id(0), tl.program_id(1)
    queries, keys, values = q[head].partition(BM, D)[i, 0], k[head].partition(BN, D), v[head].partition(BN, D)
    top, total = tl.full((BM, 1), -INFINITY), tl.zeros((BM, 1))
    acc = tl.zeros((BM, D))
    for j in range(keys.count[0]):
        s = tl.mma(queries, keys[j, 0].T, tl.zeros((BM, BN))) * (1.0 / math.sqrt(D))
        s = tl.where(tl.arange((1, BN)) < k.shape[1] - j * BN, s, -INFINITY)
        higher = tl.maximum(top, s.max(1))
        p, scale = tl.exp(s - higher), tl.exp(top - higher)
        total = total * scale + p.sum(1)
        acc = tl.mma(p.to(v.dtype), values[j, 0], acc * scale)
        top = higher
    y[head].partition(BM, D)[i, 0] = acc / total


@tw.kernel("T[H, S, D], T[H, L, D], T[H, L, D] -> T[H, S, D]", grid=lambda H, S, BM: (H, tl.cdiv(S, BM)))
def attention(q, k, v, y, *, D, BM=66, KEYS=WIDTH, ROWS=6):
    """Few rows in registers, the rest of the block in scratch memory: what a CPU wants. D is a multiple of a vector register."""
    W = min(D, KEYS)  # columns of v that are summed at once
    V = tl.lanes()
    assert D % V == 0, f"D must be a multiple of {V}"
    head, first = tl.program_id(0), tl.program_id(1) * BM
    queries, keys, values, out = q[head], k[head], v[head], y[head]
    length, height = keys.shape[0], min(BM, queries.shape[0] - first)
    turned, weights = tl.scratch((D, KEYS)), tl.scratch((ROWS, KEYS))
    sums, top, total = tl.scratch((BM, cover(D, W))), tl.scratch((BM, 1)), tl.scratch((BM, 1))
    for r in range(0, height, ROWS):
        top.store((r, 0), tl.full((ROWS, 1), -INFINITY))
        total.store((r, 0), tl.zeros((ROWS, 1)))
        for c in tl.static_range(0, D, W):
            sums.store((r, c), tl.zeros((ROWS, W)))
    for start in range(0, length, KEYS):
        for c in range(0, KEYS, V):  # the keys, transposed
            for d in range(0, D, V):
                turned.store((d, c), keys.load((start + c, d), (V, V)).to("f32").T)
        count = min(KEYS, length - start)
        for r in range(0, height, ROWS):
            s = tl.zeros((ROWS, KEYS))
            for d in tl.range(D, unroll=4):
                s = tl.mma(queries.load((first + r, d), (ROWS, 1)).to("f32"), turned.load((d, 0), (1, KEYS)), s)
            s = tl.where(tl.arange((1, KEYS)) < count, s * (1.0 / math.sqrt(D)), -INFINITY)
            before = top.load((r, 0), (ROWS, 1))
            higher = tl.maximum(before, s.max(1))
            p, scale = tl.exp(s - higher), tl.exp(before - higher)
            top.store((r, 0), higher)
            total.store((r, 0), total.load((r, 0), (ROWS, 1)) * scale + p.sum(1))
            weights.store((0, 0), p)
            for c in tl.static_range(0, D, W):
                acc = sums.load((r, c), (ROWS, W)) * scale
                for i in tl.range(count, unroll=4):
                    acc = tl.mma(weights.load((0, i), (ROWS, 1)), values.load((start + i, c), (1, W)).to("f32"), acc)
                sums.store((r, c), acc)
    for r in range(0, height, ROWS):
        for c in tl.static_range(0, D, W):
            out.store((first + r, c), sums.load((r, c), (ROWS, W)) / total.load((r, 0), (ROWS, 1)))


def cover(n, step):
    return -(-n // step) * step


def reference(q, k, v):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def main() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((4, 203, 64), np.float32), *rng.standard_normal((2, 4, 317, 64), np.float32)
    np.testing.assert_allclose(attention(q, k, v), reference(q, k, v), rtol=1e-4, atol=1e-5)
    print("attention: 4 heads, 203 queries, 317 keys agree with float64")


if __name__ == "__main__":
    main()
