"""Importing this module fills the tables of ops: every `ops_*.py` and `host_*.py` beside this one, and `flow.py`."""
from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

_NAMES = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name.startswith(("ops_", "host_")))
FAMILIES = tuple(import_module(f"{__package__}.{name}") for name in (*_NAMES, "flow"))
