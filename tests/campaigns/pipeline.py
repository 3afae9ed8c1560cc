"""The random graphs of `tests/passes` and of index forms, a few at a time from a new seed: the interpreter gives the same before the passes
and after. Hypothesis draws and shrinks them; the falsifying example stands in the error."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.passes import test_forms as forms
from tests.passes import test_random as random_graphs
from tilewright.passes.pipeline import optional_passes

from .engine.campaign import Campaign

SETTINGS = settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False,
                    phases=[Phase.generate, Phase.shrink])  # fmt: skip
CHECKS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "pipeline": (random_graphs.test_pipeline_keeps_meaning, (random_graphs.graphs(), st.sampled_from(["", *optional_passes()]),
                                                             st.integers(1, 5))),
    "fusion": (random_graphs.test_fusing_changes_no_bit, (random_graphs.graphs(),)),
    "forms": (forms.test_forms_are_exact, (forms.index_graphs(), st.integers(1, 5))),
    "folding": (forms.test_folding_keeps_values, (forms.index_graphs(), st.integers(1, 5))),
}  # fmt: skip


def case(rng: np.random.Generator) -> None:
    test, strategies = CHECKS[str(rng.choice(list(CHECKS)))]
    drawn: Any = given(*strategies)
    again: Any = seed(int(rng.integers(1 << 32)))(drawn(test.hypothesis.inner_test))
    SETTINGS(again)()


CAMPAIGN = Campaign(case=case, quick=4, seconds=60.0)
