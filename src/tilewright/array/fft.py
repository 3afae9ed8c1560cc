"""`tw.fft`: Fourier transforms of arrays, inside traced functions and on plain arrays."""
from __future__ import annotations

from ..transform.lib import fft, spectrograms
from .functions import eager

FUNCTIONS = {**fft.FUNCTIONS, **spectrograms.FUNCTIONS}

for _name, _fn in FUNCTIONS.items():
    globals()[_name] = eager(_fn)
__all__ = sorted(FUNCTIONS)
