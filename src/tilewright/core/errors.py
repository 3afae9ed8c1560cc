"""The errors users see. One class per kind of mistake; every message reads `op: rule, got values; what to do (place)`."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TilewrightError(Exception):
    """Base of every error that Tilewright raises on purpose."""


class ShapeError(TilewrightError):
    """An op was given operands or attributes that its shape and dtype rule rejects."""


class VerifyError(TilewrightError):
    """A graph, kernel or plan breaks an invariant of its own representation."""


class ParseError(TilewrightError):
    """Text of a graph, a kernel or a dim could not be read."""


class UnsupportedError(TilewrightError):
    """The model needs something that Tilewright or this target does not have."""


class TraceError(TilewrightError):
    """A traced function did something with a traced value that needs its elements, or used it outside its function."""


class SizeError(TraceError, TypeError):
    """A traced function did something with a dynamic size that needs its value."""


class CompileError(TilewrightError):
    """A pass, a template or a target rejected the program."""


class InputError(TilewrightError):
    """A session was called with arguments that do not fit what was compiled."""


class ArgumentError(InputError, ShapeError, ValueError):
    """A function of arrays was given arguments that do not fit each other, or the function."""


class AxisError(ArgumentError, IndexError):
    """An axis is named that the array does not have."""


class RangeError(ArgumentError, OverflowError):
    """A number does not fit the dtype that it meets, or a size or an index is beyond 64 bits."""


class ExecutionError(TilewrightError):
    """The compiled program found bad data while it ran (an index out of range, for instance)."""


class ConfigError(TilewrightError):
    """A setting (environment variable or keyword) has no valid value."""


class FormatError(TilewrightError):
    """A file is damaged, truncated or of another version."""


class FileError(TilewrightError, OSError):
    """A file could not be written or read: a full disk, a missing folder, no permission."""


class MissingFileError(FileError, FileNotFoundError):
    """There is no file of that name."""


class CheckpointError(TilewrightError):
    """A checkpoint could not be written or read, or is of another model."""


# What Python says of data that nobody would write. Readers of files turn it into an error of ours.
STRANGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RecursionError)


def require(ok: bool, rule: str, **values: Any) -> None:
    """Raise ShapeError with `rule` (its {names} filled from `values`) and the values themselves unless `ok`.

    >>> require(False, "perm must be a permutation of {axes}", axes=(0, 1), perm=(0, 0))
    Traceback (most recent call last):
    tilewright.core.errors.ShapeError: perm must be a permutation of (0, 1), got perm=(0, 0)
    """
    if not ok:
        raise ShapeError(complaint(rule, values))


def complaint(rule: str, values: Mapping[str, Any]) -> str:
    """The text of a broken rule."""
    used = {name for name in values if "{" + name + "}" in rule}
    shown = ", ".join(f"{name}={value}" for name, value in values.items() if name not in used)
    return rule.format(**values) + (f", got {shown}" if shown else "")


def refused(what: str, e: Exception, given: str) -> ArgumentError:
    """Our error for NumPy's about what `what` was given."""
    kind = AxisError if isinstance(e, IndexError) else RangeError if isinstance(e, OverflowError) else ArgumentError
    return kind(f"{what}: {e}, got {given}")
