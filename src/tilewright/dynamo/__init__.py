"""The backend of torch.compile. pip tells torch its name; where the package is only on the path, importing this module does."""
from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from ..core import torch_context as _registers  # noqa: F401
from ..frontend.torch.replace import no_look_at_masks

if find_spec("torch") is not None:  # the API reference is made without it
    no_look_at_masks()  # before the first trace: torch loads this module when a model names the backend


def tilewright(*args: Any, **kwargs: Any) -> Any:
    """The entry point that torch.compile finds; see `backend.tilewright`."""
    from .backend import tilewright as run

    return run(*args, **kwargs)


__all__ = ["tilewright"]
