"""The engine can fail: bugs planted in campaigns are found, made small, and come back from their seed and from the printed test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.engine.campaign import MB, Campaign, Seed, find, generator, names, seeds
from tests.campaigns.engine.planted import Step, Steps, draw
from tests.campaigns.engine.runner import replay, run, table
from tests.campaigns.engine.shrink import shrink, smaller
from tests.campaigns.engine.worker import Worker, trial
from tests.meta.source import ROOT


@pytest.mark.parametrize(
    ("attribute", "kind", "what"),
    [("WRONG", "error", "AssertionError"), ("UNTYPED", "error", "KeyError"), ("CRASH", "crash", "SIGSEGV"), ("HANG", "hang", ""),
     ("LARGE", "memory", ""), ("LEAK", "leak", "")],
)  # fmt: skip
def test_a_planted_bug_is_found_shrunk_and_replayed(attribute: str, kind: str, what: str) -> None:
    campaign = find(f"engine.planted:{attribute}")
    report = run(campaign, 1, count=400, shrinking=60.0, most=1)
    assert [(f.outcome.kind, f.outcome.what) for f in report.failures] == [(kind, what)]
    failure = report.failures[0]
    assert failure.seeds == (failure.seeds[0],)
    small = pasted(failure.test)
    assert small == Steps((Step("", 0), Step("bad", 7)))
    assert trial(campaign, [small], leak=kind == "leak").kind == kind
    assert f"replay: python -m tests.campaigns engine.planted:{attribute} --seed {failure.seeds[0]}\n" in str(failure)
    again = replay(campaign, failure.seeds, 0.0)
    assert again is not None and again.outcome.same(failure.outcome)


def test_a_case_that_waits_for_ever_hangs() -> None:
    with Worker(find("engine.planted:ASLEEP")) as worker:
        assert worker.run(Steps((Step("good", 0), Step("bad", 7)))).kind == "hang"


def pasted(test: str) -> Any:
    """The subject in the source of a test."""
    imports, _, function = test.partition("def test_")
    found: dict[str, Any] = {}
    exec(imports, found)
    return eval(function.split(".run(", 1)[1].rsplit(")", 1)[0], found)


def test_the_printed_test_fails_when_it_is_pasted() -> None:
    failure = run(find("engine.planted:UNTYPED"), 2, count=400, shrinking=60.0, most=1).failures[0]
    space: dict[str, Any] = {}
    exec(failure.test, space)
    with pytest.raises(KeyError, match="bad"):
        space["test_untyped_case"]()


def test_cases_that_fail_together_only() -> None:
    """Two of the cases before the failure are kept; the printed test runs both."""
    failure = run(find("engine.planted:LATER"), 1, count=400, shrinking=60.0, most=1).failures[0]
    assert sorted(int(generator(n).integers(8)) for n in failure.seeds) == [2, 5]
    assert "in this order in one process" in str(failure) and repr(failure.seeds) in failure.test
    assert replay(find("engine.planted:LATER"), failure.seeds[1:], 0.0) is None
    assert replay(find("engine.planted:LATER"), failure.seeds, 0.0) is not None


def test_a_sound_campaign_has_no_failure_and_the_same_seeds_again() -> None:
    campaign = find("engine.planted:SOUND")
    report = run(campaign, 1, count=30)
    assert (report.cases, report.failures) == (30, [])
    first, other = seeds(7, "a"), seeds(7, "b")
    assert [next(first), next(first)] == [n for n, _ in zip(seeds(7, "a"), range(2), strict=False)] != [next(other), next(other)]
    assert campaign.subject(Seed(3)) == draw(generator(3))


def test_shrinking_is_general() -> None:
    """Bytes, strings, numbers and nested data; fields to keep are kept."""
    assert shrink(b"abcdefgh" * 9, lambda b: b.count(b"c") >= 2) == b"cc"
    assert shrink((("x", 40, 2.5), ("y", -7, 1e30)), lambda s: any(len(i) == 3 and i[1] < -2 for i in s)) == (("", -3, 0.0),)
    assert shrink((3, (5, -9), 8.25), lambda s: len(s) == 3 and s[1][-1:] > (-99,) and s[2] > 1) == (0, (0,), 8.0)
    assert Steps((Step("bad", 9),)) not in list(smaller(Steps((Step("bad", 9),))))
    assert all(s.steps == () or s.steps[0].kind == "bad" for s in smaller(Steps((Step("bad", 9),)), ("kind",)))


def test_a_campaign_has_one_form() -> None:
    with pytest.raises(ValueError, match="campaign: give either case or both draw and check"):
        Campaign(quick=1, draw=draw)
    with pytest.raises(ValueError, match="campaign: give either case or both draw and check"):
        Campaign(quick=1, draw=draw, check=print, case=print)


def test_the_command(tmp_path: Path) -> None:
    """Table, JSON lines, exit status, and a seed again."""

    def command(*args: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-m", "tests.campaigns", *args], cwd=ROOT, env=os.environ | {"PYTHONPATH": "src"},
                              capture_output=True, text=True, check=False)  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    lines = tmp_path / "lines.json"
    sound, wrong = "engine.planted:SOUND", "engine.planted:WRONG"
    status, said = command(sound, wrong, "--count", "30", "--base", "1", "--jobs", "2", "--json", str(lines))
    assert status == 1 and "seed of the run: --base 1" in said
    rows = {r["campaign"]: r for r in map(json.loads, lines.read_text().splitlines())}
    assert rows[sound]["cases"] == 30 and rows[sound]["failures"] == 0 and rows[wrong]["failures"] > 0
    assert re.search(rf"{wrong} +\d+ +{rows[wrong]['failures']} +[\d.]+ s +\d+ MB", said)
    seed = str(rows[wrong]["seeds"][0][0])
    status, said = command(wrong, "--seed", seed)
    assert status == 1 and "AssertionError: got 8" in said and "def test_wrong_case()" in said
    assert command(wrong, "--seed", seed, "--here")[0] == 1
    assert command(sound, "--seed", seed, "--here") == (0, "no failure\n")
    assert "no campaign nothing; there are: " + " ".join(names()) in command("nothing")[1]
    assert "--seed replays cases of one campaign: name it" in command("--seed", "1")[1]


def test_the_table() -> None:
    report = run(find("engine.planted:SOUND"), 1, count=2)
    report.slowest, report.peak = 1.25, 99 * MB
    assert table([report]).splitlines() == [
        "campaign                 cases  failures    slowest  peak memory",
        "engine.planted:SOUND         2         0     1.25 s        99 MB",
    ]
