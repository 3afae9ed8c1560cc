"""Checks that hold for every op, over the registry's samples. The test files name one property each and call these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tilewright.core.dims import evaluate
from tilewright.core.dtypes import compute_dtype
from tilewright.core.errors import ShapeError
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.layout import Layout
from tilewright.ir.text import all_symbols
from tilewright.ir.types import TensorType
from tilewright.ops import REGISTRY, Op
from tilewright.ops.base import ErrorSample, Sample
from tilewright.tile import interp as tile_interp
from tilewright.tile.builder import KernelBuilder

ENVS = ({"N": 5, "M": 3}, {"N": 0, "M": 1}, {"N": 16, "M": 12})  # an odd size, and both ends of the ranges
TOLERANCE = {"c128": 1e-12, "c64": 1e-5, "f64": 1e-12, "f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}


@dataclass(frozen=True)
class Case:
    """One sample of one op, at concrete values of its symbols."""

    op: type[Op]
    sample: Sample
    env: dict[str, int]

    def make(self) -> Any:
        return self.op(**self.sample.attrs)

    def graph(self) -> Graph:
        g = Graph(self.op.name)
        ins = [g.input(t, f"x{i}") for i, t in enumerate(self.sample.types)]
        g.outputs = list(g.add(self.make(), *ins).values)
        return g

    def arrays(self, rng: np.random.Generator) -> list[Any]:
        drawn = [draw(rng, t, self.env, bound(self.sample.low, i), bound(self.sample.high, i)) for i, t in enumerate(self.sample.types)]
        return self.sample.fitted(drawn)


def bound(limits: float | Sequence[float], i: int) -> float:
    return limits[i] if isinstance(limits, Sequence) else limits


def draw(rng: np.random.Generator, t: TensorType, env: dict[str, int], low: float, high: float) -> Any:
    shape = tuple(evaluate(d, env) for d in t.shape)
    if t.dtype.is_bool:
        return rng.random(shape) < 0.5
    if t.dtype.is_int:
        return rng.integers(max(int(low), 0) if t.dtype.kind == "u" else int(low), int(high) + 1, shape).astype(t.dtype.np)
    if t.dtype.kind == "c":
        return (rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape)).astype(t.dtype.np)
    return rng.uniform(low, high, shape).astype(t.dtype.np)


def cases(*, only: Any = lambda op: True) -> list[Any]:
    """A pytest parameter for every sample of every op that `only` takes; symbolic samples come at several sizes."""
    return [
        pytest.param(c, id=f"{c.op.name}-{i}-{'-'.join(f'{k}{v}' for k, v in c.env.items())}".rstrip("-"))
        for op in REGISTRY.values()
        if only(op)
        for i, c in _numbered(op)
    ]


_NUMBERED: dict[type[Op], list[tuple[int, Case]]] = {}


def _numbered(op: type[Op]) -> list[tuple[int, Case]]:
    """The cases of an op's samples, found once: many tests go over all of them."""
    if op not in _NUMBERED:
        found = _NUMBERED.setdefault(op, [])
        for i, sample in enumerate(op.samples):
            used = {s.name for s in all_symbols(Case(op, sample, {}).graph())}
            found += [(i, Case(op, sample, {k: v for k, v in env.items() if k in used})) for env in (ENVS if used else ({},))]
    return _NUMBERED[op]


def error_cases() -> list[Any]:
    return [pytest.param(op, e, id=f"{op.name}-{i}") for op in REGISTRY.values() for i, e in enumerate(op.errors)]


def has(op: type[Op], rule: str) -> bool:
    """The op itself or its family writes this rule."""
    return getattr(op, rule) is not getattr(Op, rule) or (rule == "flops" and op.work is not None)


def assert_close(got: Any, want: Any, dtype: str, scale: float = 1.0) -> None:
    assert got.shape == want.shape
    if dtype in TOLERANCE:
        tolerance = scale * TOLERANCE[dtype]
        kind: Any = np.complex128 if dtype[0] == "c" else np.float64
        np.testing.assert_allclose(got.astype(kind), want.astype(kind), rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want)


def check_infer(case: Case, rng: np.random.Generator) -> None:
    """`infer` on the symbolic types, evaluated, gives the shapes and dtypes that the reference gives on arrays."""
    g = case.graph()
    arrays = case.arrays(rng)
    wide = [a.astype(np.float32) if t.dtype.name in ("f16", "bf16") else a for a, t in zip(arrays, case.sample.types, strict=True)]
    with np.errstate(all="ignore"):
        out = case.make().bind(case.env).ref(*wide)
    results = out if isinstance(out, tuple) else (out,)
    assert len(results) == len(g.outputs)
    small = any(t.dtype.name in ("f16", "bf16") for t in case.sample.types)
    for result, v in zip(results, g.outputs, strict=True):
        array = np.asarray(result)
        assert array.shape == tuple(evaluate(d, case.env) for d in v.shape)
        allowed = {v.dtype.np, compute_dtype(v.dtype).np} if small else {v.dtype.np}
        assert array.dtype in allowed, f"{array.dtype} where {v.dtype} was inferred"


def check_decompose(case: Case, rng: np.random.Generator) -> None:
    """The decomposition has the inferred types and the reference's values."""
    arrays = case.arrays(rng)
    want = run(case.graph(), arrays, case.env)
    g = Graph("decomposed")
    ins = [g.input(t, f"x{i}") for i, t in enumerate(case.sample.types)]
    out = case.make().decompose(*ins)
    g.outputs = [out] if isinstance(out, Value) else list(out)
    assert not any(n.op.name == case.op.name for n in g.nodes), "it decomposes into itself"
    assert [v.type for v in g.outputs] == [v.type for v in case.graph().outputs]
    for a, b, v in zip(run(g, arrays, case.env), want, g.outputs, strict=True):
        assert_close(a, b, v.dtype.name)


def check_lower(op: Any, arrays: Sequence[Any], want: Any, dtype: str) -> None:
    """`lower`, run by the tile interpreter on the operands broadcast and flattened, gives `want`."""
    flat = [np.ascontiguousarray(a).reshape(-1) for a in np.broadcast_arrays(*arrays)]
    n = flat[0].size
    if n == 0:
        assert want.size == 0
        return
    t = KernelBuilder("lower")
    types = [TensorType(d, (n,)) for d in (compute_of(a) for a in flat)]
    result = TensorType(compute_of(want), (n,))
    views = [t.view(f"x{i}", x.dtype, (1,)) for i, x in enumerate(types)]
    target = t.view("out", result.dtype, (1,))
    tiles = [t.load(v, (0,), (n,)) for v in views]
    wide = [t.cast(x, compute_dtype(x.dtype)) for x in tiles]
    got = t.cast(op.lower(t, *wide), result.dtype)
    t.store(target, (0,), t.broadcast(got, (n,)))
    out = np.zeros(n, result.dtype.np)
    with np.errstate(all="ignore"):
        tile_interp.run(t.build(), [*flat, out], 1)
    assert_close(out.reshape(want.shape), want, dtype)


def compute_of(a: Any) -> Any:
    from tilewright.core.dtypes import dtype

    return dtype(a.dtype)


def check_views(case: Case, rng: np.random.Generator) -> None:
    """Reading operand 0's storage through each layout gives the reference's result; None is allowed for reshapes only."""
    x, *others = case.arrays(rng)
    op = case.make()
    symbolic = op.views(Layout.contiguous(case.sample.types[0].shape))
    out = op.bind(case.env).ref(x, *others)
    results = out if isinstance(out, tuple) else (out,)
    assert len(symbolic) == len(results)
    for layout, want in zip(symbolic, results, strict=True):
        assert layout is not None, "a contiguous operand always has a view"
        storage = np.ascontiguousarray(x).reshape(-1).view(want.dtype)  # parts of complex numbers
        np.testing.assert_array_equal(read(storage, layout, case.env), want)


def read(storage: Any, layout: Layout, env: dict[str, int]) -> Any:
    """The elements that a layout points at, one by one."""
    shape = tuple(evaluate(d, env) for d in layout.shape)
    strides = [evaluate(s, env) for s in layout.strides]
    offset = evaluate(layout.offset, env)
    out = np.empty(shape, storage.dtype)
    for index in np.ndindex(*shape):
        place = offset + sum(i * s for i, s in zip(index, strides, strict=True))
        assert 0 <= place < storage.size, f"{index} reads element {place} of {storage.size}"
        out[index] = storage[place]
    return out


def check_error(op: type[Op], e: ErrorSample) -> None:
    """`Graph.add` rejects it with ShapeError; the message starts with the op's name and matches."""
    g = Graph()
    ins = [g.input(t, f"x{i}") for i, t in enumerate(e.types)]
    with pytest.raises(ShapeError) as caught:
        g.add(op(**e.attrs), *ins, place="model.py:7")
    message = str(caught.value)
    assert message.startswith(f"{op.name}: ")
    assert message.endswith("(model.py:7)")
    assert re.search(e.match, message), f"{message!r} does not match {e.match!r}"
