"""Fixtures for the whole suite: a private code cache and key, and golden files with one flag to update them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden files instead of comparing with them")


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The suite neither reads nor fills the user's code cache, nor makes the user a key."""
    import os

    os.environ.setdefault("TILEWRIGHT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    os.environ.setdefault("TILEWRIGHT_KEY_FILE", str(tmp_path_factory.mktemp("key") / "archive.key"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: text equals the file `name` in the `goldens` folder beside the test (`--update-goldens` writes it)."""

    def check(name: str, text: str) -> None:
        path = Path(str(request.path)).parent / "goldens" / name
        if request.config.getoption("--update-goldens"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} is missing; run pytest with --update-goldens"
        assert text == path.read_text(), f"differs from {path}; if the change is meant, run pytest with --update-goldens"

    return check
