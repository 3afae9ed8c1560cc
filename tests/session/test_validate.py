"""The checks before execution see what they are for, and severities decide what fails."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.session.handmade import chain, embedding
from tilewright.core.errors import ConfigError, VerifyError
from tilewright.core.validation import _REGISTRY as REGISTRY
from tilewright.core.validation import Finding, Severity, check_level, validate, validator
from tilewright.ir.graph import Graph
from tilewright.ir.verify import constants_are_finite, imported_graph
from tilewright.runtime.native.layout import THUNK_ARGS, THUNK_FN, THUNK_GRID
from tilewright.runtime.validate import argument_pointers, kernel_coverage


def test_an_instance_with_wrong_words_is_found() -> None:
    session = embedding(np.arange(10, dtype=np.float32), 3)
    session(torch.tensor([1, 2, 3]))
    executable = session.executable
    assert executable is not None
    instance = session.take().instance(())
    assert kernel_coverage(executable, instance) == []
    assert argument_pointers(executable, instance) == []
    for word, message in ((0, "null"), (8, "below"), (1 << 40, "above")):
        good = int(instance.words[1])
        instance.words[1] = 0 if message == "null" else good - word if message == "below" else good + word
        (found,) = argument_pointers(executable, instance)
        assert "a pointer to t reaches" in str(found)
        instance.words[1] = good
    wrong = ((THUNK_FN, 0, "has no code"), (THUNK_ARGS, 8, "outside the argument blocks"), (THUNK_GRID, -1, "grid of -1"))
    for column, value, message in wrong:
        good = int(instance.thunks[0, column])
        instance.thunks[0, column] = value
        (found,) = kernel_coverage(executable, instance)
        assert message in str(found)
        instance.thunks[0, column] = good


def test_a_pointer_outside_the_arena_stops_the_first_call() -> None:
    session = chain("double copy", 16)
    assert session.executable is not None
    session.executable._temp_buffers = session.executable._temp_buffers[:0]  # no temp pointer gets the arena's address
    session.executable._temp_words = session.executable._temp_words[:0]
    with pytest.raises(VerifyError, match=r"execute: launch 0 \(double\): a pointer to t0 reaches"):
        session(torch.ones(16))


def test_levels() -> None:
    @validator("import", strict_only=True)
    def slow(subject: object) -> list[Finding]:
        return [Finding(Severity.NOTE, "import", "slow check ran")] if subject == "x" else []

    @validator("import")
    def warns(subject: object) -> list[Finding]:
        return [Finding(Severity.WARNING, "import", "odd")] if subject == "w" else []

    kept = list(REGISTRY["import"])
    REGISTRY["import"][:] = kept[-2:]
    try:
        assert [str(f) for f in validate("import", "strict", "x")] == ["import: slow check ran"]
        assert validate("import", "normal", "x") == []
        assert [f.severity for f in validate("import", "normal", "w")] == [Severity.WARNING]
        assert validate("import", "none", "w") == []
        with pytest.raises(VerifyError, match="import: odd"):
            validate("import", "strict", "w")
    finally:
        REGISTRY["import"][:] = kept[:-2]
    assert check_level("strict") == "strict"
    with pytest.raises(ConfigError, match="validation: must be one of strict, normal, none, got 'all'"):
        check_level("all")


def test_checks_of_graphs() -> None:
    graph = Graph()
    graph.constant(np.array([1.0, np.nan], np.float32), "w")
    graph.constant(np.array([0.0, -np.inf], np.float32), "mask")
    assert imported_graph(graph) == []
    (found,) = constants_are_finite(graph)
    assert str(found) == "import: constant w holds NaN or infinity"
    graph.nodes.append(graph.nodes[0])
    assert "import" in str(imported_graph(graph)[0])
