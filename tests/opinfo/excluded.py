"""Ops of the database that no compiled program can be compared on, each with the reason. They count as not passed."""

from __future__ import annotations

RANDOM = "its results are random numbers: there is nothing to compare"
UNINITIALISED = "its results are uninitialised memory: there is nothing to compare"
COMPLEX = "takes or returns complex numbers only"
SPARSE = "takes or returns sparse tensors"
NESTED = "takes or returns nested (jagged) tensors"
DATA_SIZE = "the shape of its result depends on the data"
DATA_PYTHON = "returns a Python value that depends on the data"
CUDA_ONLY = "runs on GPUs only"
STORAGE = "about memory and strides: a compiled program's values have none that a caller could see"

EXCLUDED: dict[str, str] = {
    "bernoulli": RANDOM,
    "cauchy": RANDOM,
    "exponential": RANDOM,
    "geometric": RANDOM,
    "log_normal": RANDOM,
    "multinomial": RANDOM,
    "normal": RANDOM,
    "normal.in_place": RANDOM,
    "normal.number_mean": RANDOM,
    "rand_like": RANDOM,
    "randint": RANDOM,
    "randint_like": RANDOM,
    "randn": RANDOM,
    "randn_like": RANDOM,
    "uniform": RANDOM,
    "svd_lowrank": RANDOM,
    "pca_lowrank": RANDOM,
    "nn.functional.dropout": RANDOM,
    "nn.functional.dropout2d": RANDOM,
    "nn.functional.dropout3d": RANDOM,
    "nn.functional.alpha_dropout": RANDOM,
    "nn.functional.feature_alpha_dropout.with_train": RANDOM,
    "nn.functional.fractional_max_pool2d": RANDOM,
    "nn.functional.fractional_max_pool3d": RANDOM,
    "empty": UNINITIALISED,
    "empty_like": UNINITIALISED,
    "empty_permuted": UNINITIALISED,
    "empty_strided": UNINITIALISED,
    "new_empty": UNINITIALISED,
    "new_empty_strided": UNINITIALISED,
    "allclose": DATA_PYTHON,
    "equal": DATA_PYTHON,
    "item": DATA_PYTHON,
    "argwhere": DATA_SIZE,
    "bincount": DATA_SIZE,
    "combinations": DATA_SIZE,
    "masked_select": DATA_SIZE,
    "nonzero": DATA_SIZE,
    "unique": DATA_SIZE,
    "unique_consecutive": DATA_SIZE,
    "as_strided.partial_views": STORAGE,
    "jiterator_2inputs_2outputs": CUDA_ONLY,
    "jiterator_4inputs_with_extra_args": CUDA_ONLY,
    "jiterator_binary": CUDA_ONLY,
    "jiterator_binary_return_by_ref": CUDA_ONLY,
    "jiterator_unary": CUDA_ONLY,
    "to_sparse": SPARSE,
    "sparse.mm.reduce": SPARSE,
    "sparse.sampled_addmm": SPARSE,
}

# Ops whose gradients alone cannot be compared.
WITHOUT_GRADIENT: dict[str, str] = {
    "as_strided_scatter": "torch's own derivative is wrong: the cotangent goes to the elements that are overwritten, not to the others",
}
