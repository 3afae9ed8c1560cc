"""Checksums of the large parts of a file: SHA-256 of every mebibyte, computed (and read) on a few threads, since neither needs Python.

A part's checksum is the text of its pieces' digests one after the other. Whoever authenticates the texts has authenticated the parts.
"""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from hashlib import sha256

PIECE = 1 << 20
DIGITS = 64  # hexadecimal digits of a digest
THREADS = 8
ALONE = 4 * PIECE  # less than that is not worth a thread


def checksums(parts: Sequence[memoryview]) -> list[str]:
    """The checksum of each part (bytes, one dimension)."""
    found = [[""] * count_pieces(len(p)) for p in parts]

    def one(i: int, k: int) -> None:
        found[i][k] = sha256(parts[i][k * PIECE : (k + 1) * PIECE]).hexdigest()

    _Pieces([len(p) for p in parts], one).finish()
    return ["".join(f) for f in found]


class Reading:
    """Fills parts (offset in the file, memory, checksum or None where there is none), from now on: `finish` waits for the rest. The file
    stays open until `finish` or `stop`."""

    def __init__(self, descriptor: int, parts: Sequence[tuple[int, memoryview, str | None]]) -> None:
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

        self._wrong = wrong
        self._pieces = _Pieces([len(memory) for _, memory, _ in parts], one)

    def finish(self) -> tuple[int, int] | None:
        """None when all parts are as they were written, or the number of one that is not, with the first byte of a piece that differs."""
        self._pieces.finish()
        return min(self._wrong, default=None)

    def stop(self) -> None:
        """Read no more; what has begun ends first."""
        self._pieces.stop()


def count_pieces(nbytes: int) -> int:
    return -(-nbytes // PIECE)


class _Pieces:
    """one(part, piece) for all pieces: on other threads at once, as many as there are cores and work, and here in `finish`."""

    def __init__(self, sizes: Sequence[int], one: Callable[[int, int], None]) -> None:
        self._todo = iter([(i, k) for i, n in enumerate(sizes) for k in range(count_pieces(n))])
        self._one, self._lock, self._stopped = one, threading.Lock(), False
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        for _ in range(min(THREADS, cores, sum(sizes) // ALONE) if cores > 1 else 0):
            thread = threading.Thread(target=self._work, name="tilewright-checksum", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads for this process: fewer do
                break
            self._threads.append(thread)

    def _work(self) -> None:
        try:
            while not self._stopped:
                with self._lock:
                    found = next(self._todo, None)
                if found is None:
                    return
                self._one(*found)
        except BaseException as e:
            self._errors.append(e)
            self._stopped = True

    def finish(self) -> None:
        """Help with what is left, wait, and raise the first error of any thread."""
        self._work()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join()
