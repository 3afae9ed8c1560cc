"""Cases of every op of the registry for a GPU: all its samples, and the same at sizes beyond every tile; float64 references for both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.ops.checks import ENVS, Case
from tilewright.core.dims import Expr, evaluate
from tilewright.core.errors import TilewrightError
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ir.text import all_symbols
from tilewright.ir.types import TensorType
from tilewright.ops import Op

FACTORS = (29, 13, 7, 3)  # odd, so that sizes are no multiples of a tile's
# Smallest factor only: the more eigenvalues, the smaller their gaps; kernels of one long program take the driver long to assemble.
SMALL = ("eig", "eigh", "svd", "pinv", "selective_scan", "selective_scan_backward")
ELEMENTS = 60_000  # elements of all operands and results of a grown sample
# Norm of the difference over the norm of the reference, and as much of the largest element anywhere.
TOLERANCE = {"c128": 1e-12, "c64": 1e-5, "f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 1.2e-2}


@dataclass(frozen=True)
class Trial:
    """One graph and the sizes at which it is called."""

    name: str
    case: Case
    envs: tuple[dict[str, int], ...]

    def graph(self) -> Graph:
        return self.case.graph()


def trials(op: type[Op]) -> Iterator[Trial]:
    """All samples of an op, symbols as parameters of one program where an operand's shape shows them."""
    for i, sample in enumerate(op.samples):
        case = Case(op, sample, {})
        used = {s.name for s in all_symbols(case.graph())}
        envs = tuple({k: n for k, n in env.items() if k in used} for env in (ENVS if used else ENVS[:1]))
        if used <= shown(sample.types):
            yield Trial(f"{op.name}-{i}", case, envs)
        else:
            yield from (Trial(f"{op.name}-{i}-{env}", fixed(case, env), ({},)) for env in envs)


def shown(types: Sequence[TensorType]) -> set[str]:
    return {s.name for t in types for d in t.shape if isinstance(d, Expr) for s in d.symbols}


def fixed(case: Case, env: dict[str, int]) -> Case:
    """The case at one size, without symbols."""
    types = tuple(TensorType(t.dtype, tuple(evaluate(d, env) for d in t.shape)) for t in case.sample.types)
    return Case(case.op, replace(case.sample, types=types, attrs=case.make().bind(env).attrs()), {})


def grown(op: type[Op]) -> Iterator[Trial]:
    """The samples that make sense with all sizes multiplied: as large as `ELEMENTS` allows."""
    for i, sample in enumerate(op.samples):
        case = Case(op, sample, {})
        if any(isinstance(v, Graph) for v in case.make().attrs().values()) or all_symbols(case.graph()):
            continue
        for factor in FACTORS[-1:] if op.name in SMALL else FACTORS:
            types = tuple(TensorType(t.dtype, tuple(d if d in (0, 1) else d * factor for d in t.shape)) for t in sample.types)
            larger = Case(op, replace(sample, types=types), {})
            if types == sample.types:
                break
            try:
                g = larger.graph()
            except TilewrightError:  # an attribute says the size
                continue
            if sum(size(v.shape) for v in (*g.inputs, *g.outputs)) <= ELEMENTS:
                yield Trial(f"{op.name}-{i}x{factor}", larger, ({},))
                break


def size(shape: Sequence[Any]) -> int:
    return int(np.prod([int(d) for d in shape], dtype=np.int64))


def reference(case: Case, env: dict[str, int], arrays: Sequence[Any]) -> list[Any]:
    """The results in float64, rounded to their dtypes once; ops with bodies round inside as they say."""
    op = case.make().bind(env)
    if any(isinstance(v, Graph) for v in op.attrs().values()):
        return run(case.graph(), arrays, env)
    with np.errstate(all="ignore"):
        out = op.ref(*(wide(a) for a in arrays))
        results = out if isinstance(out, tuple) else (out,)
        return [np.asarray(a).astype(v.dtype.np) for a, v in zip(results, case.graph().outputs, strict=True)]


def wide(a: Any) -> Any:
    if a.dtype.kind == "c":
        return a.astype(np.complex128)
    small = a.dtype.name in ("bfloat16",) or a.dtype.name.startswith("float8")
    return a.astype(np.float64) if a.dtype.kind == "f" or small else a


def difference(got: Any, want: Any, dtype: str, times: float = 1.0, least: float = 0.0) -> str:
    """What is wrong with `got`, or nothing. Errors are of the largest element, or of `least`."""
    if got.shape != want.shape:
        return f"shape {got.shape} where {want.shape} is right"
    if dtype not in TOLERANCE:
        return "" if got.tobytes() == want.tobytes() else f"{int(np.sum(got != want))} elements differ"
    kind: Any = np.complex128 if dtype[0] == "c" else np.float64
    a, b = np.asarray(got, kind), np.asarray(want, kind)
    plain = np.isfinite(b)
    if not np.array_equal(a[~plain], b[~plain], equal_nan=True):
        return "NaN or infinity in other places"
    a, b = a[plain], b[plain]
    with np.errstate(all="ignore"):
        apart, most = abs(a - b), abs(b).max(initial=least)
    limit = times * TOLERANCE[dtype]
    if np.all(apart <= limit * (abs(b) + most) + 1e-30):
        return ""
    worst = int(np.argmax(np.where(np.isfinite(apart), apart, np.inf)))
    return f"{a[worst]} where {b[worst]} is right, {apart[worst] / max(most, 1e-300):.1e} of the largest"
