"""`tw.fft`: Fourier transforms of arrays, inside traced functions, on Arrays and on NumPy arrays."""
from __future__ import annotations

import numpy as np

from ..transform.lib import fft, spectrograms
from .api import fft as api
from .functions import offer

FUNCTIONS = {**fft.FUNCTIONS, **spectrograms.FUNCTIONS}
_OFFERED = offer(api.FUNCTIONS, FUNCTIONS, {}, np.fft)
globals().update(_OFFERED)
__all__ = sorted(_OFFERED)
