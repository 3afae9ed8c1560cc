"""Checksums of the large parts of a file: SHA-256 of every mebibyte, computed (and read) on a few threads, since neither needs Python.

A part's checksum is the text of its pieces' digests one after the other. Whoever authenticates the texts has authenticated the parts.
"""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from hashlib import sha256

PIECE = 1 << 20
DIGITS = 64  # of one digest
THREADS = 8
ALONE = 4 * PIECE  # less than that is not worth a thread


def checksums(parts: Sequence[memoryview]) -> list[str]:
    """The checksum of each part (bytes, one dimension)."""
    found = [[""] * count_pieces(len(p)) for p in parts]

    def one(i: int, k: int) -> None:
        found[i][k] = sha256(parts[i][k * PIECE : (k + 1) * PIECE]).hexdigest()

    _each_piece([len(p) for p in parts], one)
    return ["".join(f) for f in found]


def read_parts(descriptor: int, parts: Sequence[tuple[int, memoryview, str | None]]) -> tuple[int, int] | None:
    """Fill the parts (offset in the file, memory, checksum or None where there is none). None when all are as they were written, or the
    number of a part that is not with the first byte of a piece that differs."""
    wrong: list[tuple[int, int]] = []

    def one(i: int, k: int) -> None:
        offset, memory, wanted = parts[i]
        piece = memory[k * PIECE : (k + 1) * PIECE]
        done = 0
        while done < len(piece):
            got = os.preadv(descriptor, [piece[done:]], offset + k * PIECE + done)
            if got == 0:
                break
            done += got
        if done < len(piece) or (wanted is not None and sha256(piece).hexdigest() != wanted[k * DIGITS : (k + 1) * DIGITS]):
            wrong.append((i, k * PIECE))

    _each_piece([len(memory) for _, memory, _ in parts], one)
    return min(wrong, default=None)


def count_pieces(nbytes: int) -> int:
    return -(-nbytes // PIECE)


def _each_piece(sizes: Sequence[int], one: Callable[[int, int], None]) -> None:
    """one(part, piece) for all pieces, on as many threads as there are cores and work; the first error is raised here."""
    todo = iter([(i, k) for i, n in enumerate(sizes) for k in range(count_pieces(n))])
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not errors:
                with lock:
                    found = next(todo, None)
                if found is None:
                    return
                one(*found)
        except BaseException as e:
            errors.append(e)

    helpers = min(THREADS, len(os.sched_getaffinity(0)), sum(sizes) // ALONE) - 1
    started: list[threading.Thread] = []
    for _ in range(helpers):
        thread = threading.Thread(target=work, name="tilewright-checksum", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads for this process: fewer do
            break
        started.append(thread)
    work()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]
