"""How near two pictures are: PSNR and SSIM, as functions of arrays that may be traced and differentiated."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..transform.lib import FUNCTIONS as T
from ..transform.trace import tracing
from .cameras import Array

WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def psnr(picture: Any, truth: Any) -> float:
    """Peak signal-to-noise ratio in decibels, of values between 0 and 1.

    >>> round(psnr(np.full((2, 2, 3), 0.5), np.full((2, 2, 3), 0.6)), 3)
    20.0
    """
    error = float(np.mean((np.asarray(picture, float) - np.asarray(truth, float)) ** 2))
    return math.inf if error == 0 else -10 * math.log10(error)


def window() -> Array:
    """The weights of SSIM's window, a Gaussian."""
    x = np.arange(WINDOW) - WINDOW // 2
    w = np.exp(-(x**2) / (2 * SIGMA**2))
    found: Array = (w / w.sum()).astype(np.float32)
    return found


def ssim(picture: Any, truth: Any) -> Any:
    """Structural similarity of pictures [H,W,3], the mean over pixels (windows reach over the border into zeros): 1 for equal ones."""
    if tracing():
        return traced_ssim(picture, truth)
    from ..array.functions import staged

    global _compiled
    _compiled = _compiled or staged(traced_ssim)
    return float(_compiled(np.asarray(picture, np.float32), np.asarray(truth, np.float32)))


_compiled: Any = None


def traced_ssim(x: Any, y: Any) -> Any:
    """Five filtered planes a channel, in one pass of a separable filter."""
    height, width, channels = x.shape
    planes = [T["transpose"](v, (2, 0, 1)) for v in (x, y, x * x, y * y, x * y)]
    stacked = T["reshape"](T["concat"](planes, axis=0), (5 * channels, 1, height, width))
    w, half = window(), WINDOW // 2
    stacked = T["conv"](stacked, w.reshape(1, 1, WINDOW, 1), padding=((half, half), (0, 0)))
    stacked = T["conv"](stacked, w.reshape(1, 1, 1, WINDOW), padding=((0, 0), (half, half)))
    mx, my, xx, yy, xy = T["split"](T["reshape"](stacked, (5, channels, height, width)), 5, axis=0)
    vx, vy, both = xx - mx * mx, yy - my * my, xy - mx * my
    top, bottom = (2.0 * mx * my + C1) * (2.0 * both + C2), (mx * mx + my * my + C1) * (vx + vy + C2)
    return T["mean"](top / bottom)
