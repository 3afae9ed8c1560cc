"""`tw.linalg`: linear algebra on arrays, inside traced functions, on Arrays and on NumPy arrays."""
from __future__ import annotations

from ..transform.lib.linalg import FUNCTIONS
from .api import linalg as api
from .functions import offer

_OFFERED = offer(api.FUNCTIONS, FUNCTIONS, {})
globals().update(_OFFERED)
__all__ = sorted(_OFFERED)
