"""Importing this module fills the ATen table: one file a family."""

from __future__ import annotations

from . import (
    aten_activation,
    aten_copy,
    aten_create,
    aten_elementwise,
    aten_index,
    aten_linalg,
    aten_linear,
    aten_logic,
    aten_norm,
    aten_recurrent,
    aten_reduce,
    aten_resize,
    aten_shape,
    aten_special,
)

FAMILIES = (
    aten_activation,
    aten_copy,
    aten_create,
    aten_elementwise,
    aten_index,
    aten_linalg,
    aten_linear,
    aten_logic,
    aten_norm,
    aten_recurrent,
    aten_reduce,
    aten_resize,
    aten_shape,
    aten_special,
)
