"""OpInfo: the stored scores and the page say the same, a random part of the passing ops still passes, and the harness can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.fresh import fresh_random
from tests.opinfo import calls, results, score
from tests.opinfo.excluded import EXCLUDED
from tilewright.core.errors import CompileError
from tilewright.frontend.torch.aten import registry

OPS_A_RUN = 20


@pytest.fixture(scope="module")
def ops() -> dict[str, Any]:
    return score.database()


def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    wanted = results.page(results.load())
    if request.config.getoption("--update-goldens"):
        results.PAGE.write_text(wanted)
    assert results.PAGE.read_text() == wanted, "out of date; run python tests/opinfo/score.py --page"


def test_every_entry_has_a_score(ops: dict[str, Any]) -> None:
    assert set(results.load()) == set(ops)
    assert set(EXCLUDED) <= set(ops)


def test_part_of_the_passing_ops_passes(ops: dict[str, Any]) -> None:
    """Other ops in every run; the samples of an op are always the same."""
    passing = [k for k, r in results.load().items() if k not in EXCLUDED and results.passes(r, results.FORWARD)]
    draw = fresh_random()
    wrong = []
    for name in draw.sample(passing, OPS_A_RUN):
        op = ops[name]
        dtype = torch.float32 if op.supports_dtype(torch.float32, "cpu") else torch.int64
        samples = calls.samples_of(op, dtype, False)
        if samples:
            found = calls.run(calls.forward, op, draw.sample(samples, min(2, len(samples))))
            wrong += [f"{name}: {r}" for r in found.reasons]
    assert not wrong, "\n".join(wrong)


def test_part_of_the_gradients_passes(ops: dict[str, Any]) -> None:
    passing = [k for k, r in results.load().items() if k not in EXCLUDED and results.passes(r, ("grad",))]
    draw = fresh_random()
    wrong = []
    for name in draw.sample(passing, OPS_A_RUN // 2):
        samples = [c for c in calls.samples_of(ops[name], torch.float32, True) if any(t.requires_grad for t in c.tensors)]
        found = calls.run(calls.gradient, ops[name], [draw.choice(samples)])
        wrong += [f"{name}: {r}" for r in found.reasons]
    assert not wrong, "\n".join(wrong)


def test_a_wrong_op_is_noticed(ops: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry.TABLE["mul.Tensor"]
    monkeypatch.setitem(registry.TABLE, "mul.Tensor", lambda c, a, b: right(c, right(c, a, b), 1.001))
    op = ops["mul"]
    samples = calls.samples_of(op, torch.float32, True)[:3]
    assert calls.run(calls.forward, op, samples).failed == len(samples)
    assert calls.run(calls.gradient, op, samples).failed == len(samples)


def test_errors_must_be_of_the_right_kind(ops: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    op = ops["diag"]
    assert calls.errors(op).passed
    for accident in (KeyError("shape"), AttributeError("'NoneType' object has no attribute 'shape'"), AssertionError()):

        def fail(*_: Any, accident: Exception = accident, **options: Any) -> Any:
            raise accident

        monkeypatch.setattr(calls, "import_torch", fail)
        found = calls.errors(op)
        assert found.failed == found.samples > 0
        assert found.reasons[0].startswith(f"{type(accident).__name__} from inside")
    monkeypatch.setattr(calls, "import_torch", lambda *_, **__: (_ for _ in ()).throw(CompileError("x")))
    assert calls.errors(op).passed


def test_a_missing_op_is_named(ops: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry.TABLE, "cummax.default")
    found = calls.run(calls.forward, ops["cummax"], calls.samples_of(ops["cummax"], torch.float32, False)[:1])
    assert not found.passed and "aten.cummax.default" in found.reasons[0]


@pytest.mark.slow
def test_the_whole_database(ops: dict[str, Any]) -> None:
    """Every op passes at least what it passed when the page was written."""
    lost = []
    for name, record in results.load().items():
        if name not in EXCLUDED and results.passes(record, results.FORWARD):
            found = score.score(ops[name])
            lost += [f"{name}: {kind}: {found[kind]['reasons'][0]}" for kind in results.KINDS
                     if found.get(kind, {}).get("failed") and not record[kind]["failed"]]
    assert not lost, "\n".join(lost)
