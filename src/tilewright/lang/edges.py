"""Two versions of a program: tiles that lie inside their arrays are read and written without masks.

Whether all limits that are known at the start of a program take in whole tiles is asked once. The program's instructions then stand twice,
without those limits where the answer is yes. Limits that change inside a loop stay as they are.
"""
from __future__ import annotations

from ..core.dtypes import bool_
from ..tile.ir import Block, Instr, Kernel, Operand, TileType, Var
from ..tile.passes.base import Cloner, limit_start

_FIRST = frozenset(("alloc", "full", "iota"))


def split_edges(kernel: Kernel) -> None:
    """Rewrite the body in place, before its tokens are made."""
    head, rest = _head(kernel.body)
    known = {r for i in head for r in i.results} | {kernel.pid, *kernel.params}
    limits: dict[tuple[Var, int], None] = {}  # (limit, elements that a whole tile needs)
    full: set[tuple[Instr, int]] = set()

    def visit(block: Block | list[Instr]) -> None:
        for i in block.body if isinstance(block, Block) else block:
            if i.op in ("load", "store") and "limits" in i.attrs:
                tile = i.results[0].type if i.op == "load" else i.operands[-1].type  # type: ignore[union-attr]
                assert isinstance(tile, TileType)
                first = limit_start(i)
                for n, axis in enumerate(i.attrs["limits"]):
                    limit = i.operands[first + n]
                    if isinstance(limit, Var) and limit in known:
                        limits[limit, tile.shape[axis]] = None
                        full.add((i, axis))
            for b in i.blocks:
                visit(b)

    visit(rest)
    if not limits or any(i.op == "alloc" for b in rest for i in _walk(b)):
        return
    whole = _all_whole(list(limits), head)
    edge = Var(TileType((), bool_), "edge")
    inside = Block(body=Cloner({}, None, full).body(Block(body=rest)))
    tests = [Instr("not", [whole], {}, [edge]), Instr("if", [whole], {}, [], [inside]), Instr("if", [edge], {}, [], [Block(body=rest)])]
    kernel.body.body = [*head, *tests]


def _head(block: Block) -> tuple[list[Instr], list[Instr]]:
    """What can be computed before anything is read: index arithmetic and scratch memory; and the rest, in order."""
    head: list[Instr] = []
    rest: list[Instr] = []
    late: set[Var] = set()
    for i in block.body:
        pure = i.op in _FIRST or (i.op.startswith("index.") and not any(o in late for o in i.operands if isinstance(o, Var)))
        if pure:
            head.append(i)
        else:
            rest.append(i)
            late.update(i.results)
    return head, rest


def _walk(i: Instr) -> list[Instr]:
    return [i, *(x for b in i.blocks for inner in b.body for x in _walk(inner))]


def _all_whole(limits: list[tuple[Var, int]], head: list[Instr]) -> Var:
    found: Operand | None = None
    for n, (limit, need) in enumerate(limits):
        one = Var(TileType((), bool_), f"whole{n}")
        head.append(Instr("index.cmp", [limit, need], {"fn": "ge"}, [one]))
        if found is None:
            found = one
        else:
            both = Var(TileType((), bool_), f"wholes{n}")
            head.append(Instr("and", [found, one], {}, [both]))
            found = both
    assert isinstance(found, Var)
    return found
