"""What a user is told: options, splits, explanations."""
from __future__ import annotations

import importlib.metadata
import pathlib
import tomllib
from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.core.errors import ConfigError
from tilewright.dynamo import tilewright as backend
from tilewright.dynamo.backend import SplitWarning, watching

from .check import check


@torch.library.custom_op("tests::odd", mutates_args=())
def odd(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@odd.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def model(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).exp()
    y = odd(y)
    return y.relu() + 1


def test_one_warning_names_op_and_place() -> None:
    with pytest.warns(SplitWarning, match=r"1 nodes of the inference graph .* splits it in 3 parts") as seen:
        check(model, torch.randn(4), splits=1)
    assert len(seen) == 1
    assert "tests.odd.default x1 (first at test_explain.py:3" in str(seen[0].message)


def test_explain() -> None:
    found = tw.explain(model, (torch.randn(1000),))
    assert [(f.op, f.count) for f in found.foreign] == [("tests.odd.default", 1)]
    assert found.foreign[0].place.startswith("test_explain.py:")
    assert 0 < found.share < 1
    assert [(p.kind, p.steps, p.splits) for p in found.parts] == [("inference", 3, 1)]
    assert "tests.odd.default x1" in str(found)


def test_explain_of_training_leaves_gradients() -> None:
    layer = torch.nn.Linear(4, 4)
    layer.weight.grad = torch.full((4, 4), 7.0)
    found = tw.explain(layer, torch.randn(2, 4), train=True)
    assert [p.kind for p in found.parts] == ["forward", "backward"]
    assert found.foreign == () and found.share == 0
    assert torch.equal(layer.weight.grad, torch.full((4, 4), 7.0)) and layer.bias.grad is None


def test_explain_errors() -> None:
    with pytest.raises(tw.InputError, match="explain: needs a module or a function, got a int"):
        tw.explain(3)
    with pytest.raises(tw.InputError, match="no result depends on anything that requires a gradient"):
        tw.explain(lambda x: x * 2, torch.ones(2), train=True)


@pytest.mark.parametrize(("options", "message"), [
    ({"frieze": True}, "has no option 'frieze'; it has freeze"), ({"freeze": 1}, "option 'freeze' must be True, False or 'watch', got 1"),
    ({"threads": -1}, "threads"), ({"precision": "low"}, "precision"), ({"target": "tpu"}, "target: must be 'cpu', 'cuda'"),
    ({"passes": 3}, "passes: must be a mapping"), ({"validation": "some"}, "validation"),
])
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as problem:
        torch.compile(lambda x: x * 2, backend="tilewright", options=options)(torch.ones(2))
    assert isinstance(problem.value.__cause__ or problem.value.inner_exception, ConfigError)  # type: ignore[attr-defined]


def test_bad_mode() -> None:
    with pytest.raises(ConfigError, match="mode must be one of default, reduce-overhead"):
        backend(None, (), mode="fastest")


def test_freezing_is_for_inference() -> None:
    layer = torch.nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="tilewright", options={"freeze": True})
    with pytest.raises(Exception, match=r"is for inference; call the model inside torch\.no_grad"):
        compiled(torch.ones(2, 4))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("make", [lambda: torch.eye(3).to_sparse(), lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)],
                                                                                                       layout=torch.strided)])
def test_tensors_that_are_not_dense_are_refused(make: Any) -> None:
    with pytest.raises(tw.UnsupportedError, match="only dense tensors are supported"):
        backend(torch.fx.symbolic_trace(lambda x: x * 2), [make()])


def test_entry_point() -> None:
    root = pathlib.Path(tw.__file__).parents[2]
    entries = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    (name, value), = entries.items()
    point = importlib.metadata.EntryPoint(name, value, "torch_dynamo_backends")
    assert name == "tilewright"
    assert point.load() is backend


def test_the_entry_point_is_enough(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip writes: torch finds the backend by name, with no import."""
    from torch._dynamo.backends import registry

    info = tmp_path / "tilewright_probe-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tilewright-probe\nVersion: 0.0\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\ntilewright = tilewright.dynamo:tilewright\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_BACKENDS", {})
    monkeypatch.setattr(registry, "_COMPILER_FNS", {})
    registry._discover_entrypoint_backends.__wrapped__()
    assert registry.lookup_backend("tilewright") is backend


def test_a_split_that_is_gone_would_be_noticed() -> None:
    with pytest.warns(SplitWarning), pytest.raises(AssertionError):
        check(model, torch.randn(4), splits=0)


def test_watching_sees_only_what_is_compiled_inside() -> None:
    with watching() as outer:
        torch.compile(lambda x: x * 2, backend="tilewright")(torch.ones(3))
    with watching() as later:
        pass
    assert len(outer) == 1 and later == []
