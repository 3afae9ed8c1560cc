"""PyTorch frontend: `import_torch(module, args)` gives a graph and the signature of its calls. torch is imported on use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .importer import Imported


def import_torch(*args: Any, **kwargs: Any) -> Imported:
    """See `importer.import_torch`."""
    from .importer import import_torch as run

    return run(*args, **kwargs)


__all__ = ["import_torch"]
