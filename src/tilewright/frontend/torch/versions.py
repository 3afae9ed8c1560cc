"""Which releases of torch the frontend is tested with. Others may work: a warning says so, once. The export of 2.11 and 2.12 refuses some
models of a dynamic length that 2.13 takes (it cannot prove guards on the strides of repeated heads)."""

from __future__ import annotations

import re
import warnings
from functools import cache

TESTED = (2, 11), (2, 13)


def release(version: str) -> tuple[int, int]:
    """
    >>> release("2.13.0+cpu"), release("2.14.0a0+git1234")
    ((2, 13), (2, 14))
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@cache
def check(version: str) -> None:
    """Warn about a release beyond those tested."""
    (low, high), own = TESTED, release(version)
    if not low <= own <= high:
        span = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
        warnings.warn(f"torch: release {version} is not one of those that this importer is tested with, {span}; ops may be refused, or "
                      f"exported in a form that it does not know: install torch>={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}", stacklevel=2)
