"""Tile passes: the interpreter gives the same bits before and after, a second run changes nothing, and each pass does its job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tile.kernels import CLASSICS, layer_norm, masked_copy, matmul, random_arguments, random_kernel, ring, softmax
from tilewright.core.dtypes import f32, i64
from tilewright.core.errors import ExecutionError
from tilewright.tile.builder import Ix, KernelBuilder
from tilewright.tile.interp import run
from tilewright.tile.ir import Kernel
from tilewright.tile.passes import (
    DEFAULT,
    FuseMultiplyAdd,
    HoistInvariants,
    KeepInRegisters,
    RemoveDead,
    ReuseValues,
    SplitLoops,
    TilePass,
    UnrollLoops,
    copy_kernel,
    optimise,
)
from tilewright.tile.passes.split import Affine
from tilewright.tile.text import to_text
from tilewright.tile.verify import verify

EXACT: list[TilePass] = [ReuseValues(), HoistInvariants(), SplitLoops(), SplitLoops(max_parts=2), UnrollLoops(), RemoveDead(),
                         KeepInRegisters()]
BITS = [p for p in DEFAULT if p.name != "fma"]


def ops(kernel: Kernel) -> list[str]:
    return [i.op for i in kernel.walk()]


def outcome(kernel: Kernel, seed: int) -> bytes:
    args = random_arguments(seed)
    run(kernel, args, 2)
    return bytes(args[1].tobytes())


@pytest.mark.parametrize("seed", range(8))
def test_random_kernels_keep_their_bits(seed: int) -> None:
    kernel = random_kernel(seed, 16)
    text, expected = to_text(kernel), outcome(kernel, seed)
    for p in EXACT:
        changed = optimise(kernel, [p], check=True)
        assert outcome(changed, seed) == expected, p
        after = to_text(changed)
        assert (p.run(changed), to_text(changed)) == (0, after), f"{p} is idempotent"
    assert outcome(optimise(kernel, BITS, check=True), seed) == expected
    assert to_text(kernel) == text, "optimise works on a copy"


@pytest.mark.parametrize("seed", range(12, 18))
def test_fma_is_the_exact_fusion(seed: int) -> None:
    """Fused by the pass, or computed with fma in the first place: the same text, so the same bits; and never fused without permission."""
    kernel = random_kernel(seed, 16)
    fused = optimise(kernel, [FuseMultiplyAdd()], check=True)
    after = to_text(fused)
    assert (FuseMultiplyAdd().run(fused), to_text(fused)) == (0, after)
    plain = copy_kernel(kernel)
    for i in plain.walk():
        i.attrs = {k: v for k, v in i.attrs.items() if k != "contract"}
    assert FuseMultiplyAdd().run(plain) == 0
    assert FuseMultiplyAdd(everywhere=True).run(plain) >= ops(fused).count("fma")


CASES: list[tuple[Kernel, Callable[[], list[Any]], int]] = [
    (masked_copy(), lambda: [np.arange(37, dtype=np.float32), np.zeros(37, np.float32), 37], 3),
    (matmul(), lambda: [_data(9, 21), _data(21, 35), np.zeros((9, 35), np.float32), 9, 35, 21], 3),
    (softmax(), lambda: [_data(3, 45), np.zeros((3, 45), np.float32), 45], 3),
    (layer_norm(), lambda: [_data(3, 45), _data(45), np.zeros((3, 45), np.float32), 45], 3),
    (ring(), lambda: [_data(5, 16), np.zeros((5, 16), np.float32), 5], 1),
]


def _data(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kernel, arguments, grid", CASES, ids=[k.name for k, _, _ in CASES])
def test_classics_keep_their_bits(kernel: Kernel, arguments: Callable[[], list[Any]], grid: int) -> None:
    before, after = arguments(), arguments()
    run(kernel, before, grid)
    run(optimise(kernel, BITS, check=True), after, grid)
    for x, y in zip(before, after, strict=True):
        assert np.array_equal(x, y)


@pytest.mark.parametrize("name", ["matmul", "softmax", "layer_norm"])
def test_golden_after_all_passes(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.optimised.tile", to_text(optimise(CLASSICS[name]())))


# --- splitting ----------------------------------------------------------------------------------------------------------
def masked_loop(condition: str = "", start: Any = 0, step: int = 8, factor: int = 1, swap: bool = False) -> Kernel:
    """y[i] = 2 x[i], tile by tile with masks; and, on a condition of the counter, y[200 + i] = i."""
    b = KernelBuilder("masked_loop")
    x, y, n, m = b.view("x", f32, (1,)), b.view("y", f32, (1,)), b.index("n"), b.index("m")
    with b.loop(m if start == "m" else start, n, step) as loop:
        i = loop.index
        b.store(y, [i], b.load(x, [i], (8,), limit=[n - i]) * 2.0, limit=[n - i])
        if condition:
            scaled = i * factor
            with b.if_(b.compare(condition, *((m, scaled) if swap else (scaled, m)))):
                b.store(y, [i + 200], b.reshape(b.from_index(i, f32), (1,)))
    return b.build()


@pytest.mark.parametrize("condition", ["", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize(
    "start, step, factor, swap", [(0, 8, 1, False), (3, 8, 1, True), ("m", 3, 2, False), (0, 5, 3, True), (2, 1, 1, False)]
)
def test_split_is_right_for_every_bound(condition: str, start: Any, step: int, factor: int, swap: bool) -> None:
    kernel = masked_loop(condition, start, step, factor, swap)
    changed = optimise(kernel, [SplitLoops()], check=True)
    assert ops(changed).count("for") == (4 if condition else 2) or (condition and ops(changed).count("for") == 3)
    x = np.arange(300, dtype=np.float32)
    for n, m in [(0, 0), (1, 0), (7, 3), (8, 8), (9, 40), (40, 9), (41, 16), (64, 0), (63, 63), (5, 100), (16, 7)]:
        a, b = np.zeros(600, np.float32), np.zeros(600, np.float32)
        run(kernel, [x, a, n, m], 1)
        run(changed, [x, b, n, m], 1)
        assert np.array_equal(a, b), (n, m)


def test_the_main_loop_has_no_masks() -> None:
    changed = optimise(masked_loop("lt"), [SplitLoops(), RemoveDead()], check=True)
    for loop in (i for i in changed.walk() if i.op == "for"):
        inner = loop.blocks[0].body
        assert not any(i.op == "if" for i in inner)
        limited = [i for i in inner if "limits" in i.attrs]
        assert bool(limited) == (loop.attrs["split"] == "tail")


def literal_loop(n: int) -> Kernel:
    b = KernelBuilder("literal")
    x, y = b.view("x", f32, (1,)), b.view("y", f32, (1,))
    with b.loop(0, n, 8, carried=[b.full((8,), 0.0)]) as loop:
        t = b.load(x, [loop.index], (8,), limit=[n - loop.index])
        loop.next(loop.carried[0] + t)
    b.store(y, [0], loop.results[0])
    return b.build()


@pytest.mark.parametrize("n, loops", [(32, ["main"]), (37, ["main", "tail"]), (5, ["tail"]), (0, [])])
def test_empty_halves_vanish(n: int, loops: list[str]) -> None:
    kernel = literal_loop(n)
    changed = optimise(kernel, [SplitLoops()], check=True)
    assert [i.attrs["split"] for i in changed.walk() if i.op == "for"] == loops
    results = []
    for k in (kernel, changed):
        y = np.zeros(8, np.float32)
        run(k, [np.arange(n, dtype=np.float32), y], 1)
        results.append(y.tobytes())
    assert results[0] == results[1]


def test_split_asks_for_profit() -> None:
    b = KernelBuilder("cheap")
    y, n = b.view("y", i64, (1,)), b.index("n")
    with b.loop(0, n, carried=[b.full((1,), 0, i64)]) as loop:
        b.compare("lt", loop.index, 5)
        loop.next(loop.carried[0] + b.from_index(loop.index))
    b.store(y, [0], loop.results[0])
    kernel = b.build()
    assert SplitLoops().run(copy_kernel(kernel)) == 0
    assert SplitLoops(max_size=3).run(copy_kernel(masked_loop("lt"))) == 0


@pytest.mark.parametrize("kind", ["square", "loaded", "equal"])
def test_loops_that_cannot_be_split_stay(kind: str) -> None:
    """A condition that is not linear in the counter, depends on data or holds at one place has no split point: text and bits stay."""
    b = KernelBuilder("whole")
    x, y, n, m = b.view("x", f32, (1,)), b.view("y", f32, (1,)), b.index("n"), b.index("m")
    with b.loop(0, n, 8) as loop:
        i = loop.index
        b.store(y, [i], b.load(x, [i], (8,)) * 2.0)
        condition = {"square": lambda: b.compare("lt", i * i, m), "equal": lambda: b.compare("eq", i, m),
                     "loaded": lambda: b.reshape(b.cmp("lt", b.load(x, [i], (1,)), 20.0), ())}[kind]()
        with b.if_(condition):
            b.store(y, [i + 200], b.load(x, [i], (8,)) + 1.0)
    kernel = b.build()
    before = to_text(kernel)
    assert SplitLoops().run(kernel) == 0 and to_text(kernel) == before
    assert SplitLoops().run(masked_loop("lt")) > 0, "a loop of the same work that can be split is"


def test_nested_loops_split_at_both_levels() -> None:
    changed = optimise(matmul(), [HoistInvariants(), SplitLoops()], check=True)
    assert ops(changed).count("for") == 6  # two over columns, each with two over depth


def test_a_wrong_split_point_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's own check: one iteration too many in the main loop reads outside the buffer."""
    right = Affine.emit
    monkeypatch.setattr(Affine, "emit", lambda self, e: right(self.plus(8), e))
    kernel = masked_loop()
    changed = optimise(kernel, [SplitLoops()])
    with pytest.raises(ExecutionError, match="touches elements"):
        run(changed, [np.zeros(37, np.float32), np.zeros(37, np.float32), 37, 0], 1)


# --- the others ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "build, text",
    [
        (lambda a, b, c: a * b + c, ["fma"]),
        (lambda a, b, c: c + a * b, ["fma"]),
        (lambda a, b, c: a * b - c, ["neg", "fma"]),
        (lambda a, b, c: c - a * b, ["neg", "fma"]),
        (lambda a, b, c: (a * b + c) * a + b, ["fma", "fma"]),
        (lambda a, b, c: a * b + a * c, ["mul", "fma"]),
        (lambda a, b, c: a * b + (b * c + (c * a + a)), ["fma"] * 3),
        (lambda a, b, c: ((a * b + c) * b + a) * c + b, ["fma"] * 3),
        (lambda a, b, c: (a * b + b * c) + (a * c + c * c), ["mul", "fma", "mul", "fma", "add"]),
    ],
)
def test_fma_forms(build: Any, text: list[str]) -> None:
    b = KernelBuilder("k")
    x, y = b.view("x", f32, (None, 1)), b.view("y", f32, (1,))
    with b.contracting():
        b.store(y, [0], build(*[b.load(x, [n, 0], (16,)) for n in range(3)]))
    kernel = b.build()
    fused = optimise(kernel, [FuseMultiplyAdd()], check=True)
    assert [o for o in ops(fused) if o not in ("load", "store")] == text
    data = _data(3, 16)
    out, exact = np.zeros(16, np.float32), np.zeros(16, np.float32)
    run(fused, [data, out], 1)
    run(kernel, [data, exact], 1)
    np.testing.assert_allclose(out, build(*data.astype(np.float64)), rtol=1e-5, atol=1e-6)
    assert not np.array_equal(out, exact) or len(text) >= 2, "one rounding less shows somewhere in sixteen values"


def test_fma_with_nan_and_infinities() -> None:
    """What is NaN or infinite from the start stays so. Fusion shows where a product alone overflows: its sum may be finite, and an infinity
    of the other sign wins instead of giving NaN."""
    nan, inf = np.nan, np.inf
    same = [(nan, 1, 1), (1, nan, 1), (1, 1, nan), (inf, 0, 1), (inf, 1, -inf), (inf, 2, inf), (-inf, 2, 1), (1, 1, inf), (0, 5, -inf)]
    other = [(2e19, 2e19, -2e38), (1e30, 1e30, -inf)]
    data = np.array(same + other, np.float32).T.copy()
    b = KernelBuilder("k")
    x, y, n = b.view("x", f32, (None, 1)), b.view("y", f32, (1,)), len(same + other)
    with b.contracting():
        first, second, third = (b.load(x, [i, 0], (n,)) for i in range(3))
        b.store(y, [0], first * second + third)
    kernel = b.build()
    fused, plain = np.zeros(n, np.float32), np.zeros(n, np.float32)
    with np.errstate(all="ignore"):
        run(optimise(kernel, [FuseMultiplyAdd()]), [data, fused], 1)
        run(kernel, [data, plain], 1)
    np.testing.assert_array_equal(fused[: len(same)], plain[: len(same)])
    assert np.isfinite(fused[-2]) and plain[-2] == inf
    assert fused[-1] == -inf and np.isnan(plain[-1])


def test_halves_unroll_by_themselves() -> None:
    """Each half has a factor of its own."""
    changed = optimise(literal_loop(77), [SplitLoops()])
    for loop in (i for i in changed.walk() if i.op == "for"):
        assert loop.attrs["split"] in ("main", "tail")
        loop.attrs["unroll"] = 4 if loop.attrs["split"] == "main" else 1
    done = optimise(changed, [UnrollLoops()], check=True)
    sizes = [(loop.attrs["split"], sum(i.op == "load" for i in loop.blocks[0].body)) for loop in done.walk() if loop.op == "for"]
    assert ("main", 4) in sizes and ("tail", 4) not in sizes, sizes
    results = []
    for k in (changed, done):
        y = np.zeros(8, np.float32)
        run(k, [np.arange(77, dtype=np.float32), y], 1)
        results.append(y.tobytes())
    assert results[0] == results[1]


def test_fma_leaves_products_with_other_uses() -> None:
    b = KernelBuilder("k")
    x = b.view("x", f32, (1,))
    with b.contracting():
        t = b.load(x, [0], (8,))
        p = t * t
        b.store(x, [0], p + t)
        b.store(x, [8], p)
    assert FuseMultiplyAdd().run(b.build()) == 0


def test_cse_tells_zeros_apart() -> None:
    b = KernelBuilder("k")
    x = b.view("x", f32, (1,))
    for n, v in enumerate([0.0, -0.0, 0.0]):
        b.store(x, [4 * n], b.full((4,), v))
    changed = optimise(b.build(), [ReuseValues()], check=True)
    assert ops(changed).count("full") == 2


def test_cse_does_not_reuse_loads_or_cross_blocks() -> None:
    b = KernelBuilder("k")
    x = b.view("x", f32, (1,))
    with b.if_(b.compare("lt", b.pid, 3)):
        b.store(x, [b.pid * 4], b.load(x, [0], (4,)))
    b.store(x, [b.pid * 4], b.load(x, [0], (4,)))
    changed = optimise(b.build(), [ReuseValues()], check=True)
    assert (ops(changed).count("load"), ops(changed).count("index.mul")) == (2, 2)


def test_licm_leaves_divisions_and_branches() -> None:
    b = KernelBuilder("k")
    x, n = b.view("x", f32, (1,)), b.index("n")
    with b.loop(0, n) as loop:
        t = b.unary("exp", b.full((4,), 2.0))
        at = b.pid % n  # n may be zero outside the loop
        with b.if_(b.compare("lt", loop.index, 3)):
            b.store(x, [at + n * 2], t)
    changed = optimise(b.build(), [HoistInvariants()], check=True)
    assert [i.op for i in changed.body.body] == ["full", "exp", "for"]


def test_licm_may_keep_large_tiles() -> None:
    assert HoistInvariants(max_bytes=0).run(copy_kernel(layer_norm())) < HoistInvariants().run(copy_kernel(layer_norm()))


def test_dce_removes_dead_loops_loads_and_carried_values() -> None:
    b = KernelBuilder("k")
    x, n = b.view("x", f32, (1,)), b.index("n")
    s = b.scratch(f32, (8,))
    zero = b.full((8,), 0.0)
    with b.loop(0, n, carried=[zero, zero]) as loop:
        b.store(s, [0], loop.carried[0])
        unused = b.load(s, [0], (8,))
        loop.next(loop.carried[0] + 1.0, unused)
    with b.loop(0, n, carried=[zero]) as dead:
        dead.next(dead.carried[0] * 2.0)
    b.store(x, [0], loop.results[0])
    changed = optimise(b.build(), [RemoveDead()], check=True)
    assert ops(changed) == ["alloc", "full", "for", "store", "full", "add", "store"]
    kept = next(i for i in changed.walk() if i.op == "for")
    assert len(kept.results) == 1
    assert kept.tokens, "stores of successive iterations stay ordered"


@pytest.mark.parametrize("trips, factor, loops", [(4, 4, 0), (3, 8, 0), (9, 4, 2), (0, 4, 0), ("n", 4, 2), ("n", 1, 1)])
def test_unroll(trips: Any, factor: int, loops: int) -> None:
    b = KernelBuilder("k")
    x, y, n = b.view("x", f32, (1,)), b.view("y", f32, (1,)), b.index("n")
    stop: Ix | int = n if trips == "n" else 2 + 3 * trips - 1 if trips else 2
    with b.loop(2, stop, 3, carried=[b.full((), 0.0), 0 * n + n], unroll=factor) as loop:
        b.store(y, [loop.index], b.reshape(loop.carried[0], (1,)))
        loop.next(loop.carried[0] * 0.5 + b.load(x, [loop.index], ()), loop.index)
    b.store(y, [0], b.reshape(loop.results[0] + b.from_index(loop.results[1], f32), (1,)))
    kernel = b.build()
    changed = optimise(kernel, [UnrollLoops()], check=True)
    assert ops(changed).count("for") == loops
    for size in (0, 2, 3, 5, 14, 20, 37):
        first, second = np.zeros(64, np.float32), np.zeros(64, np.float32)
        run(kernel, [_data(64), first, size], 1)
        run(changed, [_data(64), second, size], 1)
        assert np.array_equal(first, second)


def test_optimise_reports_and_verifies() -> None:
    seen: list[tuple[str, int]] = []
    out = optimise(matmul(), log=lambda name, n: seen.append((name, n)), check=True)
    verify(out)
    assert [name for name, _ in seen] == [p.name for p in DEFAULT]
    assert dict(seen)["split"] >= 2


def test_a_copy_shares_nothing_that_a_pass_may_change() -> None:
    """At any depth: a pass that pops an attribute of a loop's body in the copy must not reach the kernel that others still use."""
    for kernel in (matmul(), softmax(), random_kernel(3, 16)):
        before = to_text(kernel)
        copy = copy_kernel(kernel)
        assert to_text(copy) == before
        inner = [i for loop in copy.walk() for b in loop.blocks for i in b.body if i.attrs]
        assert inner, "the kernel has loops with attributes in their bodies"
        for i in copy.walk():
            i.attrs.clear()
            i.operands.clear()
            i.results.clear()
            i.blocks.clear()
        assert to_text(kernel) == before


def test_the_halves_of_a_split_loop_share_no_attributes() -> None:
    out = optimise(matmul(), [SplitLoops()])
    seen = [id(i.attrs) for i in out.walk()]
    assert len(set(seen)) == len(seen) > len(list(matmul().walk()))


def memory_kernel(seed: int) -> Kernel:
    """Random loads and stores of few overlapping places of a result, with and without limits, in loops and branches too."""
    rng = np.random.default_rng(seed)
    b = KernelBuilder("memory")
    x, y = b.view("x", f32, (1,)), b.view("y", f32, (1,))
    n = b.index("n")
    values = [b.load(x, (int(k),), (4,)) for k in rng.integers(0, 24, 3)]

    def step(depth: int, counter: Any) -> None:
        at = (counter if counter is not None and rng.random() < 0.1 else int(rng.choice([0, 4, 6, 8], p=[0.4, 0.3, 0.1, 0.2])),)
        limit = None if rng.random() < 0.8 else (n if rng.random() < 0.7 else 3,)
        kind = rng.choice(["load", "store", "add", "more", "for", "if"], p=[0.15, 0.2, 0.35, 0.05, 0.2, 0.05])
        if kind == "load":
            values.append(b.load(y, at, (4,), limit=limit, other=float(rng.integers(0, 2)) if limit else 0))
        elif kind == "store":
            b.store(y, at, values[rng.integers(len(values))], limit=limit)
        elif kind == "add":  # what loops carry
            b.store(y, at, b.load(y, at, (4,), limit=limit) + values[rng.integers(len(values))], limit=limit)
        elif kind == "more":
            values.append(values[rng.integers(len(values))] * values[rng.integers(len(values))])
        elif depth < 2:
            known = len(values)
            if kind == "for":
                with b.loop(0, n if rng.random() < 0.5 else int(rng.integers(0, 3)), 1, []) as loop:
                    for _ in range(4):
                        step(depth + 1, loop.index)
            else:
                with b.if_(b.compare("gt", n, 3)):
                    for _ in range(3):
                        step(depth + 1, counter)
            del values[known:]

    for _ in range(14):
        step(0, None)
    b.store(y, (20,), values[-1])
    return b.build()


@pytest.mark.parametrize("seed", range(40))
def test_memory_in_registers_keeps_its_bits(seed: int) -> None:
    kernel = optimise(memory_kernel(seed), [ReuseValues()], check=True)
    changed = optimise(kernel, [KeepInRegisters()], check=True)
    for n in (0, 2, 4):
        results = []
        for k in (kernel, changed):
            x, y = np.random.default_rng(seed).standard_normal((2, 32)).astype(np.float32)
            run(k, [x, y, n], 1)
            results.append(y.tobytes())
        assert results[0] == results[1], to_text(changed)


def test_accumulators_are_carried_and_rows_are_read_once() -> None:
    b = KernelBuilder("rows")
    x, y, s = b.view("x", f32, (None, 1)), b.view("y", f32, (None, 1)), b.view("s", f32, (1,))
    n = b.index("n")
    b.store(s, (0,), b.full((8,), 0.0, f32))
    with b.loop(0, n, 1, []) as loop:
        b.store(s, (0,), b.load(s, (0,), (8,)) + b.load(x, (loop.index, 0), (8,)))
        b.store(y, (loop.index, 0), b.load(x, (loop.index, 0), (8,)) * 2.0)
        b.store(y, (loop.index, 0), b.load(y, (loop.index, 0), (8,)) + 1.0)
    changed = optimise(b.build(), [ReuseValues(), KeepInRegisters()], check=True)
    loop_ = next(i for i in changed.walk() if i.op == "for")
    assert [i.op for i in loop_.blocks[0].body if i.op in ("load", "store")] == ["load", "store"] and len(loop_.results) == 1
    assert [i.op for i in changed.body.body if i.op in ("load", "store")] == ["store"]
