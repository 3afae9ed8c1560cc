"""Memory that is used again, in small cases, too: blocks of results go around at any size, and what a call finds in its memory is what no
program may rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tilewright.runtime import outputs
from tilewright.runtime.memory import Allocation
from tilewright.runtime.session import Session
from tilewright.runtime.workspace import Workspace


def spoil(block: Allocation) -> None:
    """Ones in every bit: NaN as floats, -1 as integers, an index out of any range."""
    block.array(np.uint8, (block.nbytes,)).fill(255)


@contextmanager
def reused(results: bool) -> Iterator[Callable[[], None]]:
    """Gives a function that spoils the memory between calls of the sessions that have run inside the block. With `results` those of a fixed
    size come from blocks that are kept, spoilt, too."""
    workspaces: list[Workspace] = []
    grow, take = Session.grow, outputs._take

    def grown(session: Session) -> Workspace:
        workspaces.append(grow(session))
        return workspaces[-1]

    def taken(nbytes: int) -> Allocation:
        block = take(nbytes)
        spoil(block)
        return block

    def spoilt() -> None:
        for w in workspaces:
            spoil(w._arena)
            spoil(w._scratch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "grow", grown)
        patch.setattr(outputs, "_take", taken)
        if results:
            patch.setattr(outputs, "RECYCLED_FROM", 1)
        yield spoilt
