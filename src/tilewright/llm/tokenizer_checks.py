"""What is checked in a tokenizer.json before the `tokenizers` library sees it: some files would end the process in there.

A merge whose second part does not begin with the prefix that the library cuts off is cut inside a character, which ends the process; a
normalizer may make a text longer at every step until there is no memory left; and dropout gives other tokens every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.errors import FormatError, UnsupportedError

GROWTH = 64  # times as long as it was, and so many characters more: the most that normalizers may make of a text


def checked_tokenizer(whole: dict[str, Any], path: Path) -> dict[str, Any]:
    """Itself; FormatError for a file that the library must not see."""
    model = whole.get("model")
    if not isinstance(model, dict):
        raise FormatError(f"tokenizer: 'model' must be an object, got {type(model).__name__} ({path})")
    if model.get("dropout"):
        raise UnsupportedError(f"tokenizer: 'dropout' is {model['dropout']!r:.60}, which is not supported; supported: null ({path})")
    prefix = model.get("continuing_subword_prefix")
    if isinstance(prefix, str) and prefix and "merges" in model:
        for i, right in enumerate(_rights(model["merges"])):
            if not right.startswith(prefix):
                raise FormatError(f"tokenizer: merge {i} ends with {right!r:.60}, which does not begin with the prefix {prefix!r:.60} "
                                  f"({path})")
    growth = 1.0
    for kind, step in _steps(whole.get("normalizer")):
        content = step.get("content", step.get("prepend"))
        longer = len(content) if isinstance(content, str) else 0
        pattern = step.get("pattern")
        text = pattern.get("String") if isinstance(pattern, dict) else None
        growth *= max(1.0, longer / len(text) if isinstance(text, str) and text else float(longer)) if kind == "Replace" else 1.0
        if growth > GROWTH or (kind == "Prepend" and longer > GROWTH):
            raise FormatError(f"tokenizer: the normalizers make a text more than {GROWTH} times as long ({path})")
    return whole


def _rights(merges: Any) -> Iterator[str]:
    """The second part of each merge, in the two forms that there are; the library refuses others."""
    for merge in merges if isinstance(merges, list) else ():
        pair = merge.split(" ", 1) if isinstance(merge, str) else merge
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str):
            yield pair[1]


def _steps(normalizer: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    waiting = [normalizer]
    while waiting:
        step = waiting.pop()
        if isinstance(step, dict):
            yield str(step.get("type")), step
            inner = step.get("normalizers")
            waiting += inner if isinstance(inner, list) else []
