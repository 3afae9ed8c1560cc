"""Every campaign, briefly: `make campaign` runs them for hours."""

from __future__ import annotations

import pytest

from tests import fresh

from .engine.campaign import find, names
from .engine.runner import run


@pytest.mark.parametrize("name", names())
def test_campaign(name: str) -> None:
    campaign = find(name)
    report = run(campaign, fresh.SEED, count=campaign.quick, seconds=2.0, shrinking=30.0, most=1)
    assert report.cases > 0
    assert not report.failures, "\n".join(map(str, report.failures))
