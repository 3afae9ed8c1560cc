"""Every end-to-end test draws its inputs from a seed of its own: fresh for each test, the same in each run."""

from __future__ import annotations

import zlib

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
