"""The backend of torch.compile."""
from __future__ import annotations

from typing import Any


def tilewright(*args: Any, **kwargs: Any) -> Any:
    """The entry point that torch.compile finds; see `backend.tilewright`."""
    from .backend import tilewright as run

    return run(*args, **kwargs)


__all__ = ["tilewright"]
