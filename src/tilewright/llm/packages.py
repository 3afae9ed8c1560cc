"""Packages that only language models need: imported where they are used, and missed by name."""
from __future__ import annotations

from importlib import import_module

from ..core.errors import UnsupportedError


def need(package: str, subject: str) -> None:
    """Raise an error that says how to install `package` where it is missing."""
    try:
        import_module(package)
    except ImportError:
        raise UnsupportedError(f"{subject}: needs the package {package!r}; install it with: pip install 'tilewright[llm]'") from None
