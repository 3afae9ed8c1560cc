"""The verifier: what makes a kernel well-formed. Every type is derived again from the operands (`rules.py`).

Checked: every use is dominated by its definition; only operations of the closed set, each with its own operand count, attributes,
shapes and dtypes; limits and axes in range; yields match carried values; an `if` asks a rank-0 bool; memory orderings and token
types (`tokens.check` adds the rules about the token graph). Errors name the instruction as the printer shows it.
"""

from __future__ import annotations

from ..core.errors import VerifyError
from . import tokens
from .ir import INDEX, SPACES, TOKEN, Block, Instr, Kernel, Operand, Type, Var, ViewType
from .rules import BOOL, MEMORY, RULES, Broken, broken, indices, need, only_attrs, operand_count, tile_type
from .text import instr_text


def verify(kernel: Kernel) -> None:
    """Raise VerifyError unless the kernel is well-formed."""
    _Verifier(kernel).run()


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.defined: set[Var] = set()  # in scope
        self.ever: set[Var] = set()
        self.current: Instr | None = None

    def run(self) -> None:
        k = self.kernel
        try:
            for p in k.params:
                if not isinstance(p.type, ViewType) and p.type != INDEX:
                    broken(f"a parameter is a view or an index, got {p!r}")
                if isinstance(p.type, ViewType) and p.type.space not in SPACES:
                    broken(f"space must be one of {' '.join(SPACES)}, got {p!r}")
                self.define(p)
            self.define(k.pid)
            self.block(k.body)
            self.current = None
            need(not k.body.yields and not k.body.token_yields and not k.body.params, "the body of a kernel takes and yields nothing")
        except Broken as bad:
            place = "" if self.current is None else f"{self.current.op}: "
            shown = "" if self.current is None else f" (in `{instr_text(k, self.current)}`)"
            raise VerifyError(f"kernel {k.name}: {place}{bad}{shown}") from None
        tokens.check(k)

    def define(self, var: Var) -> None:
        if var in self.ever:
            broken(f"%{var.name} is defined twice")
        self.defined.add(var)
        self.ever.add(var)

    def block(self, block: Block) -> None:
        defined, ever = self.defined, self.ever
        for instr in block.body:
            self.current = instr
            for o in instr.operands:
                if o.__class__ is Var and o not in defined:
                    broken(f"uses %{o.name} before its definition")
            if instr.tokens or instr.tokens_out:
                self.tokens(instr)
            rule = RULES.get(instr.op)
            if rule is None:
                self.control(instr)
            else:
                results = instr.results
                expected = rule(instr)
                if len(expected) != len(results) or instr.blocks:
                    broken(f"gives {len(expected)} results and owns no block, got {len(results)} results and {len(instr.blocks)} blocks")
                if results and expected[0] is not results[0].type and expected[0] != results[0].type:
                    broken(f"gives {expected[0]}, got {results[0].type}")
            for r in instr.results:
                if r in ever:
                    broken(f"%{r.name} is defined twice")
                defined.add(r)
                ever.add(r)
            defined.update(instr.tokens_out)

    def tokens(self, instr: Instr) -> None:
        for t in instr.tokens:
            need(t.type == TOKEN, f"%{t.name} is no token")
            # a token that is used before its definition may be a cycle: tokens.check prints it better than dominance can
        for t in instr.tokens_out:
            need(t.type == TOKEN and t not in self.defined, f"%{t.name} is no new token")
        if instr.op in MEMORY:
            need(len(instr.tokens_out) <= 1, "gives at most one token")
        elif instr.op == "alloc":
            need(not instr.tokens and len(instr.tokens_out) <= 1, "gives at most one token and takes none")
        elif instr.op not in ("join", "for", "if"):
            broken("is no memory operation and takes no token")

    def control(self, instr: Instr) -> None:
        if instr.op == "for":
            self.loop(instr)
        elif instr.op == "if":
            operand_count(instr, 1)
            only_attrs(instr)
            need(tile_type(instr.operands[0]) == BOOL, f"needs a rank-0 bool condition, got {instr.operands[0]!r}")
            need(len(instr.blocks) == 1 and not instr.results, "owns one block and gives nothing")
            block = instr.blocks[0]
            need(not block.params and not block.yields, "its block takes and yields nothing")
            self.inner(instr, block)
        else:
            broken(f"{instr.op!r} is not an operation of tile IR")

    def loop(self, instr: Instr) -> None:
        only_attrs(instr, "step", "unroll", "split", "nonempty")
        need(len(instr.operands) >= 2, "needs a start and a stop")
        indices(instr.operands[:2])
        step = instr.attrs.get("step", 1)
        need(isinstance(step, int) and step > 0, f"step must be a positive integer, got {step!r}")
        need(len(instr.blocks) == 1, "owns one block")
        block, carried = instr.blocks[0], instr.operands[2:]
        need(
            len(block.params) == 1 + len(carried) == 1 + len(instr.results),
            f"carries {len(carried)} values, got {len(block.params) - 1} block parameters and {len(instr.results)} results",
        )
        need(block.params[0].type == INDEX, "its counter is an index")
        for init, param, result in zip(carried, block.params[1:], instr.results, strict=True):
            need(
                param.type == result.type and self.fits(init, param.type),
                f"carried types differ: starts as {init!r}, is {param!r} inside, {result!r} after",
            )
        for p in block.params:
            self.define(p)
        self.inner(instr, block)
        need(len(block.yields) == len(carried), f"carries {len(carried)} values, yields {len(block.yields)}")
        for y, param in zip(block.yields, block.params[1:], strict=True):
            need(y.__class__ is int or y in self.defined, f"yields {y!r} before its definition")
            need(self.fits(y, param.type), f"yields {y!r} for the carried {param!r}")
        self.leave(block)

    @staticmethod
    def fits(x: Operand, t: Type) -> bool:
        return t == INDEX if not isinstance(x, Var) else x.type == t

    def inner(self, instr: Instr, block: Block) -> None:
        n = len(instr.tokens)
        need(
            n == len(instr.tokens_out) == len(block.token_params) == len(block.token_yields),
            f"takes {n} tokens, got {len(block.token_params)} token parameters, {len(block.token_yields)} token yields"
            f" and {len(instr.tokens_out)} tokens out",
        )
        for t in block.token_params:
            need(t.type == TOKEN, f"%{t.name} is no token")
            self.define(t)
        self.block(block)
        self.current = instr
        for t in block.token_yields:
            need(t.type == TOKEN, f"%{t.name} is no token")
        if instr.op == "if":
            self.leave(block)

    def leave(self, block: Block) -> None:
        """Values of a block end with it."""
        remove = self.defined.difference_update
        remove(block.params)
        for i in block.body:
            remove(i.results)
