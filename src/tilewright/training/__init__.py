"""Training: checkpoints, a loop with a progress bar, mixed precision, export to quantized values of few bits.

    fitted = tw.training.fit(step, state, batches, steps=1000, checkpoints=tw.training.CheckpointFolder("run"))
"""
from __future__ import annotations

from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .folder import CheckpointFolder
from .integers import IntLinear, export_linear, pack_blocks, quantize_weights, unpack_blocks, weight_scale
from .loop import Fitted, fit
from .precision import LossScale, MixedPrecision, all_finite, cast_floats, mixed_precision
from .scaled_blocks import pack_scaled

__all__ = [
    "Checkpoint",
    "CheckpointFolder",
    "Fitted",
    "IntLinear",
    "LossScale",
    "MixedPrecision",
    "all_finite",
    "cast_floats",
    "export_linear",
    "fit",
    "load_checkpoint",
    "mixed_precision",
    "pack_blocks",
    "pack_scaled",
    "quantize_weights",
    "save_checkpoint",
    "unpack_blocks",
    "weight_scale",
]
