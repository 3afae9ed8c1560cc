"""Ops beyond those that PyTorch's common models need: quantisation for training, low-rank and grouped products."""
from __future__ import annotations

from .affine_quant import Dequantise, GroupedMatmul, LoraMatmul, Quantise
from .bessel import (
    AiryAi,
    BesselJ0,
    BesselJ1,
    BesselY0,
    BesselY1,
    ModifiedBesselK0,
    ModifiedBesselK1,
    ScaledModifiedBesselK0,
    ScaledModifiedBesselK1,
    SphericalBesselJ0,
)
from .fake_quant import FakeQuantise, FakeQuantiseLsq
from .float_bits import Copysign, Gcd, Hypot, Lcm, Nextafter, Signbit
from .hyperbolic import Acos, Acosh, Asin, Asinh, Atan, Atan2, Atanh, Cosh, Exp2, Log2, Log10, Sinh
from .linalg import Lu, Solve, TriangularSolve
from .linalg_derived import Det, Pinv
from .linalg_factors import Cholesky, Qr
from .linalg_spectra import Eigh, Svd
from .special_functions import I0, I1, Digamma, Erfc, Erfcx, Erfinv, I0e, I1e, Lgamma, LogNdtr, Ndtri, Polygamma, Zeta

__all__ = ["Dequantise", "FakeQuantise", "FakeQuantiseLsq", "GroupedMatmul", "LoraMatmul", "Quantise"]
__all__ += ["Cholesky", "Det", "Eigh", "Lu", "Pinv", "Qr", "Solve", "Svd", "TriangularSolve"]
__all__ += ["I0", "I1", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Copysign", "Cosh", "Digamma", "Erfc", "Erfcx",
            "Erfinv", "Exp2", "Gcd", "Hypot", "I0e", "I1e", "Lcm", "Lgamma", "Log2", "Log10", "LogNdtr", "Ndtri", "Nextafter", "Polygamma",
            "Signbit", "Sinh", "Zeta"]
__all__ += ["AiryAi", "BesselJ0", "BesselJ1", "BesselY0", "BesselY1", "ModifiedBesselK0", "ModifiedBesselK1", "ScaledModifiedBesselK0",
            "ScaledModifiedBesselK1", "SphericalBesselJ0"]
