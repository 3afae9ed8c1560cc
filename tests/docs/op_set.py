"""The op kinds a versatile compiler needs, against the registry: the table of docs/op-set.md. A kind without an op says why."""

from __future__ import annotations

from tilewright.ops import REGISTRY

# kind -> names of ops (all must be registered), or a reason that starts with "–" (not yet)
KINDS: dict[str, str] = {
    "inputs, parameters, constants": "input constant iota dim_value",
    "activations": "gelu silu relu sigmoid tanh exp log sqrt rsqrt neg abs sin cos tan round leaky_relu elu softplus"
                   " mish hardswish hardsigmoid",
    "inverse and hyperbolic functions": "asin acos atan atan2 sinh cosh asinh acosh atanh",
    "powers and logarithms of base 2 and 10": "exp2 log2 log10",
    "special functions": "erfc erfcx erfinv ndtri log_ndtr lgamma digamma polygamma zeta igamma igammac i0 i0e i1 i1e",
    "Bessel and Airy functions": "bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0"
                                 " scaled_modified_bessel_k1 spherical_bessel_j0 airy_ai",
    "orthogonal polynomials": "orthogonal_polynomial",
    "signs and bits of floats, divisors": "copysign signbit nextafter hypot gcd lcm",
    "further activations and logarithms (celu, selu, glu, xlogy, logaddexp, …)": "– formulas of other ops: `ops/formulas.py`",
    "casts": "cast",
    "fp8 (e4m3, e5m2) dtypes": "cast matmul",
    "arithmetic": "add sub mul div maximum minimum pow remainder floor_divide square reciprocal expm1 log1p erf sign",
    "comparisons, selection": "equal not_equal less less_equal greater greater_equal where is_nan is_inf",
    "bitwise, logical, shifts": "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift"
                                " logical_and logical_or logical_xor logical_not",
    "rounding": "floor ceil round trunc",
    "fused regions of elementwise ops": "fused",
    "matmul": "matmul",
    "dot-general": "– `tw.dot_general`: reshape, transpose and matmul",
    "linear algebra": "solve lu triangular_solve cholesky qr geqrf eig eigh svd det pinv",
    "norms": "layer_norm rms_norm group_norm batch_norm",
    "2-D layer norm": "– `tw.layer_norm_2d`: transpose and layer_norm",
    "attention, rope": "attention paged_attention rope q8_attention",
    "axial 2-D rope": "– `tw.axial_rope`: a rope of each half",
    "views": "reshape transpose slice expand flip split strided",
    "concatenation, padding": "concat pad pad_edges",
    "gathers and scatters": "gather gather_along_axis index weighted_gather gather_sum strided_add forest "
                            "scatter_add scatter scatter_along",
    "reductions": "sum mean max min prod any all arg_max arg_min var log_sum_exp",
    "compensated sum": "– `tw.sum(x, compensated=True)`: in f64, or in pairs; plain sums run in 64 partial sums over chunks of 16384",
    "softmax": "softmax log_softmax",
    "running sums and products, linear recurrences": "cum_sum cum_prod linear_recurrence",
    "running extremes, logsumexps": "cum_max cum_min log_cum_sum_exp",
    "sorting, sorted search": "sort arg_sort top_k search_sorted",
    "random numbers": "random_bits random_uniform random_normal positions",
    "sampling": "sample",
    "convolution, also transposed": "conv winograd_conv winograd_tiles tap_products weight_gradient",
    "pooling": "max_pool max_pool_indices avg_pool pool adaptive_pool",
    "resize": "resize",
    "losses": "softmax_cross_entropy",
    "distances between rows": "pair_sums",
    "selective scan, gated delta net": "selective_scan selective_scan_backward gated_delta_rule gated_delta_rule_backward causal_conv",
    "grouped and low-rank products": "grouped_matmul grouped_gemm grouped_outer lora_matmul",
    "products with packed weights (GGUF, NVFP4, fp8)": "qmatmul qmatmul_back qgather qexperts qexperts_back qdot qproduct quantize_rows",
    "quantization": "quantize dequantize",
    "fake quantization": "fake_quantize fake_quantize_lsq",
    "int8 matmul and convolution with requantization": "int_matmul int_conv int_dot pack_words requantize",
    "complex numbers": "complex real imag view_as_real view_as_complex",
    "Fourier transforms": "dft dft_columns",
    "state": "update_slice",
    "derivatives under control": "stop_gradient fence checkpoint",
    "Gaussian splats": "splat_bin splat_rasterize splat_rasterize_backward row_map",
}


def fact_table() -> list[str]:
    """Names of ops that are functions by themselves, and what they are in PyTorch and NumPy: from their classes."""

    def shown(words: str) -> str:
        return " ".join(f"`{w.partition('.')[0]}`" for w in words.split())

    rows = ["| op | in `tw.` | ATen | NumPy | complex operands |", "|---|---|---|---|---|"]
    for name, op in sorted(REGISTRY.items()):
        if op.public or op.aten:
            kind = {"": "", "parts": "both parts alike", "rule": "by a rule"}[op.complex]
            rows.append(f"| `{name}` | {shown(op.public)} | {shown(op.aten)} | {shown(op.numpy)} | {kind} |")
    return rows


def kind_table() -> list[str]:
    rows = ["| kind | ops |", "|---|---|"]
    for kind, names in KINDS.items():
        shown = names if names.startswith("–") else " ".join(f"`{n}`" for n in names.split())
        rows.append(f"| {kind} | {shown} |")
    return rows
