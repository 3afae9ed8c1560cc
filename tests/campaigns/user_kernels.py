"""Random kernels of users (`tw.kernel`): tiles of two axes with loops, branches, loads at offsets, gathers, reductions and products, on
arrays of odd sizes and layouts. The compiled kernel, alone and inside `tw.jit`, equals the interpreter (`kernel.debug`) bit for bit.

All numbers are small integers, so that no sum rounds; a result that no program writes is compared nowhere.
"""

from __future__ import annotations

import importlib.util
import linecache
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

from .engine.campaign import Campaign, Invalid
from .programs.program import Picks, Step

DTYPES = ("f32", "f32", "f64", "i32", "i64", "bf16", "f16", "i8")
KINDS = ("binary", "binary", "scalar", "where", "offset", "gather", "reduce", "branch", "loop", "shape", "sum", "product")
TILES = (1, 2, 3, 4, 5, 8, 16)


@dataclass(frozen=True)
class Kernel:
    steps: tuple[Step, ...]
    dtype: str
    m: int
    n: int
    tile: tuple[int, int]
    layouts: tuple[int, int]
    data: int


def some(rng: np.random.Generator, count: int, depth: int) -> tuple[Step, ...]:
    made = []
    for _ in range(count):
        name = str(rng.choice(KINDS))
        body = some(rng, int(rng.integers(1, 4)), depth + 1) if name in ("branch", "loop") and depth < 2 else ()
        made.append(Step(0, name, (), tuple(int(n) for n in rng.integers(0, 1 << 16, 8)), body))
    return tuple(made)


def draw(rng: np.random.Generator) -> Kernel:
    sizes = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)
    tile = (int(rng.choice(TILES)), int(rng.choice(TILES)))
    return Kernel(some(rng, int(rng.integers(1, 8)), 0), str(rng.choice(DTYPES)), int(rng.choice(sizes)), int(rng.choice(sizes)), tile,
                  (int(rng.integers(5)), int(rng.integers(5))), int(rng.integers(1 << 30)))  # fmt: skip


class Source:
    """The lines of a kernel. `t0 t1 …` are tiles, `i` and `j` the tile's place."""

    def __init__(self, tile: tuple[int, int], wide: str) -> None:
        self.tile, self.wide, self.lines, self.tiles, self.indent = tile, wide, ["    t0 = xs[i, j]", "    t1 = ys[i, j]"], 2, "    "

    def say(self, line: str) -> None:
        self.lines.append(self.indent + line)

    def give(self, expression: str, old: str | None = None) -> None:
        """A new tile, or an old one's new value inside loops and branches, bounded."""
        name = old or f"t{self.tiles}"
        self.tiles += old is None
        self.say(f"{name} = tl.maximum(tl.minimum(tl.broadcast_to({expression}, (BM, BN)).to('{self.wide}'), 30), -30)")

    def of(self, p: Picks) -> str:
        return f"t{self.tiles - 1 - min(p(self.tiles), p(self.tiles))}"

    def number(self, p: Picks) -> str:
        return p.of(("i", "j", "BM", "(x.shape[0] + i) % 5", "min(i + 1, j)", "x.shape[1] // 2", "3", "j * 2 + 1"))

    def steps(self, steps: tuple[Step, ...], inside: bool = False) -> None:
        for s in steps:
            p = Picks(s.picks)
            old = self.of(p) if inside else None
            getattr(self, f"_{s.op}")(p, s.body, old)

    def _binary(self, p: Picks, body: Any, old: str | None) -> None:
        a, b = self.of(p), self.of(p)
        self.give(p.of((f"{a} + {b}", f"{a} - {b}", f"{a} * {b}", f"tl.maximum({a}, {b})", f"tl.minimum({a}, -{b})",
                        f"abs({a}) - {b}")), old)

    def _scalar(self, p: Picks, body: Any, old: str | None) -> None:
        self.give(f"{self.of(p)} {p.of('+-*')} tl.cast(({self.number(p)}) % 7, '{self.wide}')", old)

    def _where(self, p: Picks, body: Any, old: str | None) -> None:
        a, b = self.of(p), self.of(p)
        axis = p(2)
        test = p.of((f"{a} > {b}", f"{a} == {b}", f"tl.arange((BM, BN), {axis}) < {self.number(p)}",
                        f"({a} < 0) | ({b} <= 1)", f"~({a} != {b})"))
        self.give(f"tl.where({test}, {self.of(p)}, {self.of(p)})", old)

    def _offset(self, p: Picks, body: Any, old: str | None) -> None:
        """A load of a whole tile from a place inside, partly behind the end perhaps."""
        of, other = p.of(("x", "y", "x.T", "y.permute(1, 0)")), p(4)
        first, second = (f"min(({self.number(p)}), {of}.shape[{a}] - 1)" for a in (0, 1))
        self.give(f"{of}.load(({first}, {second}), (BM, BN), other={other})", old)

    def _gather(self, p: Picks, body: Any, old: str | None) -> None:
        axis = p(2)
        shape = "(BN,)" if axis else "(BM,)"
        index = f"tl.cast((tl.arange({shape}, 0) * {1 + p(3)} + {p(5)}) % tl.cast(x.shape[{axis}], 'i64'), 'i64')"
        rest = "(i * BM) % x.shape[0]" if axis else "(j * BN) % x.shape[1]"
        at = f"at{len(self.lines)}"
        self.say(f"{at} = {index}")
        row = f"x[{rest}, :]" if axis else f"x[:, {rest}]"
        self.give(f"{row}.gather({at}, 0){'[None, :]' if axis else '[:, None]'}", old)

    def _reduce(self, p: Picks, body: Any, old: str | None) -> None:
        a, axis = self.of(p), p(2)
        self.give(p.of((f"{a}.sum({axis})", f"{a}.max({axis})", f"{a}.min({axis})", f"{a} - {a}.max({axis})",
                        f"tl.where(({a} > 0).any({axis}), {a}, 1)",
                        f"{a}.max(0).max(1)")), old)

    def _shape(self, p: Picks, body: Any, old: str | None) -> None:
        a = self.of(p)
        self.give(p.of((f"{a}.T.reshape((BN, BM)).T", f"tl.transpose(tl.transpose({a}))",
                        f"{a}.reshape((1, BM, BN)).sum(0).reshape((BM, BN))", f"{a}.to('f32').to('{self.wide}')")), old)

    def _sum(self, p: Picks, body: Any, old: str | None) -> None:
        self.say(f"total = tl.maximum(tl.minimum(total + {self.of(p)}.sum(0).sum(1).to('f32'), 900), -900)")

    def _product(self, p: Picks, body: Any, old: str | None) -> None:
        if self.wide not in ("f32", "f64"):
            return
        a, b = self.of(p), self.of(p)
        self.give(f"tl.mma({a}, {b}.T, tl.zeros((BM, BM), '{self.wide}')).sum(1)", old)

    def _branch(self, p: Picks, body: tuple[Step, ...], old: str | None) -> None:
        self.say(f"if {p.of(('i % 2 == 0', 'j > 0', 'i + j < 3', 'x.shape[0] > 4', 'j == x.shape[1] // BN'))}:")
        self.nested(body, p(2) == 0)

    def _loop(self, p: Picks, body: tuple[Step, ...], old: str | None) -> None:
        name = f"k{len(self.lines)}"
        span = p.of(("3", "j + 1", f"i, i + {p(4)}", "0, x.shape[1], 4", "min(j, 2)", "1, 6, 2", "0"))
        self.say(f"for {name} in {p.of(('range', 'range', 'tl.range'))}({span}):")
        self.nested(body, False)

    def nested(self, body: tuple[Step, ...], both: bool) -> None:
        self.indent += "    "
        self.say("t0 = t0 + 1" if self.wide != "i8" else "t0 = tl.minimum(t0 + 1, 30)")
        self.steps(body, inside=True)
        self.indent = self.indent[:-4]
        if both:
            self.say("else:")
            self.say("    t1 = t0 - t1")


def source(k: Kernel) -> str:
    wide = {"bf16": "f32", "f16": "f32", "i8": "i32"}.get(k.dtype, k.dtype)
    s = Source(k.tile, wide)
    s.lines = [f"{line}.to('{wide}')" for line in s.lines]
    s.say("total = tl.zeros((1, 1), 'f32')")
    s.steps(k.steps)
    last = f"tl.maximum(tl.minimum(t{s.tiles - 1}, 30), -30).to('{k.dtype}')"
    return "\n".join([
        "import tilewright as tw", "from tilewright import lang as tl", "",
        '@tw.kernel("T[M, N], T[M, N] -> T[M, N], f32[M, N]", grid=lambda M, N, BM, BN: (tl.cdiv(M, BM), tl.cdiv(N, BN)))',
        f"def kernel(x, y, z, s, *, BM={k.tile[0]}, BN={k.tile[1]}):",
        "    i, j = tl.program_id(0), tl.program_id(1)", "    xs, ys = x.partition(BM, BN), y.partition(BM, BN)", *s.lines,
        f"    z.partition(BM, BN)[i, j] = {last}", "    s.partition(BM, BN)[i, j] = tl.broadcast_to(total, (BM, BN))", ""])  # fmt: skip


def arrays(k: Kernel) -> list[Any]:
    rng, made = np.random.default_rng(k.data), []
    for layout in k.layouts:
        m, n = k.m, k.n
        a = rng.integers(-3, 4, (2 * m, 3 * n)).astype(tw.core.dtypes.dtype(k.dtype).np)
        made.append((a[:m, :n].copy(), a[::2, ::3], a[:m, :n][::-1, ::-1], np.asfortranarray(a[:m, :n]),
                     np.broadcast_to(a[:1, :n], (m, n)))[layout])
    return made


def loaded(text: str, folder: str) -> Any:
    """The kernel of this text: its source is read when it is compiled."""
    path = Path(folder, "written.py")
    path.write_text(text)
    linecache.checkcache()
    spec = importlib.util.spec_from_file_location("written", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def check(k: Kernel) -> None:
    if k.m < 1 or k.n < 1 or min(k.tile) < 1 or max(k.tile) > 32 or max(k.m, k.n) > 64 or not all(0 <= a < 5 for a in k.layouts):
        raise Invalid
    x, y = arrays(k)
    with tempfile.TemporaryDirectory() as folder:
        kernel = loaded(source(k), folder)
        want = kernel.debug(x, y)
        found = (("called", kernel(x, y)), ("jitted", tw.jit(kernel)(x, y)))
    for name, got in found:
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            a, b = np.asarray(a), np.asarray(b)
            assert a.dtype == b.dtype and a.shape == b.shape
            bad = [tuple(at) for at in np.argwhere(a.astype(np.float64) != b.astype(np.float64))]
            assert not bad, f"{name}, result {i}: {len(bad)} elements differ, {a[bad[0]]} at {bad[0]}, {b[bad[0]]} expected"


def show(k: Kernel) -> str:
    return f"{source(k)}\n# {k!r}\n"


CAMPAIGN = Campaign(draw=draw, check=check, show=show, keep=("op", "dtype"), quick=4, seconds=60.0, growth=4 << 20)
