"""Validators: checks registered per phase that return findings with a severity. What fails is set by the validation level.

Phases: `import` (a graph from a frontend), `passes` (a graph before selection), `plan` (a placement), `execute` (an instance
before its first run). The checks live beside what they check; this module only keeps and runs them.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Literal, TypeVar

from .errors import ConfigError, VerifyError
from .records import dataclass

Level = Literal["strict", "normal", "none"]
Phase = Literal["import", "passes", "plan", "execute"]
LEVELS: tuple[Level, ...] = ("strict", "normal", "none")
PHASES: tuple[Phase, ...] = ("import", "passes", "plan", "execute")


class Severity(IntEnum):
    """How bad a finding is. `normal` fails on errors, `strict` on warnings too."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True)
class Finding:
    """One thing a validator saw."""

    severity: Severity
    phase: str
    message: str

    def __str__(self) -> str:
        return f"{self.phase}: {self.message}"


Check = Callable[..., Sequence[Finding]]
F = TypeVar("F", bound=Check)
_REGISTRY: dict[str, list[tuple[Check, bool]]] = {p: [] for p in PHASES}


def validator(phase: Phase, *, strict_only: bool = False) -> Callable[[F], F]:
    """Register a check for `phase`. `strict_only` checks are too slow for every compile."""

    def add(check: F) -> F:
        _REGISTRY[phase].append((check, strict_only))
        return check

    return add


def check_level(level: str) -> Level:
    """`level` as a Level, or the error that names the choices."""
    for known in LEVELS:
        if level == known:
            return known
    raise ConfigError(f"validation: must be one of {', '.join(LEVELS)}, got {level!r}")


def validate(phase: Phase, level: Level, *subject: Any) -> list[Finding]:
    """Run the checks of a phase. Raises VerifyError when a finding is bad enough for `level`; returns the others."""
    if level == "none":
        return []
    found = [f for check, strict_only in _REGISTRY[phase] if level == "strict" or not strict_only for f in check(*subject)]
    bad = [f for f in found if f.severity >= (Severity.WARNING if level == "strict" else Severity.ERROR)]
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise VerifyError(f"{bad[0]}{more}")
    return found


def registered(phase: Phase) -> list[str]:
    """Names of the checks of a phase, for the documentation and its test."""
    return [check.__name__ for check, _ in _REGISTRY[phase]]
