"""Every rewrite rule keeps what it says it keeps, on special values, in every dtype, with empty, single and scalar operands.

The rules come from the passes themselves, so a new one without a probe fails. The interpreter runs the graph before and after one rule
alone; what may differ is what the rule declares (`ir/rewrite.py`).
"""
from __future__ import annotations

import math
import pkgutil
from collections import Counter
from importlib import import_module

import numpy as np
import pytest

import tilewright.passes
from tests.fresh import fresh_rng
from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.ir.graph import Node, Value
from tilewright.ir.rewrite import P, Rule, X, rewrite, rule
from tilewright.passes.base import Pass, scalar
from tilewright.passes.canonicalize import Canonicalize
from tilewright.passes.pipeline import pipeline
from tilewright.target.cuda.device import cuda_target

from .kit import DTYPES, Probe, built, differences, draws, variants
from .probes import SCALAR
from .probes_recognize import PROBES

DRAWS = 4
APART = dict.fromkeys(("winograd", "winograd_weight_gradient"),
                      "an option: an infinity reaches more results than in the direct sum (docs/configuration.md), tests/ops compares it")


def rules() -> dict[tuple[str, str], tuple[Pass, Rule]]:
    """Every rule of every pass, by the names that the log shows: a GPU's own passes, too."""
    return {(p.name, r.name): (p, r) for p in (*pipeline(cuda_target()), *pipeline()) for r in p.rules}


def missing() -> list[str]:
    return [f"{p}: {r}" for p, r in rules() if r not in PROBES.get(p, {})]


def faults(owner: Pass, r: Rule, probes: list[Probe], rng: np.random.Generator, *, whole: bool = True) -> tuple[list[str], Counter[str]]:
    """What a rule breaks, and in which dtypes it applied. Unless `whole`, sizes of 0 and 1 and operands of fewer axes are tried in f32 and
    one more dtype."""
    found: list[str] = []
    applied: Counter[str] = Counter()
    varied = DTYPES if whole else (dt.f32, DTYPES[rng.integers(len(DTYPES))])
    for number, probe in enumerate(probes):
        for dtype in DTYPES:
            for options in variants(dtype) if dtype in varied else ({"dtype": dtype},):
                kit = built(probe, options)
                if kit is None or (kit.plain or kit.ones or -1) >= len(kit.tame):
                    continue
                after, hits = kit.graph.clone()[0], Counter[str]()
                if not rewrite(after, [r], hits, known=owner.known(after)):
                    continue
                applied[dtype.name] += 1
                for inputs in draws(kit, rng, DRAWS if len(options) == 1 else 2, r.changes):
                    wrong = differences(kit.graph, after, inputs, r.changes, rng)
                    if wrong:
                        shown = {k: str(v) for k, v in options.items()}
                        found.append(f"probe {number} {shown}: {wrong[0]}; inputs {[a.tolist() for a in inputs]}")
                        break
    return found, applied


def test_every_rule_has_a_probe() -> None:
    assert not missing()
    unknown = [f"{p}: {r}" for p, of in PROBES.items() for r in of if (p, r) not in rules()]
    assert not unknown
    every = {id(r) for _, r in rules().values()}
    for module in pkgutil.iter_modules(tilewright.passes.__path__):
        for name, value in vars(import_module(f"tilewright.passes.{module.name}")).items():
            for r in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(r, Rule) and r.name in APART:
                    continue
                assert not isinstance(r, Rule) or id(r) in every, f"{module.name}.{name}: {r.name} belongs to no pass"


@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning", "ignore:invalid value:RuntimeWarning",
                            "ignore:Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize(("owner", "name"), rules(), ids=[f"{p}-{r}" for p, r in rules()])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "whole"])
def test_a_rule_keeps_what_it_says(owner: str, name: str, whole: bool) -> None:
    p, r = rules()[owner, name]
    found, applied = faults(p, r, PROBES[owner][name], fresh_rng(), whole=whole)
    assert applied, f"{name} never applied: its probes show nothing"
    assert not found, f"{len(found)} differences, the first:\n" + "\n".join(found[:4])


@rule(P(o.Log, P(o.Exp, X)), changes="rounding")
def log_of_exp(x: Value) -> Value:
    """Right on paper: exp overflows above 88, and NaN has no logarithm that is a number."""
    return x


@rule(P(o.Add, X, P(o.Constant, name="c")))
def any_zero(x: Value, c: Node) -> Value | None:
    """Deliberately wrong: -0.0 + 0.0 is 0.0."""
    return x if not np.any(c.value.op.data.array) else None  # type: ignore[attr-defined]


@rule(P(o.Mul, P(o.Mul, X, P(o.Constant)), P(o.Add, P(o.Erf, P(o.Mul, X, P(o.Constant, name="c"))), P(o.Constant))), changes="rounding")
def nearly_gelu(x: Value, c: Node) -> Value | None:
    """Deliberately wrong: takes the constants of f32 for those of f64, and any half and any one."""
    out: Value = o.Gelu()(x)
    return out if abs(float(scalar(c.value) or 0.0) / math.sqrt(0.5) - 1) < 1e-5 else None


@rule(P(o.Softmax, P(o.Where, name="where"), name="root"), changes="rounding")
def low_enough(where: Node, root: Node) -> Value:
    """Deliberately wrong: adds what it should put in place of a score."""
    c, s, low = where.operands
    zero = root.graph.constant(np.zeros((), low.dtype.np))
    out: Value = root.op(o.Add()(s, o.Where()(c, zero, low)))
    return out


MUTANTS: dict[Rule, list[Probe]] = {
    log_of_exp: [lambda k: o.Log()(o.Exp()(k.x()))], any_zero: SCALAR["add_zero"], nearly_gelu: PROBES["recognize"]["gelu_half_first"],
    low_enough: [lambda k: o.Softmax(axis=1)(o.Where()(k.c(np.zeros((k.b, k.d)), dt.bool_), k.x(), k.c(-1e9)))]}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda r: r.name)
def test_a_wrong_rule_is_noticed(mutant: Rule) -> None:
    found, applied = faults(Canonicalize(), mutant, MUTANTS[mutant], fresh_rng(), whole=False)
    assert applied and found, f"{mutant.name} is wrong, and nobody noticed"


def test_a_rule_without_a_probe_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Canonicalize, "rules", (*Canonicalize.rules, log_of_exp))
    assert missing() == ["canonicalize: log_of_exp"]
