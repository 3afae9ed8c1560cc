"""Post-training quantization: `tw.quantize` makes an int8 (or int4) program of a float module.

The module becomes a graph, statistics of its layers' inputs are taken on calibration data, and pairs of `quantize` and `dequantize` are put
around its linear layers and convolutions. The pass `integer-products` makes integer products of them, as it does of models that come
with such pairs.
"""
from __future__ import annotations

from .quantize import quantize
from .report import LayerReport, QuantizationReport

__all__ = ["LayerReport", "QuantizationReport", "quantize"]
