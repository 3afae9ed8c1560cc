"""Mutated files: whatever the bytes say, the reader opens the file or raises FormatError, quickly and without a large allocation.

A file that opens must be consistent: its tensors lie inside the file and can be read to the last byte.
"""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from tests.gguf.files import sample
from tilewright.core.errors import FormatError
from tilewright.frontend.gguf.metadata import StringArray
from tilewright.frontend.gguf.reader import parse

NUMBERS = [0, 1, 2, 3, 8, 9, 31, 32, 33, 255, 256, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
LIMIT = 4 << 20  # bytes that reading a file of some hundred bytes may allocate


def mutate(data: bytearray, rng: random.Random) -> bytes:
    """One to four changes: bits, bytes, integers, removed, doubled, moved or cut pieces."""
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        at = rng.randrange(max(1, len(data)))
        kind = rng.randrange(8)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        elif kind == 2:
            data[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        elif kind == 3:
            data[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) & 0xFFFFFFFF)
        elif kind == 4:
            del data[at : at + rng.randrange(1, 24)]
        elif kind == 5:
            piece = data[at : at + rng.randrange(1, 80)]
            data[at:at] = piece
        elif kind == 6:
            there = rng.randrange(max(1, len(data)))
            size = rng.randrange(1, 16)
            data[at : at + size] = data[there : there + size]
        else:
            del data[at:]
    return bytes(data)


def exercise(content: bytes) -> bool:
    """Parse and touch everything; whether the file was accepted."""
    try:
        f = parse(memoryview(content), Path("fuzz.gguf"))
    except FormatError as e:
        if not str(e).startswith("gguf: "):
            raise AssertionError(e) from e
        return False
    for value in f.metadata.values():
        if isinstance(value, StringArray):
            assert len(value.tolist()) == len(value)
    for t in f.tensors.values():
        assert t.nbytes <= len(content) and t.data.shape == (t.rows, t.format.row_bytes(t.columns))
        assert t.data.nbytes == 0 or int(t.data.sum()) >= 0
        if t.nbytes:
            t.dequantize()
    return True


def campaign(rounds: int, seed: int) -> tuple[int, int]:
    rng = random.Random(seed)
    whole = sample()
    header = len(whole) - 256  # mutations after this only change weights
    accepted = 0
    tracemalloc.start()
    try:
        for i in range(rounds):
            content = mutate(bytearray(whole[:header]), rng) + whole[header:] if i % 4 else mutate(bytearray(whole), rng)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            start = time.process_time()
            accepted += exercise(content)
            spent = time.process_time() - start
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < LIMIT, f"round {i} of seed {seed}: {peak} bytes allocated"
            assert spent < 2.0, f"round {i} of seed {seed}: {spent:.1f} s"
    finally:
        tracemalloc.stop()
    return rounds, accepted


def test_the_sample_is_accepted() -> None:
    assert exercise(sample())


def test_a_few_hundred_mutated_files() -> None:
    rounds, accepted = campaign(600, seed=random.randrange(1 << 30))
    assert 0 < accepted < rounds  # a fuzzer that only sees one outcome tests nothing


@pytest.mark.slow
def test_forty_thousand_mutated_files() -> None:
    rounds, accepted = campaign(40_000, seed=2026)
    assert 0 < accepted < rounds
