"""pyproject, Makefile and CI say the same things."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from tests.meta.source import PACKAGE, ROOT
from tilewright.frontend.torch.versions import TESTED

CORE = {"numpy", "llvmlite", "ml_dtypes", "rich"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as f:
        return tomllib.load(f)


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found, requirement
    return found[0].lower()


def test_core_dependencies_are_few(project: dict[str, Any]) -> None:
    assert {name_of(d) for d in project["project"]["dependencies"]} == CORE


def test_torch_is_pinned_wherever_it_can_come_in(project: dict[str, Any]) -> None:
    """The range for users is the one that the frontend takes without a warning."""
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    (least, most) = TESTED
    assert extras["torch"] == [f"torch>={least[0]}.{least[1]},<{most[0]}.{most[1] + 1}"] and least <= (2, 13) <= most
    assert {name_of(d) for d in extras["llm"]} <= {"tokenizers", "jinja2", "safetensors"}  # none of them needs torch
    assert {name_of(d) for d in extras["cuda"]} == {"cuda-bindings", "cuda-core"}  # nor do these
    for extra, wanted in extras.items():
        free = ("llm", "cuda", "linalg", "onnx", "torch", "docs")
        assert extra in free or "torch==2.13.0" in wanted, f"extra {extra} may pull another torch"
    for line in (ROOT / "Makefile").read_text().splitlines():
        if re.search(r"\[(dev|bench|torch)", line) and "$(PIP)" in line:
            assert "torch==2.13.0" in line, line


def test_the_entry_point_exists(project: dict[str, Any]) -> None:
    module, _, function = project["project"]["scripts"]["tilewright"].partition(":")
    path = PACKAGE.parent / (module.replace(".", "/") + ".py")
    assert f"def {function}(" in path.read_text()


def test_warnings_are_errors(project: dict[str, Any]) -> None:
    options = project["tool"]["pytest"]["ini_options"]
    assert options["filterwarnings"][0] == "error"
    assert all(re.match(r"ignore:[^:]*:\w+:[\w.*]+$|ignore:[^:]+:\w+$", f) for f in options["filterwarnings"][1:]), (
        "an ignore names its message or its module"
    )
    assert project["tool"]["mypy"]["strict"] is True


def test_ci_runs_what_the_readme_says() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, "not executable"
    text = script.read_text()
    assert "set -euo pipefail" in text
    assert "make test" in text
    assert "make test" in (ROOT / "README.md").read_text()
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_the_makefile_has_what_the_readme_names() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"\bmake ([a-z-]+)\b", (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()))
    assert {"demo", "test"} <= named <= targets, f"documented and missing: {named - targets}"


def test_importing_us_is_light() -> None:
    """Neither a frontend's framework nor LLVM nor the command line comes in with `import tilewright`."""
    code = "import sys, tilewright; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "src")
    loaded = set(done.stdout.split())
    assert "tilewright" in loaded
    assert not loaded & {"torch", "llvmlite", "transformers", "onnx", "onnxruntime", "openvino", "rich", "argparse", "scipy", "sympy"}, (
        sorted(loaded)
    )
