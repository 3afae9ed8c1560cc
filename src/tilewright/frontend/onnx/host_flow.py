"""Loops over values that change their types or sizes, and over sequences: the host runs them over compiled bodies."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.records import dataclass
from .tables import host


@dataclass(frozen=True)
class Gives:
    """A result of a body as the file declares it: the number of its element type, and its sizes."""

    elem: int
    dims: tuple[int, ...]

    def empty(self) -> Any:
        """No rounds: nothing of the declared type."""
        from .elements import elem

        return np.zeros((0, *self.dims), elem(self.elem).np)


@dataclass(frozen=True)
class Callee:
    """A body as a function of its inputs."""

    run: Callable[..., list[Any]]
    gives: Sequence[Gives]

    def __call__(self, *args: Any) -> list[Any]:
        return self.run(*args)


@host("Loop")
def host_loop(step: Any, trip: Any, cond: Any, *carried: Any, body: Any) -> Any:
    call = step.body(body)
    most = None if trip is None else int(np.asarray(trip).reshape(-1)[0])
    go = True if cond is None else bool(np.asarray(cond).reshape(-1)[0])
    state: list[Any] = list(carried)
    n, i = len(state), 0
    piles: list[list[Any]] = [[] for _ in range(len(call.gives) - 1 - n)]
    while go and (most is None or i < most):
        out = call(np.asarray(i, np.int64), np.asarray(go), *state)
        go = bool(np.asarray(out[0]).reshape(-1)[0])
        state = out[1 : n + 1]
        for pile, x in zip(piles, out[n + 1 :], strict=True):
            pile.append(x)
        i += 1
    return (*state, *(np.stack(p) if p else call.gives[n + 1 + k].empty() for k, p in enumerate(piles)))


@host("Scan", since=9)
def host_scan(step: Any, *inputs: Any, body: Any, num_scan_inputs: int, scan_input_axes: Any = None, scan_input_directions: Any = None,
              scan_output_axes: Any = None, scan_output_directions: Any = None) -> Any:
    call, n = step.body(body), len(inputs) - num_scan_inputs
    state = list(inputs[:n])
    slices = [np.moveaxis(x, scan_input_axes[k] if scan_input_axes else 0, 0) for k, x in enumerate(inputs[n:])]
    slices = [x[::-1] if scan_input_directions and scan_input_directions[k] else x for k, x in enumerate(slices)]
    piles: list[list[Any]] = [[] for _ in range(len(call.gives) - n)]
    for i in range(slices[0].shape[0]):
        out = call(*state, *(np.asarray(x[i], order="C") for x in slices))
        state = out[:n]
        for pile, y in zip(piles, out[n:], strict=True):
            pile.append(y)
    done = []
    for k, p in enumerate(piles):
        y = np.stack(p[::-1] if scan_output_directions and scan_output_directions[k] else p)
        done.append(np.ascontiguousarray(np.moveaxis(y, 0, scan_output_axes[k] if scan_output_axes else 0)))
    return (*state, *done)


@host("SequenceMap")
def sequence_map(step: Any, first: list[Any], *more: Any, body: Any) -> Any:
    call = step.body(body)
    rows = [call(x, *(m[i] if isinstance(m, list) else m for m in more)) for i, x in enumerate(first)]
    return tuple([row[k] for row in rows] for k in range(len(call.gives)))
