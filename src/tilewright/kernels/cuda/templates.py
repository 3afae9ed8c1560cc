"""The templates of the CUDA target, best first: kernels of its own, then the shared ones on groups of threads."""

from __future__ import annotations

from ..attention.cuda.decode import DecodeAttention
from ..attention.cuda.flash import HopperAttention
from ..attention.cuda.flash_backward import HopperAttentionBackward
from ..attention.cuda.mma_backward import MmaAttentionBackward
from ..attention.cuda.paged import PagedDecodeAttention
from ..attention.cuda.rope import CudaRope
from ..attention.cuda.tiled import TiledAttention
from ..attention.rope import RopeTemplate
from ..conv.cuda.depthwise import DepthwiseConv
from ..conv.cuda.depthwise_tiles import DepthwiseTiles
from ..conv.cuda.halo import HaloConv
from ..conv.cuda.hopper import HopperConv
from ..conv.cuda.patch import PatchConv
from ..conv.cuda.phases import PhasedConv
from ..conv.cuda.planes import CudaAdaptivePool, CudaMaxPoolBackward, PlaneConv
from ..conv.cuda.pool import CudaPool
from ..conv.cuda.tap_products import CudaTapProducts
from ..conv.cuda.tiled import TiledConv
from ..conv.cuda.weight_gradient import ConvWeightGradient
from ..conv.cuda.window_gradient import WindowGradient
from ..conv.pool import PoolTemplate
from ..custom.own import Own
from ..fft.cuda.blocks import CudaDftColumns, CudaDftRows
from ..index.cuda.bags import CudaBagSum
from ..index.cuda.gather import CudaGather, CudaIndex
from ..index.cuda.pad_edges import CudaPadEdges
from ..index.cuda.scatter import CudaIndexOrder, CudaScatterOrdered
from ..index.cuda.scatter_set import CudaScatterSet
from ..index.cuda.weighted import CudaWeightedGather
from ..index.gather import GatherTemplate
from ..linalg import lapack
from ..linalg.cuda.cholesky import CudaCholesky
from ..linalg.cuda.lu import CudaFactor, CudaTriangularSolve
from ..matmul.cuda.distances import CudaPairSums
from ..matmul.cuda.gates import TiledGates
from ..matmul.cuda.gemv import Gemv
from ..matmul.cuda.grouped import TiledGrouped, TiledGroupedOuter
from ..matmul.cuda.hopper import HopperMatmul
from ..matmul.cuda.row_products import CudaRowProducts
from ..matmul.cuda.small import SmallMatmul
from ..matmul.cuda.thin import ThinMatmul
from ..matmul.cuda.tiled import TiledMatmul, UnalignedMatmul
from ..pointwise.complex import ComplexTemplate
from ..pointwise.cuda.pointwise import CudaPointwise
from ..pointwise.pointwise import Pointwise
from ..quant.cuda.packed_rows import CudaQGather, CudaQuantizeRows
from ..quant.cuda.qdot import CudaQDot
from ..quant.cuda.qgemm import CudaQGemm
from ..rows.cuda.arg_reduce import CudaArgReduce
from ..rows.cuda.cross_entropy import CudaCrossEntropy
from ..rows.cuda.long_norm import LongNorm
from ..rows.cuda.norm_backward import CudaNormBackward
from ..rows.cuda.reduce import CudaReduce
from ..rows.cuda.rows import CudaRows
from ..rows.reduce import ArgReduce
from ..rows.rows import Rows
from ..scan.cuda.delta_net import CudaDeltaRule
from ..scan.cuda.running import CudaRunning
from ..scan.cuda.selective_scan import CudaSelectiveScan
from ..select import TEMPLATES
from ..sort.cuda.radix import CudaSort
from ..sort.cuda.sampling import CudaSample
from ..sort.cuda.search import CudaSearchSorted
from ..splat.backward import SplatRasterizeBackwardTemplate
from ..splat.bins import SplatBinTemplate
from ..splat.cuda.backward import CudaSplatRasterizeBackward
from ..splat.cuda.bins import CudaSplatBin
from ..splat.cuda.raster import CudaSplatRasterize
from ..splat.cuda.row_map import CudaRowMap
from ..splat.raster import SplatRasterizeTemplate
from ..splat.row_map import RowMapTemplate
from ..template import Template
from .groups import Shared
from .host import OnHost

CUDA_TEMPLATES: list[Template] = [
    Own(),
    CudaRowProducts(),
    TiledGates(),
    Gemv(),
    CudaQDot(),
    CudaQGemm(),
    CudaQuantizeRows(),
    CudaQGather(),
    ThinMatmul(),
    UnalignedMatmul(),
    HopperMatmul(),
    WindowGradient(),
    ConvWeightGradient(),
    CudaTapProducts(),
    PatchConv(),
    HopperConv(),
    PhasedConv(),
    DepthwiseTiles(),
    DepthwiseConv(),
    HaloConv(),
    PlaneConv(),
    TiledConv(),
    TiledMatmul(),
    TiledGrouped(),
    TiledGroupedOuter(),
    CudaPairSums(),
    DecodeAttention(),
    PagedDecodeAttention(),
    HopperAttention(),
    TiledAttention(),
    HopperAttentionBackward(),
    MmaAttentionBackward(),
    CudaNormBackward(),
    CudaIndexOrder(),
    CudaScatterOrdered(),
    CudaScatterSet(),
    CudaBagSum(),
    CudaWeightedGather(),
    CudaCrossEntropy(),
    CudaArgReduce(),
    LongNorm(),
    CudaReduce(),
    CudaRows(),
    CudaPointwise(),
    ComplexTemplate(CudaPointwise()),
    CudaRope(),
    CudaPool(),
    CudaAdaptivePool(),
    CudaPadEdges(),
    CudaMaxPoolBackward(),
    CudaGather(),
    CudaIndex(),
    CudaSample(),
    CudaCholesky(),
    CudaFactor(),
    CudaTriangularSolve(),
    CudaDftColumns(),
    CudaDftRows(),
    CudaRunning(),
    CudaDeltaRule(),
    CudaSelectiveScan(),
    CudaSort(),
    CudaSearchSorted(),
    CudaRowMap(),
    CudaSplatBin(),
    CudaSplatRasterize(),
    CudaSplatRasterizeBackward(),
    OnHost(),
    *(Shared(t) for t in TEMPLATES if not isinstance(
        t, (ArgReduce, ComplexTemplate, GatherTemplate, Own, Pointwise, PoolTemplate, RopeTemplate, RowMapTemplate, Rows, SplatBinTemplate,
            SplatRasterizeTemplate, SplatRasterizeBackwardTemplate, lapack.EigTemplate, lapack.SvdTemplate))),
]
INSIDE: list[Template] = [SmallMatmul(), *CUDA_TEMPLATES]  # inside loops and branches, which are one kernel where all is small
