"""Imports go to the same or a lower layer; the layer table is the one in docs/internals/architecture.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.meta.source import DOCS, PACKAGE, modules

HEAVY = {"torch", "transformers", "onnx", "onnxruntime", "openvino", "scipy"}
TYPES_OR_FUNCTIONS = {("ir", "ops")}  # docs/internals/architecture.md: `ir` may name op classes inside functions only


def layer_table() -> dict[str, int]:
    """Folder or file at the top of the package -> layer number, read from the architecture document."""
    text = (DOCS / "internals" / "architecture.md").read_text()
    start = text.index("Layers, lowest first")
    paragraph = " ".join(text[start:].split("(`ir` may")[0].split())
    found: dict[str, int] = {}
    for names, number in re.findall(r"((?:`[\w.]+`(?:,\s)?)+)\s(\d+)", paragraph):
        for name in re.findall(r"`([\w.]+)`", names):
            found[name.removesuffix(".py")] = int(number)
    return found


LAYERS = layer_table()


def layer_of(name: str) -> int:
    """The layer of a first-level name inside the package; the package itself and `__main__` are on top."""
    if name in ("", "__main__"):
        return max(LAYERS.values())
    assert name in LAYERS, f"{name} is not in the layer table of docs/internals/architecture.md"
    return LAYERS[name]


def imports(tree: ast.Module, path: Path) -> Iterator[tuple[str, int, bool]]:
    """(first-level name inside the package, line, at module level and executed) for each import of our own package."""
    package = path.relative_to(PACKAGE).parts[:-1]
    for node, eager in walk(tree):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                inside = [*base, *(node.module or "").split(".")] if node.module else [*base]
                names = (
                    [inside[0]]
                    if inside
                    else [a.name for a in node.names if (PACKAGE / a.name).exists() or (PACKAGE / f"{a.name}.py").exists()]
                )
            elif node.module and node.module.split(".")[0] == "tilewright":
                names = node.module.split(".")[1:2] or [a.name for a in node.names]
            else:
                continue
            for name in names:
                yield name, node.lineno, eager
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "tilewright":
                    yield (alias.name.split(".") + [""])[1], node.lineno, eager


def walk(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it is executed when the module is imported."""
    left = [(tree, True)]
    while left:
        node, eager = left.pop()
        yield node, eager
        inside = eager and not _defers(node)
        left += [(n, inside) for n in ast.iter_child_nodes(node)]


def _defers(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or (
        isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    )


def violations(path: Path, source: str) -> list[str]:
    parts = path.relative_to(PACKAGE).parts
    own = "" if parts == ("__init__.py",) else parts[0].removesuffix(".py")
    found = []
    for name, line, eager in imports(ast.parse(source), path):
        if name == own or layer_of(name) <= layer_of(own):
            continue
        if (own, name) in TYPES_OR_FUNCTIONS and not eager:
            continue
        found.append(f"{path.relative_to(PACKAGE)}:{line}: {own or 'tilewright'} ({layer_of(own)}) imports {name} ({layer_of(name)})")
    return found


def test_the_table_names_every_part_of_the_package() -> None:
    assert LAYERS["core"] == 0
    assert LAYERS["compile"] < LAYERS["llm"] < LAYERS["cli"] == max(LAYERS.values())
    parts = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    parts |= {p.stem for p in PACKAGE.glob("*.py") if p.stem not in ("__init__", "__main__")}
    assert parts <= set(LAYERS), f"not in docs/internals/architecture.md: {sorted(parts - set(LAYERS))}"


def test_imports_go_down() -> None:
    found = [v for path, source in modules() for v in violations(path, source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source", "bad"),
    [
        ("core/x.py", "from ..ir.graph import Graph", 1),
        ("core/x.py", "def f():\n    from ..ir.graph import Graph", 1),
        ("core/x.py", "import tilewright.ir.graph", 1),
        ("core/x.py", "from tilewright import ir", 1),
        ("core/x.py", "from .. import ir", 1),
        ("core/x.py", "import tilewright", 1),
        ("ir/x.py", "from ..ops.base import Op", 1),
        ("ir/x.py", "def f():\n    from ..ops.base import Op", 0),
        ("ir/x.py", "from ..core.dims import Dim\nfrom .types import TensorType", 0),
        ("target/cpu/x.py", "from ...runtime.session import Session", 1),
        ("cli/x.py", "from ..runtime.session import Session", 0),
    ],
)
def test_the_check_sees_a_wrong_import(file: str, source: str, bad: int) -> None:
    assert len(violations(PACKAGE / file, source)) == bad


def test_heavy_packages_are_imported_inside_functions() -> None:
    found = []
    for path, source in modules():
        for node, eager in walk(ast.parse(source)):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            if eager and any(n.split(".")[0] in HEAVY for n in names):
                found.append(f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}")
    assert not found, f"imported at module level: {found}"
