"""Names of sizes in messages are the user's: a Dim's own, or the input and the axis; never torch's s77."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.core.errors import CompileError, InputError


class Two(nn.Module):
    def forward(self, ids: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ids.relu(), other * 2


ARGS = (torch.randn(3, 5), torch.randn(6, 2))


def test_named_dims_of_a_program() -> None:
    batch = torch.export.Dim("batch", min=2, max=16)
    program = torch.export.export(Two(), ARGS, dynamic_shapes=({0: batch, 1: torch.export.Dim.AUTO}, {0: 2 * batch}))
    session = tw.compile(program)
    with pytest.raises(InputError, match=r"input .ids. must be f32\[batch,ids_1\] with 2 <= batch <= 16, ids_1 >= 2, got f32\[99,5\]$"):
        session(torch.randn(99, 5), ARGS[1])
    assert str(session.interface.outputs[1].shape[0]) == "2*batch"


def test_a_program_from_a_file_knows_inputs_and_axes() -> None:
    batch = torch.export.Dim("batch", min=2, max=16)
    program = torch.export.export(Two(), ARGS, dynamic_shapes=({0: batch}, {0: 2 * batch}))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    session = tw.compile(torch.export.load(file))
    with pytest.raises(InputError, match=r"must be f32\[(batch|ids_0),5\] with 2 <= (batch|ids_0) <= 16, got f32\[99,5\]$"):
        session(torch.randn(99, 5), ARGS[1])


def test_a_symbol_only_inside_an_expression() -> None:
    half = torch.export.Dim("half", min=2, max=8)
    program = torch.export.export(Two(), ARGS, dynamic_shapes=({0: None}, {0: 2 * half}))
    session = tw.compile(program)
    assert [s.name for s in session.interface.symbols] == ["other_0"]
    assert torch.equal(session(*ARGS)[1], ARGS[1] * 2)


def test_one_dim_for_two_sizes() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum() + y.sum()

    n = tw.Dim("N", 2, 64)
    session = tw.compile(Halves(), (torch.randn(4), torch.randn(4)), dynamic={"x": {0: n}, "y": {0: n}})
    with pytest.raises(InputError, match="N"):
        session(torch.randn(4), torch.randn(5))
    with pytest.raises(CompileError, match=r"M = y\.shape\[0\] and N = x\.shape\[0\] must always be equal; use one Dim for both"):
        tw.compile(lambda x, y: x + y, (torch.randn(4), torch.randn(4)), dynamic={"x": {0: n}, "y": {0: tw.Dim("M", 2, 64)}})


def test_fmod_keeps_the_sign_of_zero() -> None:
    x = torch.tensor([-0.0, 0.0, -6.0, 6.0, -1.5, 2.5, float("inf"), float("nan"), -0.0, 3.0])
    y = torch.tensor([3.0, 3.0, 3.0, -3.0, 4.0, 1.0, 2.0, 1.0, 0.0, float("inf")])
    got, want = tw.compile(torch.fmod, (x, y))(x, y), torch.fmod(x, y)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    kept = ~want.isnan()
    assert torch.equal(got.signbit()[kept], want.signbit()[kept])
