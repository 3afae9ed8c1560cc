"""The templates of the CUDA target, best first: kernels of its own, then the shared ones on groups of threads."""

from __future__ import annotations

from ..gather import Gather
from ..pointwise import Pointwise
from ..rope import Rope
from ..rows import Rows
from ..select import TEMPLATES
from ..template import Template
from .attention import HopperAttention
from .attention_backward import HopperAttentionBackward
from .columns import CudaColumns
from .decode_attention import DecodeAttention
from .gather import CudaGather
from .gemv import Gemv
from .groups import Shared
from .matmul import HopperMatmul
from .norm_backward import CudaNormBackward
from .pointwise import CudaPointwise
from .qdot import CudaQDot
from .ring_matmul import RingMatmul
from .rope import CudaRope
from .row_products import CudaRowProducts
from .rows import CudaRows
from .scatter import CudaScatterAdd
from .thin import ThinMatmul

CUDA_TEMPLATES: list[Template] = [
    CudaRowProducts(),
    Gemv(),
    CudaQDot(),
    ThinMatmul(),
    HopperMatmul(),
    RingMatmul(),
    DecodeAttention(),
    HopperAttention(),
    HopperAttentionBackward(),
    CudaNormBackward(),
    CudaColumns(),
    CudaScatterAdd(),
    CudaRows(),
    CudaPointwise(),
    CudaRope(),
    CudaGather(),
    *(Shared(t) for t in TEMPLATES if not isinstance(t, (Rows, Pointwise, Rope, Gather))),
]
