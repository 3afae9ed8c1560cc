"""Memory that one program writes or reads again is kept in registers: loads are reused, stores forwarded, accumulators carried by loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..ir import BINARY, UNARY, Block, Instr, Kernel, Operand, TileType, Var, ViewType
from .base import EFFECTS, TilePass, limit_start

ELEMENTWISE = frozenset((*UNARY, *BINARY, "select", "fma", "cast", "broadcast"))
Key = tuple[Any, ...]


@dataclass(frozen=True)
class KeepInRegisters(TilePass):
    """Before: a kernel whose parameters' memory does not overlap, with equal index values merged.  After: a load that repeats one, or reads
    what a store of the same program wrote, is gone; so is a store that another one overwrites unread; a tile that a loop reads and writes
    at one place, and that the program has written before, is carried by the loop. Other programs' writes are unordered with these accesses.
    Accesses with tokens, and scratch memory, stay as they are."""

    name = "keep"

    def run(self, kernel: Kernel) -> int:
        count = 0
        while True:
            state = _State(kernel)
            state.block(kernel.body, {})
            if not state.count:
                return count
            count += state.count


class _State:
    """`known` maps an access (without what a load gives behind its limits) to the value that lies there, and whether that value is what a
    load would give behind the limits: what a load gave is, for the same `other`, what was stored is not."""

    def __init__(self, kernel: Kernel) -> None:
        self.count = 0
        self.same: dict[Var, Operand] = {}
        self.dead: set[Instr] = set()
        self.roots: dict[Operand, Var] = {p: p for p in kernel.params if isinstance(p.type, ViewType)}
        self.users: dict[Operand, list[Instr]] = {}
        self.yielded: set[Operand] = set()
        for i in kernel.walk():
            if i.op == "subview" and i.operands[0] in self.roots:
                self.roots[i.results[0]] = self.roots[i.operands[0]]
            for x in i.operands:
                self.users.setdefault(x, []).append(i)
            for b in i.blocks:
                self.yielded.update(b.yields)

    def block(self, block: Block, known: dict[Key, tuple[Operand, Any]]) -> None:
        body: list[Instr] = []
        unread: dict[Key, Instr] = {}  # stores that nothing has read since
        for i in block.body:
            i.operands = [self.use(x) for x in i.operands]
            if i.blocks:
                body += self._nested(i, known, unread)
            elif i.op == "load" and self._plain(i):
                self._load(i, known, unread, body)
            elif i.op == "store" and self._plain(i):
                self._store(i, known, unread, body)
            else:
                if i.op in EFFECTS or i.op in ("load", "gather"):
                    self._touched({self.roots.get(x) for x in i.operands} if i.op != "call" else None, known, unread)
                body.append(i)
        block.body = [i for i in body if i not in self.dead]
        block.yields = [self.use(y) for y in block.yields]

    def use(self, x: Operand) -> Operand:
        while isinstance(x, Var) and x in self.same:
            x = self.same[x]
        return x

    def _plain(self, i: Instr) -> bool:
        return not i.tokens and not i.tokens_out and "order" not in i.attrs and i.operands[0] in self.roots

    def _load(self, i: Instr, known: dict[Key, tuple[Operand, Any]], unread: dict[Key, Instr], body: list[Instr]) -> None:
        key, other = _key(i), repr(i.attrs.get("other", 0))
        found = known.get(key)
        if found is not None and (not i.attrs.get("limits") or found[1] == other or self._stays_inside(i, key)):
            self.same[i.results[0]] = found[0]
            self.count += 1
            return
        for k in [k for k in unread if self.roots[k[0]] is self.roots[i.operands[0]] and not _apart(k, key)]:
            del unread[k]
        if found is None:
            known[key] = i.results[0], other
        body.append(i)

    def _store(self, i: Instr, known: dict[Key, tuple[Operand, Any]], unread: dict[Key, Instr], body: list[Instr]) -> None:
        key, root = _key(i), self.roots[i.operands[0]]
        if key in unread:
            self.dead.add(unread.pop(key))
            self.count += 1
        for k in [k for k in known if self.roots[k[0]] is root and not _apart(k, key)]:
            del known[k]
        known[key], unread[key] = (i.operands[-1], None), i
        body.append(i)

    def _touched(self, roots: set[Var | None] | None, known: dict[Key, tuple[Operand, Any]], unread: dict[Key, Instr]) -> None:
        """Memory of these parameters (None: any) may be read and written."""
        for table in (known, unread):
            for k in [k for k in table if roots is None or self.roots[k[0]] in roots]:
                table.pop(k)

    def _stays_inside(self, i: Instr, key: Key) -> bool:
        """Whether what a load gives behind its limits goes nowhere: elementwise operations lead to stores under the same limits."""
        work: list[Var] = list(i.results)
        while work:
            x = work.pop()
            if x in self.yielded:
                return False
            for u in self.users.get(x, []):
                if u.op == "store" and u.operands[-1] is x and _key(u)[3] == key[3]:
                    continue
                t = u.results[0].type if u.results else None
                if u.op not in ELEMENTWISE or t is None or not isinstance(t, TileType) or t.shape != x.type.shape:  # type: ignore[union-attr]
                    return False
                work += u.results
        return True

    def _nested(self, i: Instr, known: dict[Key, tuple[Operand, Any]], unread: dict[Key, Instr]) -> list[Instr]:
        written, _ = self._accessed(i)
        for b in i.blocks:
            self.block(b, {k: v for k, v in known.items() if written is not None and self.roots[k[0]] not in written})
        stores = self._carry(i, known) if i.op == "for" else []
        written, read = self._accessed(i)
        self._touched(written, known, unread)
        self._touched(read, {}, unread)
        after: list[Instr] = []
        for x in stores:
            self._store(x, known, unread, after)
        return [i, *after]

    def _accessed(self, i: Instr) -> tuple[set[Var | None] | None, set[Var | None]]:
        """Parameters that an instruction's blocks write (None: any), and those that they read."""
        written, read = set[Var | None](), set[Var | None]()
        for x in _walk(i):
            if x.op == "call":
                return None, read
            (written if x.op in EFFECTS else read).update(self.roots.get(o) for o in x.operands if x.op != "subview")
        return written, read

    def _carry(self, i: Instr, known: dict[Key, tuple[Operand, Any]]) -> list[Instr]:
        """Let a loop carry what it reads and writes at places that do not change; the stores that come behind it."""
        block, after = i.blocks[0], list[Instr]()
        local = {*block.params, *(r for x in _walk(i) for r in x.results)}
        for root in {self.roots[x.operands[0]]: None for x in block.body if x.op == "store" and self._plain(x)}:
            every = [x for x in _walk(i) if x.op != "subview" and any(self.roots.get(o) is root for o in x.operands)]
            if not all(x in block.body and x.op in ("load", "store") and self._plain(x) and local.isdisjoint(_places(x)) for x in every):
                continue
            groups: dict[Key, list[Instr]] = {}
            for x in every:
                groups.setdefault(_key(x), []).append(x)
            keys = list(groups)
            if not all(_apart(a, b) for n, a in enumerate(keys) for b in keys[:n]) or not all(
                    known.get(k, (0, 0))[1] is None and (not k[3][0] or all(self._stays_inside(x, k) for x in v if x.op == "load"))
                    for k, v in groups.items()):
                continue
            for key, group in groups.items():
                if all(x.op == "load" for x in group):
                    self.same.update((x.results[0], known[key][0]) for x in group)
                    block.body = [x for x in block.body if x not in group]
                    continue
                value: Operand = Var(key[4], "kept")
                block.params.append(value)  # type: ignore[arg-type]
                i.operands.append(known[key][0])
                for x in group:
                    if x.op == "load":
                        self.same[x.results[0]] = value
                    else:
                        value, last = self.use(x.operands[-1]), x
                    block.body.remove(x)
                block.yields.append(value)
                i.results.append(Var(key[4], "kept"))
                after.append(Instr("store", [*last.operands[:-1], i.results[-1]], dict(last.attrs)))
                self.count += 1
        if after:  # uses of loads that are gone
            for x in _walk(i):
                x.operands = [self.use(o) for o in x.operands]
                for b in x.blocks:
                    b.yields = [self.use(y) for y in b.yields]
            block.yields = [self.use(y) for y in block.yields]
        return after


def _walk(i: Instr) -> Iterator[Instr]:
    for b in i.blocks:
        for x in b.body:
            yield x
            yield from _walk(x)


def _places(i: Instr) -> list[Operand]:
    return i.operands[:-1] if i.op == "store" else i.operands


def _key(i: Instr) -> Key:
    """View, place, tile axes and limits, and the tile's type of a load or store."""
    n = len(i.operands) - (i.op == "store")
    first = limit_start(i) if i.attrs.get("limits") else n
    t = i.results[0].type if i.op == "load" else i.operands[-1].type  # type: ignore[union-attr]
    return i.operands[0], tuple(i.operands[1:first]), i.attrs["axes"], (i.attrs.get("limits"), tuple(i.operands[first:n])), t


def _apart(a: Key, b: Key) -> bool:
    """Whether two accesses of one view touch different elements: along some axis both start at literals that are apart."""
    if a[0] is not b[0]:
        return False
    for axis, (x, y) in enumerate(zip(a[1], b[1], strict=True)):
        if isinstance(x, int) and isinstance(y, int):
            first, low = (a, min(x, y)) if x <= y else (b, min(x, y))
            side = first[4].shape[first[2].index(axis)] if axis in first[2] else 1
            if low + side <= max(x, y):
                return True
    return False
