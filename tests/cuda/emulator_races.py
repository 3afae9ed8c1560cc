"""Races in shared memory, for the emulator of PTX."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cuda.emulator_clusters import Fault

Array = Any  # arrays of every dtype


class Races:
    """Who wrote and read each byte of shared memory since the last barrier: accesses of two threads, one of which writes, are a race."""

    def __init__(self, nbytes: int) -> None:
        self.wrote, self.read = np.full(nbytes, -1, np.int32), np.full(nbytes, -1, np.int32)  # -1: nobody, -2: several threads

    def barrier(self) -> None:
        self.wrote[:] = self.read[:] = -1

    def access(self, places: Array, threads: Array, write: bool, text: str) -> None:
        """Bytes [thread, byte] that these threads touch in one instruction."""
        who = threads[:, None].astype(np.int32)
        others = [self.wrote[places], *([self.read[places]] if write else [])]
        bad = np.any([(o != -1) & (o != who) for o in others], 0).any(1)
        seen = self.wrote if write else self.read
        before = seen[places]
        seen[places] = who
        several = (seen[places] != who) | ((before != -1) & (before != who))
        seen[places[several]] = -2
        if bad.any() or (write and several.any()):
            t = int(np.flatnonzero(bad if bad.any() else several.any(1))[0])
            raise Fault(f"thread {threads[t]} races with another at byte {places[t, 0]} of shared memory: `{text}`")
