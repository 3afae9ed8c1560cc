"""Ops beyond those that PyTorch's common models need: quantisation for training, low-rank and grouped products."""
from __future__ import annotations

from . import complex_linalg as complex_linalg  # its rules enter themselves
from .affine_quant import Dequantise, LoraMatmul, Quantise
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
from .complex import Complex, Imag, Real, ViewAsComplex, ViewAsReal
from .delta_net import GatedDeltaRule
from .delta_net_backward import GatedDeltaRuleBackward
from .eigenvalues import Eig
from .fake_quant import FakeQuantise, FakeQuantiseLsq
from .float_bits import Copysign, Gcd, Hypot, Lcm, Nextafter, Signbit
from .fourier import Dft, DftColumns
from .fourier_rows import DftRows, RealDft, RealDftBack
from .grouped import GroupedGemm, GroupedMatmul, GroupedOuter
from .hyperbolic import Acos, Acosh, Asin, Asinh, Atan, Atan2, Atanh, Cosh, Exp2, Log2, Log10, Sinh
from .incomplete_gamma import Igamma, Igammac
from .int_products import IntConv, IntDot, IntMatmul, PackWords, Requantise
from .linalg import Lu, Solve, TriangularSolve
from .linalg_derived import Det, Pinv
from .linalg_factors import Cholesky, Qr
from .linalg_reflections import Geqrf
from .linalg_spectra import Eigh, Svd
from .polynomials import OrthogonalPolynomial
from .quantised_backward import QExpertsBack, QMatmulBack
from .random import RandomBits, RandomNormal, RandomUniform
from .row_map import RowMap
from .selective_scan import SelectiveScan, SelectiveScanBackward
from .special_functions import I0, I1, Digamma, Erfc, Erfcx, Erfinv, I0e, I1e, Lgamma, LogNdtr, Ndtri, Polygamma, Zeta
from .splats import SplatBin, SplatRasterize, SplatRasterizeBackward

__all__ = ["Dequantise", "FakeQuantise", "FakeQuantiseLsq", "GatedDeltaRule", "GatedDeltaRuleBackward", "GroupedGemm", "GroupedMatmul",
           "GroupedOuter", "IntConv", "IntDot", "IntMatmul", "LoraMatmul", "PackWords", "QExpertsBack", "QMatmulBack", "Quantise",
           "RandomBits", "RandomNormal", "RandomUniform", "Requantise", "SelectiveScan", "SelectiveScanBackward"]
__all__ += ["RowMap", "SplatBin", "SplatRasterize", "SplatRasterizeBackward"]
__all__ += ["Dft", "DftColumns", "DftRows", "RealDft", "RealDftBack"]
__all__ += ["Complex", "Imag", "Real", "ViewAsComplex", "ViewAsReal"]
__all__ += ["Cholesky", "Det", "Eig", "Eigh", "Geqrf", "Lu", "Pinv", "Qr", "Solve", "Svd", "TriangularSolve"]
__all__ += ["I0", "I1", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Copysign", "Cosh", "Digamma", "Erfc", "Erfcx",
            "Erfinv", "Exp2", "Gcd", "Hypot", "I0e", "I1e", "Igamma", "Igammac", "Lcm", "Lgamma", "Log2", "Log10", "LogNdtr", "Ndtri",
            "Nextafter", "Polygamma", "Signbit", "Sinh", "Zeta"]
__all__ += ["AiryAi", "BesselJ0", "BesselJ1", "BesselY0", "BesselY1", "ModifiedBesselK0", "ModifiedBesselK1", "OrthogonalPolynomial",
            "ScaledModifiedBesselK0",
            "ScaledModifiedBesselK1", "SphericalBesselJ0"]
