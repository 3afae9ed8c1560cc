"""Every op, by class (`ops.Matmul`), by function (`ops.matmul`), and by name (`ops.REGISTRY["matmul"]`)."""
from __future__ import annotations

from . import functions
from .activations import Elu, Gelu, Hardsigmoid, Hardswish, LeakyRelu, Mish, Relu, Silu, Softplus
from .attention import Attention, Rope
from .base import REGISTRY, Op, Traits
from .binary import Add, BitwiseAnd, BitwiseOr, BitwiseXor, Div, FloorDivide, Maximum, Minimum, Mul, Pow, Remainder, Sub, Where
from .compare import Compare, Equal, Greater, GreaterEqual, Less, LessEqual, LogicalAnd, LogicalOr, LogicalXor, NotEqual
from .composites import BatchNorm, GroupNorm, LayerNorm, LogSoftmax, RmsNorm, Softmax
from .contractions import Conv, Matmul
from .elementwise import (
    Abs,
    BitwiseNot,
    Cast,
    Ceil,
    Cos,
    Erf,
    Exp,
    Expm1,
    Floor,
    IsInf,
    IsNan,
    Log,
    Log1p,
    LogicalNot,
    Neg,
    Reciprocal,
    Round,
    Rsqrt,
    Sigmoid,
    Sign,
    Sin,
    Sqrt,
    Square,
    Tan,
    Tanh,
    Trunc,
)
from .families import Binary, Composite, Contraction, Elementwise, General, Reduction, Unary, View
from .functions import *  # noqa: F403
from .fused import Fused
from .indexing import Concat, Gather, GatherAlongAxis, Index, Pad, TopK
from .pooling import AvgPool, MaxPool
from .reductions import All, ArgMax, ArgMin, CumSum, LogSumExp, Max, Mean, Min, Prod, Sum, Var
from .reductions import Any_ as Any
from .sources import DimValue, Iota
from .structure import Constant, ConstantData, Input
from .views import Expand, Flip, Reshape, Slice, Split, Transpose
