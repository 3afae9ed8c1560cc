"""Graphs as validators see them: sound after import and after the passes."""
from __future__ import annotations

from ..core.errors import VerifyError
from ..core.validation import Finding, Severity, validator
from .graph import Graph


def _sound(graph: Graph, phase: str) -> list[Finding]:
    from .verify import verify

    try:
        verify(graph)
    except VerifyError as e:
        return [Finding(Severity.ERROR, phase, str(e))]
    return []


@validator("import")
def imported_graph(graph: Graph) -> list[Finding]:
    """Order, types, names and symbols of a graph from a frontend."""
    return _sound(graph, "import")


@validator("import", strict_only=True)
def constants_are_finite(graph: Graph) -> list[Finding]:
    """A weight with NaN or infinity is usually a broken checkpoint: worth a warning, which strict validation makes an error."""
    import numpy as np

    found = []
    for node in graph.nodes:
        data = node.op.attrs().get("data") if node.op.name == "constant" else None
        if data is not None and data.type.dtype.is_float and data.array.size > 1:  # a lone infinity is how masks are written
            wide = data.array if data.type.dtype.name in ("f32", "f64", "f16") else data.array.astype(np.float32)
            if not np.isfinite(wide).all() and not np.isneginf(wide).any():
                found.append(Finding(Severity.WARNING, "import", f"constant {data.name} holds NaN or infinity"))
    return found


@validator("passes")
def optimised_graph(graph: Graph) -> list[Finding]:
    """The same after the passes."""
    return _sound(graph, "passes")
