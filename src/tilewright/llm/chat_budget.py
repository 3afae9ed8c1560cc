"""What a chat template may do: steps, and sizes of what it makes. See `chat_sandbox.py`, which asks here before anything happens.

The limits grow with the messages. No clock is involved: the same template and messages always come to the same end.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from string import Formatter
from types import GeneratorType
from typing import Any

STEPS = 1 << 19  # a few seconds of Python at the worst
LARGEST = 1 << 22  # characters of a text, or of all texts in a list
MADE = 1 << 26  # characters of all texts that are made
ELEMENT = 8  # characters that an element of a list counts as
PATTERN = 1 << 14  # characters of a text with % or {} in it
TAGGED = 1 << 16  # characters of a text that is searched for HTML tags
PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d+)?(?:\.(\*|\d+)?)?")


class Exceeded(Exception):
    """A template does, or wants, too much."""


class Budget:
    """What is left to a template. `values` are what it is given: they are measured once, and looked up where they are met again."""

    def __init__(self, values: Any = None, now: dt.datetime | None = None) -> None:
        self._known: dict[int, int] = {}
        size = min(self._measure(values), 1 << 28)
        lists = len(self._known)
        self.steps, self.made, self.largest = STEPS + 256 * lists, MADE + 64 * size + 32768 * lists, LARGEST + 16 * size
        self.now = now

    def _measure(self, value: Any) -> int:
        """Elements of the given values and characters in them; the containers are remembered, inner ones first."""
        walk: list[tuple[Any, bool]] = [(value, False)]
        while walk:
            v, inside = walk.pop()
            inner = _inner(v)
            if inner is None:
                continue
            if inside:
                self._known[id(v)] = 1 + sum(self._known.get(id(x)) or _size(x) for x in inner)
            elif id(v) not in self._known:
                self._known[id(v)] = 1  # until all in it is known; and for one that holds itself
                walk.append((v, True))
                walk += ((x, False) for x in inner)
        return self._known.get(id(value)) or _size(value)

    def step(self, count: int = 1) -> None:
        self.steps -= 1 + count
        if self.steps < 0:
            raise Exceeded("it takes too many steps")

    def make(self, size: int) -> None:
        """Something of this size is about to be made."""
        self.made -= size
        if size > self.largest or self.made < 0:
            raise Exceeded(f"it makes texts or lists of {size} characters" if size > self.largest else "it makes too much text")

    def weigh(self, value: Any) -> int:
        """The size of a value with all that it holds, as often as it holds it: what printing or comparing it would cost."""
        kind = type(value)
        if kind is str:
            self.step(len(value) >> 10)
            return len(value)
        total, walk = 0, [value]
        while walk:
            v = walk.pop()
            known = self._known.get(id(v))
            inner = None if known is not None else _inner(v)
            if inner is None:
                total += known or _size(v)
            else:
                self.step(len(inner))
                total += ELEMENT
                walk += inner
            if total > self.largest:
                raise Exceeded("it handles lists that hold too much")
        self.step(total >> 10)
        return total

    def result(self, value: Any) -> Any:
        """What a call returned, counted; the items of a generator are counted when they are taken."""
        if isinstance(value, (str, bytes)):
            self.make(len(value))
        elif isinstance(value, (list, tuple, dict, set, frozenset)):
            self.make(ELEMENT * len(value))
        elif isinstance(value, GeneratorType):
            return self.each(value)
        elif type(value) is int and value.bit_length() > 8 * self.largest:
            raise Exceeded("it makes a number of too many digits")
        return value

    def each(self, items: Any) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item

    # --- what grows -----------------------------------------------------------------------------------------------------
    def percent(self, text: Any, values: Any) -> None:
        """The size of `text % values`."""
        pattern = text.decode("latin-1") if isinstance(text, bytes) else text
        if len(pattern) > PATTERN:
            raise Exceeded(f"it formats with a pattern of {len(pattern)} characters")
        fields = [width for found in PERCENT.finditer(pattern) for width in found.groups() if width]
        numbers = values if isinstance(values, (tuple, list)) else [values]
        star = max((abs(n) for n in numbers if type(n) is int), default=0)
        widths = sum(star if w == "*" else int(w) if len(w) < 10 else self.largest + 1 for w in fields)
        times = pattern.count("%") if isinstance(values, Mapping) else 1
        self.make(len(pattern) + widths + times * self.weigh(values))

    def braces(self, text: str, values: Any) -> None:
        """The size of `text.format(values)`."""
        if len(text) > PATTERN:
            raise Exceeded(f"it formats with a pattern of {len(text)} characters")
        size, count = len(text), 0
        for _, name, spec, _ in Formatter().parse(text):
            if spec and "{" in spec:
                raise Exceeded("it formats with a width that is a field itself")
            size += sum(int(w) if len(w) < 10 else self.largest + 1 for w in re.findall(r"\d+", spec or ""))
            count += name is not None
        self.make(size + count * self.weigh(values))

    def replace(self, text: Any, old: Any, new: Any, count: Any = -1) -> None:
        if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
            found = text.count(old)
            found = found if count is None or type(count) is not int or count < 0 else min(found, count)
            self.make(len(text) + found * max(0, len(new) - len(old)))

    def method(self, owner: Any, name: str, args: list[Any]) -> None:
        """A method of a text, before it is called: how long its result will be, and how long a search may take."""
        texts = [a for a in args if isinstance(a, str)]
        if isinstance(owner, bytes) or name == "encode":
            raise Exceeded("it handles bytes")
        width = args[0] if args and type(args[0]) is int else 0
        self.step((len(owner) >> 10) + sum(len(owner) * len(a) >> 16 for a in texts))
        if name == "join" and args:
            args[0] = list(args[0])
            self.make(self.weigh(args[0]) + len(owner) * len(args[0]))
        elif name == "replace" and len(args) > 1:
            self.replace(owner, *args[:3])
        elif name in ("center", "ljust", "rjust", "zfill"):
            self.make(max(len(owner), width))
        elif name == "expandtabs":
            self.make(len(owner) + owner.count("\t") * max(8, width))
        elif name == "translate" and args and isinstance(args[0], Mapping):
            self.make(len(owner) * max((len(v) for v in args[0].values() if isinstance(v, str)), default=1))
        elif name in ("striptags", "unescape") and len(owner) > TAGGED:
            raise Exceeded(f"it searches a text of {len(owner)} characters for tags")

    def filter(self, name: str, args: list[Any], named: Mapping[str, Any]) -> None:
        """A filter, before it is called."""
        def argument(place: int, key: str, default: Any = None) -> Any:
            return args[place] if len(args) > place else named.get(key, default)

        value = args[0] if args else ""
        if name == "center":
            width = argument(1, "width", 80)
            self.make(width if type(width) is int else 0)
        elif name == "indent":
            width = argument(1, "width", 4)
            text = value if isinstance(value, str) else ""
            self.make(len(text) + (text.count("\n") + 1) * (len(width) if isinstance(width, str) else width if type(width) is int else 0))
        elif name == "replace":
            self.replace(str(value), str(argument(1, "old", "")), str(argument(2, "new", "")), argument(3, "count"))
        elif name == "join":
            count = len(value) if hasattr(value, "__len__") else 0
            self.make(self.weigh(value) + count * self.weigh(argument(1, "d", "")))
        elif name == "format":
            self.percent(str(value), dict(named) or tuple(args[1:]))
        elif name in ("slice", "batch"):
            size = argument(1, "slices" if name == "slice" else "linecount", 0)
            self.make(ELEMENT * size if type(size) is int and size > 0 else 0)
        elif name == "round":
            precision = argument(1, "precision", 0)
            if type(precision) is int and abs(precision) > 400:
                raise Exceeded(f"it rounds to {precision} digits")
        elif name == "sum" and isinstance(argument(2, "start", 0), (list, tuple)):
            raise Exceeded("it adds up lists")
        elif name == "trim" and isinstance(chars := argument(1, "chars"), str):
            self.step(len(chars) * self.weigh(value) >> 16)
        elif name == "tojson":
            indent = argument(2, "indent")
            if (len(indent) if isinstance(indent, str) else indent if type(indent) is int else 0) > 16:
                raise Exceeded("it writes JSON with an indent of more than 16 spaces")


def _inner(value: Any) -> list[Any] | None:
    """What a container holds; None for anything else."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    return None


def _size(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return 1 + len(value)
    return 1 + (value.bit_length() >> 3) if type(value) is int else 1
