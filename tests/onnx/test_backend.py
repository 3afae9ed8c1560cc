"""ONNX's backend tests. A sample of them, drawn from the run's seed, runs always; all of them are slow tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.fresh import SEED
from tests.onnx.backend import EXCLUDED, cases, run_case
from tilewright.frontend.onnx import families

COUNT = 60


@cache
def sample() -> list[str]:
    """Cases of this run: other ones with another seed. ONNX computes the results of all cases to list their names, so only who runs one
    asks for them."""
    usual = sorted(n for n in cases() if n not in EXCLUDED and "light" not in n)
    return sorted(np.random.default_rng(SEED).choice(usual, COUNT, replace=False).tolist())


@pytest.mark.parametrize("number", range(COUNT))
def test_sample(number: int) -> None:
    name = sample()[number]
    assert run_case(name), name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is test_all:
        metafunc.parametrize("name", [] if metafunc.config.option.markexpr == "not slow" else sorted(cases()))


@pytest.mark.slow
def test_all(name: str) -> None:
    if name in EXCLUDED:
        pytest.skip(EXCLUDED[name])
    assert run_case(name)


def test_exclusions_exist_and_are_few() -> None:
    assert EXCLUDED.keys() <= cases().keys()
    assert len(cases()) - len(EXCLUDED) >= 1950


def test_every_family_is_in_the_table() -> None:
    folder = Path(families.__file__).parent
    files = {p.stem for p in folder.glob("*.py") if p.stem.startswith(("ops_", "host_"))}
    assert files <= {m.__name__.rpartition(".")[2] for m in families.FAMILIES}
