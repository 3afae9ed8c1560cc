"""The modules of examples/kernels, by name."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "kernels"
NAMES = sorted(p.stem for p in FOLDER.glob("*.py"))


@cache
def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"kernels_example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
