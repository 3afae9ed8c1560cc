"""One saved session for the tests of its file."""
from __future__ import annotations

import pytest
import torch

import tilewright as tw
from tests.session.saved import Saved, Small


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    torch.manual_seed(3)
    x = torch.randn(5, 24)
    session = tw.compile(Small().eval(), (x,), dynamic={"x": {0: tw.Dim("N", 1, 64)}})
    path = tmp_path_factory.mktemp("archive") / "small.tw"
    session.save(path)
    return path, session, x
