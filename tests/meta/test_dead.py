"""Functions and classes that nothing refers to. (`vulture` takes a local variable of the same name anywhere for a use.)"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.meta.source import PACKAGE, modules

ENTRANCES = {"main", "arguments", "run", "example", "of_repository", "__getattr__"}  # the command line finds these by name


def unused(sources: list[tuple[Path, str]]) -> list[str]:
    """Names at the top of a module that its own module does not read, no module imports from one of that name, and nothing names as an
    attribute or in a text. Decorated ones are entered somewhere."""
    defined, elsewhere = list[tuple[str, str]](), set[object]()
    for path, text in sources:
        tree, read = ast.parse(text), Counter[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                read[node.id] += 1
            elif isinstance(node, ast.Attribute):
                elsewhere.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                elsewhere |= {((node.module or path.parent.name).rpartition(".")[2], name.name) for name in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                elsewhere |= set(node.value.split())
        defined += [(path.parent.name if path.stem == "__init__" else path.stem, node.name) for node in tree.body
                    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.decorator_list and not read[node.name]]
    return [f"{module}.{name}" for module, name in defined if not elsewhere & {name, (module, name)} and name not in ENTRANCES]


def test_every_function_is_used_somewhere() -> None:
    sources = list(modules())
    aside = {path.stem for path, _ in sources if path.is_relative_to(PACKAGE / "frontend")}  # tables find their functions
    found = [name for name in unused(sources) if name.partition(".")[0] not in aside]
    assert sorted(found) == ["async_safety.ordering_ops", "jit.optimised_ir", "natives.provide"], "the three are for tests"


def test_an_unused_function_is_found() -> None:
    text = "def used(): pass\ndef lost(): lost_in = 1\nused()\n"
    assert unused([(PACKAGE / "a.py", text), (PACKAGE / "b.py", "lost = 1\nprint(lost)\n")]) == ["a.lost"]
