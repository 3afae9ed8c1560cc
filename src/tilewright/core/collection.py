"""The garbage collector, paused for work that makes many objects and little garbage.

A process that has run torch.export holds half a million objects, and every full collection in the middle of a compile walks all of
them (0.15 s each). Python's reference counts go on freeing memory meanwhile; only cycles wait.
"""
from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No cyclic collection inside. Nested and concurrent uses are fine: whoever found it running switches it on again."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
