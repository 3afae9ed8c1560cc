"""Ops that hold graphs: control flow, calls with rules of their own. Their samples are graphs of plain ops, which come first."""

from .. import pointwise, views  # noqa: F401
from ..matmul import contractions  # noqa: F401
from ..rows import reductions  # noqa: F401
