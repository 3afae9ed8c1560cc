"""`tw.fft`: Fourier transforms of arrays, inside traced functions and on plain arrays."""
from __future__ import annotations

from ..transform.lib.fft import FUNCTIONS
from .functions import eager

for _name, _fn in FUNCTIONS.items():
    globals()[_name] = eager(_fn)
__all__ = sorted(FUNCTIONS)
