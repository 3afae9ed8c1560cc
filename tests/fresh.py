"""Random inputs that are new in every run and can be drawn again.

One seed a run, from the environment or the system; `.ci/run` makes it from the files under test, so that a commit passes or fails for
good. Before each module is collected and before each test the generators start anew from that seed and the name of the module or test,
so that a test draws the same numbers alone, among others and on any worker process.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import zlib

import numpy as np

VARIABLE = "TILEWRIGHT_TEST_SEED"
SEED = int(os.environ.setdefault(VARIABLE, str(secrets.randbits(32))))  # worker processes inherit it
_BITS = np.random.PCG64(SEED)
_RNG = np.random.Generator(_BITS)


def start(name: str) -> None:
    """Start the generators of NumPy, torch (where it is loaded) and Python for the test or module `name`."""
    sequence = np.random.SeedSequence([SEED, zlib.crc32(name.encode())])
    _BITS.state = np.random.PCG64(sequence).state
    number = int(sequence.generate_state(1)[0])
    random.seed(number)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number)


def fresh_rng() -> np.random.Generator:
    """The generator of the whole suite: a test that asks twice goes on where it was."""
    return _RNG


def fresh_random() -> random.Random:
    return random.Random(int(_RNG.integers(2**32)))
