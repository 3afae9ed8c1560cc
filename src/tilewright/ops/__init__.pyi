"""Written by `make tables` from what the package offers; do not edit."""
from . import functions as functions
from .attention.backward import AttentionBackward as AttentionBackward, AttentionSaved as AttentionSaved
from .attention.forward import Attention as Attention, Rope as Rope
from .attention.paged import PagedAttention as PagedAttention
from .attention.q8_cache import Q8Attention as Q8Attention, Q8Blocks as Q8Blocks
from .base import Op as Op, REGISTRY as REGISTRY, Traits as Traits
from .complex.parts import (
    Complex as Complex, Imag as Imag, Real as Real,
    ViewAsComplex as ViewAsComplex, ViewAsReal as ViewAsReal
)
from .control.calls import Checkpoint as Checkpoint, Fence as Fence, StopGradient as StopGradient
from .control.custom import CustomForward as CustomForward, CustomJvp as CustomJvp, CustomVjp as CustomVjp
from .control.flow import Cond as Cond, Scan as Scan, While as While
from .families import (
    Binary as Binary, Composite as Composite, Contraction as Contraction,
    Elementwise as Elementwise, Formula as Formula, General as General, Reduction as Reduction,
    Unary as Unary, View as View
)
from .fourier.transforms import (
    Dft as Dft, DftColumns as DftColumns, DftRows as DftRows,
    RealDft as RealDft, RealDftBack as RealDftBack
)
from .fused import Fused as Fused
from .index.counting import BagSum as BagSum, SearchSorted as SearchSorted
from .index.forest import Forest as Forest
from .index.indexing import (
    Concat as Concat, Gather as Gather, GatherAlongAxis as GatherAlongAxis,
    Index as Index, Pad as Pad, TopK as TopK
)
from .index.pad_edges import PadEdges as PadEdges, StridedAdd as StridedAdd
from .index.sampling import Sample as Sample
from .index.scatter import (
    IndexOrder as IndexOrder, Scatter as Scatter, ScatterAdd as ScatterAdd,
    ScatterAlong as ScatterAlong, ScatterOrdered as ScatterOrdered
)
from .index.sorting import ArgRank as ArgRank, ArgSort as ArgSort, Sort as Sort
from .index.weighted import GatherSum as GatherSum, WeightedGather as WeightedGather
from .linalg.factors import Cholesky as Cholesky, Geqrf as Geqrf, Qr as Qr
from .linalg.functions import Det as Det, Pinv as Pinv
from .linalg.spectra import Eig as Eig, Eigh as Eigh, Svd as Svd
from .linalg.systems import Lu as Lu, Solve as Solve, TriangularSolve as TriangularSolve
from .matmul.contractions import Conv as Conv, Matmul as Matmul, PairSums as PairSums
from .matmul.grouped import GroupedGemm as GroupedGemm, GroupedMatmul as GroupedMatmul, GroupedOuter as GroupedOuter
from .matmul.int_products import (
    IntConv as IntConv, IntDot as IntDot, IntMatmul as IntMatmul,
    PackWords as PackWords, Requantize as Requantize
)
from .matmul.tap_products import TapProducts as TapProducts
from .matmul.weight_gradient import WeightGradient as WeightGradient
from .matmul.winograd import WinogradConv as WinogradConv, WinogradTiles as WinogradTiles
from .packed.fake_quant import (
    Dequantize as Dequantize, FakeQuantize as FakeQuantize,
    FakeQuantizeLsq as FakeQuantizeLsq, LoraMatmul as LoraMatmul, Quantize as Quantize
)
from .packed.products import (
    QExperts as QExperts, QExpertsBack as QExpertsBack, QGather as QGather,
    QMatmul as QMatmul, QMatmulBack as QMatmulBack
)
from .packed.quant_dot import QDot as QDot, QExpertsDot as QExpertsDot, QuantizeRows as QuantizeRows
from .packed.quant_product import QProduct as QProduct
from .pointwise.activations import (
    Elu as Elu, Gelu as Gelu, Hardsigmoid as Hardsigmoid,
    Hardswish as Hardswish, LeakyRelu as LeakyRelu, Mish as Mish, Relu as Relu, Silu as Silu,
    Softplus as Softplus
)
from .pointwise.binary import (
    Add as Add, Bits as Bits, BitwiseLeftShift as BitwiseLeftShift,
    BitwiseRightShift as BitwiseRightShift, Div as Div, FloorDivide as FloorDivide, Maximum as Maximum,
    Minimum as Minimum, Mul as Mul, Pow as Pow, Remainder as Remainder, Sub as Sub, Where as Where
)
from .pointwise.casts import (
    Bitcast as Bitcast, BitwiseNot as BitwiseNot, Cast as Cast,
    Copysign as Copysign, Gcd as Gcd, Hypot as Hypot, Lcm as Lcm, LogicalNot as LogicalNot,
    Nextafter as Nextafter, Signbit as Signbit
)
from .pointwise.compare import Compare as Compare, Logic as Logic
from .pointwise.elementwise import (
    Abs as Abs, Erf as Erf, Neg as Neg, Rounding as Rounding,
    Rsqrt as Rsqrt, Sigmoid as Sigmoid, Sign as Sign, Square as Square
)
from .pointwise.hyperbolic import Atan2 as Atan2
from .random.philox import RandomBits as RandomBits, RandomNormal as RandomNormal, RandomUniform as RandomUniform
from .row_map import RowMap as RowMap
from .rows.cumulative import (
    CumMax as CumMax, CumMin as CumMin, CumProd as CumProd, CumSum as CumSum,
    LinearRecurrence as LinearRecurrence, LogCumSumExp as LogCumSumExp
)
from .rows.losses import SoftmaxCrossEntropy as SoftmaxCrossEntropy
from .rows.norms import (
    BatchNorm as BatchNorm, GroupNorm as GroupNorm, LayerNorm as LayerNorm,
    LogSoftmax as LogSoftmax, NormBackward as NormBackward, RmsNorm as RmsNorm, Softmax as Softmax
)
from .rows.pooling import (
    AvgPool as AvgPool, MaxPool as MaxPool, MaxPoolBackward as MaxPoolBackward,
    MaxPoolIndices as MaxPoolIndices, Pool as Pool
)
from .rows.reductions import (
    All as All, Any_ as Any_, ArgMax as ArgMax, ArgMin as ArgMin,
    ChannelSums as ChannelSums, LogSumExp as LogSumExp, Max as Max, Mean as Mean, Min as Min,
    Moments as Moments, Prod as Prod, Std as Std, Sum as Sum, Var as Var
)
from .rows.resize import AdaptivePool as AdaptivePool, Resize as Resize
from .scan.causal_conv import CausalConv as CausalConv
from .scan.delta_net import GatedDeltaRule as GatedDeltaRule, GatedDeltaRuleBackward as GatedDeltaRuleBackward
from .scan.selective_scan import SelectiveScan as SelectiveScan, SelectiveScanBackward as SelectiveScanBackward
from .sources import DimValue as DimValue, Iota as Iota, Positions as Positions
from .special.bessel import (
    AiryAi as AiryAi, OrthogonalPolynomial as OrthogonalPolynomial,
    SphericalBesselJ0 as SphericalBesselJ0
)
from .special.functions import LogNdtr as LogNdtr, Polygamma as Polygamma, Special as Special, Zeta as Zeta
from .special.incomplete_gamma import Igamma as Igamma, Igammac as Igammac
from .splats import (
    SplatBin as SplatBin, SplatRasterize as SplatRasterize,
    SplatRasterizeBackward as SplatRasterizeBackward
)
from .state import UpdateSlice as UpdateSlice
from .structure import (
    Constant as Constant, ConstantData as ConstantData, Input as Input,
    Joined as Joined, Seen as Seen
)
from .views import (
    Expand as Expand, Flip as Flip, Reshape as Reshape, Slice as Slice, Split as Split,
    Strided as Strided, Transpose as Transpose
)
from .functions import (
    abs_ as abs_, add as add, apply as apply, broadcast_batch as broadcast_batch,
    cast as cast, concat as concat, count as count, dim_value as dim_value, div as div, emit as emit,
    equal as equal, erf as erf, exp as exp, expand as expand, expm1 as expm1, extent as extent, flip as flip,
    full as full, gather as gather, gelu as gelu, greater as greater, greater_equal as greater_equal,
    iota as iota, less as less, less_equal as less_equal, log as log, log1p as log1p,
    logical_and as logical_and, logical_not as logical_not, logical_or as logical_or, matmul as matmul,
    max_ as max_, maximum as maximum, mean as mean, minimum as minimum, mul as mul, neg as neg, one as one,
    pad as pad, pow_ as pow_, relu as relu, reshape as reshape, rsqrt as rsqrt, scalar as scalar,
    scatter_add as scatter_add, sigmoid as sigmoid, silu as silu, slice_ as slice_, softmax as softmax,
    softplus as softplus, split as split, sqrt as sqrt, square as square, sub as sub, sum_ as sum_,
    sum_to as sum_to, tanh as tanh, transpose as transpose, where as where, zeros as zeros
)
Any = Any_
class Acos(Formula): ...
class Acosh(Formula): ...
class Asin(Formula): ...
class Asinh(Formula): ...
class Atan(Formula): ...
class Atanh(Formula): ...
class BesselJ0(Special): ...
class BesselJ1(Special): ...
class BesselY0(Special): ...
class BesselY1(Special): ...
class BitwiseAnd(Bits): ...
class BitwiseOr(Bits): ...
class BitwiseXor(Bits): ...
class Ceil(Rounding): ...
class Cos(Unary): ...
class Cosh(Formula): ...
class Digamma(Special): ...
class Equal(Compare): ...
class Erfc(Special): ...
class Erfcx(Special): ...
class Erfinv(Special): ...
class Exp(Unary): ...
class Exp2(Unary): ...
class Expm1(Unary): ...
class Floor(Rounding): ...
class Greater(Compare): ...
class GreaterEqual(Compare): ...
class I0(Special): ...
class I0e(Special): ...
class I1(Special): ...
class I1e(Special): ...
class IsInf(Unary): ...
class IsNan(Unary): ...
class Less(Compare): ...
class LessEqual(Compare): ...
class Lgamma(Special): ...
class Log(Unary): ...
class Log10(Formula): ...
class Log1p(Unary): ...
class Log2(Unary): ...
class LogicalAnd(Logic): ...
class LogicalOr(Logic): ...
class LogicalXor(Logic): ...
class ModifiedBesselK0(Special): ...
class ModifiedBesselK1(Special): ...
class Ndtri(Special): ...
class NotEqual(Compare): ...
class Reciprocal(Unary): ...
class Round(Rounding): ...
class ScaledModifiedBesselK0(Special): ...
class ScaledModifiedBesselK1(Special): ...
class Sin(Unary): ...
class Sinh(Formula): ...
class Sqrt(Unary): ...
class Tan(Unary): ...
class Tanh(Unary): ...
class Trunc(Rounding): ...
