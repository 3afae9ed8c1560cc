"""The backend under its name, which the entry point gives it once the package is installed."""
from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends import registry

from tilewright.dynamo import tilewright

if "tilewright" not in registry._COMPILER_FNS:
    registry._BACKENDS.setdefault("tilewright", None)
    registry._COMPILER_FNS["tilewright"] = tilewright


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
