"""The registry has no silent gaps: every op is documented, sampled, and has the rules of its family or a written reason."""

from __future__ import annotations

import pytest

from tests.ops.checks import has
from tests.ops.oracle_catalogue import CATALOGUE as MORE
from tilewright.ops import REGISTRY, Op
from tilewright.ops.families import Composite, Contraction, Elementwise, General, Reduction, View

RULES = {
    Elementwise: ("ref", "lower"),
    View: ("ref", "views"),
    Reduction: ("ref",),
    Contraction: ("ref", "flops"),
    Composite: ("ref", "decompose", "flops"),
    General: ("ref",),
}
SOURCES = {"input", "constant", "iota", "dim_value", "positions"}
CONTRACT = """
neg abs sign exp log log1p expm1 sqrt rsqrt sin cos tan tanh erf sigmoid relu silu floor ceil round trunc reciprocal square
logical_not bitwise_not is_nan is_inf softplus mish hardswish hardsigmoid cast gelu leaky_relu elu add sub mul div maximum minimum
pow remainder floor_divide equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor bitwise_and
bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift where reshape transpose slice expand flip split sum mean max min
prod any all arg_max arg_min var log_sum_exp cum_sum matmul conv softmax log_softmax layer_norm rms_norm group_norm batch_norm
attention rope gather gather_along_axis index concat pad top_k max_pool avg_pool input constant iota positions dim_value fused update_slice
qmatmul qgather qexperts sample qdot quantize_rows scatter_add softmax_cross_entropy stop_gradient fence checkpoint
attention_backward attention_saved norm_backward custom_vjp custom_forward custom_jvp q8_blocks q8_attention qexperts_dot qproduct
paged_attention
"""
CATALOGUE = """
adaptive_pool arg_sort cum_prod max_pool_indices resize sort
scan cond while
"""


@pytest.mark.parametrize("op", REGISTRY.values(), ids=REGISTRY)
def test_op_is_complete(op: type[Op]) -> None:
    assert op.__doc__, "no docstring"
    assert has(op, "infer"), "no type rule"
    if op.name not in ("input", "constant"):
        assert op.samples, "no samples"
    family = next((f for f in RULES if issubclass(op, f)), None)
    assert family is not None or op.name in {*SOURCES, "fused"}, "an op belongs to a family"
    for rule in RULES[family] if family else ():
        assert has(op, rule) or rule in op.unsupported, f"{op.name} has neither {rule} nor a reason"
    for rule, why in op.unsupported.items():
        assert hasattr(Op, rule), rule
        assert why.reason, rule


@pytest.mark.parametrize("op", REGISTRY.values(), ids=REGISTRY)
def test_an_op_that_can_be_wrong_shows_how(op: type[Op]) -> None:
    takes_anything = {"input", "constant", "relu", "cast"}
    assert op.errors or op.name in takes_anything


def test_traits_follow_families() -> None:
    for op in REGISTRY.values():
        assert op.traits.elementwise == issubclass(op, Elementwise), op.name
        assert op.traits.view == issubclass(op, View), op.name
        assert op.traits.contraction == issubclass(op, Contraction), op.name
        assert op.traits.source == (op.name in SOURCES), op.name
        if op.traits.composite:
            assert has(op, "decompose"), op.name


def test_the_contract_is_registered() -> None:
    assert {*CONTRACT.split(), *CATALOGUE.split(), *MORE} <= set(REGISTRY)
