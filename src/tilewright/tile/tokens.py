"""Tokens: the order between memory operations.

A memory operation happens after the tokens it takes and may give one itself; two accesses with no token path are unordered. `alloc`
gives the first token of its scratch, `join` merges tokens, `for` and `if` pass tokens through like carried values. Tokens are fields
of `Instr`, apart from operands and results: within one program a CPU's order is program order, so its emitter ignores them.

`thread` makes the tokens (the builder calls it), `drop_dead` removes what orders nothing, `check` rejects cycles and tokens used before
they exist. Where a GPU needs block barriers for the order that tokens ask for is derived in `barriers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core.errors import VerifyError
from .ir import TOKEN, Block, Instr, Kernel, Var, ViewType
from .text import instr_text

ACCESS = frozenset(("load", "store", "atomic", "gather", "scatter", "tile_dot"))


def scratch_roots(kernel: Kernel) -> dict[Var, Var]:
    """For every view of scratch memory (space local or shared) the `alloc` result it belongs to."""
    roots: dict[Var, Var] = {}

    def visit(block: Block) -> None:
        for i in block.body:
            if i.op == "alloc":
                roots[i.results[0]] = i.results[0]
            elif i.op == "subview":
                root = roots.get(i.operands[0])  # type: ignore[arg-type]
                if root is not None:
                    roots[i.results[0]] = root
            elif i.blocks:
                inner = i.blocks[0]
                views = [
                    (init, p, r, n)
                    for n, (init, p, r) in enumerate(zip(i.operands[2:], inner.params[1:], i.results, strict=False))
                    if isinstance(p.type, ViewType) and init in roots
                ]
                for init, p, r, _ in views:
                    roots[p] = roots[r] = roots[init]
                for b in i.blocks:
                    visit(b)
                for init, _, _, n in views:
                    if roots.get(inner.yields[n]) is not roots[init]:  # type: ignore[arg-type]
                        raise VerifyError(
                            f"kernel {kernel.name}: for: a carried view of scratch must stay in its allocation"
                            f" (in `{instr_text(kernel, i)}`)"
                        )

    visit(kernel.body)
    return roots


def thread(kernel: Kernel) -> None:
    """Chain all accesses to each scratch allocation, in program order, through loops and branches too. Tokens given by hand stay."""
    if not any(i.op == "alloc" for i in kernel.walk()):
        return
    roots = scratch_roots(kernel)
    fresh = _fresh(kernel)

    def accessed(block: Block) -> dict[Var, None]:
        """Roots accessed in a block, in order of first access."""
        found: dict[Var, None] = {}
        for i in block.body:
            if i.op in ACCESS:
                root = roots.get(i.operands[0])  # type: ignore[arg-type]
                if root is not None:
                    found[root] = None
            for b in i.blocks:
                found.update(accessed(b))
        return found

    def visit(block: Block, last: dict[Var, Var]) -> None:
        for i in block.body:
            if i.op == "alloc":
                i.tokens_out = i.tokens_out or (next(fresh),)
                last[i.results[0]] = i.tokens_out[0]
            elif i.op in ACCESS:
                root = roots.get(i.operands[0])  # type: ignore[arg-type]
                if root is None:
                    continue
                i.tokens = tuple(dict.fromkeys((*i.tokens, last[root])))
                i.tokens_out = i.tokens_out or (next(fresh),)
                last[root] = i.tokens_out[0]
            elif i.blocks:
                inner = i.blocks[0]
                for root in accessed(inner):
                    if root not in last:
                        continue  # allocated inside: its chain starts there
                    param, out = next(fresh), next(fresh)
                    i.tokens += (last[root],)
                    inner.token_params += (param,)
                    last[root] = param
                    i.tokens_out += (out,)
                entered = dict(last)
                visit(inner, entered)
                n = len(inner.token_yields)
                carried = [root for root in accessed(inner) if root in last]
                assert len(carried) == len(i.tokens_out) - n
                inner.token_yields += tuple(entered[root] for root in carried)
                for root, out in zip(carried, i.tokens_out[n:], strict=True):
                    last[root] = out

    visit(kernel.body, {})
    drop_dead(kernel)


def _fresh(kernel: Kernel) -> Iterator[Var]:
    n = 0
    while True:
        yield Var(TOKEN, f"t{n}")
        n += 1


def strip(kernel: Kernel) -> None:
    """Remove every token (and `join`)."""

    def visit(block: Block) -> None:
        block.token_params = block.token_yields = ()
        block.body = [i for i in block.body if i.op != "join"]
        for i in block.body:
            i.tokens = i.tokens_out = ()
            for b in i.blocks:
                visit(b)

    visit(kernel.body)


def drop_dead(kernel: Kernel) -> int:
    """Remove tokens that order nothing: what no memory operation takes, directly or through joins, loops and branches. Returns how many."""
    makers: dict[Var, tuple[Instr, int]] = {}
    work: list[Var] = []
    for i in kernel.walk():
        for n, t in enumerate(i.tokens_out):
            makers[t] = (i, n)
        for b in i.blocks:
            for n, t in enumerate(b.token_params):
                makers[t] = (i, n)
        if i.op in ACCESS:
            work += i.tokens
    live: set[Var] = set()
    while work:
        t = work.pop()
        if t in live:
            continue
        live.add(t)
        maker = makers.get(t)
        if maker is None:
            continue
        i, n = maker
        if i.op == "join":
            work += i.tokens
        elif i.blocks:
            work += [i.tokens[n], *(b.token_yields[n] for b in i.blocks)]
    return _keep(kernel.body, live)


def _keep(block: Block, live: set[Var]) -> int:
    dropped = 0
    body: list[Instr] = []
    for i in block.body:
        if i.blocks:
            positions = [n for n, t in enumerate(i.tokens_out) if t in live or any(b.token_params[n] in live for b in i.blocks)]
            if len(positions) != len(i.tokens_out):
                dropped += len(i.tokens_out) - len(positions)
                i.tokens, i.tokens_out = tuple(i.tokens[n] for n in positions), tuple(i.tokens_out[n] for n in positions)
                for b in i.blocks:
                    b.token_params, b.token_yields = (
                        tuple(b.token_params[n] for n in positions),
                        tuple(b.token_yields[n] for n in positions),
                    )
            for b in i.blocks:
                dropped += _keep(b, live)
        elif i.tokens_out and i.tokens_out[0] not in live:
            dropped += 1
            i.tokens_out = ()
            if i.op == "join":
                continue
        body.append(i)
    block.body = body
    return dropped


def check(kernel: Kernel) -> None:
    """Raise VerifyError when a token is used where it does not exist yet; a cycle is printed."""
    makers: dict[Var, tuple[Instr, tuple[Var, ...]]] = {}
    early: list[tuple[Instr, Var]] = []
    defined: set[Var] = set()

    def visit(block: Block) -> None:
        for i in block.body:
            if i.tokens or i.tokens_out:
                early.extend((i, t) for t in i.tokens if t not in defined)
            for b in i.blocks:
                defined.update(b.token_params)
                for t, init in zip(b.token_params, i.tokens, strict=True):
                    makers[t] = (i, (init,))
                visit(b)
                early.extend((i, t) for t in b.token_yields if t not in defined)
                defined.difference_update(b.token_params)
                for inner in b.body:
                    defined.difference_update(inner.tokens_out)
            for n, t in enumerate(i.tokens_out):
                makers[t] = (i, (i.tokens[n], *(b.token_yields[n] for b in i.blocks)) if i.blocks else i.tokens)
            defined.update(i.tokens_out)

    visit(kernel.body)
    if not early:
        return
    cycle = _cycle(makers)
    if cycle:
        shown = " -> ".join(f"`{instr_text(kernel, makers[t][0])}`" for t in [*cycle, cycle[0]])
        raise VerifyError(f"kernel {kernel.name}: tokens form a cycle: {shown}")
    instr, token = early[0]
    raise VerifyError(f"kernel {kernel.name}: {instr.op}: uses token {token.name} before its definition (in `{instr_text(kernel, instr)}`)")


def _cycle(makers: dict[Var, tuple[Instr, tuple[Var, ...]]]) -> list[Var] | None:
    """A cycle in `token -> the tokens its maker waits for`, in order of happening."""
    done: set[Var] = set()
    for start in makers:
        path: list[Var] = []
        on_path: set[Var] = set()
        stack: list[tuple[Var, Iterator[Var]]] = []
        if start not in done:
            stack.append((start, iter(makers[start][1])))
            path.append(start)
            on_path.add(start)
        while stack:
            token, rest = stack[-1]
            for nxt in rest:
                if nxt in on_path:
                    return path[path.index(nxt) :][::-1]
                if nxt not in done and nxt in makers:
                    stack.append((nxt, iter(makers[nxt][1])))
                    path.append(nxt)
                    on_path.add(nxt)
                    break
            else:
                stack.pop()
                done.add(token)
                on_path.discard(path.pop())
    return None
