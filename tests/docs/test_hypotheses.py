"""The table of hypotheses: its counts, the tests that it names, and a measurement that can fail behind every verdict without a test."""

from __future__ import annotations

import re
from collections import Counter

from tests.meta.source import DOCS, ROOT

PAGE = (DOCS / "internals" / "hypotheses.md").read_text()
ROWS = {int(n): (tried, verdict) for n, tried, verdict in re.findall(r"^\| (\d+) \|[^|]*\|([^|]*)\| \*\*([a-z ]+)\*\*[^|]*\|$", PAGE, re.M)}


def test_the_counts() -> None:
    said = re.search(r"^(\d+) hold, (\d+) are falsified, (\d+) is open, (\d+) is not shown, (\d+) do not apply\.$", PAGE, re.M)
    assert said and sorted(ROWS) == list(range(1, 116))
    counts = Counter(verdict for _, verdict in ROWS.values())
    assert [int(n) for n in said.groups()] == [counts[v] for v in ("holds", "falsified", "open", "not shown", "not applicable")]


def test_every_verdict_rests_on_something_that_can_fail() -> None:
    """A named test exists; a script that is named alone states the claim, so that it ends with an error where the claim does not hold."""
    wrong = []
    for number, (tried, verdict) in ROWS.items():
        file, tests, scripts = "", 0, []
        for word in re.findall(r"`([^`]+)`", tried):
            path, _, name = word.partition("::")
            file = path if path.endswith(".py") else file
            name = name or (word if word.startswith("test_") else "")
            if path.startswith("benchmarks/"):
                scripts.append(ROOT / path.split()[0])
            elif (ROOT / path).exists() or name:
                tests += 1
                if name and f"def {name}(" not in (ROOT / file).read_text():
                    wrong.append(f"{number}: no {name} in {file}")
        stated = any(re.search(rf"\bclaim\({number},", s.read_text()) for s in scripts)
        if verdict in ("holds", "falsified") and not (tests or stated or "docs/" in tried):
            wrong.append(f"{number}: nothing that could fail ({tried.strip()})")
    assert not wrong, wrong
