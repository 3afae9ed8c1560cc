"""Every op in the registry says what it is: a sentence, a type rule, a meaning in NumPy, samples, and what it rejects."""

from __future__ import annotations

import re

import pytest

from tests.meta.source import modules
from tilewright.core import dtypes
from tilewright.ir.types import TensorType
from tilewright.kernels.select import templates_of
from tilewright.ops import REGISTRY, Op
from tilewright.ops.complex.rules import RULES
from tilewright.target.cpu.host import host_target
from tilewright.target.cuda.device import cuda_target

PLAIN = sorted(name for name, op in REGISTRY.items() if not op.traits.source and name != "fused")


ACCEPT_ANY_DTYPE = {"cast": {"dtype": dtypes.f32}}  # nothing to reject; a test below holds them to it


def overrides(op: type[Op], method: str) -> bool:
    return getattr(op, method) is not getattr(Op, method)


def test_the_registry_is_filled() -> None:
    assert len(PLAIN) > 60
    assert {"matmul", "layer_norm", "attention", "gelu", "softmax", "gather", "conv"} <= set(PLAIN)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_it_is_documented_and_typed(name: str) -> None:
    op = REGISTRY[name]
    assert op.name == name
    assert op.__doc__ and not op.__doc__.startswith(f"{op.__name__}("), "the docstring that dataclass makes does not count"
    assert overrides(op, "infer"), "no type rule"


@pytest.mark.parametrize("name", PLAIN)
def test_it_has_a_meaning_and_samples(name: str) -> None:
    op = REGISTRY[name]
    assert overrides(op, "ref") or overrides(op, "decompose"), "no NumPy reference"
    assert op.samples, "no sample: no property test would see it"
    assert op.errors or name in ACCEPT_ANY_DTYPE, "no error sample: nothing pins what its type rule rejects"
    assert len({(s.types, tuple(sorted(map(str, s.attrs.items()))), str((s.low, s.high))) for s in op.samples}) == len(op.samples), (
        "a sample stands twice"
    )


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("name", sorted(ACCEPT_ANY_DTYPE))
def test_ops_without_error_samples_reject_nothing(name: str, dtype: dtypes.DType) -> None:
    made = REGISTRY[name](**ACCEPT_ANY_DTYPE[name])
    inferred = made.infer(TensorType(dtype, (2, 0)))
    assert isinstance(inferred, TensorType) and inferred.shape == (2, 0)


def test_no_template_has_the_name_of_an_op() -> None:
    classes = {op.__name__ for op in REGISTRY.values()}
    for arch in (None, "sm_90a"):
        shared = {type(t).__name__ for t in templates_of(cuda_target(arch) if arch else host_target())} & classes
        assert not shared, shared


def test_rules_of_complex_ops_are_those_that_classes_announce() -> None:
    assert {name for name, op in REGISTRY.items() if op.complex == "rule"} == set(RULES)


def test_names_belong_to_one_op() -> None:
    for fact in ("public", "aten"):
        words = [w for op in REGISTRY.values() for w in getattr(op, fact).split()]
        assert len(words) == len(set(words)), fact


def test_no_kernel_class_has_the_name_of_an_op() -> None:
    ops = {op.__name__ for op in REGISTRY.values()}
    named = re.compile(r"^class (\w+)", re.MULTILINE)
    found = [f"{p.name}: {name}" for p, text in modules() if "kernels" in p.parts for name in named.findall(text) if name in ops]
    assert not found
