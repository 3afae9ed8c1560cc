"""Linear algebra and Fourier transforms: ours, LAPACK (SciPy's, from inside our schedule), and PyTorch, in one interleaved run.

    python benchmarks/linalg.py [--only cholesky,svd] [--sizes 8,64,512] [--batches 64] [--seconds 0.3] [--threads 1]
                                [--peers ours,lapack,torch] [--json FILE]

`ours` are tile kernels and `lapack` a kernel that calls LAPACK, one matrix a program: where the library has only one of them, the other
column is empty or comes from the kernels below, which exist for this comparison. The least time of all rounds counts. The last lines are
geometric means over the sizes: above 1 the first of the two is slower.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch

import tilewright.kernels.select as select
from tilewright.compile import compile_graph, graph_signature, target_spec
from tilewright.core import natives
from tilewright.core.dtypes import dtype as dtype_of
from tilewright.core.dtypes import i32
from tilewright.core.target_spec import TargetSpec
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.launch import Launch
from tilewright.kernels.linalg.lapack import Routine
from tilewright.kernels.region import Region
from tilewright.kernels.template import Reason, Template, alone
from tilewright.ops.fourier.transforms import Dft
from tilewright.ops.linalg.factors import Cholesky, Qr
from tilewright.ops.linalg.spectra import Eig, Eigh, Svd
from tilewright.ops.linalg.systems import Lu, TriangularSolve
from tilewright.tile.builder import View

Call = Callable[[], Any]
LARGEST_BATCHED = 128
SLICES = 3


# ---- LAPACK for what the library computes with kernels of its own: square matrices, contiguous, as the benchmark has them
def _blas(name: str) -> int | None:
    from scipy.linalg import cython_blas

    return natives.function_pointer(cython_blas.__pyx_capi__.get(name))


def _rows(r: Routine, source: View, out: View, n: int, *, transposed: bool = False) -> None:
    b = r.b
    with b.loop(0, n) as row, b.loop(0, n, r.width) as part:
        x, limit = r.row(source, row.index, part.index, n), (n - part.index,)
        at = (*r.at, part.index, row.index) if transposed else (*r.at, row.index, part.index)
        b.store(out, at, x, axes=(len(r.at) + (not transposed),), limit=limit)


def _cholesky(r: Routine, n: int) -> None:
    a, most = r.copied(n, n)
    r.call("potrf", most, "U", n, a, n)
    b = r.b
    with b.loop(0, n) as row, b.loop(0, n, r.width) as part:
        low = b.cmp("le", b.iota((r.width,), 0) + b.from_index(part.index), b.from_index(row.index))
        x = b.select(low, r.row(a, row.index, part.index, n), 0.0)
        b.store(r.outs[0], (*r.at, row.index, part.index), x, limit=(n - part.index,))


def _lu(r: Routine, n: int) -> None:
    a, most = r.copied(n, n, transposed=True)
    pivots = r.memory(n, dtype=i32)
    r.call("getrf", most, n, n, a, n, pivots)
    _rows(r, a, r.outs[0], n, transposed=True)
    with r.b.loop(0, n) as loop:
        for out in r.outs[1:]:
            r.b.store(out, (*r.at, loop.index), r.b.load(pivots, (loop.index,), ()))


def _qr(r: Routine, n: int) -> None:
    a, most = r.copied(n, n)
    tau, work = r.memory(n), r.memory(64 * n)
    r.call("gelqf", most, n, n, a, n, tau, work, 64 * n)
    _rows(r, a, r.outs[1], n)
    r.call("orglq", most, n, n, n, a, n, tau, work, 64 * n)
    _rows(r, a, r.outs[0], n)


def _eigh(r: Routine, n: int) -> None:
    a, most = r.copied(n, n)
    w, count = r.memory(1, n), 1 + 70 * n + 2 * n * n
    r.call("syevd", most, "V", "U", n, a, n, w, r.memory(count), count, r.memory(3 + 5 * n, dtype=i32), 3 + 5 * n)
    _rows(r, a, r.outs[1], n, transposed=True)
    with r.b.loop(0, n, r.width) as part:
        r.b.store(r.outs[0], (*r.at, part.index), r.row(w, 0, part.index, n), limit=(n - part.index,))


def _triangular(r: Routine, n: int) -> None:
    """Solves with a, and a itself as the right side."""
    a, _ = r.copied(n, n)
    x, _ = r.copied(n, n)
    one = r.memory(1)
    r.b.store(one, (0,), r.b.full((), 1.0, r.dtype))
    function = r.w.call.native(f"blas.{'s' if r.dtype.itemsize == 4 else 'd'}trsm")
    r.b.call(function, *(r.scalar(v) for v in ("R", "U", "N", "N", n, n)), one, a, r.scalar(n), x, r.scalar(n))
    _rows(r, x, r.outs[0], n)


class ByLapack(Template):
    key = "by_lapack"
    kinds: ClassVar[dict[type, Any]] = {Cholesky: _cholesky, Lu: _lu, Qr: _qr, Eigh: _eigh, TriangularSolve: _triangular}

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, *self.kinds)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None
        r = Routine("by_lapack", region, target, region.operands[0].type.dtype)
        self.kinds[type(region.anchor.op)](r, region.operands[0].type.shape[-1])
        return r.finish()


@contextmanager
def by_lapack() -> Iterator[None]:
    before = select.TEMPLATES
    select.TEMPLATES = [ByLapack(), *before]
    yield
    select.TEMPLATES = before


# ---- the cases
def positive(a: Any) -> Any:
    return a @ np.swapaxes(a, -1, -2) + a.shape[-1] * np.eye(a.shape[-1])


CASES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any], str]] = {  # op, matrix, PyTorch's, who serves it in the library
    "cholesky": (Cholesky(), positive, torch.linalg.cholesky, "ours"),
    "lu": (Lu(), lambda a: a, torch.linalg.lu_factor, "ours"),
    "triangular": (TriangularSolve(), lambda a: np.tril(positive(a)), lambda t: torch.linalg.solve_triangular(t, t, upper=False), "ours"),
    "qr": (Qr(), lambda a: a, torch.linalg.qr, "ours"),
    "eigh": (Eigh(), lambda a: a + np.swapaxes(a, -1, -2), torch.linalg.eigh, "ours"),
    "svd": (Svd(), lambda a: a, lambda t: torch.linalg.svd(t, full_matrices=False), "lapack"),
    "eig": (Eig(), lambda a: a, torch.linalg.eig, "lapack"),
}


def session(op: Any, x: Any, threads: int | None) -> Call:
    graph = Graph("case")
    v = graph.input(TensorType(dtype_of(x.dtype), x.shape), "x")
    made = op(v, v) if isinstance(op, TriangularSolve) else op(v)
    graph.outputs = list(made) if isinstance(made, tuple) else [made]
    run = compile_graph(graph, graph_signature(graph), target_spec("cpu"), threads=threads)
    return lambda: run(x)


def contenders(name: str, x: Any, threads: int | None) -> dict[str, Call]:
    op, _, theirs, serves = CASES[name]
    found = {serves: session(op, x, threads)}
    if serves == "ours":
        with by_lapack():
            found["lapack"] = session(op, x, threads)
    tensor = torch.from_numpy(x)
    found["torch"] = lambda: theirs(tensor)
    return found


def fourier(n: int, batch: int, dtype: str, rng: Any, threads: int | None) -> dict[str, Call]:
    """Rows of complex numbers; SciPy's pocketfft has no table of function pointers, so it is called from Python."""
    import scipy.fft

    x = rng.standard_normal((batch, n, 2)).astype(dtype)
    z = x.view(f"c{2 * x.itemsize}")[..., 0]
    tensor = torch.from_numpy(z)
    workers = threads or 2
    return {"ours": session(Dft(), x, threads), "scipy": lambda: scipy.fft.fft(z, workers=workers), "torch": lambda: torch.fft.fft(tensor)}


def least(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Slices of time in turn, not single calls: threads of one contender spin for a while after its calls, beside the next one's."""
    best = dict.fromkeys(calls, math.inf)
    for _ in range(SLICES):
        for name, call in calls.items():
            start, rounds = time.perf_counter(), 0
            while rounds < 1 or time.perf_counter() - start < seconds / SLICES:
                before = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - before)
                rounds += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join([*CASES, "fft"]))
    parser.add_argument("--sizes", default="8,16,32,64,128,256,512,1024")
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each contender and case")
    parser.add_argument("--peers", default="ours,lapack,scipy,torch")
    parser.add_argument("--threads", type=int, help="of all contenders")
    parser.add_argument("--json")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    natives.provide("blas", _blas)
    rng, rows = np.random.default_rng(0), []
    print(f"{'':24}{'ours':>12}{'lapack':>12}{'torch':>12}   microseconds")
    for name in given.only.split(","):
        for dtype in ("f4", "f8"):
            for batch in map(int, given.batches.split(",")):
                for n in map(int, given.sizes.split(",")):
                    if batch > 1 and n > LARGEST_BATCHED:
                        continue
                    if name == "fft":
                        calls = fourier(n, batch, dtype, rng, given.threads)
                    else:
                        a = rng.standard_normal((n, n) if batch == 1 else (batch, n, n))
                        calls = contenders(name, CASES[name][1](a).astype(dtype), given.threads)
                    found = least({k: call for k, call in calls.items() if k in given.peers.split(",")}, given.seconds)
                    rows.append({"name": name, "dtype": dtype, "batch": batch, "n": n, **{k: v * 1e6 for k, v in found.items()}})
                    cells = [found.get("ours"), found.get("lapack", found.get("scipy")), found.get("torch")]
                    shown = "".join(f"{'' if t is None else f'{t * 1e6:.1f}':>12}" for t in cells)
                    print(f"{name:12}{dtype:4}{batch:4}{n:5}{shown}", flush=True)
    print()
    for name in dict.fromkeys(r["name"] for r in rows):
        for dtype in ("f4", "f8"):
            for batch in sorted({r["batch"] for r in rows}):
                print(summary(name, dtype, batch, [r for r in rows if (r["name"], r["dtype"], r["batch"]) == (name, dtype, batch)]))
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(r) + "\n" for r in rows)


def summary(name: str, dtype: str, batch: int, rows: list[dict[str, Any]]) -> str:
    parts = [f"{name:12}{dtype:4}{batch:4}"]
    for a, b in (("ours", "lapack"), ("ours", "scipy"), ("torch", "ours"), ("torch", "lapack")):
        ratios = [r[a] / r[b] for r in rows if a in r and b in r]
        if ratios:
            parts.append(f"{a}/{b} {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")
    return "   ".join(parts)


if __name__ == "__main__":
    main()
