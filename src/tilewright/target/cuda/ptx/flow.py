"""PTX text as a control-flow graph of instructions: what `barrier_safety` walks. Reads anybody's PTX, not only ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from ....core.errors import ParseError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_ENTRY = re.compile(r"\.(entry|func)\b")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_GUARD = re.compile(r"@(!?)\s*(%?[\w$]+)\s+")
_REGISTER = re.compile(r"%[A-Za-z_][\w$]*(?:\.[xyzw])?")
_NAME = re.compile(r"(?:\.(?:entry|func)\b)\s*(?:\([^)]*\)\s*)?([A-Za-z_$%][\w$]*)")
_WORD = re.compile(r"(?<![\w$.%])%?[A-Za-z_$][\w$]*")
_DECLARED = re.compile(r"(%?[A-Za-z_$][\w$]*)\s*(?:<\s*(\d+)\s*>)?\s*(?:\[\s*\d*\s*\])?\s*(?=,|$)")
_LEAVES = ("exit", "ret", "trap")
_SETS_NONE = ("st", "bra", "bar", "barrier", "exit", "ret", "red", "prefetch", "membar", "fence", "brx", "call", "cp", "wgmma", "nanosleep")


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

    @property
    def callee(self) -> str:
        """The function, or the register with its address, that a `call` goes to."""
        body = self.operands[self.operands.index(")") + 1 :].lstrip(" ,") if self.operands.startswith("(") else self.operands
        return body.split(",")[0].strip()

    def writes(self) -> list[str]:
        """Registers that the instruction sets. Stores, branches and barriers set none."""
        return self._writes

    def reads(self) -> list[str]:
        return self._reads

    @cached_property
    def _writes(self) -> list[str]:
        if self.stem in ("bar", "barrier"):
            return _REGISTER.findall(self.operands.split(",")[0]) if ".red" in self.opcode else []
        if self.stem == "call":
            return _REGISTER.findall(self.operands.split(")")[0]) if self.operands.startswith("(") else []
        if self.opcode.startswith("st.param"):
            return _REGISTER.findall(self.operands.split("]")[0])
        if self.stem in _SETS_NONE or self.operands.startswith("["):
            return []
        first = self.operands.split("}")[0] if self.operands.startswith("{") else self.operands.split(",")[0]
        return _REGISTER.findall(first)

    @cached_property
    def _reads(self) -> list[str]:
        found = _REGISTER.findall(self.operands)
        written = self.writes()
        return [self.guard, *found[len(written) :]] if self.guard else found[len(written) :]


@dataclass(eq=False)
class Function:
    """A kernel or function: instructions in order; successor `len(ops)` is the end."""

    name: str
    ops: list[Op]
    labels: dict[str, int]
    entry: bool = True  # a kernel: its parameters are the same for all threads
    threads: int = 0  # threads of a block, where the kernel says `.reqntid`
    takes: tuple[str, ...] = ()  # a function's parameters, as registers
    gives: tuple[str, ...] = ()  # its results
    cluster: tuple[int, ...] = ()  # blocks of a cluster on each axis, where the kernel says `.reqnctapercluster`

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
        found.append(_Reader(name[1], clean, start.start(), opening).function(entry=start[1] == "entry"))
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


class _Scope:
    """What is declared between two braces: labels, and registers and parameters under the names that they have here alone."""

    def __init__(self, number: int, outer: _Scope | None) -> None:
        self.number, self.outer = number, outer
        self.names: dict[str, str] = {}
        self.labels: dict[str, int] = {}
        self.tables: dict[str, list[str]] = {}

    def around(self) -> Iterator[_Scope]:
        scope: _Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def declare(self, names: str) -> None:
        """Registers with a % of the outermost scope keep their names."""
        for m in _DECLARED.finditer(names):
            for name in [m[1]] if m[2] is None else [f"{m[1]}{i}" for i in range(int(m[2]) if self.number or m[1][0] != "%" else 0)]:
                if self.number or name[0] != "%":
                    self.names[name] = f"%_{name.lstrip('%')}_{self.number}"

    def read(self, text: str) -> str:
        """A statement with the names that its registers have in the whole function."""
        scopes = [s for s in self.around() if s.names]
        return _WORD.sub(lambda m: next((s.names[m[0]] for s in scopes if m[0] in s.names), m[0]), text) if scopes else text


class _Reader:
    """One function's text -> its instructions."""

    def __init__(self, name: str, text: str, at: int, opening: int) -> None:
        self.name, self.text, self.opening = name, text, opening
        self.header = text[at : opening - 1]
        self.scopes = [_Scope(0, None)]

    def function(self, *, entry: bool) -> Function:
        top = scope = self.scopes[0]
        ops: list[Op] = []
        where: list[_Scope] = []
        gives: list[str] = []
        takes: list[str] = []
        for names in [] if entry else re.findall(r"\(([^)]*)\)", self.header):  # what it gives, then what it takes
            gives, takes = takes, []
            for part in filter(str.strip, names.split(",")):
                name = part.split()[-1]
                top.declare(name)
                takes.append(top.names.get(name.split("[")[0], name))
        for kind, value, line in self._statements():
            if kind == "open":
                scope = _Scope(len(self.scopes), scope)
                self.scopes.append(scope)
            elif kind == "close":
                scope = scope.outer or scope
            elif kind == "label":
                scope.labels[value] = len(ops)
            elif kind == "declared":
                scope.declare(value)
            elif kind == "table":
                label = next((n for n, i in reversed(scope.labels.items()) if i == len(ops)), "")
                scope.tables[label] = [x.strip() for x in value.split(",")]
            else:
                guard = _GUARD.match(value)
                opcode, *rest = (value[guard.end() :] if guard else value).split(None, 1)
                operands = scope.read(rest[0]).strip() if rest else ""
                ops.append(Op(line, " ".join(value.split()), opcode, operands, scope.read(guard[2]) if guard else ""))
                where.append(scope)
        labels = {(s.number, n): n if all(n not in o.labels for o in self.scopes[: s.number]) else f"{n}${s.number}"
                 for s in self.scopes for n in s.labels}  # fmt: skip
        places = {labels[s.number, n]: i for s in self.scopes for n, i in s.labels.items()}
        function = Function(self.name, ops, places, entry, 0, tuple(takes), tuple(gives))
        if (size := re.search(r"\.reqntid\s+(\d+)\s*(?:,\s*(\d+))?\s*(?:,\s*(\d+))?", self.header)) is not None:
            function.threads = int(size[1]) * int(size[2] or 1) * int(size[3] or 1)
        if (size := re.search(r"\.reqnctapercluster\s+(\d+)\s*(?:,\s*(\d+))?\s*(?:,\s*(\d+))?", self.header)) is not None:
            function.cluster = tuple(int(x or 1) for x in size.groups())
        for i, (op, here) in enumerate(zip(ops, where, strict=True)):
            op.next = self._successors(function, i, op, here, labels)
        return function

    def _statements(self) -> Iterator[tuple[str, str, int]]:
        """("label", "op", "declared", "table", "open" or "close", text, line) of the body."""
        text, at = self.text, self.opening
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
                yield "open" if c == "{" else "close", "", line
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
                body = text[at:stop]
                if c != ".":
                    yield "op", body, line
                elif (m := re.match(r"\.(?:reg|param)((?:\s*\.\w+(?:\s+\d+)?)+)\s", body)) is not None:
                    yield "declared", body[m.end() :], line
                elif body.startswith(".branchtargets"):
                    yield "table", body[len(".branchtargets") :], line
                at = stop + 1

    def _successors(self, f: Function, i: int, op: Op, scope: _Scope, names: dict[tuple[int, str], str]) -> list[int]:
        if op.stem == "bra":
            op.operands = self._label(op.operands, op, scope, names)
            return [f.labels[op.operands], i + 1] if op.guard else [f.labels[op.operands]]
        if op.stem == "brx":
            table = op.operands.split(",")[-1].strip()
            found = next((s.tables[table] for s in scope.around() if table in s.tables), None)
            ways = sorted({f.labels[self._label(x, op, scope, names)] for x in found} if found else set(f.labels.values()))
            return [*ways, i + 1] if op.guard else ways
        if op.leaves:
            return [f.end, i + 1] if op.guard else [f.end]
        return [i + 1]

    def _label(self, name: str, op: Op, scope: _Scope, names: dict[tuple[int, str], str]) -> str:
        """The label that a branch means: that of the innermost braces around it."""
        for s in (*scope.around(), *self.scopes):
            if name in s.labels:
                return names[s.number, name]
        raise ParseError(f"ptx: branch to unknown label {name!r} (line {op.line})")
