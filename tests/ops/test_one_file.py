"""An op in one file is found everywhere: in `tw.`, by transforms, importers and parsers, in tables of the docs and by property tests."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from math import pi
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.docs.op_set import fact_table
from tests.fresh import fresh_rng
from tests.ops.checks import assert_close, cases, check_infer
from tests.ops.oracle import from_aten, to_torch
from tests.transform.samples import wide_cases
from tilewright.array import functions
from tilewright.frontend.torch.aten import families  # noqa: F401  fills the table
from tilewright.frontend.torch.aten.registry import TABLE, lookup
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ir.parse import parse
from tilewright.ir.text import to_text
from tilewright.ops import REGISTRY, Op
from tilewright.ops.families import f32
from tilewright.transform import lib
from tilewright.transform.lib import elementwise

NAMES, MODULE = ("to_radians", "degrees_to_radians"), "tests.ops.one_file_op"


@pytest.fixture
def op() -> Iterator[type[Op]]:
    assert lookup("deg2rad.default") is None and not hasattr(tw, "to_radians")
    importlib.import_module(MODULE)
    try:
        yield REGISTRY["to_radians"]
    finally:
        tables: tuple[dict[str, Any], ...] = (REGISTRY, functions.OFFERED, lib.FUNCTIONS, lib.ALIASES, elementwise.FUNCTIONS, vars(tw),
                                              sys.modules, TABLE)
        for table in tables:
            for name in (*NAMES, MODULE, "deg2rad.default"):
                table.pop(name, None)
        elementwise.ON_FLOATS[:] = [name for name in elementwise.ON_FLOATS if name != "to_radians"]


class Degrees(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.deg2rad(x) + 1


class Epilogue(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 96)

    def forward(self, x: Any) -> Any:
        return torch.deg2rad(self.layer(x))


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_an_epilogue_on_every_target(op: type[Op], target: str, dtype: torch.dtype) -> None:
    session = tw.compile(Epilogue().eval().to(dtype), (torch.zeros(256, 64, dtype=dtype),), target=target)
    assert len(session.report().data["launches"]) == 1, "the product and the op behind it are one kernel"


def test_it_is_found_everywhere(op: type[Op]) -> None:
    x = fresh_rng().uniform(-360, 360, (3, 5)).astype(np.float32)
    package: Any = tw
    want, array, make = np.deg2rad(x), tw.asarray(x), package.to_radians
    assert set(NAMES) <= set(dir(tw))
    np.testing.assert_allclose(package.degrees_to_radians(x), want, rtol=1e-6)
    eager = make(array)
    assert type(eager) is tw.Array
    np.testing.assert_allclose(eager, want, rtol=1e-6)
    np.testing.assert_allclose(tw.jit(lambda v: make(v) * 2)(x), want * 2, rtol=1e-6)
    np.testing.assert_allclose(tw.grad(lambda v: tw.sum(make(v)))(x), np.full_like(x, pi / 180), rtol=1e-6)
    np.testing.assert_allclose(tw.vmap(make)(x), want, rtol=1e-6)
    np.testing.assert_allclose(tw.compile(Degrees(), (torch.from_numpy(x),))(x), want + 1, rtol=1e-6)
    g = Graph("g")
    g.outputs = [op()(g.input(f32(3, 5), "x"))]
    np.testing.assert_array_equal(run(parse(to_text(g)), [x], {})[0], run(g, [x], {})[0])
    assert any(row.startswith("| `to_radians` |") and "`deg2rad`" in row for row in fact_table())
    samples = [p.values[0] for p in cases(only=lambda o: o is op)]
    assert len(samples) >= len(op.samples)
    for case in samples:
        check_infer(case, fresh_rng())
        arrays = case.arrays(fresh_rng())
        oracle = from_aten(op)({}, *map(to_torch, arrays))
        assert_close(run(case.graph(), arrays, case.env)[0].astype(np.float64), oracle.double().numpy(), "bf16")
    assert any(str(p.id).startswith("to_radians-") for p in wide_cases("vjp", float_only=True))


def test_a_public_name_is_taken_once() -> None:
    code = ("from tilewright.ops.base import register; from tilewright.ops.families import Unary\n"
            "@register\nclass OtherEntropy(Unary):\n    public = 'entr'\nimport tilewright.transform.lib")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "tw.entr is made twice" in done.stderr and "RecursionError" not in done.stderr
