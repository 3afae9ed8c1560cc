"""Tilewright: a tensor compiler and runtime. A PyTorch module goes in, one native, multi-threaded CPU program comes out.

    import tilewright as tw
    session = tw.compile(module, (x,))
    y = session(x)

Importing this package loads nothing heavy: names are found when they are first used.
"""
from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .core.collection import paused
from .core.dims import Expr, sym
from .core.errors import (
    ArgumentError,
    AxisError,
    CheckpointError,
    CompileError,
    ConfigError,
    ExecutionError,
    FileError,
    FormatError,
    InputError,
    ParseError,
    ShapeError,
    TilewrightError,
    TraceError,
    UnsupportedError,
    VerifyError,
)

if TYPE_CHECKING:
    from .compile import compile, load  # noqa: A004
    from .llm.model import LLM, load_llm
    from .runtime.session import Session

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "ArgumentError",
    "AxisError",
    "CheckpointError",
    "CompileError",
    "ConfigError",
    "Dim",
    "ExecutionError",
    "FileError",
    "FormatError",
    "InputError",
    "ParseError",
    "Session",
    "ShapeError",
    "TilewrightError",
    "UnsupportedError",
    "VerifyError",
    "__version__",
    "compile",
    "load",
    "load_llm",
    "quantize",
]

_LAZY = {"compile": "compile", "load": "compile", "Session": "runtime.session", "load_llm": "llm.model", "LLM": "llm.model",
         "quantize": "quantization", "jit": "array.jit", "from_torch": "array.from_torch", "kernel": "lang.kernel",
         "host_op": "lang.host", "native_op": "lang.host", "load_onnx": "onnx", "from_onnx": "onnx",
         "export_onnx": "onnx", "explain": "dynamo.explain", "torch_function": "array.torch_function"}
_TRANSFORMS = ("checkpoint", "custom_jvp", "custom_op", "custom_vjp", "grad", "hessian", "jacobian", "jvp", "value_and_grad", "vjp", "vmap")
_FUNCTIONS = (  # of arrays, as NumPy has them; defined in transform/lib
    "abs", "absolute", "add", "all", "any", "arange", "argmax", "argmin", "astype", "attention", "batch_norm", "bitwise_and",
    "bitwise_invert", "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_to", "ceil", "clip", "concat", "concatenate", "conv", "cos",
    "cumsum", "div",
    "divide", "dot", "einsum", "elu", "equal", "erf", "exp", "expand_dims", "expm1", "eye", "flip", "floor", "floor_divide", "full",
    "full_like", "gelu", "greater", "greater_equal", "hardsigmoid", "hardswish", "invert", "isinf", "isnan", "layer_norm", "leaky_relu",
    "less", "less_equal", "log", "log1p", "log_softmax", "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp", "matmul",
    "max", "maximum", "mean", "min", "minimum", "mish", "mod", "moveaxis", "mse", "mul", "multiply", "neg", "negative", "not_equal",
    "one_hot", "ones", "ones_like", "outer", "pad", "permute_dims", "pow", "power", "prod", "ravel", "reciprocal", "relu", "remainder",
    "reshape", "rms_norm", "round", "rsqrt", "scatter_add", "sigmoid", "sign", "silu", "sin", "softmax", "softmax_cross_entropy",
    "softplus", "split", "sqrt", "square", "squeeze", "stack", "std", "stop_gradient", "sub", "subtract", "sum", "swapaxes", "take",
    "take_along_axis", "tan", "tanh", "top_k", "transpose", "tril", "triu", "true_divide", "trunc", "var", "where", "zeros", "zeros_like",
)
_SPECIAL = (  # special functions and formulas, in transform/lib/special.py and beside the others
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh",
    "axial_rope", "celu", "copysign", "cosh", "digamma", "dot_general", "entr", "erfc", "erfcx", "erfinv", "exp2", "float_power", "frexp",
    "gammainc", "gammaincc", "gcd", "glu", "hardshrink", "hardtanh", "heaviside", "hypot", "i0", "i0e", "i1", "i1e", "igamma", "igammac",
    "layer_norm_2d", "lcm", "ldexp", "lgamma",
    "log10", "log2", "log_ndtr", "log_sigmoid", "logaddexp", "logaddexp2", "logit", "nan_to_num", "ndtr", "ndtri", "nextafter",
    "polygamma", "prelu", "relu6", "rope", "scatter", "selu", "signbit", "sinc", "sinh", "softshrink", "softsign", "tanhshrink",
    "threshold", "xlog1py", "xlogy", "zeta",
)
_COMPLEX = ("abs_squared", "angle", "complex", "conj", "imag", "polar", "real", "view_as_complex", "view_as_real")
_CONTROL = ("cond", "fori_loop", "scan", "while_loop")
_LAZY |= dict.fromkeys((*_TRANSFORMS, *_CONTROL, *_FUNCTIONS, *_SPECIAL, *_COMPLEX), "array.functions")
__all__ += ["TraceError", "explain", "export_onnx", "fft", "from_onnx", "from_torch", "host_op", "jit", "kernel", "lang", "linalg",
            "load_onnx", "native_op", "onnx", "optim", "random", "splat", "torch_function", "training"]
__all__ += [*_CONTROL, *_TRANSFORMS, *_FUNCTIONS, *_SPECIAL, *_COMPLEX]
_LOW_BIT = ("dequantise", "fake_quantise", "fake_quantise_lsq", "gated_delta_rule", "int_conv", "int_matmul", "pack_codes", "quantise",
            "quantised_experts", "quantised_matmul", "requantise", "selective_scan", "unpack_codes")
_WINDOWS = ("adaptive_pool", "argsort", "bitwise_left_shift", "bitwise_right_shift", "conv_transpose", "cumprod", "group_norm",
            "grouped_matmul", "isfinite", "lora_matmul", "max_pool", "mean_pool", "pool", "resize",
            "sample", "sort")
_COUNTING = ("bincount", "embedding_bag", "histogram")
_SPLATS = ("splat_prepare", "splat_rasterize", "splat_render")
_LAZY |= dict.fromkeys((*_LOW_BIT, *_COUNTING, *_WINDOWS, *_SPLATS), "array.functions")
__all__ += (*_LOW_BIT, *_COUNTING, *_WINDOWS, *_SPLATS)
_NUMPY = (  # the array API's and NumPy's functions that have no traced form yet
    "allclose", "amax", "amin", "apply_along_axis", "argwhere", "array", "array_equal", "array_split", "asarray", "ascontiguousarray",
    "atleast_1d", "atleast_2d", "atleast_3d", "average", "broadcast_arrays", "broadcast_shapes", "can_cast", "cbrt", "column_stack",
    "compress", "conjugate", "convolve", "copy", "corrcoef", "correlate", "count_nonzero", "cov", "cross", "cumulative_prod",
    "cumulative_sum", "deg2rad", "degrees", "diag", "diagonal", "diff", "digitize", "divmod", "dstack", "empty", "empty_like", "extract",
    "fabs", "finfo", "flatnonzero", "fliplr", "flipud", "fmax", "fmin", "fmod", "from_dlpack", "frombuffer", "fromfunction", "geomspace",
    "gradient", "hstack", "identity", "iinfo", "indices", "inner", "interp", "intersect1d", "isclose", "isdtype", "isin", "kron",
    "left_shift", "linspace", "load_arrays", "logspace", "matrix_transpose", "median", "meshgrid", "nanmax", "nanmean", "nanmedian",
    "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "ndim", "nonzero", "percentile", "polyval", "positive", "promote_types", "ptp",
    "put_along_axis", "quantile", "rad2deg", "radians", "ravel_multi_index", "repeat", "result_type", "right_shift", "rint", "roll",
    "rollaxis", "rot90", "save", "searchsorted", "select", "setdiff1d", "setxor1d", "shape", "size", "tensordot", "tile", "to_numpy",
    "trace", "trapezoid", "tril_indices", "triu_indices", "unfold", "union1d", "unique", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "unravel_index", "unstack", "vander", "vecdot", "vstack",
)
_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float16",
           "bfloat16", "float32", "float64", "complex64", "complex128")
_CONSTANTS = ("e", "euler_gamma", "inf", "nan", "newaxis", "pi")
_LAZY |= dict.fromkeys((*_NUMPY, "__array_namespace_info__"), "array.functions")
_LAZY |= {"Array": "array.operators", "lazy": "array.lazy", "set_mode": "array.lazy"}
__all__ += ["Array", "lazy", "set_mode", *_NUMPY, *_DTYPES, *_CONSTANTS]
__array_api_version__ = "2025.12"


def Dim(name: str, lo: int = 1, hi: int | None = None) -> Expr:
    """A named dim that may vary from call to call, within an inclusive range: `tw.Dim("S", 1, 1024)`."""
    return sym(name, lo) if hi is None else sym(name, lo, hi)


def __getattr__(name: str) -> Any:
    if name in ("fft", "linalg", "random"):
        return importlib.import_module(f".array.{name}", __name__)
    if name in ("lang", "onnx", "optim", "splat", "training"):
        return importlib.import_module(f".{name}", __name__)
    if name in _DTYPES or name in _CONSTANTS:
        from .array.api import info

        globals()[name] = found = (info.DTYPES if name in _DTYPES else info.CONSTANTS)[name]
        return found
    if name not in _LAZY:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    with paused():
        found = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Importing the module `tilewright.compile` would bind it to the name of the function; this keeps the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("array", "tile") and isinstance(value, ModuleType):  # tw.tile is the function; the package is found by its import path
            return
        super().__setattr__(name, value.compile if name == "compile" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package
