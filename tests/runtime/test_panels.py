"""Native packing of panels against the definition, for every element size, odd sizes, strided sources and lower instruction sets."""
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fresh import fresh_rng
from tilewright.build import panels
from tilewright.build.panels import block_side, panel_packer
from tilewright.target.cpu.host import host_target

FILL = 77


def expected(rows: np.ndarray, width: int) -> np.ndarray:
    n, k = rows.shape
    count = -(-n // width)
    padded = np.zeros((count * width, k), rows.dtype)
    padded[:n] = rows
    return padded.reshape(count, width, k).transpose(0, 2, 1)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 150), st.integers(1, 70), st.sampled_from([1, 2, 6, 16, 48, 64]), st.sampled_from(["f2", "f4", "f8", "i4"]),
       st.sampled_from(["rows", "columns", "wide rows", "wide columns", "broadcast", "shifted"]), st.randoms())
def test_panels_by_definition(n: int, k: int, width: int, kind: str, source: str, random: object) -> None:
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    full = rng.integers(-999, 999, (n + 3, k + 5)).astype(kind)
    rows = {"rows": lambda: np.ascontiguousarray(full[:n, :k]), "columns": lambda: np.asfortranarray(full[:n, :k]),
            "wide rows": lambda: full[:n, :k], "wide columns": lambda: np.asfortranarray(full)[:n, :k],
            "broadcast": lambda: np.broadcast_to(full[0, :k], (n, k)),
            "shifted": lambda: np.frombuffer(b"\0" + full.tobytes(), np.uint8)[1:].view(kind).reshape(full.shape)[:n, :k]}[source]()
    fill = panel_packer(rows, width)
    if fill is None:
        assert width % 2 or min(n, k) == 1, "only widths that no block divides, and lone rows or columns, are left to NumPy"
        return
    want = expected(rows, width)
    got = np.full(want.shape, FILL, kind)
    cut = random.randint(0, len(want))  # type: ignore[attr-defined]
    fill(got, 0, cut) if cut else None
    assert (got[cut:] == FILL).all(), "panels that nobody asked for were written"
    if cut < len(want):
        fill(got, cut, len(want))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("level", ["baseline", "avx2"])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_lower_instruction_sets(monkeypatch: pytest.MonkeyPatch, level: str, kind: str) -> None:
    monkeypatch.setenv("TILEWRIGHT_CPU", level)
    rng = fresh_rng()
    for rows in (rng.integers(-999, 999, (101, 53)).astype(kind), np.asfortranarray(rng.integers(-999, 999, (101, 53)).astype(kind))):
        fill = panel_packer(rows, 32)
        assert fill is not None
        got = np.full((4, 53, 32), FILL, kind)
        fill(got, 0, 4)
        np.testing.assert_array_equal(got, expected(rows, 32))


def test_left_to_numpy() -> None:
    """Sources without a contiguous axis, bytes, nothing at all, lines that run backwards."""
    m = np.zeros((40, 40), np.float32)
    assert panel_packer(m[::2, ::2], 16) is None
    assert panel_packer(np.zeros((8, 8), np.int8), 16) is None
    assert panel_packer(np.zeros((0, 8), np.float32), 16) is None
    assert panel_packer(m[::-1], 16) is None


def test_block_side_divides_the_width() -> None:
    target = host_target()
    for size in (2, 4, 8):
        for width in range(2, 130, 2):
            side = block_side(target, size, width)
            assert width % side == 0
            assert side & (side - 1) == 0
            assert side >= 2


def test_threads_that_ask_at_once_share_one_library() -> None:
    panels._library.cache_clear()
    rows = fresh_rng().standard_normal((64, 32)).astype(np.float32)

    def one(_: int) -> np.ndarray:
        fill = panel_packer(rows, 16)
        assert fill is not None
        out = np.empty((4, 32, 16), np.float32)
        for _ in range(50):
            fill(out, 0, 4)
        return out

    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(one, range(16)):
            np.testing.assert_array_equal(got, expected(rows, 16))
    assert panels._library.cache_info().currsize == 1


def test_threads_share_a_batch() -> None:
    """Every piece is packed exactly once, whoever takes it."""
    rng = fresh_rng()
    sources = [rng.standard_normal((n, k)).astype(np.float32) for n, k in ((4100, 700), (33, 5), (900, 1300), (64, 64))]
    sources += [np.asfortranarray(s) for s in sources]
    outs = [np.full((-(-len(s) // 64), s.shape[1], 64), FILL, np.float32) for s in sources]
    jobs = [(panels.panel_job(s, 64), out) for s, out in zip(sources, outs, strict=True)]
    batch = panels.Batch([(job, out) for job, out in jobs if job is not None])
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(batch.run) for _ in range(3)]:
            done.result()
    for s, out in zip(sources, outs, strict=True):
        np.testing.assert_array_equal(out, expected(s, 64))
    outs[0][:] = FILL
    batch.run()
    assert (outs[0] == FILL).all(), "nothing is left to take"
