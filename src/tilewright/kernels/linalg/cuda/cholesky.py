"""Cholesky factorisations of small matrices on a GPU: a group of threads a matrix, a row a thread, all of its columns in registers.

Each step leaves one column in shared memory, from which all threads read its elements; the rest of the matrix is brought up to date at
once. Rows beyond the last are zeros that nobody reads. Larger matrices take the panels of `cholesky.py`.
"""

from __future__ import annotations

from ....core.dims import product
from ....core.dtypes import f32, f64, i32
from ....core.target_spec import TargetSpec
from ....ops.linalg.factors import Cholesky
from ....tile.builder import Tile
from ...call import Call, report
from ...cuda.groups import on_threads
from ...cuda.kernel import WARP
from ...cuda.spots import Spots
from ...launch import Launch
from ...pointwise.pointwise import unravel
from ...region import Region
from ...template import Reason, Template, region_bytes, region_flops
from ..matrices import NOT_POSITIVE

MOST = 48  # rows of a matrix: code grows with the square of that
BLOCK = 128  # threads


class CudaCholesky(Template):
    key = "cuda_cholesky"
    serves = (Cholesky,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        type_ = region.operands[0].type
        n = type_.shape[-1]
        ok = type_.dtype in (f32, f64) and isinstance(n, int) and 0 < n <= MOST
        return None if ok else Reason(f"registers hold real matrices of up to {MOST} rows")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        a, out = region.operands[0], region.results[0]
        *lead, n, _ = a.type.shape
        assert isinstance(n, int)
        threads = max(4, 1 << (n - 1).bit_length())
        call = Call("cholesky", region.name)
        b, dtype = call.b, a.type.dtype
        source = Spots(call, "a", dtype, a.buffer, a.layout, 2)
        goal = Spots(call, "l", dtype, out.buffer, out.layout, 2, write=True)
        error = call.error() if region.op(Cholesky).check else None
        at = [*unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(lead)]), 0, 0]
        row = b.iota((threads,), 0, i32)
        here = b.cmp("lt", row, n)
        places = [b.full((threads,), j, i32) for j in range(n)]

        def below(j: int) -> Tile:
            low = b.cmp("ge", row, j)
            return low if n == threads else b.binary("and", low, here)

        columns = [(source.get(at, row, places[j], inside=below(j)) + source.get(at, places[j], row, inside=below(j))) * 0.5
                   for j in range(n)]
        shared = b.scratch(dtype, (2, threads), space="shared")
        for j in range(n):
            b.store(shared, (j % 2, 0), columns[j])
            pivot = b.load(shared, (j % 2, j), ())
            if error is not None:
                with b.if_(b.unary("not", b.cmp("gt", pivot, 0.0))):
                    report(b, error, NOT_POSITIVE, b.pid, j)
            inverse = 1.0 / pivot
            for k in range(j + 1, n):
                columns[k] = b.fma(-columns[j], b.load(shared, (j % 2, k), ()) * inverse, columns[k])
            found = b.select(below(j), columns[j] / b.unary("sqrt", pivot), 0.0)
            goal.put(at, found, row, places[j], inside=None if n == threads else here)
        launch = call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region), note="a row a thread")
        launch.kernel = on_threads(launch.kernel, threads, 1 if threads > WARP else BLOCK // threads)
        return [launch]
