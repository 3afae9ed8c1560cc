"""Examples in docstrings run."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from tests.meta.source import PACKAGE

WITH_EXAMPLES = [p for p in sorted(PACKAGE.rglob("*.py")) if ">>> " in p.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_examples(path: object) -> None:
    from pathlib import Path

    assert isinstance(path, Path)
    name = ".".join(["tilewright", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
    result = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


def test_there_are_examples() -> None:
    assert len(WITH_EXAMPLES) >= 5
