"""Loop unrolling."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Block, Instr, Kernel, Operand, Var
from .base import Cloner, Emitter, Parts, TilePass, exchange, size


@dataclass(frozen=True)
class UnrollLoops(TilePass):
    """Before: any kernel.  After: no loop has the attribute `unroll`. A loop with `unroll=u` and a literal trip count of at most u is
    straight code; any other becomes a main loop of u copies and a remainder loop. Order of iterations and bits stay the same. A body
    that would grow over `max_size` instructions stays rolled."""

    name = "unroll"
    max_size: int = 4096

    def run(self, kernel: Kernel) -> int:
        return exchange(kernel.body, self._unrolled)

    def _unrolled(self, i: Instr) -> Parts | None:
        if i.op != "for" or "unroll" not in i.attrs:
            return None
        factor = i.attrs["unroll"]
        i.attrs = {k: v for k, v in i.attrs.items() if k != "unroll"}
        if factor < 1 or size(i.blocks[0]) * factor > self.max_size:
            return [i], {}
        return _full(i, factor) or _partial(i, factor)


def _iteration(block: Block, index: Operand, carried: list[Operand], tokens: list[Var]) -> tuple[list[Instr], list[Operand], list[Var]]:
    clone = Cloner(
        {block.params[0]: index, **dict(zip(block.params[1:], carried, strict=True)), **dict(zip(block.token_params, tokens, strict=True))}
    )
    return clone.body(block), [clone.use(y) for y in block.yields], [clone.token(t) for t in block.token_yields]


def _full(i: Instr, factor: int) -> tuple[list[Instr], dict[Var, Operand]] | None:
    start, stop, *carried = i.operands
    if not isinstance(start, int) or not isinstance(stop, int):
        return None
    trips = range(start, stop, i.attrs["step"])
    if len(trips) > factor:
        return None
    out: list[Instr] = []
    tokens = list(i.tokens)
    for n in trips:
        part, carried, tokens = _iteration(i.blocks[0], n, carried, tokens)
        out += part
    return out, {**dict(zip(i.results, carried, strict=True)), **dict(zip(i.tokens_out, tokens, strict=True))}


def _partial(i: Instr, factor: int) -> tuple[list[Instr], dict[Var, Operand]]:
    if factor == 1:
        return [i], {}
    e = Emitter()
    block, step, (start, stop, *carried) = i.blocks[0], i.attrs["step"], i.operands
    length = e.index("max", e.index("sub", stop, start), 0)
    whole = e.index("floordiv", e.ceildiv(length, step), factor)  # main iterations
    middle = e.index("add", start, e.index("mul", whole, factor * step))
    counter = Var(block.params[0].type, "i")
    main = Block(
        [counter, *(Var(p.type, p.name) for p in block.params[1:])], token_params=tuple(Var(t.type, t.name) for t in block.token_params)
    )
    values, tokens = list[Operand](main.params[1:]), list(main.token_params)
    for n in range(factor):
        shift = Emitter()
        index = shift.index("add", counter, n * step)
        part, values, tokens = _iteration(block, index, values, tokens)
        main.body += [*shift.out, *part]
    main.yields, main.token_yields = values, tuple(tokens)
    between = [Var(r.type, r.name) for r in i.results]
    passed = tuple(Var(t.type, t.name) for t in i.tokens_out)
    attrs = {k: v for k, v in i.attrs.items() if k != "nonempty"}
    first = Instr("for", [start, middle, *carried], {**attrs, "step": factor * step}, list(between), [main], i.tokens, passed)
    i.operands, i.tokens = [middle, stop, *between], passed
    i.attrs.pop("nonempty", None)
    return [*e.out, first, i], {}
