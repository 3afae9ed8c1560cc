"""Tests assert what they compare: a forgotten `assert` before `np.allclose` would make a test that cannot fail."""

from __future__ import annotations

import ast
import re

import pytest

from tests.meta.source import ROOT, python_files

COMPARISONS = {"allclose", "isclose", "array_equal", "array_equiv", "equal"}
ASSERTS = re.compile(r"\bassert|raises|warns|check|expect|verify|validate|compare|golden|agree")


def lost(source: str) -> list[int]:
    """Lines where a comparison's result goes nowhere: a bare statement, or np.allclose / torch.allclose outside an assert."""
    tree = ast.parse(source)
    asserted = {id(n) for a in ast.walk(tree) if isinstance(a, (ast.Assert, ast.Return)) for n in ast.walk(a)}
    bare = {id(s.value) for s in ast.walk(tree) if isinstance(s, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COMPARISONS):
            continue
        strict = node.func.attr == "allclose" and ast.unparse(node.func.value) in ("np", "numpy", "torch")
        if id(node) in bare or (strict and id(node) not in asserted):
            found.append(node.lineno)
    return found


def mute(source: str) -> list[str]:
    """Test functions in which nothing is asserted."""
    return [
        f"{n.name} (line {n.lineno})"
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.FunctionDef) and n.name.startswith("test_") and not ASSERTS.search(ast.unparse(n))
    ]


def test_every_comparison_is_asserted() -> None:
    found = [f"{p.relative_to(ROOT)}:{line}" for p in python_files() if p.is_relative_to(ROOT / "tests") for line in lost(p.read_text())]
    assert not found, f"compared and not asserted: {found}"


def test_every_test_asserts() -> None:
    found = [f"{p.relative_to(ROOT)}: {name}" for p in python_files() if p.is_relative_to(ROOT / "tests") for name in mute(p.read_text())]
    assert not found, f"tests that assert nothing: {found}"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("np.allclose(a, b)", 1),
        ("ok = np.allclose(a, b)", 1),
        ("assert np.allclose(a, b)", 0),
        ("def same(a, b):\n    return np.allclose(a, b)", 0),
        ("np.array_equal(a, b)", 1),
        ("torch.equal(a, b)", 1),
        ("assert torch.equal(a, b)", 0),
        ("np.testing.assert_allclose(a, b)", 0),
    ],
)
def test_the_check_sees_a_lost_comparison(source: str, count: int) -> None:
    assert len(lost(source)) == count


def test_the_check_sees_a_mute_test() -> None:
    quiet = "def test_" + "x():\n    f()"
    assert mute(quiet) == ["test_x (line 1)"]
