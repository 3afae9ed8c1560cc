"""Importing this module fills the ATen table: one file a family, every module of this folder."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from .registry import enter_ops

_OTHERS = ("families", "registry")
_NAMES = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name not in _OTHERS)
FAMILIES = tuple(import_module(f"{__package__}.{name}") for name in _NAMES)
enter_ops()
import_module(f"{__package__}.prims").alias_prims()  # once all others are known
