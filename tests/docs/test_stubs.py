"""The stub files say what the package offers, and a type checker finds it there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.stubs import stubs
from tests.meta.source import PACKAGE, ROOT


def test_the_stubs_are_up_to_date(request: pytest.FixtureRequest) -> None:
    for path, wanted in stubs().items():
        if request.config.getoption("--update-goldens"):
            path.write_text(wanted)
        assert path.read_text() == wanted, f"{path.relative_to(PACKAGE)} is out of date; run make tables"


@pytest.mark.parametrize("name", ["qr", "svd", "eig", "eigh", "lu", "lu_factor", "geqrf", "slogdet", "lstsq", "top_k", "frexp", "divmod"])
def test_functions_with_several_results_are_no_array(name: str) -> None:
    found = [x for text in stubs().values() for x in text.replace(",\n        ", ", ").splitlines() if x.startswith(f"def {name}(")]
    assert found and not [x for x in found if x.endswith("-> Array: ...") and "Literal['r']" not in x]


USER = '''
import numpy as np
import tilewright as tw


@tw.jit
def step(w: tw.Array, x: tw.ArrayLike) -> tw.Array:
    return tw.gelu(x @ w, approximate="tanh").sum(axis=0) - 1.0


@tw.jit(donate=(0,))
def moved(w: tw.Array) -> tw.Array:
    return tw.where(w > 0, w, 0.0) + 1


def loss(w: tw.Array, x: tw.Array) -> tw.Array:
    return tw.mean((tw.exp(-(x @ w)) - 1.0) ** 2)


w: tw.Array = tw.zeros((3, 4), dtype=tw.float32)
report: str = str(step.lower(w, w).report())
slope = tw.grad(loss)(w, tw.asarray(np.ones((2, 3))))
same: tw.Array = tw.linalg.solve(w, w == 1)
value, pulled = tw.value_and_grad(loss)(w, w)
all_typed: list[tw.Array] = [step(w, w), slope, value, pulled, tw.linalg.svd(w).S, w.at[0].set(1.0), tw.vmap(moved)(w)]
session: tw.Session = tw.compile(object(), (w,))
values, places = tw.top_k(w, 2)
count: int = values.size
try:
    tw.exp(w, nonsense=1)  # line 30
except tw.ShapeError:
    tw.no_such_function(w)  # line 32
wrong: int = tw.exp(w)  # line 33
wrong = tw.linalg.svd(w)  # line 34
wrong = w.at[0].add(1)  # line 35
step(w)  # line 36
'''


@pytest.mark.slow
def test_a_type_checker_knows_the_package(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", "--follow-imports=silent", str(program)]
    paths = {"MYPYPATH": str(ROOT / "src"), "PATH": ""}
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=paths, check=False)
    errors = [line.split(":", 2)[1:] for line in run.stdout.splitlines() if ": error:" in line]
    assert [(int(line), what.rpartition("[")[2]) for line, what in errors] == [
        (30, "call-arg]"), (32, "attr-defined]"), *((n, "assignment]") for n in range(33, 36)), (36, "call-arg]")], run.stdout + run.stderr
