"""PTX text as a control-flow graph of instructions: what `barrier_safety` walks. Reads anybody's PTX, not only ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from ...core.errors import ParseError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_ENTRY = re.compile(r"\.(?:entry|func)\b")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_GUARD = re.compile(r"@(!?)\s*(%[\w$]+)\s+")
_REGISTER = re.compile(r"%[A-Za-z_][\w$]*(?:\.[xyzw])?")
_NAME = re.compile(r"(?:\.(?:entry|func)\b)\s*(?:\([^)]*\)\s*)?([A-Za-z_$%][\w$]*)")
_LEAVES = ("exit", "ret", "trap")


@dataclass(eq=False)
class Op:
    """One instruction: opcode with its modifiers, guard, and operand text."""

    line: int
    text: str
    opcode: str
    operands: str
    guard: str = ""  # register of the predicate, without its sign
    next: list[int] = field(default_factory=list)

    @cached_property
    def stem(self) -> str:
        return self.opcode.split(".")[0]

    @property
    def uniform(self) -> bool:
        """`bra.uni`: the author says that all threads of the block go the same way."""
        return ".uni" in self.opcode

    @property
    def leaves(self) -> bool:
        return self.stem in _LEAVES

    def writes(self) -> list[str]:
        """Registers that the instruction sets. Stores, branches and barriers set none."""
        if self.stem in ("st", "bra", "bar", "barrier", "exit", "ret", "red", "prefetch", "membar", "fence", "brx", "call", "cp", "wgmma"):
            return _REGISTER.findall(self.operands.split(",")[0]) if self.opcode.startswith(("bar.red", "barrier.red")) else []
        first = self.operands.split("}")[0] if self.operands.startswith("{") else self.operands.split(",")[0]
        return _REGISTER.findall(first)

    def reads(self) -> list[str]:
        found = _REGISTER.findall(self.operands)
        written = self.writes()
        return [self.guard, *found[len(written) :]] if self.guard else found[len(written) :]


@dataclass(eq=False)
class Function:
    """A kernel or function: instructions in order; successor `len(ops)` is the end."""

    name: str
    ops: list[Op]
    labels: dict[str, int]

    @property
    def end(self) -> int:
        return len(self.ops)


@lru_cache(maxsize=4)  # several analyses read one text
def parse(text: str) -> list[Function]:
    """Every function with a body, in order."""
    clean = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    found = []
    for start in _ENTRY.finditer(clean):
        name = _NAME.match(clean, start.start())
        opening = _body(clean, start.end())
        if opening is None or name is None:
            continue  # a declaration
        found.append(_function(name[1], clean, opening))
    return found


def _body(text: str, at: int) -> int | None:
    """Position after the `{` that opens the body; None for a prototype."""
    depth = 0
    for i in range(at, len(text)):
        c = text[i]
        depth += (c == "(") - (c == ")")
        if depth == 0 and c == ";":
            return None
        if depth == 0 and c == "{":
            return i + 1
    return None


def _function(name: str, text: str, at: int) -> Function:
    ops: list[Op] = []
    labels: dict[str, int] = {}
    for kind, value, line in _statements(text, at):
        if kind == "label":
            labels[value] = len(ops)
        else:
            guard = _GUARD.match(value)
            body = value[guard.end() :] if guard else value
            opcode, _, operands = body.partition(" ")
            ops.append(Op(line, " ".join(value.split()), opcode, operands.strip(), guard[2] if guard else ""))
    function = Function(name, ops, labels)
    for i, op in enumerate(ops):
        op.next = _successors(function, i, op)
    return function


def _statements(text: str, at: int) -> Iterator[tuple[str, str, int]]:
    """("label" or "op", text, line) of a body, nested scopes flattened."""
    depth, n = 1, len(text)
    line, counted = 1, 0
    while at < n:
        line, counted = line + text.count("\n", counted, at), at
        c = text[at]
        if c.isspace() or c == ";":
            at += 1
        elif c in "{}":
            depth += 1 if c == "{" else -1
            at += 1
            if depth == 0:
                return
        elif (m := _LABEL.match(text, at)) is not None:
            yield "label", m[1], line
            at = m.end()
        elif text.startswith((".loc", ".file"), at):
            stop = text.find("\n", at)
            at = n if stop < 0 else stop
        else:
            stop = text.find(";", at)
            if stop < 0:
                raise ParseError(f"ptx: statement without an end (line {line})")
            if c != ".":
                yield "op", text[at:stop], line
            at = stop + 1


def _successors(f: Function, i: int, op: Op) -> list[int]:
    if op.stem == "bra":
        target = op.operands.strip()
        if target not in f.labels:
            raise ParseError(f"ptx: branch to unknown label {target!r} (line {op.line})")
        return [f.labels[target], i + 1] if op.guard else [f.labels[target]]
    if op.stem == "brx":  # the table may name any label
        return sorted(set(f.labels.values()))
    if op.leaves:
        return [f.end, i + 1] if op.guard else [f.end]
    return [i + 1]
