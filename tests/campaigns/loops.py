"""Random programs with loops, branches and computed indices, nested, against NumPy and Python's own control flow.

An index out of range and an integer divided by 0 must be an ExecutionError where a result depends on it; where the program does not come
to it there is none. (What a program comes to but nobody reads may be left out.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import tilewright as tw
from tilewright.passes.pipeline import optional_passes

from . import exact
from .engine.campaign import Campaign
from .programs.control_ops import OPS
from .programs.exact import Exact, OutOfRange
from .programs.program import EAGER, KEEP, Builder, Input, Program, Step, Val, needed, resolve
from .programs.run import run
from .programs.text import written

CONTROL = ("scan", "while", "cond", "repeat")
WILD = ("wild_take", "wild_divide")
PLAIN = tuple(n for n in OPS if n not in (*CONTROL, *WILD))


def some(rng: np.random.Generator, first: int, count: int, depth: int) -> tuple[Step, ...]:
    made = []
    for i in range(count):
        at = first + i
        kind = rng.random()
        names = CONTROL if kind < 0.35 and depth < 3 else WILD if kind > 0.95 else PLAIN
        name = str(rng.choice(names))
        args = tuple(int(max(rng.integers(at), rng.integers(at))) for _ in range(2))
        body = some(rng, 3, int(rng.integers(0, 4)), depth + 1) if name in CONTROL else ()
        made.append(Step(at, name, args, tuple(int(n) for n in rng.integers(0, 240, 8)), body))
    return tuple(made)


def draw(rng: np.random.Generator) -> Program:
    plain = exact.draw(rng)
    inputs = tuple(Input(i.dtype, tuple(int(rng.choice(exact.FEW)) if isinstance(d, str) else min(d, 17) for d in i.shape))
                   for i in plain.inputs)  # fmt: skip
    off = tuple(str(n) for n in rng.choice(optional_passes(), 1)) if rng.random() < 0.3 else ()
    steps = some(rng, len(inputs), int(rng.integers(1, 6)), 0)
    return replace(plain, inputs=inputs, steps=steps, way=int(rng.integers(3)), off=off)


def prepared(program: Program) -> tuple[Builder, list[Val]]:
    exact.valid(program)
    return resolve(program, OPS, Exact(lenient=1), exact.arguments(program, dict(program.sizes)))


def meaning(program: Program, builder: Builder, outputs: list[Val], lenient: int = 0) -> list[np.ndarray] | None:
    """NumPy's results; None where bad data is met."""
    reference = Exact(lenient)
    values = {v.number: a for v, a in zip(builder.inputs, exact.arguments(program, builder.env), strict=True)}
    try:
        for call in needed(builder.calls, [v.number for v in outputs]):
            values[call.out] = call.run(reference.function, values, builder.env)
    except OutOfRange:
        return None
    return [np.asarray(values[v.number]) for v in outputs]


def check(program: Program) -> None:
    builder, outputs = prepared(program)
    want = meaning(program, builder, outputs)
    given = exact.arguments(program, builder.env)
    try:
        (got,) = run(program, builder, outputs, [given])
    except tw.ExecutionError as e:
        if want is None and any(said in str(e) for said in ("out of range", "not divided by 0")):
            return
        raise
    except tw.ShapeError as e:  # constants are looked at while a function is traced, in branches that are not taken too
        if program.way == EAGER and "index out of range" in str(e):
            return
        raise
    if want is None:
        want, other = (meaning(program, builder, outputs, lenient) for lenient in (1, 2))
        assert want is not None and other is not None
        assert all(np.array_equal(a, b) for a, b in zip(want, other, strict=True)), "bad data, and no ExecutionError"
    exact.compare(got, want, builder.env)


def show(program: Program) -> str:
    builder, outputs = prepared(program)
    want = meaning(program, builder, outputs)
    text = written("loops", program, builder, outputs, exact.arguments(program, builder.env), want or [])
    return text if want is not None else f"# must raise tw.ExecutionError\n{text}"


CAMPAIGN = Campaign(draw=draw, check=check, show=show, keep=KEEP, quick=25)
