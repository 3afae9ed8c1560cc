"""Convolutions, products and padded rows as block programs, whole graphs in the emulator against NumPy in float64."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright.ops as o
from tests.cuda.launching import Emulated, graph, reference
from tests.fresh import fresh_rng
from tilewright.core.dims import evaluate, sym
from tilewright.core.dtypes import DType, bf16, f16, f32, f64, i32, i64
from tilewright.kernels.conv.cuda.tiled import TiledConv
from tilewright.kernels.cuda import templates
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.kernels.matmul.cuda import tiled as tiled_matmul
from tilewright.kernels.matmul.cuda.tiled import FEW, TiledMatmul, UnalignedMatmul
from tilewright.kernels.pointwise.cuda.padded_rows import padded_rows
from tilewright.kernels.rows.cuda import long_norm
from tilewright.ops import functions as F
from tilewright.ops.matmul.contractions import Conv, Matmul
from tilewright.ops.rows.reductions import All, Any_
from tilewright.target.cuda.device import cuda_target

NUMPY = {bf16: ml_dtypes.bfloat16, f16: np.float16, f32: np.float32, f64: np.float64}


def assert_close(got: Any, want: Any, dtype: DType, features: tuple[str, ...] = ()) -> None:
    got, want = got.astype(np.float64), want.astype(np.float64)
    limit = 2e-2 if dtype in (bf16, f16) else 2e-3 if features else 2e-6
    assert np.abs(got - want).max() <= limit * max(1.0, np.abs(want).max())


CONVOLUTIONS: list[tuple[DType, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (bf16, (2, 24, 9, 11), (40, 24, 3, 3), {"padding": ((1, 1), (1, 1))}),
    (f16, (1, 16, 20), (8, 16, 5), {"stride": (2,), "padding": ((2, 2),), "dilation": (2,)}),
    (f32, (1, 16, 8, 8), (8, 16, 3, 3), {"padding": ((1, 1), (1, 1))}),
    (f32, (1, 16, 8, 8), (8, 16, 3, 3), {"padding": ((1, 0), (0, 1)), "features": ("tf32-conv",)}),
    (bf16, (1, 16, 10), (16, 8, 16), {"stride": (8,), "padding": ((4, 4),), "transposed": True}),
    (f32, (1, 6, 5, 4), (6, 5, 3, 3), {"stride": (2, 2), "padding": ((1, 1), (1, 0)), "transposed": True, "output_padding": (1, 1)}),
    (f32, (1, 6, 5, 4), (6, 5, 3, 3), {"stride": (2, 2), "dilation": (2, 1), "transposed": True, "features": ("tf32-conv",)}),
    (bf16, (1, 32, 3, 5, 6), (32, 8, 3, 3, 3), {"padding": ((1, 1),) * 3, "groups": 4, "stride": (1, 2, 1)}),
    (f32, (2, 3, 16, 17), (24, 3, 7, 7), {"padding": ((3, 3),) * 2, "stride": (2, 2), "features": ("tf32-conv",)}),
    (f32, (1, 1, 3, 6, 7), (8, 1, 3, 3, 3), {"padding": ((1, 1),) * 3, "dilation": (1, 2, 1)}),
    (f32, (1, 3, 8, 8), (15, 3, 4, 4), {"stride": (4, 4), "features": ("tf32-conv",), "exact": True}),
    (f32, (2, 3, 9, 7), (8, 3, 3, 3), {"padding": ((1, 1),) * 2, "open": ("H", "W")}),
]


@pytest.mark.parametrize(("dtype", "x", "w", "how"), CONVOLUTIONS, ids=lambda v: str(v))
def test_convolutions(
    dtype: DType, x: tuple[int, ...], w: tuple[int, ...], how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strides, dilations, groups, phases of a transposed one, few channels; patches that do not overlap stay exact."""
    monkeypatch.setattr(templates, "CUDA_TEMPLATES", [TiledConv(), *templates.CUDA_TEMPLATES])
    how, n = dict(how), len(x) - 2
    features, exact, sizes = how.pop("features", ()), how.pop("exact", False), tuple(sym(s, 1) for s in how.pop("open", ()))
    op = Conv(**{"stride": (1,) * n, "padding": ((0, 0),) * n, "dilation": (1,) * n, **how})
    rng = fresh_rng()
    arrays = [rng.standard_normal(s).astype(NUMPY[dtype]) for s in (x, w)]
    g = graph(lambda a, b: o.Relu()(op(a, b)), (dtype, (*x[:2], *sizes) if sizes else x), (dtype, w))
    e = Emulated(g, features=features)
    assert exact or any(isinstance(launch.kernel, TiledKernel) for launch in e.program.launches)
    (got,) = e(*arrays)
    assert_close(got, reference(g, [a.astype(NUMPY[dtype]) for a in arrays])[0], dtype, () if exact else features)


PRODUCTS: list[tuple[DType, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (bf16, (130, 63), (128, 63), {"transpose_b": True}),
    (f32, (2, 3, 2, 40, 33), (2, 3, 2, 33, 20), {}),
    (f32, (70, 33), (33, 20), {"features": ("tf32",)}),
    (f64, (70, 33), (33, 20), {}),
    (f16, (4, 33, 70), (4, 33, 20), {"transpose_a": True}),
    (bf16, (2, 70, 40), (1, 40, 20), {"alpha": 0.5}),
    (f32, (5, 0), (0, 3), {}),
]


@pytest.mark.parametrize(("dtype", "a", "b", "how"), PRODUCTS, ids=lambda v: str(v))
def test_products(dtype: DType, a: tuple[int, ...], b: tuple[int, ...], how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch axes that do not merge, rows that start anywhere, tf32, an epilogue that reads a row; K = 0."""
    monkeypatch.setattr(templates, "CUDA_TEMPLATES", [TiledMatmul(), *templates.CUDA_TEMPLATES])
    how = dict(how)
    features = how.pop("features", ())
    n = b[-2] if how.get("transpose_b") else b[-1]
    rng = fresh_rng()
    arrays = [rng.standard_normal(s).astype(NUMPY[dtype]) for s in (a, b, (n,))]
    g = graph(lambda x, y, z: o.Relu()(o.Add()(Matmul(**how)(x, y), z)), (dtype, a), (dtype, b), (dtype, (n,)))
    e = Emulated(g, features=features)
    assert any(isinstance(launch.kernel, TiledKernel) for launch in e.program.launches)
    assert_close(e(*arrays)[0], reference(g, arrays)[0], dtype, features)


@pytest.mark.parametrize("which", range(len(FEW)))
@pytest.mark.parametrize("turned", [False, True])
def test_tiles_for_few_rows_and_small_matrices(which: int, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, columns and K that end inside a tile, a batch, and an epilogue that reads the matrix of a batch element."""
    config = FEW[which][0]
    monkeypatch.setattr(tiled_matmul, "fastest", lambda *_: config)
    shapes = (2, config.rows + 3, 37), ((2, config.columns + 5, 37) if turned else (2, 37, config.columns + 5))
    g = graph(lambda x, y, z: o.Add()(Matmul(transpose_b=turned)(x, y), z), *((f32, s) for s in (*shapes, (2, 1, config.columns + 5))))
    rng = fresh_rng()
    arrays = [rng.standard_normal(v.type.shape).astype(np.float32) for v in g.inputs]
    assert_close(Emulated(g)(*arrays)[0], reference(g, arrays)[0], f32)


def test_few_rows_are_not_computed_as_many() -> None:
    """Products of 16 rows, and of small matrices: what the tiles multiply is next to what is asked for, and the chip is full."""
    for m, n, k, batch in ((16, 4096, 4096, 1), (16, 4096, 9216, 1), (27, 27, 64, 2048), (16, 16, 16, 8192), (49, 32, 49, 3072)):
        c = tiled_matmul.fastest((*tiled_matmul.HOPPER, *FEW), m, n, k, batch, 132)
        blocks = -(-m // c.rows) * -(-n // c.columns) * batch * c.parts
        assert blocks * c.warps >= 4 * 132 and -(-m // c.rows) * c.rows * -(-n // c.columns) * c.columns < 3 * m * n


def test_rows_that_products_read_are_padded() -> None:
    """A joined row of 63 halves has a stride of 64 on its way to a product, and its values are the same."""
    rng = fresh_rng()
    x, w = rng.standard_normal((70, 21)).astype(np.float16), rng.standard_normal((63, 16)).astype(np.float16)

    def build(a: Any, b: Any) -> Any:
        return Matmul()(o.Concat(axis=1)(a, o.Neg()(a), o.Abs()(a)), b)

    g = graph(build, (f16, (70, 21)), (f16, (63, 16)))
    from tilewright.passes.pipeline import run_pipeline

    found = padded_rows(run_pipeline(g, cuda_target()), cuda_target())
    assert {(v.shape, lay.strides) for v, lay in found.items() if v.shape == (70, 63)} == {((70, 63), (64, 1))}
    e = Emulated(g, "sm_80")
    assert_close(e(x, w)[0], reference(g, [x, w])[0], f16)


def test_long_operands_with_odd_rows_are_read_as_they_lie() -> None:
    from tests.cuda.launching import program

    g = graph(lambda x, y: Matmul()(x, y), (bf16, (1 << 15, 63)), (bf16, (63, 64)))
    (launch,) = program(g).launches
    assert isinstance(launch.kernel, TiledKernel) and "copied" not in launch.note
    assert UnalignedMatmul().key == "unaligned_matmul"


@pytest.mark.parametrize("layer", ["GRU", "LSTM"])
@pytest.mark.parametrize("numbers", ["f32", "tf32", "bf16"])
def test_a_step_of_a_recurrent_layer_is_one_launch(layer: str, numbers: str) -> None:
    """The product of the state and all gates of a step, with rows and columns that end inside a tile. Where convolutions round f32 to tf32,
    a recurrent layer does; the linear layer behind it does not."""
    import torch

    from tilewright.frontend.torch import import_torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = getattr(torch.nn, layer)(24, 72, 1, batch_first=True), torch.nn.Linear(72, 40)

        def forward(self, x: Any) -> Any:
            return self.last(self.inner(x)[0])

    half = numbers == "bf16"
    model = Model().eval().to(torch.bfloat16 if half else torch.float32)
    x = torch.randn(5, 4, 24).to(torch.bfloat16 if half else torch.float32)
    e = Emulated(import_torch(model, (x,)).graph, "sm_90a" if layer == "GRU" and numbers == "f32" else "sm_80",
                 features=("tf32-conv",) if numbers == "tf32" else ())
    names = [launch.kernel.name.partition("_")[0] for launch in e.program.launches]
    assert names.count("gates") == 3 and not any(n.name.startswith("cat") for n in e.program.launches)  # the first step starts from zeros
    given = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if half else x.numpy()
    want = model.double()(x.double()).detach().numpy()
    np.testing.assert_allclose(e(given)[0].astype(np.float64), want, rtol=0, atol={"f32": 1e-6, "tf32": 1e-3, "bf16": 2e-2}[numbers])
    rounded = {launch.name: ".tf32" in e.texts[launch.kernel.name] for launch in e.program.launches}
    assert rounded["matmul_region"] == rounded["pointwise_1_gates"] == (numbers == "tf32") and not rounded["linear_region"]
    if e.target.cpu == "sm_90a":  # weights are on their way before the step before has ended
        text = next(t for name, t in e.texts.items() if name.startswith("gates"))
        assert 0 < text.index("cp.async.cg") < text.index("griddepcontrol.wait") < text.rindex("cp.async.cg")


@pytest.mark.parametrize(
    ("arch", "dtype", "turned", "features"),
    [("sm_90a", bf16, True, ()), ("sm_80", f16, False, ()), ("sm_90a", f32, False, ()), ("sm_80", f32, True, ("tf32",))], ids=str)
def test_grouped_products(arch: str, dtype: DType, turned: bool, features: tuple[str, ...]) -> None:
    """Groups of no rows, of a few and of more than a tile, rows of no group, and an epilogue with a factor for each row."""
    rng, (groups, m, k, n) = fresh_rng(), (5, 102, 40, 24)
    stack = (groups, n, k) if turned else (groups, k, n)

    def build(x: Any, w: Any, ends: Any, scale: Any) -> Any:
        return o.Mul()(o.Relu()(o.GroupedGemm(transpose_b=turned)(x, w, ends)), scale)

    g = graph(build, (dtype, (m, k)), (dtype, stack), (i32, (groups,)), (dtype, (m, 1)))
    arrays = [rng.standard_normal(s).astype(NUMPY[dtype]) for s in ((m, k), stack, (m, 1))]
    arrays.insert(2, np.array([3, 3, 75, 90, 98], np.int32))
    e = Emulated(g, arch, features=features)
    assert isinstance(e.program.launches[-1].kernel, TiledKernel)
    assert_close(e(*arrays)[0], reference(g, arrays)[0], dtype, features)


@pytest.mark.parametrize(
    ("arch", "dtype", "ends", "features"),
    [("sm_90a", bf16, (3, 3, 75, 90, 98), ()), ("sm_80", f16, (102,), ()), ("sm_90a", f32, (-2, 40, 30, 200), ()),
     ("sm_80", f32, (0, 102), ("tf32",)), ("sm_90a", bf16, (), ())], ids=str)
def test_products_of_the_rows_of_groups(arch: str, dtype: DType, ends: tuple[int, ...], features: tuple[str, ...]) -> None:
    """The matrices' gradient: groups of no rows give zeros, and neither NaN nor infinities of the rows behind a group reach it."""
    rng, (m, k, n) = fresh_rng(), (102, 40, 27)
    g = graph(lambda x, y, e: o.GroupedOuter()(x, y, e), (dtype, (m, k)), (dtype, (m, n)), (i64, (len(ends),)))
    x, y = (rng.standard_normal(s).astype(NUMPY[dtype]) for s in ((m, k), (m, n)))
    if len(ends) == 5:
        x[98:], y[98:] = np.nan, np.inf
    arrays = [x, y, np.array(ends, np.int64)]
    e = Emulated(g, arch, features=features)
    assert all(isinstance(launch.kernel, TiledKernel) for launch in e.program.launches)
    got = e(*arrays)[0]
    assert got.shape == (len(ends), k, n)
    if ends:
        assert_close(got, reference(g, arrays)[0], dtype, features)


@pytest.mark.parametrize(("arch", "dtype", "long"), [("sm_90a", f32, 70), ("sm_90a", bf16, 520)], ids=str)
def test_the_longer_axis_of_transposed_rows_is_the_rows(arch: str, dtype: DType, long: int) -> None:
    """[S, B, K] that lies as [B, S, K], as attention layers see it: tiles of S, no copy."""
    rng = fresh_rng()
    g = graph(lambda x, w: Matmul(transpose_b=True)(o.Transpose(perm=(1, 0, 2))(x), w), (dtype, (3, long, 16)), (dtype, (24, 16)))
    arrays = [rng.standard_normal(s).astype(NUMPY[dtype]) for s in ((3, long, 16), (24, 16))]
    e = Emulated(g, arch)
    (launch,) = e.program.launches
    tile = re.search(r"(\d+)x\d+", launch.note)
    assert tile is not None and launch.grid == 3 * -(-long // int(tile[1]))
    assert_close(e(*arrays)[0], reference(g, arrays)[0], dtype)


def test_blocks_share_k(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts of K, the last one shorter, added in order; rows and columns end inside a tile, the epilogue reads a tensor."""
    from tilewright.kernels.matmul.cuda import tiled

    assert tiled.fastest(tiled.HOPPER, 2048, 768, 3072, 1, 132).parts > 1  # 96 tiles for 132 SMs
    assert tiled.fastest(tiled.HOPPER, 4096, 4096, 4096, 1, 132).parts == 1
    rng, chosen = fresh_rng(), tiled.fastest
    monkeypatch.setattr(tiled, "fastest", lambda *problem: replace(chosen(*problem), parts=3))

    def build(x: Any, w: Any, z: Any) -> Any:
        return o.Add()(o.Relu()(Matmul(transpose_b=True, alpha=0.5)(x, w)), z)

    shapes = (2, 35, 168), (36, 168), (2, 35, 36)
    g = graph(build, *((f32, s) for s in shapes))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    e = Emulated(g)
    assert [launch.kernel.name.rpartition("_")[0] for launch in e.program.launches] == ["matmul", "matmul_sums"]
    assert_close(e(*arrays)[0], reference(g, arrays)[0], f32)


def test_rows_of_a_concatenation_are_computed_there() -> None:
    """Looked-up rows, a product and sums side by side; a sum that something else reads is copied."""
    rng = fresh_rng()
    x, table, ids = rng.standard_normal((6, 8)).astype(np.float32), rng.standard_normal((9, 8)).astype(np.float32), rng.integers(0, 9, 6)

    def build(x: Any, table: Any, ids: Any) -> Any:
        one, total = lambda v: o.Reshape(shape=(6, 1, 8))(v), o.Add()(x, x)
        square = o.Concat(axis=0)(x, o.Slice(starts=(0, 0), sizes=(2, 8), steps=(1, 1))(x))
        stack = o.Concat(axis=1)(one(o.Gather(axis=0)(table, ids)), one(x), one(Matmul(transpose_b=True)(x, square)))
        flat = o.Concat(axis=2)(one(o.Exp()(x)), one(o.Sqrt()(o.Abs()(x))))
        return stack, o.Concat(axis=1)(o.Exp()(x), total, o.Neg()(x)), o.Relu()(total), flat

    g = graph(build, (f32, (6, 8)), (f32, (9, 8)), (i64, (6,)))
    e = Emulated(g)
    copies = [launch.name for launch in e.program.launches if launch.name.startswith("concat")]
    assert copies == ["concat.0", "concat.1", "concat_1.1"]  # parts of inputs
    for got, want in zip(e(x, table, ids), reference(g, [x, table, ids]), strict=True):
        assert_close(got, want, f32)


def test_columns_of_padded_rows_are_computed_there() -> None:
    """What autocast narrows in front of a product: columns of any number, also of an elementwise op whose last axes they are."""
    rng = fresh_rng()
    x, w = rng.standard_normal((40, 2)).astype(np.float32), rng.standard_normal((16, 17)).astype(np.float32)

    def build(x: Any, w: Any) -> Any:
        waves = o.Reshape(shape=(40, 14))(o.Sin()(o.Mul()(o.Reshape(shape=(40, 2, 1))(x), o.functions.iota(x.node.graph, (7,), 0, f32))))
        rows = o.Cast(dtype=bf16)(o.Concat(axis=1)(o.Slice(starts=(0, 1), sizes=(40, 1), steps=(1, 1))(x), x, waves))
        return Matmul(transpose_b=True)(rows, o.Cast(dtype=bf16)(w))

    g = graph(build, (f32, (40, 2)), (f32, (16, 17)))
    e = Emulated(g)
    assert not any(launch.name.startswith("concat") for launch in e.program.launches)
    assert_close(e(x, w)[0], reference(g, [x, w])[0], bf16)


def test_a_spatial_mean_takes_what_is_fused_before_it() -> None:
    """The mean of a sum that is fused into it, of values that lie channels last: both terms count."""
    rng, shape = fresh_rng(), (2, 4, 5, 16)

    def build(x: Any, y: Any) -> Any:
        last = lambda v: o.Transpose(perm=(0, 3, 1, 2))(v)
        return o.Mean(axes=(2, 3), keepdims=False)(o.Add()(last(x), last(y)))

    g = graph(build, (f32, shape), (f32, shape))
    arrays = [rng.standard_normal(shape).astype(np.float32) for _ in range(2)]
    assert_close(Emulated(g)(*arrays)[0], reference(g, arrays)[0], f32)


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_few_long_rows_are_reduced_by_all_blocks(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an odd length and of whole vectors, over several axes, with arithmetic before and behind the reduction."""
    for name, value in {"RESIDENT": 100, "WARPS": 1, "BYTES": 1, "SMALL": 1, "BLOCKS": 6, "LEAST": 1}.items():
        monkeypatch.setattr(f"tilewright.kernels.rows.cuda.reduce.{name}", value)

    def build(x: Any, y: Any, z: Any) -> Any:
        far = o.Sqrt()(o.Mean(axes=(0, 1), keepdims=False)(o.Square()(o.Sub()(x, y))))
        sizes = o.Sum(axes=(1, 2), keepdims=False)(o.Abs()(z))
        return far, o.Max(axes=(1, 2), keepdims=True)(z), sizes, o.Min(axes=(1,), keepdims=False)(x)

    rng, shapes = fresh_rng(), ((3, 1003), (3, 1003), (2, 40, 64))
    g = graph(build, *((dtype, s) for s in shapes))
    arrays = [rng.standard_normal(s).astype(dtype.np) for s in shapes]
    e = Emulated(g)
    assert sum("_parts_" in v.kernel.name for v in e.program.launches) == 4
    for got, want, v in zip(e(*arrays), reference(g, arrays), g.outputs, strict=True):
        assert_close(got, want, v.dtype)


@pytest.mark.parametrize("place", [None, 0, 70 * 1003 - 1, 40_000])
def test_whole_arrays_of_bools_are_reduced_by_all_blocks(place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether all elements of 16-bit activations are finite, which many models ask for, and whether any of a column is not."""
    for name, value in {"RESIDENT": 100, "LEAST": 1}.items():
        monkeypatch.setattr(f"tilewright.kernels.rows.cuda.reduce.{name}", value)

    def build(x: Any) -> Any:
        fine = o.Less()(o.Abs()(x), F.full(x.node.graph, (), float("inf"), f16))
        return All(axes=(0, 1))(fine), Any_(axes=(0,))(o.LogicalNot()(fine))

    x = fresh_rng().standard_normal((70, 1003)).astype(np.float16)
    if place is not None:
        x.reshape(-1)[place] = np.inf
    e = Emulated(graph(build, (f16, x.shape)))
    assert all("_tiles_" in v.kernel.name or "_parts_" in v.kernel.name for v in e.program.launches) and len(e.program.launches) >= 3
    every, columns = e(x)
    assert bool(every) == (place is None) and np.array_equal(columns, ~np.isfinite(x).all(0))


def test_one_number_added_at_every_second_index() -> None:
    """Updates that are expanded and indices with a stride, as counts of neighbours are written, are sorted too."""
    rng = fresh_rng()

    def build(x: Any, ids: Any, one: Any) -> Any:
        return o.ScatterAdd(axis=0)(x, o.Slice(starts=(0,), sizes=(20,), steps=(2,))(ids), o.Expand(shape=(20, 1))(one))

    g = graph(build, (f32, (7, 1)), (i64, (40,)), (f32, (1, 1)))
    arrays = [rng.standard_normal((7, 1)).astype(np.float32), rng.integers(0, 7, 40), rng.standard_normal((1, 1)).astype(np.float32)]
    e = Emulated(g)
    assert any(launch.kernel.name.startswith("scatter_chunks") for launch in e.program.launches)
    assert_close(e(*arrays)[0], reference(g, arrays)[0], f32)


SCATTERS = {
    "one chunk": (20, (7, 5), f32, "add", 0), "last of many": (100, (7, 5), f32, "set", 0), "largest of many": (70, (5, 3), f32, "max", 0),
    "product": (70, (5, 1), f32, "mul", 0), "wide rows": (300, (33, 64), bf16, "add", 0), "odd rows": (150, (30, 40), bf16, "add", 0),
    "numbers": (90, (33,), i32, "add", 0), "columns": (90, (6, 33), f64, "min", 1), "three levels": (700, (9, 2), f32, "add", 0),
    "many blocks of indices": (4200, (300, 1), f32, "add", 0),
}


@pytest.mark.parametrize(("count", "shape", "dtype", "mode", "axis"), SCATTERS.values(), ids=SCATTERS)
def test_rows_at_indices_of_which_most_are_one(count: int, shape: tuple[int, ...], dtype: Any, mode: str, axis: int,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of one row, and one that passes through all chunks: its sum is made of the sums of chunks, and of those again."""
    monkeypatch.setattr("tilewright.kernels.index.cuda.scatter.LAST", 24)
    rng, rows = fresh_rng(), shape[axis]
    op = o.ScatterAdd(axis=axis) if mode == "add" else o.Scatter(axis=axis, mode=mode)
    updates = (*shape[:axis], count, *shape[axis + 1 :])
    g = graph(op, (dtype, shape), (i64, (count,)), (dtype, updates))
    ids = np.where(rng.random(count) < 0.7, rows // 2, rng.integers(0, rows, count))
    x, u = (rng.integers(-3, 4, s) if dtype is i32 else rng.standard_normal(s) for s in (shape, updates))
    arrays = [x.astype(dtype.np), ids, (u * (0.1 if mode == "mul" else 1)).astype(dtype.np)]
    e = Emulated(g)
    assert_close(e(*arrays)[0], reference(g, arrays)[0], dtype)
    levels = [n for n in (launch.kernel.name for launch in e.program.launches) if n.startswith(("scatter_chunks", "scatter_segments"))]
    assert len(levels) == (1 if count <= 32 else 2 if count <= 384 else 3), levels


MESSAGES = {  # how many, the result's shape, factors (none, one a row, rows of them), dtype, mode
    "one factor a row": (300, (20, 48), "row", f32, "add"), "none": (90, (20, 5), "", f32, "add"), "maxima": (90, (9, 64), "", bf16, "max"),
    "expanded factors": (70, (9, 12), "expanded", bf16, "add"), "heads": (200, (20, 3, 8), "row", f16, "add"),
    "one chunk": (13, (7, 2), "row", f64, "add"),
}


@pytest.mark.parametrize(("count", "shape", "factor", "dtype", "mode"), MESSAGES.values(), ids=MESSAGES)
def test_messages_are_read_where_they_are_summed(count: int, shape: tuple[int, ...], factor: str, dtype: Any, mode: str,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a table at indices, times a factor each: nothing of their size is written, and a bad index is reported."""
    monkeypatch.setattr("tilewright.kernels.index.cuda.scatter.LAST", 12)
    rng, table, each = fresh_rng(), (11, *shape[1:]), (count, *(1 for _ in shape[1:]))

    def build(x: Any, ids: Any, h: Any, at: Any, f: Any = None) -> Any:
        rows = o.Gather(axis=0)(h, at)
        if f is not None:
            rows = o.Mul()(o.Expand(shape=(count, *shape[1:]))(f) if factor == "expanded" else f, rows)
        return o.ScatterAdd()(x, ids, rows) if mode == "add" else o.Scatter(mode=mode)(x, ids, rows)

    g = graph(build, (dtype, shape), (i64, (count,)), (dtype, table), (i32, (count,)), *([(dtype, each)] if factor else []))
    x, h, f = (rng.standard_normal(s).astype(dtype.np) for s in (shape, table, each))
    ids, at = np.where(rng.random(count) < 0.5, 3, rng.integers(0, shape[0], count)), rng.integers(0, 11, count).astype(np.int32)
    given = [x, ids, h, at, *([f] if factor else [])]
    e = Emulated(g)
    assert not any(launch.kernel.name.startswith("gather") for launch in e.program.launches)
    assert_close(e(*given)[0], reference(g, given)[0], dtype)
    assert not e.errors.any()
    for wrong in (-1, 11, 1 << 30):
        place = rng.integers(0, count)
        right, at[place] = at[place], wrong
        e(*given)
        assert e.errors[2:].tolist() == [place, wrong]
        at[place] = right


@pytest.mark.parametrize("shape, long, parts", [((9, 50), 700, 3), ((4, 20, 3), 120, 1), ((17, 11), 250, 0)])
def test_elements_at_indices_along_an_axis_are_sorted_row_by_row(shape: tuple[int, ...], long: int, parts: int) -> None:
    """Rows that a block holds are sorted in one launch, several short ones together; else all of them at once."""
    rng = fresh_rng()
    at = (shape[0], long, *shape[2:])
    x, updates = (rng.standard_normal(s).astype(np.float32) for s in (shape, at))
    ids = rng.integers(0, shape[1], at)
    g = graph(lambda x, i, u: o.ScatterAlong(axis=1, mode="add")(x, i, u), (f32, shape), (i64, at), (f32, at))
    made = Emulated(g)
    found = [x for x in made.program.launches if "radix" in x.kernel.name]
    assert (len(found) == 1) == (parts > 0) and (not parts or found[0].grid == parts)
    want = torch.from_numpy(x.astype(np.float64)).scatter_add(1, torch.from_numpy(ids), torch.from_numpy(updates.astype(np.float64)))
    np.testing.assert_allclose(made(x, ids, updates)[0], want.numpy(), rtol=1e-5, atol=1e-5)


def test_a_gather_that_others_read_stays_whole() -> None:
    def build(x: Any, ids: Any, h: Any, at: Any) -> Any:
        rows = o.Gather(axis=0)(h, at)
        return o.ScatterAdd()(x, ids, rows), o.Exp()(rows)

    g = graph(build, (f32, (9, 4)), (i64, (50,)), (f32, (7, 4)), (i64, (50,)))
    assert any(launch.kernel.name.startswith("gather") for launch in Emulated(g).program.launches)


def test_launches_that_find_anything_in_their_buffers_stay_inside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile repeats every launch by itself: what the launches before it leave is not there then."""
    monkeypatch.setattr("tilewright.kernels.index.cuda.scatter.LAST", 8)

    def build(x: Any, i: Any, u: Any, w: Any, ends: Any) -> Any:
        return (o.ScatterAdd()(x, i, u), *o.Sort(axis=0)(i), o.GroupedGemm()(u, w, ends))

    rng = fresh_rng()
    g = graph(build, (bf16, (40, 64)), (i64, (300,)), (bf16, (300, 64)), (bf16, (3, 64, 64)), (i32, (3,)))
    arrays = [rng.standard_normal(tuple(map(int, v.type.shape))).astype(v.dtype.np) for v in g.inputs]
    e = Emulated(g, "sm_80")

    class Garbage(Emulated):
        def _launch(self, launch: Any, memory: Any, env: Any, error: int) -> None:
            for buffer in self.program.temps:
                block, at = self.heap.find(memory[buffer], 1)
                size = evaluate(buffer.nbytes, env)
                block[at : at + size] = rng.integers(0, 256, size) if self.launched % 2 else 0xFF
            super()._launch(launch, memory, env, error)

    e.__class__ = Garbage
    e(*arrays)
    assert {"scatter_chunks", "radix", "sort", "grouped_matmul"} <= {v.kernel.name.rpartition("_")[0] for v in e.program.launches}


def test_scatters_with_equal_indices_sort_them_once() -> None:
    g = graph(lambda x, i, u, y, v: (o.ScatterAdd()(x, i, u), o.ScatterAdd()(y, i, v)),
              (f32, (9, 4)), (i64, (50,)), (f32, (50, 4)), (f32, (9,)), (f32, (50,)))
    names = [launch.kernel.name for launch in Emulated(g).program.launches]
    assert sum(n.startswith("radix") for n in names) == 1 and sum(n.startswith("scatter_words") for n in names) == 1, names


def test_what_is_one_run_of_a_concatenation_is_computed_there() -> None:
    """A sum that others read too, a product and a reshaped region land in the result; what an input or an output is, what starts at an odd
    place and what is joined twice are copied."""
    rng = fresh_rng()
    x, w = rng.standard_normal((4, 8)).astype(np.float32), rng.standard_normal((8, 8)).astype(np.float32)

    def build(x: Any, w: Any) -> Any:
        total, odd = o.Add()(x, x), o.Slice(starts=(0, 0), sizes=(3, 1), steps=(1, 1))(o.Reshape(shape=(32, 1))(x))
        column = o.Concat(axis=0)(o.Neg()(o.Reshape(shape=(32, 1))(total)), odd, o.Abs()(o.Reshape(shape=(32, 1))(x)))
        rows = o.Concat(axis=0)(total, x, Matmul()(total, w), o.Reshape(shape=(4, 8))(o.Exp()(o.Reshape(shape=(8, 4))(x))), total)
        return rows, column, o.Relu()(total)

    g = graph(build, (f32, (4, 8)), (f32, (8, 8)))
    e = Emulated(g, "sm_80")
    copies = [launch.name for launch in e.program.launches if launch.name.startswith("concat")]
    assert len(copies) == 4, copies
    for got, want in zip(e(x, w), reference(g, [x, w]), strict=True):
        assert_close(got, want, f32)


@pytest.mark.parametrize("shape", [(2, 3, 5, 33), (40, 300), (7,)], ids=str)
def test_elements_of_rows_at_known_places(shape: tuple[int, ...]) -> None:
    """A resize along memory: rows and columns end inside a program, an epilogue reads the result's shape; indices are constants."""
    rng = fresh_rng()
    x = rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    ids = rng.integers(0, shape[-1], 2 * shape[-1])
    y = rng.standard_normal((*shape[:-1], 2 * shape[-1])).astype(ml_dtypes.bfloat16)
    build = lambda a, b: o.Add()(o.Gather(axis=len(shape) - 1)(a, a.node.graph.constant(ids, "ids")), b)
    e = Emulated(graph(build, (bf16, shape), (bf16, y.shape)))
    assert [type(launch.kernel) for launch in e.program.launches] == [TiledKernel]
    (got,) = e(x, y)
    want = x[..., ids].astype(np.float64) + y.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
def test_norms_of_whole_images(dtype: DType, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows over many blocks: stretches and tiles end inside, far from zero, with weights and an epilogue."""
    monkeypatch.setattr(long_norm, "LONG", 300)
    monkeypatch.setattr(long_norm, "TILE", 512)
    rng = fresh_rng()
    shape = (2, 9, 13, 24) if last else (2, 24, 9, 13)
    x = (rng.standard_normal(shape) + 50).astype(NUMPY[dtype])
    w, c = (rng.standard_normal((24, 9, 13)).astype(NUMPY[dtype]) for _ in range(2))
    op = o.LayerNorm(naxes=3, affine="both")

    def build(a: Any, b: Any, d: Any) -> Any:
        a = o.Transpose(perm=(0, 3, 1, 2))(a) if last else a
        return o.Relu()(op(o.Add()(a, a.node.graph.constant(np.array(0.5, NUMPY[dtype]), "half")), b, d))

    e = Emulated(graph(build, (dtype, shape), (dtype, w.shape), (dtype, c.shape)))
    names = [launch.kernel.name.rpartition("_")[0] for launch in e.program.launches]
    assert [n for n in names if "norm" in n] == ["long_norm_statistics", "long_norm"]
    (got,) = e(x, w, c)
    y = x.astype(np.float64)
    y = y.transpose(0, 3, 1, 2) if last else y
    y = (y - y.mean((1, 2, 3), keepdims=True)) / np.sqrt(y.var((1, 2, 3), keepdims=True) + 1e-5)
    assert_close(got, np.maximum(y * w.astype(np.float64) + c.astype(np.float64), 0), dtype, ("f32",) if dtype is f32 else ())


@pytest.mark.parametrize("dtype", [f32, bf16, f64])
@pytest.mark.parametrize("sizes", [(1, 3, 1), (1, 9, 1), (3, 1, 1), (5, 1, 4), (1, 1, 7), (2, 3, 1)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_with_axes_of_size_1(dtype: DType, sizes: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    """Two axes then have stride 1, and only one of them can be walked in pieces."""
    m, n, k = sizes
    rng = fresh_rng()
    a = rng.standard_normal((k, m) if turned[0] else (m, k)).astype(NUMPY[dtype])
    b = rng.standard_normal((n, k) if turned[1] else (k, n)).astype(NUMPY[dtype])
    made = graph(Matmul(transpose_a=turned[0], transpose_b=turned[1]), (dtype, a.shape), (dtype, b.shape))
    product = Emulated(made, "sm_80" if dtype is bf16 else "sm_90a")
    want = (a.T if turned[0] else a).astype(np.float64) @ (b.T if turned[1] else b).astype(np.float64)
    assert_close(product(a, b)[0], want, dtype)


@pytest.mark.parametrize("rows", [3, 6])
def test_factors_of_rows_in_an_epilogue_end_with_the_rows(rows: int) -> None:
    """Neighbours in memory along the rows, of which there are fewer than a vector has elements: nothing behind them is read."""
    rng = fresh_rng()
    x, w, f = (rng.standard_normal(s).astype(np.float32) for s in ((2, rows, 5), (5, 4), (rows, 1)))
    (got,) = Emulated(graph(lambda x, w, f: o.Mul()(Matmul()(x, w), f), (f32, x.shape), (f32, w.shape), (f32, f.shape)))(x, w, f)
    np.testing.assert_allclose(got, x @ w * f, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("depth", "wide", "delta"), [(64, 32, True), (24, 40, False), (128, 5, True)])
def test_memories_lie_in_registers_of_warps(depth: int, wide: int, delta: bool) -> None:
    """Depths and widths that fill their tiles or not, two heads that share a key; no program is one thread's."""
    rng, q, v = fresh_rng(), (1, 1, 6, depth), (1, 2, 6, wide)
    shapes = (q, q, v, (1, 2, 6), (1, 2, 6), (1, 2, depth, wide))
    arrays = [(rng.standard_normal(s) * (depth**-0.5 if s == q else 1) - (s == (1, 2, 6))).astype(np.float32) for s in shapes]
    rule: Any = o.REGISTRY["gated_delta_rule"]
    op = rule(scale=0.5, delta=delta)
    g = graph(lambda *x: op(*x), *((f32, s) for s in shapes))
    run = Emulated(g)
    assert [type(x.kernel) for x in run.program.launches] == [TiledKernel]
    for got, want in zip(run(*arrays), reference(g, arrays), strict=True):
        assert_close(got, want, f32)


@pytest.mark.parametrize(("d", "n", "gated"), [(16, 16, True), (21, 5, True), (9, 1, False)])
def test_states_lie_in_registers_of_warps(d: int, n: int, gated: bool) -> None:
    """States and channels that fill their tiles or not; no program is one thread's."""
    rng, row = fresh_rng(), (2, 5, d)
    shapes = (row, row, (d, n), (2, 5, n), (2, 5, n), (d,), *((row,) if gated else ()), (2, d, n))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    arrays[1], arrays[2] = abs(arrays[1]), -abs(arrays[2])
    op: Any = o.SelectiveScan(gated=gated)
    g = graph(lambda *x: op(*x), *((f32, s) for s in shapes))
    run = Emulated(g)
    assert [type(x.kernel) for x in run.program.launches] == [TiledKernel]
    for got, want in zip(run(*arrays), reference(g, arrays), strict=True):
        assert_close(got, want, f32)
