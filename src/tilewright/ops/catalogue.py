"""Ops beyond those that PyTorch's common models need: quantisation for training, low-rank and grouped products."""
from __future__ import annotations

from .affine_quant import Dequantise, GroupedMatmul, LoraMatmul, Quantise
from .fake_quant import FakeQuantise, FakeQuantiseLsq

__all__ = ["Dequantise", "FakeQuantise", "FakeQuantiseLsq", "GroupedMatmul", "LoraMatmul", "Quantise"]
