"""Smaller subjects: pieces of sequences dropped, numbers and nested data made simpler, as long as the failure stays.

A subject is plain data (see `campaign.py`), so that one shrinker serves programs, mutations of files and sequences of seeds alike.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any


def smaller(subject: Any, keep: tuple[str, ...] = ()) -> Iterator[Any]:
    """Candidates that are simpler than the subject, the boldest first."""
    if isinstance(subject, bool):
        if subject:
            yield False
    elif isinstance(subject, int):
        toward = -1 if subject > 0 else 1
        found = dict.fromkeys((0, 1, -subject, int(subject / 2), subject + toward))
        yield from (n for n in found if abs(n) < abs(subject) or n == -subject > 0)
    elif isinstance(subject, float):
        yield from (n for n in (0.0, 1.0, float(round(subject)) if abs(subject) < 1e15 else 2.0) if _simpler(n, subject))
    elif isinstance(subject, (tuple, list, str, bytes)):
        yield from _pieces(subject)
        if isinstance(subject, (tuple, list)):
            for i, item in enumerate(subject):
                yield from (type(subject)((*subject[:i], s, *subject[i + 1 :])) for s in smaller(item, keep))
    elif dataclasses.is_dataclass(subject) and not isinstance(subject, type):
        for f in dataclasses.fields(subject):
            if f.init and f.name not in keep:
                yield from (dataclasses.replace(subject, **{f.name: s}) for s in smaller(getattr(subject, f.name), keep))


def _simpler(n: float, than: float) -> bool:
    rank = (0.0, 1.0)
    return n != than and (than not in rank or (n in rank and rank.index(n) < rank.index(than)))


def _pieces(whole: Any) -> Iterator[Any]:
    """The sequence without one piece: halves first, single items last."""
    size = len(whole)
    while size:
        for start in range(len(whole) - size, -1, -size):
            yield whole[:start] + whole[start + size :]
        size //= 2


def shrink(subject: Any, fails: Callable[[Any], bool], keep: tuple[str, ...] = (), seconds: float = 60.0) -> Any:
    """The simplest subject found in that time for which `fails` still holds; candidates are tried once."""
    end = time.monotonic() + seconds
    tried = {repr(subject)}
    progress = True
    while progress:
        progress = False
        for candidate in smaller(subject, keep):
            if time.monotonic() > end:
                return subject
            said = repr(candidate)
            if said in tried:
                continue
            tried.add(said)
            if fails(candidate):
                subject, progress = candidate, True
                break
    return subject
