"""Random programs of integers, bools and whole floats against NumPy: the result must be equal, whatever compiles it.

Jitted, one call at a time, as graphs without some passes, with dims that vary, on one thread and two, from arrays of any strides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.core import dtypes as dt
from tilewright.passes.pipeline import optional_passes

from .engine.campaign import Campaign, Invalid
from .programs.exact import Exact
from .programs.exact_ops import DTYPES, OPS
from .programs.program import DYNAMIC, KEEP, STATIC, WAYS, Builder, Input, Program, Step, Unfit, Val, dynamic, resolve
from .programs.run import run
from .programs.text import written

SIZES = (0, 1, 1, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17, 33, 65, 100, 129, 257)
FEW = (0, 1, 2, 3, 4, 5, 7)


def draw(rng: np.random.Generator) -> Program:
    varies = rng.random() < 0.3
    inputs = []
    for _ in range(int(rng.integers(1, 4))):
        rank = int(rng.choice([0, 1, 1, 2, 2, 2, 3, 4]))
        shape: list[int | str] = [int(rng.choice(SIZES if rank < 3 else FEW)) for _ in range(rank)]
        if varies and rank:
            shape[int(rng.integers(rank))] = str(rng.choice(["S", "T"]))
        inputs.append(Input(str(rng.choice(DTYPES)), tuple(shape)))
    if rng.random() < 0.6:  # operands that fit each other
        inputs = [Input(i.dtype if rng.random() < 0.5 else inputs[0].dtype, inputs[0].shape) for i in inputs]
    steps = []
    names = [*OPS, *("arithmetic", "with_number", "reduce", "matmul") * 3]
    for i in range(int(rng.integers(1, 13))):
        at = len(inputs) + i
        args = tuple(int(max(rng.integers(at), rng.integers(at))) for _ in range(2))
        steps.append(Step(at, str(rng.choice(names)), args, tuple(int(n) for n in rng.integers(0, 240, 8))))
    way = DYNAMIC if varies else int(rng.integers(4))
    off = tuple(str(n) for n in rng.choice(optional_passes(), int(rng.integers(0, 3)))) if rng.random() < 0.5 else ()
    sizes = tuple((name, int(rng.integers(0, 10))) for name in ("S", "T"))
    return Program(tuple(inputs), tuple(steps), sizes, int(rng.integers(1 << 16)), way, int(rng.integers(2)), off)


def elements(dtype: dt.DType, shape: tuple[int, ...], data: int, place: int) -> Any:
    """Small integers; data 0 counts up."""
    rng = np.random.default_rng([data, place])
    count = int(np.prod(shape))
    values: Any = rng.integers(-4, 5, count) if data else np.arange(count) % 9 - 4
    if dtype.is_bool:
        values = values > 0
    elif dtype.kind == "u":
        values = np.abs(values)
    elif data % 5 == 4 and dtype.is_int:  # the ends of the range too
        info = np.iinfo(dtype.np)
        values = np.where(rng.random(count) < 0.2, rng.choice([info.min, info.max], count), values)
    elif data % 7 == 3 and dtype.is_float:
        values = np.where(rng.random(count) < 0.2, rng.choice([np.inf, -np.inf, np.nan, -0.0], count), values)
    return values.astype(dtype.np).reshape(shape)


def arguments(program: Program, env: dict[str, int]) -> list[Any]:
    shapes = [tuple(env[d] if isinstance(d, str) else d for d in i.shape) for i in program.inputs]
    return [elements(dt.dtype(i.dtype), s, program.data, k) for k, (i, s) in enumerate(zip(program.inputs, shapes, strict=True))]


def laid_out(array: Any, kind: int) -> Any:
    """The same array in other memory: as it is, transposed, every second element, backwards, or away from the alignment."""
    if array.ndim == 0 or kind < 4:
        return array
    if kind == 4:
        return np.asfortranarray(array)
    if kind == 5:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if kind == 6:
        return np.ascontiguousarray(array[::-1])[::-1]
    room = np.zeros(array.nbytes + 1, np.uint8)
    away = room[1:].view(array.dtype) if array.dtype.itemsize == 1 else np.ndarray(array.shape, array.dtype, room, offset=1)
    away = away.reshape(array.shape)
    away[...] = array
    return away


def valid(program: Program) -> None:
    if any(not isinstance(d, (int, str)) or (isinstance(d, str) and d not in ("S", "T")) for i in program.inputs for d in i.shape):
        raise Invalid
    if not set(program.off) <= set(optional_passes()) or program.way not in range(len(WAYS)):
        raise Invalid
    if any(len(s) != 2 for s in program.sizes) or dict(program.sizes).keys() != {"S", "T"}:
        raise Invalid


def prepared(program: Program) -> tuple[Builder, list[Val]]:
    valid(program)
    return resolve(program, OPS, Exact(), arguments(program, dict(program.sizes)))


def references(program: Program, builder: Builder, outputs: list[Val], env: dict[str, int]) -> list[Any] | None:
    """NumPy's results at these sizes; None where one of them cannot be compared exactly."""
    if env == builder.env:
        return [v.known for v in outputs]
    reference = Exact()
    values: dict[int, Any] = {v.number: a for v, a in zip(builder.inputs, arguments(program, env), strict=True)}
    try:
        for call in builder.calls:
            values[call.out] = call.run(reference.function, values, env)
    except (Unfit, ValueError):  # NumPy's own rules on sizes, such as a split of nothing
        return None
    return [values[v.number] for v in outputs]


def check(program: Program) -> None:
    builder, outputs = prepared(program)
    several = [builder.env]
    if dynamic(program):
        several += [{"S": n, "T": m} for n, m in ((1, 1), (0, 2), (7, 9), (3, 3))]
    cases = [(env, want) for env in several if (want := references(program, builder, outputs, env)) is not None]
    given = []
    for env, _ in cases:
        kind = program.data // 77 % 8
        given.append([laid_out(a, kind if program.way != STATIC else 0) for a in arguments(program, env)])
    copies = [[a.copy() for a in args] for args in given]
    found = run(program, builder, outputs, given)
    for (env, want), got, args, before in zip(cases, found, given, copies, strict=True):
        compare(got, want, env)
        for a, b in zip(args, before, strict=True):
            assert a.tobytes() == b.tobytes(), "an input was written to"


def compare(got: list[Any], want: list[Any], env: dict[str, int]) -> None:
    for a, b in zip(got, want, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{a.dtype} {a.shape}, wanted {b.dtype} {b.shape} at {env}"
        if dt.dtype(a.dtype).is_float:
            a, b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_array_equal(a, b, err_msg=str(env))


def show(program: Program) -> str:
    builder, outputs = prepared(program)
    return written("exact", program, builder, outputs, arguments(program, builder.env), [np.asarray(v.known) for v in outputs])


CAMPAIGN = Campaign(draw=draw, check=check, show=show, keep=KEEP, quick=40)
