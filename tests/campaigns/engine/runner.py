"""Runs a campaign: seeds one after the other, what failed again alone, then as a sequence, shrunk and written as a test."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .campaign import MB, Campaign, Seed, generator, seeds
from .shrink import shrink
from .worker import Outcome, Worker, trial

BATCH, LIFE = 400, 60.0  # a process runs at least so many cases for at least so many seconds: its start and first cases are the dear ones
LAST = 60  # cases over which growth is watched; short runs see none


@dataclass
class Failure:
    campaign: str
    seeds: tuple[int, ...]
    outcome: Outcome
    test: str

    @property
    def cause(self) -> tuple[str, ...]:
        """Equal for failures that are one: raised at the same line outside the tests, or else shrunk to the same test."""
        frames = re.findall(r'File "([^"]+", line \d+)', self.outcome.detail)
        outside = frames and "/tests/" not in frames[-1] and "/testing/" not in frames[-1]
        return self.outcome.kind, self.outcome.what, frames[-1] if outside else self.test

    def __str__(self) -> str:
        replay = f"python -m tests.campaigns {self.campaign} --seed {' '.join(map(str, self.seeds))}"
        alone = "" if len(self.seeds) == 1 else " (in this order in one process)"
        return f"{self.outcome.kind} {self.outcome.what}\nreplay: {replay}{alone}\n{self.outcome.detail.rstrip()}\n\n{self.test}"


@dataclass
class Report:
    campaign: str
    cases: int = 0
    skipped: int = 0  # cases that were none
    slow: int = 0  # over the limit in the run, within four times the limit alone
    slowest: float = 0.0
    peak: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def json(self) -> str:
        return json.dumps({
            "campaign": self.campaign, "cases": self.cases, "skipped": self.skipped, "failures": len(self.failures), "slow": self.slow,
            "slowest_s": round(self.slowest, 3), "peak_mb": self.peak // MB, "seconds": round(self.seconds, 1),
            "seeds": [f.seeds for f in self.failures]})  # fmt: skip


def table(reports: Sequence[Report]) -> str:
    wide = max([8, *(len(r.campaign) for r in reports)])
    lines = [f"{'campaign':{wide}}  {'cases':>8}  failures  {'slowest':>9}  peak memory"]
    lines += [f"{r.campaign:{wide}}  {r.cases:8}  {len(r.failures):8}  {r.slowest:7.2f} s  {r.peak // MB:8} MB" for r in reports]
    return "\n".join(lines)


def run(
    campaign: Campaign, base: int, *, count: int | None = None, seconds: float = 1e9, shrinking: float = 60.0, most: int = 5,
    say: Callable[[str], None] = lambda _: None,
) -> Report:  # fmt: skip
    """Cases until the count or the time is reached, or `most` different failures were found."""
    report, start = Report(campaign.name), time.monotonic()
    source, done, after, born = seeds(base, campaign.name), [], [], start
    with Worker(campaign) as worker:
        while (count is None or report.cases < count) and (report.cases == 0 or time.monotonic() - start < seconds):
            seed = next(source)
            outcome = worker.run(Seed(seed))
            report.cases += 1
            report.skipped += outcome.kind == "invalid"
            report.slowest, report.peak = max(report.slowest, outcome.seconds), max(report.peak, outcome.peak)
            done.append(seed)
            after.append(outcome.left)
            failure = None
            if outcome.failed:
                failure = explain(campaign, outcome, done, shrinking)
                report.slow += failure is None and outcome.kind == "hang"
            elif len(after) >= 2 * LAST and after[-1] - after[-LAST - 1] > campaign.growth * LAST and report.peak > 0:
                failure = explain(campaign, Outcome("leak"), done[-LAST:], shrinking)
                if failure is None:
                    after = after[-1:]  # caches that fill: the same cases again leave nothing behind
            if failure is not None and all(failure.cause != f.cause for f in report.failures):
                report.failures.append(failure)
                say(f"{campaign.name}: {failure}\n")
            old = len(done) >= BATCH and time.monotonic() - born > LIFE
            if failure is not None or old or worker.process is None:
                worker.close()
                done, after, born = [], [], time.monotonic()
            if len(report.failures) >= most:
                break
    report.seconds = time.monotonic() - start
    return report


def explain(campaign: Campaign, outcome: Outcome, done: Sequence[int], shrinking: float) -> Failure | None:
    """The failure of the last seed again, alone or after the ones before it, as small as it gets. None: a slow case or full caches."""
    leak = outcome.kind == "leak"
    items = tuple(Seed(n) for n in done)
    alone = Outcome("ok") if leak else trial(campaign, items[-1:])
    if alone.failed:
        outcome, items = alone, items[-1:]
    elif outcome.kind == "hang":
        return None
    else:  # what came before is part of it: heap damage, a cache, a leak
        again = trial(campaign, items, leak=leak)
        if not again.failed:
            if leak:
                return None
            return Failure(campaign.name, (done[-1],), outcome, "# failed once, not again: neither alone nor after the cases before it\n")
        outcome = again
        items = shrink(items, lambda s: trial(campaign, s, leak=leak).same(again), seconds=shrinking, keep=("number",))
    numbers = tuple(i.number for i in items)
    if len(items) > 1 or campaign.case is not None:
        return Failure(campaign.name, numbers, outcome, seed_test(campaign, numbers))
    subject = campaign.subject(items[0])
    small, found = minimal(campaign, subject, outcome, shrinking)
    return Failure(campaign.name, numbers, found, subject_test(campaign, small))


def minimal(campaign: Campaign, subject: Any, outcome: Outcome, seconds: float) -> tuple[Any, Outcome]:
    """Shrunk in one warm process, which is replaced when it dies; the outcome is that of the small subject."""
    last = outcome
    with Worker(campaign) as worker:

        def fails(candidate: Any) -> bool:
            nonlocal last
            found = trial(campaign, [candidate], leak=True) if outcome.kind == "leak" else worker.run(candidate)
            if found.same(outcome):
                last = found
                return True
            return False

        return shrink(subject, fails, campaign.keep, seconds), last


def seed_test(campaign: Campaign, numbers: tuple[int, ...]) -> str:
    module = campaign.name.replace(":", "_").replace(".", "_").replace("-", "_")
    return (
        "from tests.campaigns.engine.campaign import Seed, find\n\n\n"
        f"def test_{module}_{numbers[-1]}() -> None:\n"
        f"    for number in {numbers!r}:\n"
        f"        find({campaign.name!r}).run(Seed(number))\n"
    )


def subject_test(campaign: Campaign, subject: Any) -> str:
    note = ""
    if campaign.show is not None:
        try:
            return campaign.show(subject)
        except Exception as e:  # the failure may lie in what `show` needs, too
            note = f"# shown as data, for show raised {type(e).__name__}: {e}\n"
    module, _, attribute = campaign.name.partition(":")
    kinds = sorted(_types(subject), key=lambda t: t.__name__)
    imports = "".join(f"from {t.__module__} import {t.__name__}\n" for t in kinds)
    return (
        f"{note}{imports}from tests.campaigns.{module} import {attribute or 'CAMPAIGN'}\n\n\n"
        f"def test_{(attribute or module).replace('.', '_').lower()}_case() -> None:\n"
        f"    {attribute or 'CAMPAIGN'}.run({subject!r})\n"
    )


def _types(subject: Any) -> set[type]:
    """The dataclasses in a subject, for the imports of its test."""
    if isinstance(subject, (tuple, list)):
        return set().union(*map(_types, subject)) if subject else set()
    if hasattr(subject, "__dataclass_fields__"):
        return {type(subject)}.union(*(_types(getattr(subject, n)) for n in subject.__dataclass_fields__))
    return set()


def replay(campaign: Campaign, numbers: Sequence[int], shrinking: float, *, here: bool = False) -> Failure | None:
    """The cases of these seeds, in this order; `here` runs them in this process, for a debugger."""
    if here:
        for number in numbers:
            generator(number)
            campaign.run(Seed(number))
        return None
    found = trial(campaign, [Seed(n) for n in numbers])
    if not found.failed and len(numbers) <= LAST:
        found = trial(campaign, [Seed(n) for n in numbers], leak=True)
    return explain(campaign, found, numbers, shrinking) if found.failed else None
