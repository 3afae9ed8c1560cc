"""What a file says of itself against its graph, for files whose code is not used: the graph may be anybody's."""
from __future__ import annotations

from ...core.dims import Dim, at_least
from ...core.errors import TilewrightError
from ...core.needs import Need, collected
from ...ir.graph import Graph, complaint
from ...ir.text import all_nodes
from ...ir.verify import verify
from ..executable import Interface
from ..session import Model
from .file import SavedFile


def check_graph(file: SavedFile, model: Model, stored: Interface) -> None:
    """Verify the graph, take the interface from it, and compare it with the stored one, which is what the file's user has read."""
    try:
        verify(model.graph)
    except TilewrightError as e:
        raise file.broken(f"the graph is not sound: {str(e)[:200]}") from e
    model.needs = (*stored.needs, *asked(model.graph))
    model.stored_interface = found = model.interface
    for name in ("input_names", "inputs", "outputs", "symbols", "donated", "called"):
        said, is_ = getattr(stored, name), getattr(found, name)
        if said != is_:
            raise file.broken(f"the field 'interface.{name}' does not fit the graph: {_shown(said)} against {_shown(is_)}")


def asked(graph: Graph) -> tuple[Need, ...]:
    """What kernels take for granted of the symbols: the type rules of a graph after the passes (ours keep to those of the model that they
    were given, which the file may leave out), and that no size is negative. Passes make maxima over axes that may be empty, which is
    no harm to memory: of reductions only what the file says counts."""
    found: dict[Dim, Need] = {}
    for n in all_nodes(graph):
        with collected() as rules:
            n.op.infer(*(v.type for v in n.operands))
        for room, rule in () if n.op.traits.reduction else rules:
            found.setdefault(room, (room, complaint(n.op, n.operands, rule), n.place))
        for t in n.types:
            for d in t.shape:
                if not at_least(d, 0):
                    found.setdefault(d, (d, f"{n.op.name}: a size must not be negative, got {d} for %{n.name}: {t}", n.place))
    return tuple(found.values())


def _shown(value: object) -> str:
    return f"{value!s:.80}"
