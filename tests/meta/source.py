"""Where the repository's files are, for the tests that read them as text."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tilewright"
DOCS = ROOT / "docs"


@cache
def tracked() -> tuple[Path, ...]:
    """Files that git tracks or would track (untracked and not ignored), that exist and are text."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return tuple(p for p in (ROOT / line for line in listed.stdout.splitlines()) if p.is_file())


def python_files() -> list[Path]:
    return [p for p in tracked() if p.suffix == ".py"]


def modules() -> Iterator[tuple[Path, str]]:
    """(path, source) of each module of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, path.read_text()
