"""Random layers (convolutions, pools, resizes, norms, attention, losses, windows) among views, concatenations, flips and writes, of random
dtypes and layouts, through `torch.compile(backend="tilewright")`, forward and backward, and `tw.compile`: see `torch_programs`."""

from __future__ import annotations

import dataclasses

import numpy as np

from . import torch_programs
from .programs.program import Step
from .programs.torch_layers import LAYERS
from .torch_programs import Function, Given

AROUND = ("unary", "activation", "binary", "number", "cast", "reduce", "along", "view", "view", "join", "pick", "product", "write")
FLOATS = (0, 0, 0, 0, 6, 7, 8)  # places in DTYPES


def draw(rng: np.random.Generator) -> Function:
    rank = int(rng.choice([1, 2, 3, 4, 5], p=[0.03, 0.12, 0.25, 0.5, 0.1]))
    base = tuple(int(n) for n in rng.choice((1, 2, 3, 4, 5, 6, 8, 9, 12, 17), rank))
    inputs = [Given(int(rng.choice(FLOATS)), base, int(rng.choice([0, 0, 1, 2, 4, 5])))]
    if rng.random() < 0.5:
        inputs.append(Given(inputs[0].dtype, base if rng.random() < 0.7 else base[1:], int(rng.integers(6))))
    steps = []
    for i in range(int(rng.integers(1, 8))):
        args = tuple(int(max(rng.integers(i + 3), rng.integers(i + 3))) for _ in range(2))
        name = str(rng.choice(LAYERS if rng.random() < 0.55 else AROUND))
        steps.append(Step(i + 3, name, args, tuple(int(n) for n in rng.integers(0, 1 << 20, 24))))
    return Function(tuple(inputs), tuple(steps), int(rng.integers(len(torch_programs.WAYS))), bool(rng.random() < 0.4), False,
                    int(rng.integers(1 << 30)))  # fmt: skip


CAMPAIGN = dataclasses.replace(torch_programs.CAMPAIGN, draw=draw)
