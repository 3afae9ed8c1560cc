"""Every op's derivative and batching rules, over the registry's samples: f64 finite differences, PyTorch's autograd, agreement of forward
and reverse mode, second order, and batching as a stack of slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.fresh import fresh_rng
from tests.ops.oracle import NO_ORACLE, ORACLES
from tests.transform.samples import WideCase, has_float_result, has_rule, wide_cases
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ops import REGISTRY, Op, Relu, Sin
from tilewright.transform.jvp import jvp_graph
from tilewright.transform.vjp import split_vjp, vjp_graph
from tilewright.transform.vmap import batch_graph

STRAIGHT_THROUGH = {"stop_gradient", "fake_quantize", "fake_quantize_lsq"}  # their derivatives are estimates on purpose
# their oracles are backward passes already
DETACHED = {"attention_backward", "norm_backward", "selective_scan_backward", "gated_delta_rule_backward", "splat_rasterize_backward"}
JUMPS = {"floor", "ceil", "trunc", "sign", "floor_divide", "remainder"}  # a step of a finite difference may cross one


def pulled(case: WideCase, arrays: list[Any], cotangents: list[Any]) -> list[Any]:
    """Cotangents of the float inputs."""
    g = case.graph()
    wanted = [v.dtype.is_float for v in g.inputs]
    made, found = vjp_graph(g, wanted)
    got = iter(run(made, [*arrays, *cotangents]))
    floats = [a for a, w in zip(arrays, wanted, strict=True) if w]
    return [next(got) if hit else np.zeros_like(a) for a, hit in zip(floats, found, strict=True)]


def draw_cotangents(case: WideCase, rng: np.random.Generator, outputs: list[Any]) -> list[Any]:
    return [rng.normal(size=a.shape) for a, v in zip(outputs, case.graph().outputs, strict=True) if v.dtype.is_float]


def float_results(case: WideCase, arrays: list[Any]) -> list[Any]:
    g = case.graph()
    return [a for a, v in zip(run(g, arrays), g.outputs, strict=True) if v.dtype.is_float]


def dot(xs: list[Any], ys: list[Any]) -> float:
    return float(sum(np.sum(np.where(y == 0, 0, x) * y) for x, y in zip(xs, ys, strict=True)))


def slope_error(case: WideCase, rng: np.random.Generator) -> float:
    """How far the slope along a random direction is from central differences, relative to the sizes of the cotangents."""
    arrays = case.arrays(rng)
    floats = [np.issubdtype(a.dtype, np.floating) for a in arrays]
    cotangents = draw_cotangents(case, rng, run(case.graph(), arrays))
    directions = [rng.normal(size=a.shape) if f else None for a, f in zip(arrays, floats, strict=True)]
    grads = pulled(case, arrays, cotangents)
    slope = dot(grads, [d for d in directions if d is not None])
    candidates = []
    for h in (1e-6, 1e-7):  # a kink between two points spoils one step width, hardly both
        sides = [float_results(case, [a if d is None else a + s * h * d for a, d in zip(arrays, directions, strict=True)]) for s in (1, -1)]
        with np.errstate(invalid="ignore"):
            candidates.append(sum(float(np.nansum((p - m) * g)) / (2 * h) for p, m, g in zip(*sides, cotangents, strict=True)))
    return min(abs(slope - c) for c in candidates) / (1 + sum(float(np.sum(np.abs(g))) for g in grads))


@pytest.mark.parametrize("case", wide_cases("vjp", float_only=True))
def test_reverse_mode_is_the_slope(case: WideCase) -> None:
    """Fresh points: a wrong rule is wrong at every one of them, a kink lies near one."""
    if case.case.op.name in STRAIGHT_THROUGH | JUMPS:
        pytest.skip("not smooth")
    rng = fresh_rng()
    if not finite(run(case.graph(), case.arrays(rng))):
        pytest.skip("a row without a number has no slope")
    errors = [slope_error(case, rng)]
    while errors[-1] > 2e-6 and len(errors) < 3:
        errors.append(slope_error(case, rng))
    assert min(errors) <= 2e-6, f"{errors}"


def finite(arrays: list[Any]) -> bool:
    return all(np.isfinite(a).all() for a in arrays if a.dtype.kind == "f")


def torch_grads(case: WideCase, arrays: list[Any], cotangents: list[Any]) -> list[Any]:
    tensors = [torch.from_numpy(np.array(a)) for a in arrays]
    leaves = [t.requires_grad_() for t in tensors if t.dtype == torch.float64]
    out = ORACLES[case.case.op.name](case.make().attrs(), *tensors)
    results = [r for r in (out if isinstance(out, tuple) else (out,)) if r.dtype == torch.float64]
    if not any(r.requires_grad for r in results):
        return [np.zeros(t.shape) for t in leaves]
    found = torch.autograd.grad(results, leaves, [torch.from_numpy(g) for g in cotangents], allow_unused=True)
    return [np.zeros(t.shape) if g is None else g.numpy() for t, g in zip(leaves, found, strict=True)]


@pytest.mark.parametrize("case", wide_cases("vjp", float_only=True))
def test_reverse_mode_is_pytorchs(case: WideCase) -> None:
    if case.case.op.name in STRAIGHT_THROUGH | DETACHED or case.case.op.name in NO_ORACLE:
        pytest.skip("PyTorch has no such op, or another derivative")
    rng = fresh_rng()
    arrays = case.arrays(rng)
    cotangents = draw_cotangents(case, rng, run(case.graph(), arrays))
    try:
        want = torch_grads(case, arrays, cotangents)
    except (RuntimeError, IndexError) as e:
        pytest.skip(f"PyTorch: {e}")
    for got, expected in zip(pulled(case, arrays, cotangents), want, strict=True):
        finite = np.isfinite(expected)  # rows that see nothing: PyTorch's are NaN
        np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", wide_cases("jvp", float_only=True))
def test_forward_mode_agrees_with_reverse_mode(case: WideCase) -> None:
    rng = fresh_rng()
    arrays = case.arrays(rng)
    g = case.graph()
    if not finite(run(g, arrays)):
        pytest.skip("a row without a number has no slope")
    active = [v.dtype.is_float for v in g.inputs]
    tangents = [rng.normal(size=a.shape) for a, f in zip(arrays, active, strict=True) if f]
    made, moved = jvp_graph(g, active)
    got = run(made, [*arrays, *tangents])
    outputs, pushed = got[: len(g.outputs)], iter(got[len(g.outputs) :])
    for a, b in zip(outputs, run(g, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    moves = [next(pushed) if m else np.zeros(v.shape) for m, v in zip(moved, g.outputs, strict=True)]
    moves = [m for m, v in zip(moves, g.outputs, strict=True) if v.dtype.is_float]
    cotangents = draw_cotangents(case, rng, outputs)
    forward, reverse = dot(moves, cotangents), dot(pulled(case, arrays, cotangents), tangents)
    assert abs(forward - reverse) <= 1e-8 * (1 + abs(forward)), f"{forward} against {reverse}"


@pytest.mark.parametrize("case", wide_cases("batch", float_only=False))
def test_batching_is_a_stack_of_slices(case: WideCase) -> None:
    """All operands batched, only the first, only the last."""
    count = len(case.graph().inputs)
    for batched in {(True,) * count, tuple(i == 0 for i in range(count)), tuple(i == count - 1 for i in range(count))}:
        check_batching(case, batched)


def check_batching(case: WideCase, batched: tuple[bool, ...]) -> None:
    rng = fresh_rng()
    g, size = case.graph(), 3
    cases = [case.arrays(rng) for _ in range(size)]
    rows = [[c[i] if b else cases[0][i] for i, b in enumerate(batched)] for c in cases]
    made, flags = batch_graph(g, batched, size, [True] * len(g.outputs))
    assert all(flags)
    got = run(made, [np.stack([c[i] for c in cases]) if b else cases[0][i] for i, b in enumerate(batched)])
    for k, row in enumerate(rows):
        for a, b in zip(got, run(g, row), strict=True):
            np.testing.assert_allclose(a[k], b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", wide_cases("vjp", float_only=True))
def test_splitting_gives_the_same_cotangents(case: WideCase) -> None:
    """Forward and backward pass as two graphs, which is how loops store what they need."""
    rng = fresh_rng()
    arrays = case.arrays(rng)
    g = case.graph()
    wanted = [v.dtype.is_float for v in g.inputs]
    forward, backward = split_vjp(g, wanted)
    made = run(forward, arrays)
    outputs, residuals = made[: len(g.outputs)], made[len(g.outputs) :]
    cotangents = draw_cotangents(case, rng, outputs)
    for a, b in zip(run(backward, [*residuals, *cotangents]), pulled(case, arrays, cotangents), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("op", REGISTRY.values(), ids=REGISTRY)
def test_no_op_is_silent(op: type[Op]) -> None:
    """An op has a rule, or a decomposition that has them, or a written reason."""
    if op.traits.source:
        return
    for rule in ("vjp", "jvp", "batch"):
        if rule != "batch" and not has_float_result(op):
            continue
        assert has_rule(op, rule) or rule in op.unsupported, f"{op.name} has neither {rule} nor a decomposition nor a reason"
        assert not (rule in op.unsupported and rule in vars(op)), f"{op.name} has {rule} and a reason why not"


def test_a_wrong_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite can fail: the sine's derivative as itself."""
    monkeypatch.setattr(Sin, "derivative", lambda self, x, y: y)
    sines = [p.values[0] for p in wide_cases("vjp", float_only=True) if p.values[0].case.op is Sin]
    with pytest.raises(AssertionError):
        test_reverse_mode_is_the_slope(sines[0])


def test_an_op_without_a_rule_is_named_with_its_place() -> None:
    from tilewright.core.errors import UnsupportedError
    from tilewright.ops import QGather
    from tilewright.ops.attention.q8_cache import Q8Blocks
    from tilewright.ops.families import f32

    g = Graph()
    codes, scales = g.add(Q8Blocks(), g.input(f32(3, 32), "x"), place="model.py:7").values
    g.outputs = [scales]
    with pytest.raises(UnsupportedError, match=r"q8_blocks: has no reverse-mode derivative: the cache is rounded .*\(model.py:7\)"):
        vjp_graph(g, [True])
    assert codes.dtype.name == "i8"
    assert QGather.unsupported["vjp"].reason


def test_values_nothing_depends_on_have_no_cotangent() -> None:
    g = Graph()
    from tilewright.ops.families import f64

    x, y = g.input(f64(3), "x"), g.input(f64(3), "y")
    g.outputs = [g.add(Relu(), x).value]
    made, found = vjp_graph(g, [True, True])
    assert found == (True, False)
    assert len(made.inputs) == 3
    assert y.type == x.type


def test_rows_that_see_nothing_have_no_derivative() -> None:
    from tilewright.ops.attention.backward import AttentionSaved
    from tilewright.ops.families import boolean, f64

    g, rng = Graph("saved"), fresh_rng()
    q, k, v, mask = (g.input(t, n) for t, n in zip((*[f64(1, 1, 2, 4)] * 3, boolean(1, 1, 2, 2)), "qkvm", strict=True))
    g.outputs = list(AttentionSaved(scale=0.5, has_mask=True)(q, k, v, mask))
    arrays = [*(rng.normal(size=(1, 1, 2, 4)) for _ in range(3)), np.array([[[[True, False], [False, False]]]])]
    made, _ = jvp_graph(g, [True, True, True, False])
    _, sums, moved, sums_moved = run(made, [*arrays, *(rng.normal(size=(1, 1, 2, 4)) for _ in range(3))])
    assert sums[0, 0, 1] == -np.inf and sums_moved[0, 0, 1] == 0 and not moved[0, 0, 1].any()
    assert sums_moved[0, 0, 0] != 0 and np.isfinite(moved).all()
