"""Ops beyond those that PyTorch's common models need: quantisation for training, low-rank and grouped products."""
from __future__ import annotations

from .complex.parts import Complex, Imag, Real, ViewAsComplex, ViewAsReal
from .fourier.rows import DftRows, RealDft, RealDftBack
from .fourier.transforms import Dft, DftColumns
from .index.bags import BagSum
from .linalg import complex_linalg as complex_linalg  # its rules enter themselves
from .linalg.derived import Det, Pinv
from .linalg.eigenvalues import Eig
from .linalg.factors import Cholesky, Qr
from .linalg.reflections import Geqrf
from .linalg.spectra import Eigh, Svd
from .linalg.systems import Lu, Solve, TriangularSolve
from .matmul.grouped import GroupedGemm, GroupedMatmul, GroupedOuter
from .matmul.int_products import IntConv, IntDot, IntMatmul, PackWords, Requantise
from .packed.affine_quant import Dequantise, LoraMatmul, Quantise
from .packed.backward import QExpertsBack, QMatmulBack
from .packed.fake_quant import FakeQuantise, FakeQuantiseLsq
from .pointwise.float_bits import Copysign, Gcd, Hypot, Lcm, Nextafter, Signbit
from .pointwise.hyperbolic import Acos, Acosh, Asin, Asinh, Atan, Atan2, Atanh, Cosh, Exp2, Log2, Log10, Sinh
from .random.philox import RandomBits, RandomNormal, RandomUniform
from .row_map import RowMap
from .scan.delta_net import GatedDeltaRule
from .scan.delta_net_backward import GatedDeltaRuleBackward
from .scan.selective_scan import SelectiveScan, SelectiveScanBackward
from .special.bessel import (
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
from .special.functions import I0, I1, Digamma, Erfc, Erfcx, Erfinv, I0e, I1e, Lgamma, LogNdtr, Ndtri, Polygamma, Zeta
from .special.incomplete_gamma import Igamma, Igammac
from .special.polynomials import OrthogonalPolynomial
from .splats import SplatBin, SplatRasterize, SplatRasterizeBackward

__all__ = ["BagSum", "Dequantise", "FakeQuantise", "FakeQuantiseLsq", "GatedDeltaRule", "GatedDeltaRuleBackward", "GroupedGemm",
           "GroupedMatmul",
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
