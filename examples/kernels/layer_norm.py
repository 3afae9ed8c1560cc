"""Layer norm with its backward pass: three kernels, and the function that grad sees."""
from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import lang as tl

WIDTH = tl.by_target(cpu=4 * tl.lanes(), cuda=1024)  # four vector registers, or eight elements a thread
PARTS = tl.by_target(cpu=16, cuda=512)  # programs of the backward pass
STRIP = tl.by_target(cpu=4 * tl.lanes(), cuda=16)  # columns of a program that adds up their parts


@tw.kernel("T[M, N], T[N], T[N], f32 -> T[M, N], f32[M], f32[M]", grid=lambda M: M)
def norm_forward(x, weight, bias, eps, y, mean, rstd, *, BLOCK=WIDTH):
    row, n = tl.program_id(0), tl.cast(x.shape[1], "f32")
    src, dst = x[row].partition(BLOCK), y[row].partition(BLOCK)
    w, b = weight.partition(BLOCK), bias.partition(BLOCK)
    total = 0.0
    for t in src:
        total += t.load()
    m = total.sum() / n
    total = 0.0
    for t in src:
        d = t.load() - m
        total += tl.where(t.mask, d * d, 0.0)
    r = 1.0 / tl.sqrt(total.sum() / n + eps)
    for t in src:
        dst.tile_at(t).store((t.load() - m) * r * w.tile_at(t).load() + b.tile_at(t).load())
    mean.store(row, m)
    rstd.store(row, r)


@tw.kernel("T[M, N], T[N], f32[M], f32[M], T[M, N] -> T[M, N], f32[PARTS, N], f32[PARTS, N]", grid=lambda PARTS: PARTS)
def norm_backward(x, weight, mean, rstd, dy, dx, dweight, dbias, *, PARTS=PARTS, BLOCK=WIDTH):
    """dx = rstd (g - mean(g) - x̂ mean(g x̂)), with g = dy · weight and x̂ the normalized row. A program has some of the rows, and adds up
    their part of the gradients of weight and bias."""
    part, n = tl.program_id(0), tl.cast(x.shape[1], "f32")
    rows = tl.cdiv(x.shape[0], PARTS)
    w, dw, db = weight.partition(BLOCK), dweight[part].partition(BLOCK), dbias[part].partition(BLOCK)
    for t in dw:
        t.store(0.0)
        db.tile_at(t).store(0.0)
    for row in range(part * rows, min(part * rows + rows, x.shape[0])):
        m, r = mean.load(row, 1), rstd.load(row, 1)
        src, up, dst = x[row].partition(BLOCK), dy[row].partition(BLOCK), dx[row].partition(BLOCK)
        sum_g, sum_gx = 0.0, 0.0
        for t in src:
            d, hat = up.tile_at(t).load(), (t.load() - m) * r
            g = d * w.tile_at(t).load()  # zero behind the end, and so are the sums
            sum_g += g
            sum_gx += g * hat
            dw.tile_at(t).store(dw.tile_at(t).load() + d * hat)
            db.tile_at(t).store(db.tile_at(t).load() + d)
        mean_g, mean_gx = sum_g.sum() / n, sum_gx.sum() / n
        for t in src:
            g = up.tile_at(t).load() * w.tile_at(t).load()
            dst.tile_at(t).store(r * (g - mean_g - (t.load() - m) * r * mean_gx))


@tw.kernel("f32[P, N], f32[P, N], T[N] -> T[N], T[N]", grid=lambda N, BLOCK: tl.cdiv(N, BLOCK))
def add_parts(dweights, dbiases, weight, dweight, dbias, *, P, BLOCK=STRIP):
    """The gradients of weight and bias, in weight's dtype."""
    j = tl.program_id(0)
    dweight.partition(BLOCK)[j] = dweights.partition(P, BLOCK)[0, j].sum(0).reshape(BLOCK)
    dbias.partition(BLOCK)[j] = dbiases.partition(P, BLOCK)[0, j].sum(0).reshape(BLOCK)


@tw.custom_vjp
def layer_norm(x, weight, bias):
    return norm_forward(x, weight, bias, 1e-5)[0]


def _forward(x, weight, bias):
    y, mean, rstd = norm_forward(x, weight, bias, 1e-5)
    return y, (x, weight, mean, rstd)


def _backward(saved, dy):
    x, weight, mean, rstd = saved
    dx, dweights, dbiases = norm_backward(x, weight, mean, rstd, dy)
    return dx, *add_parts(dweights, dbiases, weight)


layer_norm.defvjp(_forward, _backward)


def main() -> None:
    rng = np.random.default_rng(0)
    x, w, b = rng.standard_normal((33, 301), np.float32), rng.standard_normal(301, np.float32), rng.standard_normal(301, np.float32)
    theirs = tw.layer_norm(x, w, b)
    np.testing.assert_allclose(layer_norm(x, w, b), theirs, rtol=1e-5, atol=1e-5)

    def loss(f):
        return lambda *args: tw.sum(tw.tanh(f(*args)))

    for ours, want in zip(*(tw.grad(loss(f), argnums=(0, 1, 2))(x, w, b) for f in (layer_norm, tw.layer_norm)), strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-4)
    print("layer_norm: results and all three gradients agree with tw.layer_norm")


if __name__ == "__main__":
    main()
