"""Kernels for the tests: small classics written with the builder, and random ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.core.dtypes import DType, bool_, f32, i64
from tilewright.tile.builder import Ix, KernelBuilder, Tile
from tilewright.tile.ir import Kernel


def masked_copy(lanes: int = 16) -> Kernel:
    """y[i] = x[i] for i < n, one tile a program."""
    b = KernelBuilder("masked_copy")
    x, y, n = b.view("x", f32, (None,)), b.view("y", f32, (1,)), b.index("n")
    at = b.pid * lanes
    b.store(y, [at], b.load(x, [at], (lanes,), limit=[n - at], other=7.0), limit=[n - at])
    return b.build()


def matmul(rows: int = 4, cols: int = 16, depth: int = 8, dtype: DType = f32) -> Kernel:
    """c[m,n] = sum_k a[m,k] * b[k,n], one block of rows a program, masks at every edge."""
    b = KernelBuilder("matmul")
    a, w, c = b.view("a", dtype, (None, 1)), b.view("b", dtype, (None, 1)), b.view("c", dtype, (None, 1))
    m, n, k = b.index("m"), b.index("n"), b.index("k")
    i = b.pid * rows
    with b.loop(0, n, cols) as columns:
        j = columns.index
        with b.loop(0, k, depth, carried=[b.full((rows, cols), 0.0)]) as inner:
            p = inner.index
            left = b.cast(b.load(a, [i, p], (rows, depth), limit=[m - i, k - p]), f32)
            right = b.cast(b.load(w, [p, j], (depth, cols), limit=[k - p, n - j]), f32)
            inner.next(b.mma(left, right, inner.carried[0]))
        b.store(c, [i, j], b.cast(inner.results[0], dtype), limit=[m - i, n - j])
    return b.build()


def softmax(lanes: int = 16) -> Kernel:
    """Rows of y are the softmax of rows of x; the exponentials stay in scratch."""
    b = KernelBuilder("softmax")
    x, y, n = b.view("x", f32, (None, 1)), b.view("y", f32, (None, 1)), b.index("n")
    s = b.scratch(f32, (512,))
    with b.loop(0, n, lanes, carried=[b.full((lanes,), float("-inf"))]) as top:
        t = b.load(x, [b.pid, top.index], (lanes,), limit=[n - top.index], other=float("-inf"))
        top.next(b.binary("max", top.carried[0], t))
    highest = b.reduce("max", top.results[0])
    with b.loop(0, n, lanes, carried=[b.full((lanes,), 0.0)]) as total:
        t = b.load(x, [b.pid, total.index], (lanes,), limit=[n - total.index], other=float("-inf"))
        e = b.unary("exp", t - highest)
        b.store(s, [total.index], e)
        total.next(total.carried[0] + e)
    scale = b.unary("reciprocal", b.reduce("sum", total.results[0]))
    with b.loop(0, n, lanes) as out:
        b.store(y, [b.pid, out.index], b.load(s, [out.index], (lanes,)) * scale, limit=[n - out.index])
    return b.build()


def layer_norm(lanes: int = 8) -> Kernel:
    b = KernelBuilder("layer_norm")
    x, g, y = b.view("x", f32, (None, 1)), b.view("g", f32, (1,)), b.view("y", f32, (None, 1))
    n = b.index("n")
    with b.loop(0, n, lanes, carried=[b.full((lanes,), 0.0)]) as first:
        first.next(first.carried[0] + b.load(x, [b.pid, first.index], (lanes,), limit=[n - first.index]))
    count = b.from_index(n, f32)
    mean = b.reduce("sum", first.results[0]) / count
    with b.loop(0, n, lanes, carried=[b.full((lanes,), 0.0)]) as second, b.contracting():
        inside = b.cmp("lt", b.iota((lanes,), 0), b.from_index(n - second.index, i64))
        d = b.select(inside, b.load(x, [b.pid, second.index], (lanes,), limit=[n - second.index]) - mean, 0.0)
        second.next(d * d + second.carried[0])
    scale = b.unary("rsqrt", b.reduce("sum", second.results[0]) / count + 1e-5)
    with b.loop(0, n, lanes) as third:
        t = (b.load(x, [b.pid, third.index], (lanes,), limit=[n - third.index]) - mean) * scale
        b.store(y, [b.pid, third.index], t * b.load(g, [third.index], (lanes,), limit=[n - third.index]), limit=[n - third.index])
    return b.build()


def ring(stages: int = 2, lanes: int = 16) -> Kernel:
    """y = x through a ring of shared-memory stages, one stage ahead."""
    b = KernelBuilder("ring")
    x, y, n = b.view("x", f32, (None, 1)), b.view("y", f32, (None, 1)), b.index("n")
    s = b.scratch(f32, (stages, lanes), "shared")
    b.store(s, [0, 0], b.load(x, [0, 0], (lanes,)))
    with b.loop(0, n) as loop:
        i = loop.index
        ahead = b.minimum(i + 1, n - 1)
        now = b.load(s, [i % stages, 0], (lanes,))
        b.store(s, [(i + 1) % stages, 0], b.load(x, [ahead, 0], (lanes,)))
        b.store(y, [i, 0], now)
    return b.build()


CLASSICS: dict[str, Callable[[], Kernel]] = {
    "masked_copy": masked_copy,
    "matmul": matmul,
    "softmax": softmax,
    "layer_norm": layer_norm,
    "ring": ring,
}

SIZE = 97  # elements of the buffers of a random kernel


def random_kernel(seed: int, steps: int = 24) -> Kernel:
    """A kernel over x, y: f32[SIZE, SIZE] and n <= SIZE, whose accesses are all in bounds: loops, branches, limits, scratch."""
    return _Random(seed).build(steps)


class _Random:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = KernelBuilder(f"random{seed}")

    def pick(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def build(self, steps: int) -> Kernel:
        b = self.b
        self.x, self.y, self.n = b.view("x", f32, (None, 1)), b.view("y", f32, (None, 1)), b.index("n")
        self.scratch = [b.scratch(f32, (3, 8)) for _ in range(2)]
        for s in self.scratch:
            with b.loop(0, 3) as fill:
                b.store(s, [fill.index, 0], b.full((8,), float(self.rng.integers(5))))
        self.block([b.pid, self.n, 3], [b.full((8,), 1.5), b.load(self.x, [b.pid, 0], (8,)), b.full((), -0.0)], steps, 0)
        return b.build()

    def block(self, indices: list[Ix | int], tiles: list[Tile], steps: int, depth: int) -> list[Tile]:
        """Append random instructions; index values are small and not negative."""
        b, rng = self.b, self.rng
        indices, tiles = list(indices), list(tiles)
        for _ in range(steps):
            kind = int(rng.integers(14))
            if kind == 0:
                i = self.index(indices)
                indices.append(
                    b.index_op(self.pick(["add", "mul", "min", "max"]), i, int(rng.integers(4)))
                    if rng.integers(2)
                    else b.minimum(i, self.n)
                )
            elif kind == 1:
                tiles.append(b.unary(self.pick(["neg", "abs", "sqrt", "floor", "reciprocal"]), self.pick(tiles)))
            elif kind in (2, 3, 4):
                with b.contracting():
                    t = self.pick(tiles) * self.pick(tiles)
                    u = self.pick(tiles)
                    tiles.append(self.pick([lambda t=t, u=u: t + u, lambda t=t, u=u: t - u, lambda t=t, u=u: u - t])())
                    if rng.integers(3) == 0:
                        tiles.append(t)
            elif kind == 5:
                tiles.append(
                    b.select(b.cmp(self.pick(["lt", "ge", "ne"]), self.pick(tiles), self.pick(tiles)), self.pick(tiles), self.pick(tiles))
                )
            elif kind == 6:
                r = b.reduce(self.pick(["sum", "max", "min", "prod"]), b.broadcast(self.pick(tiles), (8,)))
                tiles.append(b.reshape(r, ()))
            elif kind == 7:
                tiles.append(b.load(self.pick(self.scratch), [self.index(indices) % 3, 0], (8,)))
            elif kind == 8:
                b.store(self.pick(self.scratch), [self.index(indices) % 3, 0], b.broadcast(self.pick(tiles), (8,)))
            elif kind == 9:
                i, limit = self.index(indices) % 4, self.index(indices)
                tiles.append(b.load(self.x, [i, 0], (8,), limit=[limit], other=float(rng.integers(3))))
            elif kind == 10:
                i = self.index(indices) % 7
                b.store(self.y, [b.pid, i * 8], b.broadcast(self.pick(tiles), (8,)), limit=[b.maximum(0, self.index(indices))])
            elif kind == 11 and depth < 3:
                cond = b.compare(self.pick(["lt", "le", "gt", "ge", "eq"]), self.index(indices), self.index(indices))
                with b.if_(cond):
                    self.block(indices, tiles, steps // 3 + 1, depth + 1)
            elif kind >= 12 and depth < 2:
                tiles.append(self.loop(indices, tiles, steps, depth))
        last = b.broadcast(self.pick(tiles), (8,))
        b.store(self.y, [b.pid, 64 + 8 * depth], last)
        return tiles

    def index(self, indices: list[Ix | int]) -> Ix | int:
        return self.b.minimum(self.pick(indices), 90)

    def loop(self, indices: list[Ix | int], tiles: list[Tile], steps: int, depth: int) -> Tile:
        b, rng = self.b, self.rng
        start = self.pick([0, int(rng.integers(4)), self.index(indices) % 5])
        stop = self.pick([int(rng.integers(9)), self.index(indices) % 11, b.minimum(self.n, 20), self.n])
        step = self.pick([1, 2, 3, 8])
        carried = [b.broadcast(self.pick(tiles), (8,)), b.full((8,), 0.0)]
        with b.loop(start, stop, step, carried=carried, unroll=self.pick([None, None, 2, 3, 8])) as loop:
            i, inner = loop.index, [*tiles, *loop.carried]
            row = self.pick([b.pid, 0])
            inner.append(b.load(self.x, [row, i], (8,), limit=[self.pick([self.n - i, b.minimum(8, self.n - i)])], other=1.0))
            if rng.integers(2):
                bound = self.pick([self.n, 3, 5, self.index(indices)])
                with b.if_(b.compare(self.pick(["lt", "le", "gt", "ge"]), *self.pick([(i * 2 + 1, bound), (bound, i), (i, bound)]))):
                    t = b.load(self.x, [row, i], (8,), limit=[self.n - i])
                    b.store(self.y, [b.pid, i], t * 0.5, limit=[self.n - i])
                    self.block([*indices, i], inner, 2, depth + 2)
            inner = self.block([*indices, i], inner, steps // 3 + 1, depth + 1)
            bounded = b.binary("max", b.binary("min", b.broadcast(self.pick(inner), (8,)), 4.0), -4.0)
            loop.next(bounded, b.broadcast(inner[-1], (8,)))
        out: Tile = self.pick(loop.results)
        return out


def random_arguments(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed + 1000)
    x = rng.standard_normal((SIZE, SIZE)).astype(np.float32)
    return [x, np.zeros((SIZE, SIZE), np.float32), int(rng.integers(0, 90))]


__all__ = ["CLASSICS", "SIZE", "bool_", "layer_norm", "masked_copy", "matmul", "random_arguments", "random_kernel", "ring", "softmax"]
