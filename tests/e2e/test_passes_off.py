"""Every optional pass switched off in turn: the machine code is still right, for every family, static and dynamic."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.compare import assert_close, eager
from tests.e2e.families import FAMILIES, imported, module_of
from tilewright.compile import compile_graph, target_spec
from tilewright.passes.pipeline import optional_passes

ALONE = {"mlp", "block-naive", "gpt2", "bert"}  # the rest is marked slow: half a second a compile adds up


def cases() -> list[Any]:
    found: list[Any] = []
    for name in FAMILIES:
        marks = () if name in ALONE else (pytest.mark.slow,)
        found += [pytest.param(name, p, marks=marks, id=f"{name}-{p}") for p in optional_passes()]
    return found


@pytest.mark.parametrize(("name", "off"), cases())
def test_one_pass_off(name: str, off: str) -> None:
    family, module, found = FAMILIES[name], module_of(name), imported(name, dynamic=True)
    session = compile_graph(found.graph, found.signature, target_spec("cpu"), disable=(off,))
    assert off not in session.model.passes
    for b, s in [(1, 1), (2, 13)]:
        args = family.args(b, s)
        assert_close(session(*args), eager(module, args))


@pytest.mark.parametrize("name", FAMILIES)
def test_all_optional_passes_off(name: str) -> None:
    family, module, found = FAMILIES[name], module_of(name), imported(name)
    session = compile_graph(found.graph, found.signature, target_spec("cpu"), disable=optional_passes())
    args = family.args(2, 7)
    assert_close(session(*args), eager(module, args))


@pytest.mark.slow
@pytest.mark.parametrize("off", optional_passes())
@pytest.mark.parametrize("name", FAMILIES)
def test_one_pass_off_static(name: str, off: str) -> None:
    family, module, found = FAMILIES[name], module_of(name), imported(name)
    session = compile_graph(found.graph, found.signature, target_spec("cpu"), disable=(off,))
    args = family.args(2, 7)
    assert_close(session(*args), eager(module, args))
