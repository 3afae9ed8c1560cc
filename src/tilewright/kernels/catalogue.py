"""Templates that serve exactly one kind of op each, in no order: no two of them match the same region."""

from __future__ import annotations

from .conv.pool import MaxPoolBackwardTemplate, PoolTemplate
from .conv.tap_products import TapProductsTemplate
from .custom.own import Own
from .fft.fourier import DftColumnsTemplate
from .fft.fourier_rows import DftRowsTemplate
from .index.bags import BagSumTemplate
from .index.forest import ForestTemplate
from .index.gather_last import GatherAlongLast, GatherAlongRows, GatherLast
from .index.gather_sum import GatherSumTemplate
from .index.pad_edges import PadEdgesTemplate
from .index.scatter import ScatterAlongTemplate
from .index.strided_add import StridedAddTemplate
from .index.weighted import WeightedGatherTemplate
from .linalg.eigh import EighTemplate
from .linalg.lapack import EigTemplate, SvdTemplate
from .linalg.lu import Factor
from .linalg.qr import GeqrfTemplate, QrTemplate
from .linalg.triangular import TriangularSolveTemplate
from .matmul.distances import PairSumsTemplate
from .matmul.grouped import GroupedGemmTemplate, GroupedOuterTemplate
from .pointwise.complex import ComplexTemplate
from .pointwise.copies import PadTemplate
from .quant.int_dot import IntDotTemplate, PackWordsTemplate
from .quant.quantized_backward import QExpertsBackTemplate, QMatmulBackTemplate
from .rows.reduce import ArgReduce
from .scan.causal_conv import CausalConvTemplate
from .scan.delta_net import GatedDeltaRuleTemplate
from .scan.delta_net_backward import GatedDeltaRuleBackwardTemplate
from .scan.scans import RunningTemplate
from .scan.selective_scan import SelectiveScanBackwardTemplate, SelectiveScanTemplate
from .sort.rank import ArgRankTemplate
from .sort.sorting import SortTemplate
from .sort.topk import TopKTemplate
from .splat.backward import SplatRasterizeBackwardTemplate
from .splat.bins import SplatBinTemplate
from .splat.raster import SplatRasterizeTemplate
from .splat.row_map import RowMapTemplate
from .template import Template

CATALOGUE: list[Template] = [
    ArgRankTemplate(),
    ArgReduce(),
    BagSumTemplate(),
    CausalConvTemplate(),
    ComplexTemplate(),
    DftColumnsTemplate(),
    DftRowsTemplate(),
    EigTemplate(),
    EighTemplate(),
    Factor(),
    ForestTemplate(),
    GatedDeltaRuleTemplate(),
    GatedDeltaRuleBackwardTemplate(),
    GatherAlongLast(),
    GatherAlongRows(),
    GatherLast(),
    GatherSumTemplate(),
    GeqrfTemplate(),
    GroupedGemmTemplate(),
    GroupedOuterTemplate(),
    IntDotTemplate(),
    Own(),
    PackWordsTemplate(),
    PadEdgesTemplate(),
    PadTemplate(),
    PairSumsTemplate(),
    PoolTemplate(), MaxPoolBackwardTemplate(),
    QExpertsBackTemplate(),
    QMatmulBackTemplate(),
    QrTemplate(),
    RowMapTemplate(),
    RunningTemplate(),
    ScatterAlongTemplate(),
    SelectiveScanTemplate(),
    SelectiveScanBackwardTemplate(),
    SortTemplate(),
    SplatBinTemplate(),
    SplatRasterizeTemplate(),
    SplatRasterizeBackwardTemplate(),
    StridedAddTemplate(),
    SvdTemplate(),
    TapProductsTemplate(),
    TopKTemplate(),
    TriangularSolveTemplate(),
    WeightedGatherTemplate(),
]
