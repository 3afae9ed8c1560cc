"""Training: checkpoints, a loop with a progress bar, mixed precision.

    fitted = tw.training.fit(step, state, batches, steps=1000, checkpoints=tw.training.CheckpointFolder("run"))
"""
from __future__ import annotations

from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .folder import CheckpointFolder
from .loop import Fitted, fit
from .precision import LossScale, MixedPrecision, all_finite, cast_floats, mixed_precision

__all__ = [
    "Checkpoint",
    "CheckpointFolder",
    "Fitted",
    "LossScale",
    "MixedPrecision",
    "all_finite",
    "cast_floats",
    "fit",
    "load_checkpoint",
    "mixed_precision",
    "save_checkpoint",
]
