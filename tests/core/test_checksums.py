"""Checksums of the parts of a file: any byte that differs is found, and the part is named."""
from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from tests.fresh import fresh_rng
from tilewright.core import checksums as module
from tilewright.core.checksums import DIGITS, PIECE, Reading, checksums, count_pieces

rng = fresh_rng()
SIZES = [0, 1, 5, PIECE - 1, PIECE, PIECE + 1, 9 * PIECE + 77]


@pytest.fixture(scope="module")
def parts() -> list[bytes]:
    return [rng.bytes(n) for n in SIZES]


def test_they_are_sha256_of_every_piece(parts: list[bytes]) -> None:
    for part, found in zip(parts, checksums([memoryview(p) for p in parts]), strict=True):
        want = [hashlib.sha256(part[k : k + PIECE]).hexdigest() for k in range(0, len(part), PIECE)]
        assert found == "".join(want) and len(found) == DIGITS * count_pieces(len(part))


def test_any_byte_that_differs_is_found(parts: list[bytes], tmp_path: Path) -> None:
    path, sums = tmp_path / "a", checksums([memoryview(p) for p in parts])
    starts = [13 + sum(SIZES[:i]) for i in range(len(SIZES))]
    path.write_bytes(bytes(13) + b"".join(parts))
    places = [(at, memoryview(bytearray(n)), s) for at, n, s in zip(starts, SIZES, sums, strict=True)]
    descriptor = os.open(path, os.O_RDWR)
    assert Reading(descriptor, places).finish() is None
    assert [bytes(p[1]) for p in places] == parts
    for i in range(1, len(SIZES)):
        at = int(rng.integers(SIZES[i]))
        os.pwrite(descriptor, bytes([parts[i][at] ^ 1]), starts[i] + at)
        assert Reading(descriptor, places).finish() == (i, at // PIECE * PIECE)
        assert Reading(descriptor, [(p, m, None) for p, m, _ in places]).finish() is None
        os.pwrite(descriptor, parts[i][at : at + 1], starts[i] + at)
    os.truncate(path, os.stat(path).st_size - 1)
    assert Reading(descriptor, places).finish() == (len(SIZES) - 1, 9 * PIECE)
    os.close(descriptor)


def test_an_error_on_a_thread_is_raised_here() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        Reading(-1, [(0, memoryview(bytearray(64 * PIECE)), None)]).finish()


def test_a_process_without_threads_left(parts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    want = checksums([memoryview(p) for p in parts])

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(module, "ALONE", 1)
    assert checksums([memoryview(p) for p in parts]) == want
