"""The seed of one call of a random model: torch's generator gives it where torch is loaded (`torch.manual_seed` governs), else NumPy's
global one (`numpy.random.seed`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np


def draw_seed(inputs: Sequence[Any]) -> Any:
    """u64 of rank 0, a tensor where one of the other inputs is a tensor; on the device of the first. The generator moves on."""
    torch = sys.modules.get("torch")
    if torch is None:
        return np.asarray(np.random.randint(0, 1 << 63, dtype=np.uint64))  # noqa: NPY002  the one that users seed
    drawn = torch.empty((), dtype=torch.int64).random_()
    like = next((x for x in inputs if isinstance(x, torch.Tensor)), None)
    if like is None:
        return drawn.numpy().view(np.uint64)
    return drawn.view(torch.uint64).to(like.device)
