"""Without a package of an extra, every entry point that needs it says which extra brings it."""
from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.core.errors import CompileError, UnsupportedError
from tilewright.core.extras import EXTRAS, need

ROOT = Path(__file__).parents[2]


def test_the_extras_are_those_of_the_metadata() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(line.startswith(package) for line in extras[extra]), package




@pytest.mark.parametrize(("package", "call", "subject"), [
    ("torch", lambda path: tw.compile(lambda x: x + 1, (1,)), "compile"),
    ("torch", lambda path: tw.compile(path / "m.pt2"), "compile"),
    ("torch", lambda path: tw.quantize(lambda x: x + 1, [1]), "compile"),
    ("torch", lambda path: tw.from_torch(len, ()), "from_torch"),
    ("torch", lambda path: tw.explain(len, 1), "explain"),
    ("onnx", lambda path: tw.compile(path / "m.onnx"), "onnx"),
    ("onnx", lambda path: tw.onnx.InferenceSession(path / "m.onnx"), "onnx"),
    ("safetensors", lambda path: tw.load_llm(path), "safetensors"),
])
def test_a_missing_package_names_its_extra(package: str, call: Callable[[Path], Any], subject: str, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("m.pt2", "m.onnx", "model.safetensors"):
        (tmp_path / name).write_bytes(b"nothing")
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, match=rf"^{subject}: needs the package '{package}'; install it with: "
                                               rf"pip install 'tilewright\[{EXTRAS[package]}\]'"):
        call(tmp_path)


def test_a_package_that_is_broken_says_so_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnx.py").write_text("import no_such_module_here")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "onnx", raising=False)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_here"):
        need("onnx", "onnx")


@pytest.mark.parametrize("given", [None, 5, {}, "missing.gguf", "missing.pt2", "missing"])
def test_what_is_no_model_is_said_without_torch(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CompileError, match=r"^compile: (takes a torch.nn.Module|there is no file 'missing)"):
        tw.compile(given)


def test_a_name_that_is_not_there_has_a_near_one() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sofmax'") as caught:
        getattr(tw, "sofmax")  # noqa: B009
    assert caught.value.name == "sofmax" and caught.value.obj is tw, "Python finds the nearest name by these"
