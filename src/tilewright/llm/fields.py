"""Values of a model's configuration, read with type and range checked: an error names file, field, value and rule."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from ..core.errors import FormatError, UnsupportedError

NEEDED: Any = object()
LARGE = 1 << 31


@dataclass(frozen=True)
class Fields:
    """`values` under names that begin with `prefix`. A value that is null is as one that is missing. `subject` begins an error, `source`
    is the file."""

    values: Mapping[str, Any]
    subject: str
    source: str
    prefix: str = ""

    def fail(self, key: str, rule: str, value: Any) -> FormatError:
        return FormatError(f"{self.subject}: {self.prefix + key!r} must be {rule}, got {shown(value)} ({self.source})")

    def refuse(self, key: str, value: Any, rule: str) -> UnsupportedError:
        return UnsupportedError(f"{self.subject}: {self.prefix + key!r} is {shown(value)}, which is not supported; {rule} ({self.source})")

    def __contains__(self, key: str) -> bool:
        return self.values.get(self.prefix + key) is not None

    def raw(self, key: str, default: Any = None) -> Any:
        found = self.values.get(self.prefix + key)
        return default if found is None else found

    def integer(self, key: str, default: int = NEEDED, *, low: int = 1, high: int = LARGE) -> int:
        value = self.raw(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.fail(key, f"an integer in {low}..{high}", None if value is NEEDED else value)
        return value

    def number(self, key: str, default: float = NEEDED, *, low: float = 0.0, high: float = 1e12, above: bool = False) -> float:
        """A number in low..high; with `above`, low itself is none."""
        value = self.raw(key, default)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and (isinstance(value, int) or isfinite(value))
        if not fits or not low <= value <= high or (above and value == low):
            rule = f"a number {'above' if above else 'of at least'} {low:g} and at most {high:g}"
            raise self.fail(key, rule, None if value is NEEDED else value)
        return float(value)

    def optional(self, key: str, **limits: float) -> float | None:
        """A positive number, or None where there is none."""
        return self.number(key, above=True, **limits) if key in self else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false", value)
        return value

    def choice(self, key: str, default: str, known: Mapping[str, str]) -> str:
        """What a name that the file gives stands for."""
        value = self.raw(key, default)
        if not isinstance(value, str):
            raise self.fail(key, "a string", value)
        if value not in known:
            raise self.refuse(key, value, f"supported: {' '.join(known)}")
        return known[value]

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """This many positive numbers."""
        value = self.raw(key)
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != count:
            raise self.fail(key, f"a list of {count} numbers", value)
        own = Fields({str(i): v for i, v in enumerate(value)}, self.subject, self.source)
        return tuple(own.number(str(i), above=True) for i in range(count))

    def section(self, key: str) -> Fields:
        """The values of an object inside; none when it is missing."""
        value = self.raw(key, {})
        if not isinstance(value, Mapping):
            raise self.fail(key, "an object", value)
        return Fields(value, f"{self.subject}: {self.prefix + key!r}", self.source)

    def only(self, key: str, *neutral: Any) -> None:
        """Whoever gives another value than these means something that we do not do."""
        value = self.raw(key)
        plain = isinstance(value, (bool, int, float, str, list, dict))
        if value is not None and not (plain and any(value == n for n in neutral)):
            raise self.refuse(key, value, f"supported: {' '.join(map(str, neutral))}")


def shown(value: Any) -> str:
    """A value in an error: short, whatever a file holds."""
    if value is None:
        return "nothing"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype}"
    return f"{value!r:.60}"
