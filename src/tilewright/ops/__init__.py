"""Every op, by class (`ops.Matmul`), by function (`ops.matmul`), and by name (`ops.REGISTRY["matmul"]`)."""
from __future__ import annotations

from . import catalogue, functions
from .attention.backward import AttentionBackward
from .attention.forward import Attention, Rope
from .attention.paged import PagedAttention
from .attention.q8_cache import Q8Attention, Q8Blocks
from .attention.saved import AttentionSaved
from .base import REGISTRY, Op, Traits
from .catalogue import *  # noqa: F403
from .control.calls import Checkpoint, Fence, StopGradient
from .control.custom import CustomForward, CustomJvp, CustomVjp
from .control.flow import Cond, Scan, While
from .families import Binary, Composite, Contraction, Elementwise, General, Reduction, Unary, View
from .functions import *  # noqa: F403
from .fused import Fused
from .index.indexing import Concat, Gather, GatherAlongAxis, Index, Pad, TopK
from .index.sampling import Sample
from .index.scatter import Scatter, ScatterAdd
from .index.scatter_along import ScatterAlong
from .index.sorting import ArgSort, Sort
from .matmul.contractions import Conv, Matmul
from .matmul.winograd import WinogradConv
from .packed.products import QExperts, QGather, QMatmul
from .packed.quant_dot import QDot, QExpertsDot, QuantiseRows
from .packed.quant_product import QProduct
from .pointwise.activations import Elu, Gelu, Hardsigmoid, Hardswish, LeakyRelu, Mish, Relu, Silu, Softplus
from .pointwise.binary import Add, BitwiseAnd, BitwiseOr, BitwiseXor, Div, FloorDivide, Maximum, Minimum, Mul, Pow, Remainder, Sub, Where
from .pointwise.casts import BitwiseNot, Cast, IsInf, IsNan, LogicalNot
from .pointwise.compare import Compare, Equal, Greater, GreaterEqual, Less, LessEqual, LogicalAnd, LogicalOr, LogicalXor, NotEqual
from .pointwise.elementwise import (
    Abs,
    Cos,
    Erf,
    Exp,
    Expm1,
    Log,
    Log1p,
    Neg,
    Reciprocal,
    Rsqrt,
    Sigmoid,
    Sign,
    Sin,
    Sqrt,
    Square,
    Tan,
    Tanh,
)
from .pointwise.rounding import Ceil, Floor, Round, Trunc
from .pointwise.shifts import BitwiseLeftShift, BitwiseRightShift
from .rows.cumulative import CumProd, CumSum
from .rows.losses import SoftmaxCrossEntropy
from .rows.norm_backward import NormBackward
from .rows.norms import BatchNorm, GroupNorm, LayerNorm, LogSoftmax, RmsNorm, Softmax
from .rows.pool_indices import MaxPoolIndices
from .rows.pooling import AvgPool, MaxPool, Pool
from .rows.reductions import All, ArgMax, ArgMin, LogSumExp, Max, Mean, Min, Prod, Sum, Var
from .rows.reductions import Any_ as Any
from .rows.resize import AdaptivePool, Resize
from .sources import DimValue, Iota, Positions
from .state import UpdateSlice
from .structure import Constant, ConstantData, Input, Joined, Seen
from .views import Expand, Flip, Reshape, Slice, Split, Transpose

__all__ = [
    "REGISTRY",
    "Abs",
    "AdaptivePool",
    "Add",
    "All",
    "Any",
    "ArgMax",
    "ArgMin",
    "ArgSort",
    "Attention",
    "AttentionBackward",
    "AttentionSaved",
    "AvgPool",
    "BatchNorm",
    "Binary",
    "BitwiseAnd",
    "BitwiseLeftShift",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseRightShift",
    "BitwiseXor",
    "Cast",
    "Ceil",
    "Checkpoint",
    "Compare",
    "Composite",
    "Concat",
    "Cond",
    "Constant",
    "ConstantData",
    "Contraction",
    "Conv",
    "Cos",
    "CumProd",
    "CumSum",
    "CustomForward",
    "CustomJvp",
    "CustomVjp",
    "DimValue",
    "Div",
    "Elementwise",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "Expm1",
    "Fence",
    "Flip",
    "Floor",
    "FloorDivide",
    "Fused",
    "Gather",
    "GatherAlongAxis",
    "Gelu",
    "General",
    "Greater",
    "GreaterEqual",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Index",
    "Input",
    "Iota",
    "IsInf",
    "IsNan",
    "Joined",
    "LayerNorm",
    "LeakyRelu",
    "Less",
    "LessEqual",
    "Log",
    "Log1p",
    "LogSoftmax",
    "LogSumExp",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "LogicalXor",
    "Matmul",
    "Max",
    "MaxPool",
    "MaxPoolIndices",
    "Maximum",
    "Mean",
    "Min",
    "Minimum",
    "Mish",
    "Mul",
    "Neg",
    "NormBackward",
    "NotEqual",
    "Op",
    "Pad",
    "PagedAttention",
    "Pool",
    "Positions",
    "Pow",
    "Prod",
    "Q8Attention",
    "Q8Blocks",
    "QDot",
    "QExperts",
    "QExpertsDot",
    "QGather",
    "QMatmul",
    "QProduct",
    "QuantiseRows",
    "Reciprocal",
    "Reduction",
    "Relu",
    "Remainder",
    "Reshape",
    "Resize",
    "RmsNorm",
    "Rope",
    "Round",
    "Rsqrt",
    "Sample",
    "Scan",
    "Scatter",
    "ScatterAdd",
    "ScatterAlong",
    "Seen",
    "Sigmoid",
    "Sign",
    "Silu",
    "Sin",
    "Slice",
    "Softmax",
    "SoftmaxCrossEntropy",
    "Softplus",
    "Sort",
    "Split",
    "Sqrt",
    "Square",
    "StopGradient",
    "Sub",
    "Sum",
    "Tan",
    "Tanh",
    "TopK",
    "Traits",
    "Transpose",
    "Trunc",
    "Unary",
    "UpdateSlice",
    "Var",
    "View",
    "Where",
    "While",
    "WinogradConv",
    "functions",
]
__all__ += functions.__all__
__all__ += catalogue.__all__
