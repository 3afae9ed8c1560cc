"""Templates that serve exactly one kind of op each, in no order: no two of them match the same region."""

from __future__ import annotations

from .conv.pool import Pool
from .custom.own import Own
from .fft.fourier import DftColumns
from .fft.fourier_rows import DftRows
from .index.bags import BagSum
from .index.gather_last import GatherAlongLast, GatherAlongRows, GatherLast
from .index.scatter_along import ScatterAlong
from .linalg.eigh import Eigh
from .linalg.lapack import Eig, Svd
from .linalg.lu import Factor
from .linalg.qr import Geqrf, Qr
from .linalg.triangular import TriangularSolve
from .matmul.grouped import GroupedGemm, GroupedOuter
from .pointwise.complex import Complex
from .pointwise.copies import Pad
from .quant.int_dot import IntDot, PackWords
from .quant.quantised_backward import QExpertsBack, QMatmulBack
from .rows.arg_reduce import ArgReduce
from .scan.delta_net import GatedDeltaRule
from .scan.delta_net_backward import GatedDeltaRuleBackward
from .scan.scans import Running
from .scan.selective_scan import SelectiveScan, SelectiveScanBackward
from .sort.sorting import Sort
from .sort.topk import TopK
from .splat.backward import SplatRasterizeBackward
from .splat.bins import SplatBin
from .splat.raster import SplatRasterize
from .splat.row_map import RowMap
from .template import Template

CATALOGUE: list[Template] = [
    ArgReduce(),
    BagSum(),
    Complex(),
    DftColumns(),
    DftRows(),
    Eig(),
    Eigh(),
    Factor(),
    GatedDeltaRule(),
    GatedDeltaRuleBackward(),
    GatherAlongLast(),
    GatherAlongRows(),
    GatherLast(),
    Geqrf(),
    GroupedGemm(),
    GroupedOuter(),
    IntDot(),
    Own(),
    PackWords(),
    Pad(),
    Pool(),
    QExpertsBack(),
    QMatmulBack(),
    Qr(),
    RowMap(),
    Running(),
    ScatterAlong(),
    SelectiveScan(),
    SelectiveScanBackward(),
    Sort(),
    SplatBin(),
    SplatRasterize(),
    SplatRasterizeBackward(),
    Svd(),
    TopK(),
    TriangularSolve(),
]
