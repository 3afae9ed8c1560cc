"""A session computes with the weights of the moment of `tw.compile`, or says that it cannot.

Most constants of a program are copies: packed, joined, cast. One that kernels read as it is could stay where torch has it, and would
follow a later change of the module while the others do not. So the import copies small ones (biases, norms: see
`frontend/torch/constants.py`). Large ones that no kernel wants in another form (tables of embeddings) are used where they lie: torch
counts the writes to a tensor, and a call compares that count with the one of the compile. torch forgets to count the steps of its fused
optimizers; that is made good here. Writes past torch (NumPy, `.data`) are not counted. `share_memory`, and sending a tensor to another
process, give its memory back and go on in new memory: a call compares the address too.
"""
from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from ..core.errors import InputError

Array = np.ndarray[Any, Any]
Watched = tuple[str, Any, int, int]  # a constant's name, the tensor whose memory it is, its count of changes and its address at the compile


def owner(array: Array) -> Any:
    """The torch tensor whose memory an array is, or None. Views of a tensor share its count of changes."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    torch = sys.modules.get("torch")
    return base if torch is not None and isinstance(base, torch.Tensor) else None


def changes(tensor: Any) -> int | None:
    """How often a tensor has been written to; None where torch does not count (tensors made in inference mode)."""
    return None if tensor.is_inference() else int(tensor._version)


def may_stay(array: Array) -> bool:
    """Whether a constant may be used where it lies: nobody else writes there, or a call notices."""
    tensor = owner(array)
    return tensor is None or changes(tensor) is not None


def watched(constants: Iterable[tuple[str, Array]]) -> tuple[Watched, ...]:
    """The constants, of those in use, that lie in torch's memory."""
    found: dict[int, Watched] = {}
    for name, array in constants:
        tensor = owner(array)
        count = None if tensor is None else changes(tensor)
        if count is not None:
            found[id(tensor)] = name, tensor, count, tensor.data_ptr()
    if found:
        _count_fused_steps()
    return tuple(found.values())


@cache
def _count_fused_steps() -> None:
    """From now on, once a process."""
    from torch.autograd.graph import increment_version
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def count(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            if group.get("fused"):
                increment_version(group["params"])

    register_optimizer_step_post_hook(count)


def check(model: str, constants: Iterable[Watched]) -> None:
    """Raise when one of them has been written to or moved since."""
    for name, tensor, count, place in constants:
        if tensor._version != count or tensor.data_ptr() != place:
            what = "written to" if tensor.data_ptr() == place else "moved to other memory"
            raise InputError(f"session: a session keeps the weights of its compile, and {name!r} of {model} was {what} since; "
                             "compile the module again, or compile copy.deepcopy(module) and go on changing the original")
