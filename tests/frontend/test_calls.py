"""Arguments and results of calls: nested, None, scalars, keywords, pass-through, constants, sizes; and the errors of wrong calls."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from tilewright.core import pytree
from tilewright.core.dims import sym
from tilewright.core.errors import FormatError, InputError
from tilewright.core.signature import Fixed
from tilewright.frontend.torch import import_torch

from .check import assert_close, call, check

T = torch.Tensor


class Nested(nn.Module):
    def forward(self, x: T, d: dict[str, Any], n: T | None = None, k: int = 2, flag: bool = True) -> dict[str, Any]:
        y = x * d["a"] + d["l"][0] * k
        if n is not None:
            y = y + n
        return {
            "y": y,
            "none": None,
            "k": k,
            "x": x,
            "t": (x.shape[0] * 2, [y - 1]),
            "again": y,
            "c": torch.tensor([1.0, 2.0]),
            "flag": flag,
        }


def nested_args(b: int) -> tuple[Any, ...]:
    return torch.randn(b, 5), {"a": torch.randn(b, 5), "l": [torch.ones(5)]}


def test_nested_none_and_scalars() -> None:
    imported = check(Nested(), nested_args(4), {"n": None, "k": 3})
    assert imported.input_names == ["x", "d_a", "d_l_0"]
    assert Fixed(None) in imported.signature.inputs and Fixed(3) in imported.signature.inputs
    assert len(imported.graph.outputs) == 4  # y, x, y - 1, c: the second y is the first


def test_nested_dynamic() -> None:
    b = sym("B", 1, 9)
    dynamic = {"x": {0: b}, "d": {"a": {0: b}}}
    check(Nested(), nested_args(4), dynamic=dynamic, more=[nested_args(1), nested_args(7)])


def test_keywords_in_any_order_and_by_position() -> None:
    imported = import_torch(Nested(), (torch.ones(2, 5),), {"k": 3, "d": {"a": torch.ones(2, 5), "l": [torch.ones(5)]}})
    x, d = torch.randn(2, 5), {"l": [torch.randn(5)], "a": torch.randn(2, 5)}
    want = Nested()(x, d, k=3)
    assert_close(call(imported, (x,), {"k": 3, "d": d}), want)
    assert_close(call(imported, (), {"d": d, "x": x, "k": 3}), want)
    assert_close(call(imported, (x, d), {"k": 3}), want)


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "scalar": ((torch.ones(2, 5),), {"k": 4, "d": {"a": 1, "l": [2]}}, r"\('k'\) was fixed to 3 when the model was exported, got 4"),
    "scalar type": ((torch.ones(2, 5),), {"k": 3.0, "d": {"a": 1, "l": [2]}}, r"fixed to 3 .* got 3.0"),
    "missing": ((torch.ones(2, 5),), {"k": 3}, r"session: argument 'd' is missing; takes \(x, d=, k=\)"),
    "missing positional": ((), {"k": 3, "d": {}}, r"argument 'x' is missing"),
    "unknown": ((torch.ones(2, 5),), {"k": 3, "d": {"a": 1, "l": [2]}, "z": 1}, r"unexpected argument 'z'"),
    "too many": ((1, 2, 3, 4, 5, 6, 7), {}, r"got 7 positional arguments"),
    "keys": ((1,), {"k": 3, "d": {"b": 1, "l": [2]}}, r"argument 'd': expected keys \['a', 'l'\], got \['b', 'l'\]"),
    "structure": ((1,), {"k": 3, "d": {"a": 1, "l": 2}}, r"argument 'd'\['l'\]: expected a list of 1, got a int"),
    "length": ((1,), {"k": 3, "d": {"a": 1, "l": [2, 3]}}, r"argument 'd'\['l'\]: expected 1 entries, got 2"),
    "leaf": (([1],), {"k": 3, "d": {"a": 1, "l": [2]}}, r"argument 'x': expected one value, got a list"),
    "not a dict": ((1,), {"k": 3, "d": 5}, r"argument 'd': expected a dict with keys \['a', 'l'\], got a int"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(name: str) -> None:
    imported = import_torch(Nested(), (torch.ones(2, 5),), {"k": 3, "d": {"a": torch.ones(2, 5), "l": [torch.ones(5)]}})
    args, kwargs, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        imported.signature.flatten(args, kwargs)


def test_simple_signature() -> None:
    imported = import_torch(torch.add, (torch.ones(2), torch.ones(2)))
    assert imported.signature.simple
    with pytest.raises(InputError, match="is missing; takes"):
        imported.signature.flatten((1,))
    with pytest.raises(InputError, match="got 3 positional"):
        imported.signature.flatten((1, 2, 3))


class Pair(NamedTuple):
    a: T
    b: T


def test_namedtuple_and_ordered_dict() -> None:
    def fn(p: Pair) -> Any:
        return Pair(p.a + 1, p.b), OrderedDict(z=p.a, y=p.b * 2)

    args = (Pair(torch.randn(2), torch.randn(3)),)
    imported = import_torch(fn, args)
    got = call(imported, args)
    assert isinstance(got[0], Pair) and isinstance(got[1], OrderedDict)
    assert_close(got, fn(*args))


def test_model_output_class() -> None:
    from transformers import BertConfig, BertModel
    from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions as Output

    model = BertModel(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=31)).eval()
    ids = torch.randint(0, 31, (1, 4))
    imported = import_torch(model, (), {"input_ids": ids})
    got = call(imported, (), {"input_ids": ids})
    assert isinstance(got, Output)
    with torch.no_grad():
        want = model(input_ids=ids)
    np.testing.assert_allclose(got.last_hidden_state, want.last_hidden_state.numpy(), atol=1e-5)
    np.testing.assert_allclose(got.pooler_output, want.pooler_output.numpy(), atol=1e-5)


def test_outputs_that_are_inputs_constants_or_weights() -> None:
    layer = nn.Linear(3, 3)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: T) -> Any:
            return x, self.layer.weight, 5, None, "name", torch.zeros(2)

    check(Mixed(), (torch.randn(2, 3),))


def test_no_tensor_inputs() -> None:
    imported = import_torch(lambda: torch.arange(4) * 2, ())
    assert imported.graph.inputs == []
    np.testing.assert_array_equal(call(imported, ()), np.arange(4) * 2)


def test_unused_input_stays() -> None:
    imported = check(lambda x, y: x * 2, (torch.randn(2), torch.randn(3)))
    assert imported.input_names == ["x", "y"]


def test_one_tensor_twice() -> None:
    x = torch.randn(2, 3)
    check(lambda a, b: a @ b.T, (x, x))


TREES: list[Any] = [
    1,
    None,
    (),
    [],
    {},
    (1,),
    {"a": [1, (2, None)], "b": {"c": ()}},
    [(), [1], {"x": 3}],
    Pair(torch.ones(1), torch.ones(2)),
]


@pytest.mark.parametrize("index", range(len(TREES)))
def test_pytree_round_trip(index: int) -> None:
    tree = TREES[index]
    leaves, spec = pytree.flatten(tree)
    assert pytree.unflatten(spec, leaves) == tree
    assert pytree.Spec.from_data(spec.to_data()) == spec
    assert spec.size == len(leaves)
    found: list[Any] = []
    assert pytree.matches(tree, spec, found) is None
    assert all(a is b for a, b in zip(found, leaves, strict=True))


def test_pytree_errors_and_text() -> None:
    _, spec = pytree.flatten({"a": (1, [2])})
    assert str(spec) == "{'a': (*, [*])}"
    with pytest.raises(InputError, match="has 2 leaves, got 1"):
        pytree.unflatten(spec, [1])
    with pytest.raises(FormatError, match="not a structure"):
        pytree.Spec.from_data(["tuple", 3])


def test_class_that_is_gone_becomes_a_dict_or_tuple() -> None:
    gone = pytree.Spec("no_such_module:Thing", ("a", "b"), (pytree.LEAF, pytree.LEAF))
    assert pytree.unflatten(gone, [1, 2]) == {"a": 1, "b": 2}
    assert pytree.unflatten(pytree.Spec("no_such_module:Thing", (), (pytree.LEAF,)), [1]) == (1,)


class Distinct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))

    def forward(self, q: T, k: T, more: dict[str, Any]) -> T:
        out: T = q @ self.w - 2 * k + more["a"] * 3 + more["b"][0] / 2
        return out


@pytest.mark.parametrize("same", ["each other", "a parameter"])
def test_one_tensor_as_several_examples(same: str) -> None:
    """Compiled as f(x, x, x), called as f(q, k, v): the examples say what types the inputs have, not that they are one."""
    module = Distinct().eval()
    x = torch.randn(3, 3) if same == "each other" else module.w
    found = import_torch(module, (x, x, {"a": x, "b": [x]}))
    q, k, a, b = (torch.randn(3, 3) for _ in range(4))
    args = (q, k, {"a": a, "b": [b]})
    assert_close(call(found, args), module(*args).detach())
