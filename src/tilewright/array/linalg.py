"""`tw.linalg`: linear algebra on arrays, inside traced functions, on Arrays and on NumPy arrays."""
from __future__ import annotations

import numpy as np

from ..transform.lib.linalg import FUNCTIONS
from . import traced
from .api import linalg as api
from .functions import offer, offered
from .polynomials import LINALG

_TRACED = FUNCTIONS | {"diagonal": lambda x, offset=0: traced.diagonal(x, offset, -2, -1),
                       "trace": lambda x, offset=0, dtype=None: traced.call("trace", x, offset, -2, -1, dtype)}
_OFFERED = offer(api.FUNCTIONS, _TRACED, {}, np.linalg) | {name: offered(name, fn, None, np.linalg) for name, fn in LINALG.items()}
globals().update(_OFFERED)
__all__ = sorted(_OFFERED)
