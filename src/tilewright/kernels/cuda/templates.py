"""The templates of the CUDA target, best first: kernels of its own, then the shared ones on groups of threads."""

from __future__ import annotations

from ..conv import Conv
from ..gather import Gather
from ..pointwise import Pointwise
from ..pool import Pool
from ..rope import Rope
from ..rows import Rows
from ..select import TEMPLATES
from ..template import Template
from .attention import HopperAttention
from .attention_backward import HopperAttentionBackward
from .attention_mma import MmaAttention
from .attention_mma_backward import MmaAttentionBackward
from .columns import CudaColumns
from .conv import HopperConv
from .conv_depthwise import DepthwiseConv
from .conv_halo import HaloConv
from .conv_patch import PatchConv
from .conv_simt import CudaConv
from .cross_entropy import CudaCrossEntropy
from .decode_attention import DecodeAttention
from .gather import CudaGather
from .gemv import Gemv
from .groups import Shared
from .long_norm import LongNorm
from .matmul import HopperMatmul
from .norm_backward import CudaNormBackward
from .packed_rows import CudaQGather, CudaQuantiseRows
from .paged_attention import PagedDecodeAttention
from .pointwise import CudaPointwise
from .pool import CudaPool, CudaSpatialMean
from .qdot import CudaQDot
from .qgemm import CudaQGemm
from .rope import CudaRope
from .row_products import CudaRowProducts
from .rows import CudaRows
from .sample import CudaSample
from .scatter import CudaScatterAdd
from .small_matmul import SmallMatmul
from .thin import ThinMatmul
from .tiled_attention import TiledAttention
from .tiled_conv import TiledConv
from .tiled_gates import TiledGates
from .tiled_matmul import TiledMatmul, UnalignedMatmul

CUDA_TEMPLATES: list[Template] = [
    CudaRowProducts(),
    TiledGates(),
    Gemv(),
    CudaQDot(),
    CudaQGemm(),
    CudaQuantiseRows(),
    CudaQGather(),
    ThinMatmul(),
    UnalignedMatmul(),
    HopperMatmul(),
    PatchConv(),
    HopperConv(),
    DepthwiseConv(),
    HaloConv(),
    TiledConv(),
    CudaConv(),
    TiledMatmul(),
    DecodeAttention(),
    PagedDecodeAttention(),
    HopperAttention(),
    MmaAttention(),
    TiledAttention(),
    HopperAttentionBackward(),
    MmaAttentionBackward(),
    CudaNormBackward(),
    CudaColumns(),
    CudaScatterAdd(),
    CudaSpatialMean(),
    CudaCrossEntropy(),
    LongNorm(),
    CudaRows(),
    CudaPointwise(),
    CudaRope(),
    CudaPool(),
    CudaGather(),
    CudaSample(),
    *(Shared(t) for t in TEMPLATES if not isinstance(t, (Conv, Gather, Pointwise, Pool, Rope, Rows))),
]
INSIDE: list[Template] = [SmallMatmul(), *CUDA_TEMPLATES]  # of loops and branches, which are one kernel where all of it is small
