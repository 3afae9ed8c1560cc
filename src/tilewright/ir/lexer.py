"""Words of the graph text: a regular expression and a cursor that knows its line."""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from ..core.errors import ParseError

TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<ref>[%@](?:[A-Za-z0-9_.]+|"(?:[^"\\]|\\.)*"))
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<number>\d+(?:\.\d+(?!\.))?(?:[eE][+-]?\d+)?(?![A-Za-z_]))
      | (?P<word>[A-Za-z0-9_][A-Za-z0-9_.]*)
      | (?P<mark>\.\.|//|[()\[\]{},:=*+-])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int


def tokens(text: str) -> Iterator[Token]:
    """Every word of the text, with `end` tokens after the last."""
    at, line = 0, 1
    while at < len(text):
        m = TOKEN.match(text, at)
        if m is None:
            raise ParseError(f"graph text: cannot read {text[at : at + 20]!r} (line {line})")
        kind, word = str(m.lastgroup), m.group()
        if kind != "space":
            yield Token(kind, word, line)
        line += word.count("\n")
        at = m.end()
    while True:
        yield Token("end", "the end", line)


class Cursor:
    """Where a parser stands in a text. Words are read as they are asked for: a text may be long, and wrong at its beginning."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self.now = next(self._tokens)

    def next(self) -> Token:
        token, self.now = self.now, next(self._tokens)
        return token

    def sees(self, text: str) -> bool:
        return self.now.text == text and self.now.kind in ("mark", "word")

    def accept(self, text: str) -> bool:
        if not self.sees(text):
            return False
        self.next()
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r}")

    def take(self, kind: str, what: str) -> str:
        if self.now.kind != kind:
            self.fail(f"expected {what}")
        return self.next().text

    def fail(self, rule: str) -> NoReturn:
        raise ParseError(f"graph text: {rule}, got {self.now.text!r:.60} (line {self.now.line})")


def unquote(name: str) -> str:
    """A name without its quotes, if it has them."""
    return str(json.loads(name)) if name.startswith('"') else name
