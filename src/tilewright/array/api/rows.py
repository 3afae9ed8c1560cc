"""Functions of Arrays that are NumPy's over the same memory: a row each."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.errors import ExecutionError, refused
from ...transform.trace import Functions
from ..arrays import shown
from .base import give, header, numbers

Fn = Callable[..., Any]


def given_back(made: Any) -> Any:
    """Arrays for what a function of NumPy returned: one, or several in a list or a tuple, which may have names."""
    if isinstance(made, (list, tuple)):
        return type(made)(*map(give, made)) if hasattr(made, "_fields") else type(made)(map(give, made))
    return give(made)


def attempt(what: str, fn: Fn, *args: Any, **options: Any) -> Any:
    """Arrays for what a function of NumPy makes of headers; its errors name our function and what it was given."""
    try:
        return given_back(fn(*args, **options))
    except np.linalg.LinAlgError as e:
        raise ExecutionError(f"{what}: {e}") from None
    except (IndexError, ValueError, TypeError, OverflowError) as e:
        given = [a for x in (*args, *options.values()) for a in (x if isinstance(x, list) else (x,)) if a is not None]
        raise refused(what, e, " ".join(shown(a) if isinstance(a, np.ndarray) else f"{a!r:.40}" for a in given)) from None


def of_one_dtype(what: str, *operands: Any) -> list[Any]:
    return numbers(*operands, what=what)[0]


def silent(fn: Fn) -> Fn:
    """fn without NumPy's warnings about results that are not finite."""
    def call(*args: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return fn(*args, **options)

    return call


def enter(functions: Functions, rows: Mapping[str, str | tuple[str, Fn]], operands: Callable[..., Sequence[Any]] | None = None, *,
          silently: bool = False) -> None:
    """Functions that are NumPy's of the same name, or those given, of headers (of those that `operands(name, ...)` makes). A row is a
    signature and the documentation. Parameters without an annotation, and those that are `Sequence[Any]`, are arrays and come first."""
    scope: dict[str, Any] = {"attempt": attempt, "header": header, "operands": operands}
    lines = []
    for row, entry in rows.items():
        name, _, rest = row.partition("(")
        inside, _, result = rest.rpartition(")")
        parameters: list[str] = []
        arrays, headers, others = "", "", ""
        for text in filter(None, inside.split(", ")):
            parameter = text.partition(":")[0].partition("=")[0]
            if ":" not in text and text not in "/*":
                optional = f"None if {parameter} is None else " if "=" in text else ""
                headers += f", {optional}header({parameter}, '{name}')"
                text = text.replace(parameter, f"{parameter}: Any", 1)
                arrays += f", {parameter}"
            elif "Sequence[Any]" in text:
                arrays += f", {parameter}"
            elif text not in "/*":
                others += f", {parameter}={parameter}" if "*" in parameters else f", {parameter}"
            parameters.append(text)
        fn = getattr(np, name) if isinstance(entry, str) else entry[1]
        scope[f"{name}_"] = silent(fn) if silently else fn
        given = headers if operands is None else f", *operands('{name}'{arrays})"
        lines.append(f"def {name}({', '.join(parameters)}){result or ' -> Array'}: return attempt('{name}', {name}_{given}{others})")
    exec("\n".join(lines), scope)
    for row, entry in rows.items():
        made = functions(scope[row.partition("(")[0]])
        made.__doc__ = entry if isinstance(entry, str) else entry[0]
