"""The rewrite engine: patterns over nodes, named rules, and a driver that applies them until nothing changes.

    @rule(P(Transpose, P(Transpose, X, name="inner"), name="outer"))
    def transpose_of_transpose(x, inner, outer):
        return Transpose(perm=tuple(inner.op.perm[p] for p in outer.op.perm))(x)

A rule's parameters are what its pattern captured (a `Var` gives a Value, a named `P` gives a Node), and `m`, the `Match`, when
asked for. It returns the value (or one value per output) that replaces the root's, or None. It does not apply either where its result has
another type than the root, or where the type rule of an op that it makes refuses the operands; what it made until then is undone.
Rules are looked up by the root's op class, and only nodes near a change are looked at again, so a rewrite is about linear.

A rule declares what it may change (`changes`), and `tests/passes/test_exact.py` holds it to that with special values in every dtype.
"""
from __future__ import annotations

import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..core.errors import CompileError, ShapeError
from .graph import Graph, Node, Value

if TYPE_CHECKING:
    from ..ops.base import Op

Bindings = dict[str, Value | Node]


@dataclass(frozen=True)
class Var:
    """Matches any value; the same name twice must be the same value."""

    name: str


@dataclass(frozen=True)
class Such:
    """Matches a value for which `check(value)` is true."""

    name: str
    check: Callable[[Value], bool]


@dataclass(frozen=True, init=False)
class P:
    """Matches a value made by one of the op classes `op` whose operands match; no operand patterns: any operands.

    Operands of a commutative op match in either order. `once`: nothing else reads the value.
    """

    op: tuple[type[Op], ...]
    operands: tuple[Pattern, ...]
    name: str | None
    once: bool

    def __init__(self, op: Any, *operands: Pattern, name: str | None = None, once: bool = False) -> None:
        object.__setattr__(self, "op", op if isinstance(op, tuple) else (op,))
        object.__setattr__(self, "operands", operands)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "once", once)


Pattern = Var | Such | P
X, Y, Z = Var("x"), Var("y"), Var("z")


@dataclass
class Match:
    """What a rule may ask about the place where its pattern matched."""

    root: Node
    rewriter: Rewriter

    @property
    def graph(self) -> Graph:
        return self.rewriter.graph

    @property
    def known(self) -> Any:
        """What the pass found out about the graph beforehand."""
        return self.rewriter.known

    def readers(self, value: Value) -> int:
        """How many operand slots and graph outputs read `value`."""
        return self.rewriter.readers(value)

    def users(self, value: Value) -> list[Node]:
        return list(self.rewriter.users.get(value, ()))


Replacement = Value | Sequence[Value] | None


Changes = Literal["nothing", "rounding", "hidden"]


@dataclass(frozen=True)
class Rule:
    """`changes`, the most that an application may do to a result: "nothing" (not a bit of it), "rounding" (it is what the graph before
    would give in its dtype or in a wider one, up to rounding; sums and products at the ends of the range may overflow in one order and not
    in another), or "hidden" (besides, infinities and NaN in places that a mask hides may get or lose an effect)."""

    name: str
    pattern: P
    apply: Callable[..., Replacement]
    parameters: tuple[str, ...]
    changes: Changes = "nothing"


def rule(pattern: P, *, changes: Changes = "nothing") -> Callable[[Callable[..., Replacement]], Rule]:
    """Make the decorated function a rule; its name is what the log shows."""

    return lambda fn: rules(fn, changes=changes, **{fn.__name__: pattern})[0]


def rules(fn: Callable[..., Replacement], *, changes: Changes = "nothing", **patterns: P) -> list[Rule]:
    """A rule for each pattern, of that name: several spellings of one thing."""
    return [Rule(name, pattern, fn, tuple(inspect.signature(fn).parameters), changes) for name, pattern in patterns.items()]


@dataclass
class Rewriter:
    """Applies rules to a graph in place. `hits` counts the applications of each rule by name."""

    graph: Graph
    rules: Sequence[Rule]
    hits: Counter[str] = field(default_factory=Counter)
    limit: int | None = None  # applications before the rewrite is called endless; default: by the graph's size
    known: Any = None  # what the pass knows about the graph, for rules that ask for `m.known`
    users: dict[Value, dict[Node, int]] = field(default_factory=dict, init=False)
    _outputs: Counter[Value] = field(default_factory=Counter, init=False)
    _dead: set[Node] = field(default_factory=set, init=False)
    _by_class: dict[type[Op], list[Rule]] = field(default_factory=dict, init=False)

    def readers(self, value: Value) -> int:
        return sum(self.users.get(value, {}).values()) + self._outputs[value]

    def run(self) -> bool:
        """Rewrite to a fixpoint; True when anything changed. The graph's nodes are in topological order again afterwards."""
        graph = self.graph
        self.users = {v: {} for n in graph.nodes for v in n.values}
        self._outputs = Counter(graph.outputs)
        for n in graph.nodes:
            self._link(n)
        limit = self.limit if self.limit is not None else 20 * len(graph.nodes) + 1000
        recent: deque[str] = deque(maxlen=8)
        count, before = 0, -1
        while count != before:  # a change deep inside a pattern does not queue its root: scan again until a scan is quiet
            before = count
            live = [n for n in graph.nodes if n not in self._dead]
            work, queued = deque(live), set(live)
            while work:
                node = work.popleft()
                queued.discard(node)
                changed = None if node in self._dead else self._step(node)
                if changed is None:
                    continue
                applied, touched = changed
                count += 1
                self.hits[applied] += 1
                recent.append(applied)
                if count > limit:
                    raise CompileError(f"rewrite: no fixpoint after {limit} applications, the last were {' '.join(recent)}; "
                                       "a rule undoes another, or itself")
                for n in touched:
                    if n not in queued and n not in self._dead:
                        work.append(n)
                        queued.add(n)
        if count:
            sort_nodes(graph)
        return count > 0

    def _candidates(self, op: Op) -> list[Rule]:
        cls = type(op)
        if cls not in self._by_class:
            self._by_class[cls] = [r for r in self.rules if any(issubclass(cls, c) for c in r.pattern.op)]
        return self._by_class[cls]

    def _step(self, node: Node) -> tuple[str, list[Node]] | None:
        graph = self.graph
        for r in self._candidates(node.op):
            for found in self._match_node(r.pattern, node, {}, at_root=True):
                before = len(graph.nodes)
                new = self._apply(r, node, found)
                if [v.type for v in new] == list(node.types):
                    return r.name, self._replace(node, new, graph.nodes[before:])
                del graph.nodes[before:]
        return None

    def _apply(self, r: Rule, node: Node, found: Bindings) -> tuple[Value, ...]:
        """What the rule gives for the root's values; nothing where it does not apply."""
        extra: dict[str, Any] = {"m": Match(node, self)} if "m" in r.parameters else {}
        try:
            out = r.apply(**{k: v for k, v in found.items() if k in r.parameters}, **extra)
        except ShapeError:
            return ()
        return () if out is None else (out,) if isinstance(out, Value) else tuple(out)

    def _replace(self, node: Node, new: tuple[Value, ...], made: list[Node]) -> list[Node]:
        for n in made:
            n.place = n.place or node.place
            for v in n.values:
                self.users[v] = {}
            self._link(n)
        touched = list(made)
        for old, value in zip(node.values, new, strict=True):
            if old is value:
                continue
            for user in list(self.users[old]):
                touched.append(user)
                self._unlink(user)
                user.operands = tuple(value if v is old else v for v in user.operands)
                self._link(user)
            if self._outputs[old]:
                self._outputs[value] += self._outputs.pop(old)
                self.graph.outputs = [value if v is old else v for v in self.graph.outputs]
        self._bury(node, touched)
        for n in made:
            self._bury(n, touched)
        # a pattern may look a few nodes up or down from its root
        near: dict[Node, None] = dict.fromkeys(touched)
        for n in touched:
            for v in n.values:
                near.update(dict.fromkeys(self.users.get(v, ())))
        return list(near)

    def _bury(self, node: Node, touched: list[Node]) -> None:
        """Drop `node` and what only it read, if nothing reads it. Surviving operands are looked at again: they have fewer readers."""
        stack = [node]
        while stack:
            n = stack.pop()
            if n in self._dead or any(self.readers(v) for v in n.values) or n.op.name == "input":
                continue
            self._dead.add(n)
            self._unlink(n)
            for v in dict.fromkeys(n.operands):
                if any(self.readers(w) for w in v.node.values):
                    touched.append(v.node)
                else:
                    stack.append(v.node)

    def _link(self, n: Node) -> None:
        for v in n.operands:
            slots = self.users[v]
            slots[n] = slots.get(n, 0) + 1

    def _unlink(self, n: Node) -> None:
        for v in n.operands:
            slots = self.users[v]
            slots[n] -= 1
            if not slots[n]:
                del slots[n]

    def _match(self, pattern: Pattern, value: Value, found: Bindings) -> Iterator[Bindings]:
        if isinstance(pattern, P):
            if value.index == 0 and not (pattern.once and self.readers(value) != 1):
                yield from self._match_node(pattern, value.node, found)
            return
        if isinstance(pattern, Such) and not pattern.check(value):
            return
        bound = found.get(pattern.name)
        if bound is None:
            yield {**found, pattern.name: value}
        elif bound is value:
            yield found

    def _match_node(self, pattern: P, node: Node, found: Bindings, at_root: bool = False) -> Iterator[Bindings]:
        if not isinstance(node.op, pattern.op) or (at_root and pattern.once and self.readers(node.values[0]) != 1):
            return
        if pattern.name is not None:
            found = {**found, pattern.name: node}
        if not pattern.operands:
            yield found
            return
        if len(pattern.operands) != len(node.operands):
            return
        yield from self._match_all(pattern.operands, node.operands, found)
        if node.op.traits.commutative and len(node.operands) == 2 and node.operands[0] is not node.operands[1]:
            yield from self._match_all(pattern.operands, node.operands[::-1], found)

    def _match_all(self, patterns: Sequence[Pattern], values: Sequence[Value], found: Bindings) -> Iterator[Bindings]:
        if not patterns:
            yield found
            return
        for first in self._match(patterns[0], values[0], found):
            yield from self._match_all(patterns[1:], values[1:], first)


def sort_nodes(graph: Graph, late: bool = False) -> None:
    """Put live nodes back into topological order, near their old positions; nodes that no output needs go, inputs stay. `late`: each right
    before the first that reads it, so that steps of a loop lie together with their results."""
    position = {n: i for i, n in enumerate(graph.nodes)}
    order: list[Node] = []
    state: dict[Node, int] = {}  # 1: operands are being placed, 2: placed

    def place(root: Node) -> None:
        stack = [root]
        while stack:
            n = stack[-1]
            if state.get(n) == 2:
                stack.pop()
            elif state.get(n) == 1:
                state[n] = 2
                order.append(n)
                stack.pop()
            else:
                state[n] = 1
                for v in reversed(n.operands):
                    seen = state.get(v.node)
                    if seen == 1:
                        raise CompileError(f"graph: %{v.node.name} = {v.node.op} depends on its own result")
                    if seen is None:
                        stack.append(v.node)

    needed: set[Node] = set()
    todo = [v.node for v in (*graph.outputs, *graph.inputs)]
    while todo:
        n = todo.pop()
        if n not in needed:
            needed.add(n)
            todo.extend(v.node for v in n.operands)
    for n in (v.node for v in (*graph.inputs, *graph.outputs)) if late else sorted(needed, key=position.__getitem__):
        place(n)
    graph.nodes = order


def rewrite(graph: Graph, rules: Iterable[Rule], hits: Counter[str] | None = None, limit: int | None = None, known: Any = None) -> bool:
    """Apply `rules` to `graph` in place until none matches; True when something changed."""
    return Rewriter(graph, tuple(rules), Counter() if hits is None else hits, limit, known).run()
