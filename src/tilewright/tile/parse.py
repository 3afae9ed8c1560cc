"""Kernels from text: reads what `text.to_text` writes. Errors show the line with a caret.

The parser checks names and syntax; whether the kernel makes sense is the verifier's business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from ..core import dtypes
from ..core.errors import ParseError
from .ir import INDEX, SPACES, TOKEN, Block, Instr, Kernel, Operand, TileType, Type, Var, ViewType

_T = TypeVar("_T")
_SPACE = re.compile(r"[ \t]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_VALUE = re.compile(r"%[A-Za-z0-9_.]+")
_TOKEN = re.compile(r"![0-9]+")
_INT = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?(?:inf|nan|[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_TILE = re.compile(r"tile<((?:[0-9]+x)*)([a-z0-9]+)>")
_VIEW = re.compile(r"view<([a-z0-9]+)\[([-0-9?,]*)\] ([a-z]+)>")
_WORDS = {"true": True, "false": False, "none": None, "inf": float("inf"), "nan": float("nan")}


def parse(text: str) -> Kernel:
    """The kernel whose `to_text` is `text`."""
    return _Parser(text).kernel()


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.row = -1
        self.line, self.pos = "", 0
        self.values: dict[str, Var] = {}
        self.types: dict[str, Type] = {"index": INDEX, "token": TOKEN}

    # --- scanning -----------------------------------------------------------------------------------------------------
    def next_line(self) -> None:
        """Go to the next line that is not empty or a comment."""
        while True:
            self.row += 1
            if self.row >= len(self.lines):
                self.row, self.line = len(self.lines) - 1, self.lines[-1]
                self.pos = len(self.line)
                self.fail("the text ends inside a kernel")
            self.line = self.lines[self.row]
            self.skip_to(0)
            if self.pos < len(self.line) and not self.line.startswith("//", self.pos):
                return

    def skip_to(self, pos: int) -> None:
        match = _SPACE.match(self.line, pos)
        assert match is not None
        self.pos = match.end()

    def fail(self, what: str, pos: int | None = None) -> NoReturn:
        at = self.pos if pos is None else pos
        raise ParseError(f"tile: line {self.row + 1}: {what}\n  {self.line}\n  {' ' * at}^")

    def take(self, symbol: str) -> bool:
        if self.line.startswith(symbol, self.pos):
            self.skip_to(self.pos + len(symbol))
            return True
        return False

    def expect(self, symbol: str) -> None:
        if not self.take(symbol):
            self.fail(f"expected '{symbol}'")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self.line, self.pos)
        if found is None:
            self.fail(f"expected {what}")
        self.skip_to(found.end())
        return found.group()

    def end(self) -> None:
        if self.pos != len(self.line):
            self.fail("expected the end of the line")

    def list_of(self, item: Callable[[], _T]) -> list[_T]:
        out = [item()]
        while self.take(","):
            out.append(item())
        return out

    # --- pieces -------------------------------------------------------------------------------------------------------
    def type(self) -> Type:
        for pattern in (_TILE, _VIEW, _WORD):
            found = pattern.match(self.line, self.pos)
            if found is not None:
                break
        else:
            self.fail("expected a type")
        text = found.group()
        known = self.types.get(text)
        if known is None:
            try:
                if pattern is _TILE:
                    known = TileType(tuple(int(d) for d in found.group(1).split("x")[:-1]), dtypes.dtype(found.group(2)))
                elif pattern is _VIEW:
                    strides = tuple(None if s == "?" else int(s) for s in found.group(2).split(",")) if found.group(2) else ()
                    known = ViewType(dtypes.dtype(found.group(1)), strides, found.group(3))
                    if found.group(3) not in SPACES:
                        self.fail(f"expected a memory space ({' '.join(SPACES)})", found.start(3))
            except ValueError:
                self.fail("expected strides like [?,1]")
            except ParseError as error:
                if str(error).startswith("dtype:"):
                    self.fail(str(error))
                raise
            if known is None:
                self.fail("expected a type: index, token, tile<…> or view<…>")
            self.types[text] = known
        self.skip_to(found.end())
        return known

    def define(self, name: str, type_: Type) -> Var:
        if name in self.values:
            self.fail(f"{name} is defined twice", self.line.find(name))
        var = self.values[name] = Var(type_, name[1:])
        return var

    def typed(self) -> Var:
        name = self.match(_VALUE, "a value like %x")
        self.expect(":")
        return self.define(name, self.type())

    def use(self, pattern: re.Pattern[str], what: str) -> Var:
        start = self.pos
        name = self.match(pattern, what)
        var = self.values.get(name)
        if var is None:
            self.fail(f"{name} is not defined here", start)
        return var

    def operand(self) -> Operand:
        return (
            self.use(_VALUE, "a value like %x or an integer")
            if self.line.startswith("%", self.pos)
            else int(self.match(_INT, "a value like %x or an integer"))
        )

    def token(self) -> Var:
        return self.use(_TOKEN, "a token like !0")

    def new_token(self) -> Var:
        return self.define(self.match(_TOKEN, "a token like !0"), TOKEN)

    def attr(self) -> Any:
        if self.take("("):
            items = []
            while not self.take(")"):
                items.append(self.attr())
                if not self.take(","):
                    self.expect(")")
                    break
            return tuple(items)
        if self.line.startswith('"', self.pos):
            return json.loads(self.match(_STRING, "a string"))
        start = self.pos
        if self.line[start : start + 1].isalpha():
            word = self.match(_WORD, "a value")
            if word in _WORDS:
                return _WORDS[word]
            try:
                return dtypes.dtype(word)
            except ParseError:
                self.fail("expected a number, a string, a dtype, a tuple, true, false or none", start)
        number = self.match(_NUMBER, "a number, a string, a dtype, a tuple, true, false or none")
        return int(number) if _INT.fullmatch(number) else float(number)

    def attrs(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        self.expect("{")
        while not self.take("}"):
            name = self.match(_WORD, "an attribute name")
            self.expect("=")
            out[name] = self.attr()
            if not self.take(","):
                self.expect("}")
                break
        return out

    # --- structure ----------------------------------------------------------------------------------------------------
    def kernel(self) -> Kernel:
        self.next_line()
        self.expect("kernel")
        self.expect("@")
        kernel = Kernel(self.match(_WORD, "a kernel name"))
        self.expect("(")
        if not self.take(")"):
            kernel.params = self.list_of(self.typed)
            self.expect(")")
        self.expect("pid")
        kernel.pid = self.define(self.match(_VALUE, "a value like %pid"), INDEX)
        self.expect("{")
        self.end()
        kernel.body = Block()
        self.next_line()
        self.body(kernel.body)
        self.expect("}")
        self.end()
        for row in range(self.row + 1, len(self.lines)):
            self.row, self.line, self.pos = row, self.lines[row], 0
            if self.line.strip() and not self.line.strip().startswith("//"):
                self.fail("expected the end of the text after the kernel")
        return kernel

    def body(self, block: Block) -> None:
        """Instructions up to a line that starts with `}` or `^`."""
        while not self.line.startswith(("}", "^"), self.pos):
            if self.take("yield"):
                if self.pos < len(self.line) and not self.line.startswith(";", self.pos):
                    block.yields = self.list_of(self.operand)
                if self.take(";"):
                    block.token_yields = tuple(self.list_of(self.token))
                self.end()
                self.next_line()
                if not self.line.startswith(("}", "^"), self.pos):
                    self.fail("expected '}' after yield")
                break
            block.body.append(self.instr())
            self.next_line()

    def instr(self) -> Instr:
        names: list[str] = []
        start = self.pos
        if self.line.startswith("%", self.pos):
            names = self.list_of(lambda: self.match(_VALUE, "a value like %x"))
            self.expect("=")
        instr = Instr(self.match(_WORD, "an operation"), [])
        if self.line.startswith(("%", "-", *"0123456789"), self.pos) and not self.line.startswith("->", self.pos):
            instr.operands = self.list_of(self.operand)
        braces = self.line.startswith("{", self.pos) and self.line.rstrip() != self.line[: self.pos + 1]
        if braces:
            instr.attrs = self.attrs()
        if self.take("after"):
            instr.tokens = tuple(self.list_of(self.token))
        leaving: list[str] = []
        if self.take("->"):
            leaving = self.list_of(lambda: self.match(_TOKEN, "a token like !0"))
        types = self.list_of(self.type) if self.take(":") else []
        if len(types) != len(names):
            self.fail(f"{len(names)} results need as many types, got {len(types)}", start)
        opens = self.take("{")
        self.end()
        if opens:
            self.next_line()
            self.blocks(instr)
        instr.results = [self.define(n, t) for n, t in zip(names, types, strict=True)]
        instr.tokens_out = tuple(self.define(n, TOKEN) for n in leaving)
        return instr

    def blocks(self, instr: Instr) -> None:
        while self.take("^"):
            outer = dict(self.values)
            block = Block()
            self.expect("(")
            if not self.take(")"):
                if not self.line.startswith(";", self.pos):
                    block.params = self.list_of(self.typed)
                if self.take(";"):
                    block.token_params = tuple(self.list_of(self.new_token))
                self.expect(")")
            self.end()
            instr.blocks.append(block)
            self.next_line()
            self.body(block)
            self.values = outer
        self.expect("}")
        self.end()
