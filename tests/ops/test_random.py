"""The random ops: published answers of the generator, on the interpreter and in machine code, and the high half of a product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.ops.oracle_random import philox4x32
from tests.tile.test_against_cpu import run_native
from tilewright.core.dtypes import DType, i8, i32, i64, u32, u64
from tilewright.core.errors import VerifyError
from tilewright.ops.random.philox import philox, words
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.interp import run
from tilewright.tile.ir import Kernel
from tilewright.tile.parse import parse
from tilewright.tile.text import to_text
from tilewright.tile.verify import verify

# Random123's kat_vectors for philox4x32-10: counter, key, answer
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def generator(lanes: int) -> Kernel:
    """Blocks of `lanes` counters and keys at once; x[6, lanes] holds four words of counters and two of keys."""
    b = KernelBuilder("philox")
    x, y = b.view("x", u32, (None, 1)), b.view("y", u32, (None, 1))
    rows: list[Any] = [b.load(x, (i, 0), (lanes,)) for i in range(6)]
    for i, word in enumerate(philox(b, (rows[4], rows[5]), (rows[0], rows[1], rows[2], rows[3]))):
        b.store(y, (i, 0), word)
    return b.build()


def answers(columns: Any) -> Any:
    return np.array([philox4x32(tuple(int(n) for n in c[:4]), (int(c[4]), int(c[5]))) for c in columns.T], np.uint32).T  # type: ignore[arg-type]


@pytest.mark.parametrize("counter, key, answer", PUBLISHED)
def test_the_oracle_gives_the_published_answers(counter: Any, key: Any, answer: Any) -> None:
    assert philox4x32(counter, key) == answer


@pytest.mark.parametrize("level", ["interpreter", "native", "avx2", "baseline"])
def test_the_kernel_gives_the_published_answers(level: str) -> None:
    """And those of the oracle for random counters and keys."""
    lanes = 35
    x = fresh_rng().integers(0, 1 << 32, (6, lanes), dtype=np.uint64).astype(np.uint32)
    for i, (counter, key, _) in enumerate(PUBLISHED):
        x[:, i] = (*counter, *key)
    y = np.zeros((4, lanes), np.uint32)
    if level == "interpreter":
        run(generator(lanes), [x, y], 1)
    else:
        run_native(generator(lanes), [x, y], 1, level)
    for i, (_, _, answer) in enumerate(PUBLISHED):
        assert tuple(y[:, i]) == answer
    np.testing.assert_array_equal(y, answers(x))


def test_the_reference_gives_the_published_answer() -> None:
    assert [int(w) for w in words(np.uint64(0), np.uint64(0))] == list(PUBLISHED[0][2])


def products(dtype: DType, lanes: int) -> Kernel:
    b = KernelBuilder("products")
    x, y, z = (b.view(n, dtype, (1,)) for n in "xyz")
    b.store(z, (0,), b.binary("mulhi", b.load(x, (0,), (lanes,)), b.load(y, (0,), (lanes,))))
    return b.build()


@pytest.mark.parametrize("dtype", [i32, u32, i64, u64], ids=str)
@pytest.mark.parametrize("level", ["interpreter", "native", "avx2", "baseline"])
def test_the_upper_half_of_a_product(dtype: DType, level: str) -> None:
    rng, info, lanes = fresh_rng(), np.iinfo(dtype.np), 27
    x, y = (rng.integers(info.min, info.max, lanes, dtype=dtype.np, endpoint=True) for _ in range(2))
    x[:6], y[:6] = [info.min, info.max, info.min, 0, 1, info.max], [info.min, info.max, info.max, info.min, info.max, 2]
    z, kernel = np.zeros(lanes, dtype.np), products(dtype, lanes)
    if level == "interpreter":
        run(parse(to_text(kernel)), [x, y, z], 1)
    else:
        run_native(kernel, [x, y, z], 1, level)
    assert [int(v) for v in z] == [int(a) * int(b) >> 8 * dtype.itemsize for a, b in zip(x, y, strict=True)]


def test_the_upper_half_is_of_words() -> None:
    b = KernelBuilder("bytes")
    x = b.view("x", i8, (1,))
    b.binary("mulhi", b.load(x, (0,), (4,)), 3)
    with pytest.raises(VerifyError, match=r"mulhi.*needs a tile of 32 or 64 bit integers"):
        verify(b.build())
