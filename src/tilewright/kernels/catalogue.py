"""Templates that serve exactly one kind of op each, in no order: no two of them match the same region."""

from __future__ import annotations

from .arg_reduce import ArgReduce
from .complex import Complex
from .copies import Pad
from .delta_net import GatedDeltaRule
from .delta_net_backward import GatedDeltaRuleBackward
from .eig import Eig
from .eigh import Eigh
from .fourier import DftColumns
from .fourier_rows import DftRows
from .gather_last import GatherAlongLast, GatherAlongRows, GatherLast
from .grouped import GroupedGemm, GroupedOuter
from .int_dot import IntDot, PackWords
from .lu import Factor
from .pool import Pool
from .qr import Geqrf, Qr
from .quantised_backward import QExpertsBack, QMatmulBack
from .scans import Running
from .scatter_along import ScatterAlong
from .selective_scan import SelectiveScan, SelectiveScanBackward
from .sorting import Sort
from .splat.backward import SplatRasterizeBackward
from .splat.bins import SplatBin
from .splat.raster import SplatRasterize
from .splat.row_map import RowMap
from .svd import Svd
from .template import Template
from .topk import TopK
from .triangular import TriangularSolve

CATALOGUE: list[Template] = [
    ArgReduce(),
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
