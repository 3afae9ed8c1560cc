"""What a measurement says of a claim, held against the verdict that docs/internals/hypotheses.md gives it.

`claim(23, times["1"] > times["4"], text)` prints one line and keeps the outcome; `settle()` ends the script with an error when a claim that
the table says holds was not seen to hold, or one that it says is falsified was.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TABLE = Path(__file__).parent.parent / "docs" / "internals" / "hypotheses.md"
_wrong: list[str] = []


def verdicts() -> dict[int, str]:
    """The verdict of every claim, by its number: holds, falsified, open, not shown, not applicable."""
    return {int(n): v for n, v in re.findall(r"^\| (\d+) \|.*\| \*\*([a-z ]+)\*\*[^|]*\|$", TABLE.read_text(), re.M)}


def claim(number: int, holds: bool, text: str) -> None:
    print(f"{number:<6}{text}", flush=True)
    said = verdicts()[number]
    if said in ("holds", "falsified") and (said == "holds") != holds:
        _wrong.append(f"{number}: the table says {said}, this run {'agrees with the claim' if holds else 'does not'} ({text})")


def settle() -> None:
    sys.exit("\n".join(_wrong) or 0)
