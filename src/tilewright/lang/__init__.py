"""The kernel language: `from tilewright import lang as tl` inside functions decorated with `@tw.kernel`."""
from __future__ import annotations

from ..core.dtypes import bf16, bool_, f8e4m3, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from . import functions
from .functions import *  # noqa: F403
from .functions import abs_ as abs  # noqa: A004
from .functions import all_ as all  # noqa: A004
from .functions import any_ as any  # noqa: A004
from .functions import max_ as max  # noqa: A004
from .functions import min_ as min  # noqa: A004
from .functions import range_ as range  # noqa: A004
from .functions import round_ as round  # noqa: A004
from .functions import sum_ as sum  # noqa: A004

__all__ = ["abs", "all", "any", "bf16", "bool_", "f8e4m3", "f8e5m2", "f16", "f32", "f64", "i8", "i16", "i32", "i64", "max", "min", "range",
           "round", "sum", "u8", "u16", "u32", "u64"]
__all__ += functions.__all__
