"""The public API, name by name, with signatures: a change is seen in review, not by a user."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw


def describe(name: str, value: Any) -> str:
    if inspect.isclass(value):
        if issubclass(value, Exception):
            return f"class {name}({value.__bases__[0].__name__})"
        own = [c for c in value.__mro__ if c.__module__.startswith("tilewright")]  # a member may come from a base of ours
        members = sorted({m for c in own for m in vars(c) if not m.startswith("_")})
        return f"class {name}: {' '.join(members)}"
    if callable(value):
        return f"def {name}{inspect.signature(value)}"
    return f"{name}: {type(value).__name__}"


def test_public_names(golden: Callable[[str, str], None]) -> None:
    assert sorted(tw.__all__) == sorted(set(tw.__all__)), "a name stands twice in __all__"
    missing = [n for n in tw.__all__ if not hasattr(tw, n)]
    assert not missing, missing
    golden("public_api.txt", "\n".join(describe(n, getattr(tw, n)) for n in sorted(tw.__all__)) + "\n")


def test_every_public_thing_has_a_docstring() -> None:
    silent = [n for n in tw.__all__ if callable(getattr(tw, n)) and not inspect.getdoc(getattr(tw, n))]
    assert not silent, silent


def test_dir_and_unknown_names() -> None:
    assert set(tw.__all__) <= set(dir(tw))
    assert not hasattr(tw, "no_such_name")


@pytest.mark.parametrize("name", ["sum", "round", "max", "all", "divmod", "exp", "complex", "linspace"])
def test_messages_about_arguments_say_the_public_name(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'nothing'"):
        getattr(tw, name)(nothing=0)
