"""`tw.linalg`: linear algebra on arrays, inside traced functions, on Arrays and on NumPy arrays."""
from __future__ import annotations

from ..transform.lib.linalg import FUNCTIONS
from .api import linalg as api
from .functions import offer, offered
from .polynomials import LINALG

_OFFERED = offer(api.FUNCTIONS, FUNCTIONS, {}) | {name: offered(name, fn, None) for name, fn in LINALG.items()}
globals().update(_OFFERED)
__all__ = sorted(_OFFERED)
