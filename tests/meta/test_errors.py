"""Errors: every class is documented and used, and every message names its subject."""

from __future__ import annotations

import ast
import inspect

from tests.meta.source import DOCS, PACKAGE, modules
from tilewright.core import errors

CLASSES = {name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, Exception)}


def raised() -> list[tuple[str, int, str, ast.expr]]:
    """(file, line, class name, message expression) of each `raise OurError(message)` in the package."""
    found = []
    for path, source in modules():
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Raise)
                and isinstance(node.exc, ast.Call)
                and isinstance(node.exc.func, ast.Name)
                and node.exc.func.id in CLASSES
                and node.exc.args
            ):
                found.append((str(path.relative_to(PACKAGE)), node.lineno, node.exc.func.id, node.exc.args[0]))
    return found


def literal(message: ast.expr) -> str | None:
    """The message with `{}` for each formatted value; None when it is not written in place."""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return message.value
    if isinstance(message, ast.JoinedStr):
        return "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in message.values)
    return None


def test_every_class_is_documented() -> None:
    page = (DOCS / "errors.md").read_text()
    for name, cls in CLASSES.items():
        assert cls.__doc__, name
        assert f"`{name}`" in page, f"{name} is not in docs/errors.md"
        assert issubclass(cls, errors.TilewrightError)


def test_every_message_is_a_sentence_about_something() -> None:
    """`subject: rule, got …`. `Graph.add` puts the subject before a ShapeError, the frontends before what they collect."""
    wrong = []
    for file, line, cls, message in raised():
        text = literal(message)
        if text is None or cls == "ShapeError" or (cls == "UnsupportedError" and file.startswith("frontend")):
            continue
        if ": " not in text and not text.startswith("{}") and "{}" not in text:
            wrong.append(f"{file}:{line}: {text[:80]!r}")
    assert not wrong, "no subject:\n" + "\n".join(wrong)


def test_nothing_is_swallowed_whole() -> None:
    """`except Exception: pass` hides a bug; a handler names what it expects or does something about it."""
    found = []
    for path, source in modules():
        for node in ast.walk(ast.parse(source)):
            broad = isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
            if broad and isinstance(node, ast.ExceptHandler) and all(isinstance(s, (ast.Pass, ast.Continue)) for s in node.body):
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not found, found


def narrows(test: ast.expr) -> bool:
    """`x is not None` and `isinstance(x, T)`: said for the type checker, about what the code itself established."""
    if isinstance(test, ast.BoolOp):
        return all(narrows(v) for v in test.values)
    return (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)) or (
        isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"
    )


def test_user_input_is_not_checked_with_assert() -> None:
    """`python -O` removes asserts. Where user input arrives, an error is raised that says what to do."""
    doors = ("core", "ir", "frontend", "cli", "compile.py")
    found = [
        f"{path.relative_to(PACKAGE)}:{n.lineno}"
        for path, source in modules()
        if path.relative_to(PACKAGE).parts[0] in doors
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.Assert) and not narrows(n.test)
    ]
    assert not found, f"assert on what may be user input: {found}"
