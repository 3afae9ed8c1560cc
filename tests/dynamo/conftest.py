"""Every test compiles anew."""
from __future__ import annotations

import pytest
import torch

import tilewright.dynamo  # noqa: F401  tells torch the backend's name


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
