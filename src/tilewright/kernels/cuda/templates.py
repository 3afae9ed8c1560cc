"""The templates of the CUDA target, best first: kernels of its own, then the shared ones on groups of threads."""

from __future__ import annotations

from ..pointwise import Pointwise
from ..rows import Rows
from ..select import TEMPLATES
from ..template import Template
from .attention import HopperAttention
from .groups import Shared
from .matmul import HopperMatmul
from .pointwise import CudaPointwise
from .rows import CudaRows

CUDA_TEMPLATES: list[Template] = [
    HopperMatmul(),
    HopperAttention(),
    CudaRows(),
    CudaPointwise(),
    *(Shared(t) for t in TEMPLATES if not isinstance(t, (Rows, Pointwise))),
]
