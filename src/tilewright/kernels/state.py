"""Which updates of donated inputs may happen in the input's own memory, and results that are written there at once."""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Node, Value
from ..ops.attention.forward import Rope
from ..ops.attention.q8_cache import Q8Blocks
from ..ops.fused import Fused
from ..ops.state import UpdateSlice
from .launch import Argument, Buffer, Item, Launch, Pointer, roots, touched


def updated(v: Value) -> Value | None:
    """The value that an update, alone or as a result of a region, makes `v` of."""
    if isinstance(v.node.op, UpdateSlice):
        return v.node.operands[0]
    if isinstance(v.node.op, Fused):
        made = v.node.op.body.outputs[v.index].node
        inputs = v.node.op.body.inputs
        if isinstance(made.op, UpdateSlice) and made.operands[0] in inputs:
            return v.node.operands[inputs.index(made.operands[0])]
    return None


def in_place_updates(graph: Graph) -> set[Node]:
    """Update nodes on the way from a donated input to its output whose old value nobody reads any more."""
    users = graph.users()
    position = {n: i for i, n in enumerate(graph.nodes)}
    outputs = set(graph.outputs)
    found: set[Node] = set()
    for i, k in graph.donated.items():
        chain: list[Node] = []
        v = graph.outputs[k]
        before: list[Value] = []
        while (old := updated(v)) is not None:
            chain.append(v.node)
            before.append(old)
            v = old
        if v is not graph.inputs[i]:
            continue
        shown = {graph.outputs[j] for j in range(len(graph.outputs)) if j != k}
        safe = [n for n, old in zip(chain, before, strict=True) if _last_read(old, n, users, position, outputs, shown)]
        if len(safe) == len(chain):  # one copy in the chain moves all that follows out of the state's memory
            found.update(chain)
    return found


def computed_in_window(graph: Graph, in_place: set[Node]) -> dict[Value, Node]:
    """New elements that nothing but an update in place reads: their kernel writes them into the window itself, and the update is free."""
    users = graph.users()
    outputs = set(graph.outputs)
    found: dict[Value, Node] = {}
    for n in in_place:
        if isinstance(n.op, Fused):  # writes its window itself
            continue
        old, new = n.operands
        written = isinstance(new.node.op, Q8Blocks) or (isinstance(new.node.op, Rope) and new.dtype is old.dtype)
        if written and users[new] == [n] and users[old] == [n] and new not in outputs:
            found[new] = n
    return found


def _last_read(old: Value, update: Node, users: dict[Value, list[Node]], position: dict[Node, int], outputs: set[Value],
               shown: set[Value]) -> bool:
    """Nothing reads `old`, or a view of it, after `update` or as its new elements; no other output shows it."""
    if old in shown or (old in outputs and old.node.op.name != "input"):
        return False
    for n in users[old]:
        if n.op.traits.view:
            if not all(_last_read(v, update, users, position, outputs, shown) for v in n.values):
                return False
        elif n is update:
            # the old value, or a view of it, is what is written
            if not isinstance(n.op, Fused) and (n.operands[0] is not old or n.operands[1] is old):
                return False
        elif position[n] > position[update]:
            return False
    return True


def land_states(block: list[Item], copies: list[tuple[Launch, Buffer, Buffer]]) -> None:
    """A last copy of a result (copy launch, its source, the state) goes where the launch that computes the result may write the state
    itself: it reads the old value element for element where it writes, or not at all, and nobody reads the old value after it."""
    for copy, source, state in copies:
        writers = [k for k, x in enumerate(block) if isinstance(x, Launch) and source in x.writes]
        if copy not in block or len(writers) != 1 or source.kind != "temp" or source.nbytes != state.nbytes:
            continue
        at, launch = writers[0], block[writers[0]]
        control = [r for x in block if not isinstance(x, Launch) for b in touched(x) for r in roots(b)]
        if source in control or state in control:  # a loop names its buffers in other ways
            continue
        straight = [x for x in block if isinstance(x, Launch) and x is not copy]
        later = [x for x in block[at + 1 :] if isinstance(x, Launch) and x is not copy and state in (*x.reads, *x.writes)]
        assert isinstance(launch, Launch)
        if later or any(state in x.writes for x in straight) or not _reads_in_place(launch, source, state):
            continue
        block.remove(copy)
        block[:] = [_with_buffer(x, source, state) if isinstance(x, Launch) else x for x in block]


def _reads_in_place(launch: Launch, source: Buffer, state: Buffer) -> bool:
    if state not in launch.reads:
        return True
    views = [a for a in launch.arguments if isinstance(a, Pointer) and a.buffer is state]
    return len(views) == 1 and (state, source) in launch.inplace


def _with_buffer(launch: Launch, old: Buffer, new: Buffer) -> Launch:
    if old not in launch.reads and old not in launch.writes:
        return launch

    def swap(b: Buffer) -> Buffer:
        return new if b is old else b

    def words(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        return tuple(replace(a, buffer=swap(a.buffer)) if isinstance(a, Pointer) else a for a in arguments)

    return replace(launch, arguments=words(launch.arguments), reads=tuple(map(swap, launch.reads)), writes=tuple(map(swap, launch.writes)),
                   inplace=tuple((swap(a), swap(b)) for a, b in launch.inplace if swap(a) is not swap(b)),
                   variants=tuple(replace(v, arguments=words(v.arguments)) for v in launch.variants))
