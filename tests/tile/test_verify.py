"""The verifier rejects each kind of broken kernel, and names the instruction."""

from __future__ import annotations

import re

import pytest

from tests.tile.kernels import CLASSICS, random_kernel
from tilewright.core.dtypes import f32
from tilewright.core.errors import VerifyError
from tilewright.tile.ir import INDEX, Instr, TileType, Var
from tilewright.tile.parse import parse
from tilewright.tile.verify import verify

HEAD = "kernel @k(%x: view<f32[?,1] global>, %i: view<i64[1] global>, %n: index) pid %pid {\n"


def build(body: str) -> None:
    verify(parse(HEAD + body + "\n}\n"))


@pytest.mark.parametrize("name", CLASSICS)
def test_classics_pass(name: str) -> None:
    verify(CLASSICS[name]())


@pytest.mark.parametrize("seed", range(10))
def test_random_kernels_pass(seed: int) -> None:
    verify(random_kernel(seed))


T = "%0 = load %x, 0, 0 {axes=(1,)} : tile<8xf32>\n"


@pytest.mark.parametrize(
    "body, message",
    [
        ("%0 = frobnicate %n : index", "'frobnicate' is not an operation of tile IR"),
        ("%0 = index.add %n : index", "index.add: takes 2 operands, got 1"),
        (T + "%1 = index.add %0, 1 : index", "needs an index operand"),
        ('%0 = index.cmp %n, 1 {fn="less"} : tile<bool>', "fn must be one of eq ne lt le gt ge, got 'less'"),
        (T + "%1 = to_index %0 : index", "needs a one-element integer tile, got tile<8xf32>"),
        ("%0 = full : tile<8xf32>", "full: needs a value"),
        ("%0 = full {value=1.5} : tile<8xi64>", "value of an integer tile must be an integer"),
        ("%0 = iota {axis=1} : tile<8xi64>", "axis must be in 0..0, got 1"),
        (T + "%1 = not %0 : tile<8xf32>", "needs a bool or integer tile"),
        ("%0 = full {value=1} : tile<8xi64>\n%1 = exp %0 : tile<8xi64>", "needs a float tile"),
        (T + "%1 = full {value=0.0} : tile<8xf16>\n%2 = add %0, %1 : tile<8xf32>", "needs one dtype, got tile<8xf32> and tile<8xf16>"),
        (T + "%1 = full {value=0.0} : tile<4xf32>\n%2 = add %0, %1 : tile<8xf32>", r"shapes \(8,\) and \(4,\) do not broadcast"),
        (T + "%1 = add %0, %0 : tile<4xf32>", "gives tile<8xf32>, got tile<4xf32>"),
        (T + "%1 = add %0, %0 {fast=true} : tile<8xf32>", "has no attribute 'fast'; it may have contract"),
        (T + "%1 = xor %0, %0 : tile<8xf32>", "needs a bool or integer tile"),
        (T + "%1 = select %0, %0, %0 : tile<8xf32>", "needs a bool condition"),
        (T + "%1 = bitcast %0 : tile<8xf64>", "needs dtypes of one size, got f32 and f64"),
        (T + '%1 = reduce %0 {axis=1, fn="sum"} : tile<1xf32>', "axis must be in 0..0, got 1"),
        (T + '%1 = reduce %0 {axis=0, fn="any"} : tile<1xf32>', "any does not fit tile<8xf32>"),
        (T + '%1 = reduce %0 {axis=0, fn="mean"} : tile<1xf32>', "fn must be one of sum max min prod any all"),
        (T + "%1 = broadcast %0 : tile<4xf32>", "do not broadcast"),
        (T + "%1 = reshape %0 : tile<3x3xf32>", "keeps the number of elements"),
        (T + "%1 = transpose %0 : tile<8xf32>", "needs rank 2"),
        (T + "%1 = shuffle %0, %0 {order=(0, 16)} : tile<2xf32>", "order must name elements of tile<8xf32> and tile<8xf32>"),
        (T + "%1 = pick %0, %0 : tile<8xf32>", "indices must be integers of an element's size, got tile<8xf32>"),
        (T + "%1 = extract %0 {starts=(4,)} : tile<8xf32>", r"tile<8xf32> at \(4,\) is not inside tile<8xf32>"),
        (
            "%0 = full {value=0.0} : tile<4x4xf32>\n%1 = full {value=0.0} : tile<8x4xf32>\n%2 = mma %0, %1, %0 : tile<4x4xf32>",
            "shapes do not fit",
        ),
        (
            "%0 = full {value=0.0} : tile<4x4xf32>\n%1 = full {value=0.0} : tile<4x4xf16>\n%2 = mma %0, %1, %1 : tile<4x4xf16>",
            "dtypes do not fit",
        ),
        ("%0 = alloc {shape=(4, 4)} : view<f32[8,1] local>", r"gives view<f32\[4,1\] local>, got view<f32\[8,1\] local>"),
        ("%0 = alloc {shape=(4,)} : view<f32[1] global>", "space must be local or shared"),
        ("%0 = subview %x, 0 {keep=(1,)} : view<f32[1] global>", "needs 2 positions"),
        ("%0 = subview %x, 0, 0 {keep=(0,)} : view<f32[1] global>", r"gives view<f32\[\?\] global>"),
        ("%0 = load %x, 0 {axes=(1,)} : tile<8xf32>", "needs 2 positions and 0 limits"),
        ("%0 = load %x, 0, 0 {axes=(2,)} : tile<8xf32>", "axes must be distinct axes"),
        ("%0 = load %x, 0, 0 {axes=(0, 0)} : tile<8x8xf32>", "axes must be distinct axes"),
        ("%0 = load %x, 0, 0 {axes=(0, 1)} : tile<8xf32>", "needs one view axis per tile axis"),
        ("%0 = load %x, 0, 0, %n {axes=(1,), limits=(1,)} : tile<8xf32>", "limits must name tile axes in order"),
        ("%0 = load %x, 0, 0 {axes=(1,), other=1} : tile<8xf32>", "other needs limits"),
        ("%0 = load %x, 0, 0 {axes=(1,)} : tile<8xf16>", "gives tile<8xf32>, got tile<8xf16>"),
        ('%0 = load %x, 0, 0 {axes=(1,), order="seq"} : tile<8xf32>', "order must be one of weak relaxed acquire release"),
        ('%0 = load %x, 0, 0 {axes=(1,), order="acquire"} : tile<8xf32>', "a scope belongs to orderings other than weak"),
        ('%0 = load %x, 0, 0 {axes=(1,), order="release", scope="device"} : tile<8xf32>', "a load cannot be release"),
        (T + 'store %x, 0, 0, %0 {axes=(1,), order="acquire", scope="block"}', "a store cannot be acquire"),
        ("%0 = full {value=0} : tile<8xi64>\nstore %x, 0, 0, %0 {axes=(1,)}", "stores tile<8xi64> into view<f32"),
        (T + "%1 = gather %x, 0, 0, %0 {axis=1} : tile<8xf32>", "needs integer indices"),
        (T + "if %0 {\n^()\n}", "needs a rank-0 bool condition"),
        (T + "%1 = for 0, %n, %0 {step=1} : tile<8xf32> {\n^(%2: index, %3: tile<8xf32>)\n}", "carries 1 values, yields 0"),
        (
            T
            + "%1 = for 0, %n, %0 {step=1} : tile<8xf32> {\n^(%2: index, %3: tile<8xf32>)\n"
            + "%4 = full {value=0.0} : tile<4xf32>\nyield %4\n}",
            "for the carried",
        ),
        (T + "%1 = for 0, %n, %0 {step=1} : tile<8xf32> {\n^(%2: index, %3: tile<4xf32>)\nyield %3\n}", "carried types differ"),
        ("for 0, %n {step=0} {\n^(%2: index)\n}", "step must be a positive integer, got 0"),
        ("for 0, %n {step=1} {\n^()\n}", "carries 0 values"),
        ("%0 = index.add %n, 1 -> !0 : index", "is no memory operation and takes no token"),
    ],
)
def test_rejects(body: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message) as caught:
        build(body)
    assert str(caught.value).startswith("kernel k: ")
    assert re.search(r"\(in `.+`\)$", str(caught.value)), "the instruction is shown"


def test_use_before_definition() -> None:
    kernel = CLASSICS["masked_copy"]()
    kernel.body.body.reverse()
    with pytest.raises(VerifyError, match=r"uses %.* before its definition"):
        verify(kernel)


def test_a_value_ends_with_its_block() -> None:
    kernel = CLASSICS["matmul"]()
    loop = next(i for i in kernel.walk() if i.op == "for")
    inner = loop.blocks[0].body[0].results[0]
    kernel.body.body.append(Instr("neg", [inner], {}, [Var(inner.type, "z")]))
    with pytest.raises(VerifyError, match="before its definition"):
        verify(kernel)


def test_a_value_is_defined_once() -> None:
    kernel = CLASSICS["masked_copy"]()
    kernel.body.body.append(kernel.body.body[0])
    with pytest.raises(VerifyError, match="defined twice"):
        verify(kernel)
    same = Var(TileType((), f32), "s")
    kernel.body.body[-1:] = [Instr("full", [], {"value": 0.0}, [same]), Instr("full", [], {"value": 0.0}, [same])]
    with pytest.raises(VerifyError, match="%s is defined twice"):
        verify(kernel)


def test_parameters_are_views_or_indices() -> None:
    kernel = CLASSICS["masked_copy"]()
    kernel.params.append(Var(TileType((), f32), "t"))
    with pytest.raises(VerifyError, match="a parameter is a view or an index"):
        verify(kernel)
    kernel.params[-1] = Var(INDEX, "t")
    verify(kernel)
