"""Reads what `to_text` prints. Every node's declared type is checked against its op's type rule."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..core.dims import UNBOUNDED, Dim, Expr, floordiv, maximum, minimum, readable, sym
from ..core.dtypes import ALL
from ..core.errors import STRANGE, ParseError
from .graph import Graph, Value
from .types import TensorType

if TYPE_CHECKING:
    from ..ops.structure import ConstantData

Hint = Any
_HINTS: dict[Any, dict[str, Hint]] = {}


def check_attributes(op: Any) -> None:
    """ParseError unless every attribute has its declared type. An integer is taken for a float, true and false for numbers."""
    kind: Any = type(op)
    hints = _HINTS.get(kind)
    if hints is None:
        hints = _HINTS[kind] = typing.get_type_hints(kind)
    for f in dataclasses.fields(op):
        value = getattr(op, f.name)
        if not _fits(value, hints[f.name]):
            raise ParseError(f"{op.name}: attribute {f.name} must be {_shown(hints[f.name])}, got {value!r:.60}")


def _fits(value: Any, hint: Hint) -> bool:
    origin: Any = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, h) for h in typing.get_args(hint))
    if origin is tuple:
        inner = typing.get_args(hint)
        if not isinstance(value, tuple):
            return False
        if inner[-1:] == (...,):
            return all(_fits(v, inner[0]) for v in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, (float, int))
    if hint in (int, bool):
        return isinstance(value, int) and readable(value) == value
    return isinstance(value, hint)


def _shown(hint: Hint) -> str:
    return hint.__name__ if isinstance(hint, type) and typing.get_origin(hint) is None else str(hint).replace("tilewright.core.dims.", "")


TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<ref>[%@](?:[A-Za-z0-9_.]+|"(?:[^"\\]|\\.)*"))
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<number>\d+(?:\.\d+(?!\.))?(?:[eE][+-]?\d+)?(?![A-Za-z_]))
      | (?P<word>[A-Za-z0-9_][A-Za-z0-9_.]*)
      | (?P<mark>\.\.|//|[()\[\]{},:=*+-])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int


def tokens(text: str) -> Iterator[Token]:
    """Every word of the text, with `end` tokens after the last."""
    at, line = 0, 1
    while at < len(text):
        m = TOKEN.match(text, at)
        if m is None:
            raise ParseError(f"graph text: cannot read {text[at : at + 20]!r} (line {line})")
        kind, word = str(m.lastgroup), m.group()
        if kind != "space":
            yield Token(kind, word, line)
        line += word.count("\n")
        at = m.end()
    while True:
        yield Token("end", "the end", line)


class Cursor:
    """Where a parser stands in a text. Words are read as they are asked for: a text may be long, and wrong at its beginning."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self.now = next(self._tokens)

    def next(self) -> Token:
        token, self.now = self.now, next(self._tokens)
        return token

    def sees(self, text: str) -> bool:
        return self.now.text == text and self.now.kind in ("mark", "word")

    def accept(self, text: str) -> bool:
        if not self.sees(text):
            return False
        self.next()
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r}")

    def take(self, kind: str, what: str) -> str:
        if self.now.kind != kind:
            self.fail(f"expected {what}")
        return self.next().text

    def fail(self, rule: str) -> NoReturn:
        raise ParseError(f"graph text: {rule}, got {self.now.text!r:.60} (line {self.now.line})")


def unquote(name: str) -> str:
    """A name without its quotes, if it has them."""
    return str(json.loads(name)) if name.startswith('"') else name


DTYPES = {d.name: d for d in ALL}
WORDS: dict[str, Any] = {"True": True, "False": False, "None": None, "inf": float("inf"), "nan": float("nan")}


def parse(text: str, constants: Mapping[str, Any] | None = None, *, trusted: bool = True) -> Graph:
    """The graph that `text` describes; `constants` holds an array (or ConstantData) for each `@name`. Only a `trusted` text names kernels
    of users that are then compiled."""
    reader = _Reader(text, constants or {}, trusted)
    try:
        graph = reader.graph({})
    except STRANGE as e:
        raise ParseError(f"graph text: cannot be read: {type(e).__name__} {str(e)[:100]} (line {reader.at.now.line})") from e
    if reader.at.now.kind != "end":
        reader.at.fail("expected the end of the text")
    return graph


class _Reader:
    def __init__(self, text: str, constants: Mapping[str, Any], trusted: bool) -> None:
        self.at = Cursor(text)
        self.constants, self.trusted = constants, trusted
        self.shared: dict[str, ConstantData] = {}

    def graph(self, known: Mapping[str, Expr]) -> Graph:
        at = self.at
        at.expect("graph")
        graph = Graph(unquote(at.next().text))
        own, called = self.symbols()
        known = {**known, **own}
        graph.call_symbols = tuple(s for name in called for s in own[name].symbols)
        at.expect("(")
        inputs = self.inputs(graph)
        at.expect("{")
        values: dict[str, Value] = {}
        while not at.accept("return"):
            self.node(graph, values, known)
        outputs = self.names("}")
        graph.inputs, graph.outputs = ([self.lookup(values, n) for n in names] for names in (inputs, outputs))
        return graph

    def inputs(self, graph: Graph) -> list[str]:
        """`%a, %b to 1)`: names, and which of them are donated to which output."""
        out: list[str] = []
        while not self.at.accept(")"):
            out.append(self.reference("%"))
            if self.at.accept("to"):
                graph.donated[len(out) - 1] = int(self.at.take("number", "the number of an output"))
            if not self.at.sees(")"):
                self.at.expect(",")
        return out

    def symbols(self) -> tuple[dict[str, Expr], list[str]]:
        """The symbols of the header, and the names of those that the call gives."""
        at, found, called = self.at, dict[str, Expr](), list[str]()
        if not at.accept("["):
            return found, called
        while not at.accept("]"):
            name = at.take("word", "a symbol")
            if name == "call" and at.now.kind == "word":
                name = at.next().text
                called.append(name)
            at.expect("=")
            lo = int(at.take("number", "the symbol's least value"))
            at.expect("..")
            hi = int(at.next().text) if at.now.kind == "number" else UNBOUNDED
            found[name] = sym(name, lo, hi)
            at.accept(",")
        return found, called

    def names(self, end: str) -> list[str]:
        """`%a, %b` up to and including `end`."""
        out = []
        while not self.at.accept(end):
            out.append(self.reference("%"))
            if not self.at.sees(end):
                self.at.expect(",")
        return out

    def reference(self, mark: str) -> str:
        if not self.at.now.text.startswith(mark):
            self.at.fail(f"expected a name with {mark!r}")
        return unquote(self.at.take("ref", "a name")[1:])

    def lookup(self, values: Mapping[str, Value], name: str) -> Value:
        if name not in values:
            raise ParseError(f"graph text: %{name} is not defined before it is used (line {self.at.now.line})")
        return values[name]

    def node(self, graph: Graph, values: dict[str, Value], known: Mapping[str, Expr]) -> None:
        from ..ops import REGISTRY

        at = self.at
        line, name = at.now.line, self.reference("%")
        at.expect(":")
        declared = self.listed(")", lambda: self.type(known)) if at.accept("(") else [self.type(known)]
        at.expect("=")
        op_name = at.take("word", "an op")
        if op_name not in REGISTRY and not op_name.startswith("kernel_"):
            raise ParseError(f"graph text: there is no op {op_name!r} (line {line})")
        attrs: dict[str, Any] = {"type": declared[0]} if op_name == "input" else {}
        if at.accept("{"):
            attrs.update(self.listed("}", lambda: self.attribute(known)))
        operands = [self.lookup(values, n) for n in self.names(")")] if at.accept("(") else []
        place = str(json.loads(at.take("string", "a place"))) if at.accept("at") else ""
        try:
            op = (REGISTRY[op_name] if op_name in REGISTRY else self.kernel(op_name, attrs, declared))(**attrs)
            check_attributes(op)
        except (TypeError, ParseError) as e:
            raise ParseError(f"graph text: {op_name} cannot take the attributes ({', '.join(attrs)}): {e} (line {line})") from None
        made = graph.add(op, *operands, name=name, place=place)
        if made.name != name:
            raise ParseError(f"graph text: %{name} is defined twice (line {line})")
        if list(made.types) != declared:
            raise ParseError(f"graph text: %{name} is declared {', '.join(map(str, declared))}, but {op_name} gives "
                             f"{', '.join(map(str, made.types))} (line {line})")
        values.update({v.name: v for v in made.values})

    def kernel(self, name: str, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> Any:
        from ..ops.kernels import kernel_class

        return kernel_class(name, str(attrs.get("source", "")), types, trusted=self.trusted)

    def attribute(self, known: Mapping[str, Expr]) -> tuple[str, Any]:
        key = self.at.take("word", "an attribute")
        self.at.expect("=")
        return key, self.value(known)

    def listed(self, end: str, item: Callable[[], Any]) -> list[Any]:
        out = []
        while not self.at.accept(end):
            out.append(item())
            if not self.at.sees(end):
                self.at.expect(",")
        return out

    def type(self, known: Mapping[str, Expr]) -> TensorType:
        word = self.at.take("word", "a type")
        if word not in DTYPES:
            raise ParseError(f"graph text: {word!r} is not a dtype (line {self.at.now.line})")
        self.at.expect("[")
        return self.shaped(word, known)

    def shaped(self, word: str, known: Mapping[str, Expr]) -> TensorType:
        """The rest of a type, from behind its bracket on."""
        shape = tuple(self.listed("]", lambda: self.sum(known)))
        for d in shape:
            if not isinstance(d, Expr) and (type(d) is not int or d < 0):
                raise ParseError(f"graph text: a size must be an integer from 0 on, got {d!r:.20} (line {self.at.now.line})")
        return TensorType(DTYPES[word], shape)

    # --- attribute values ---------------------------------------------------------------------------------------------
    def value(self, known: Mapping[str, Expr]) -> Any:
        at = self.at
        if at.now.kind == "string":
            return json.loads(at.next().text)
        if at.now.kind == "ref":
            return self.constant(self.reference("@"))
        if at.sees("graph"):
            return self.graph(known)
        if at.now.text in DTYPES and at.now.text not in known:
            return self.dtype_or_type(known)
        return self.sum(known)

    def dtype_or_type(self, known: Mapping[str, Expr]) -> Any:
        """`f32`, `f32[2,S]`, or a small constant `f32[2](1.0, 2.0)`."""
        from ..ops.structure import ConstantData, Number

        name = self.at.next().text
        if not self.at.accept("["):
            return DTYPES[name]
        kind = self.shaped(name, known)
        if not self.at.accept("("):
            return kind
        elements = self.listed(")", lambda: self.sum(known))
        shape: Any = kind.shape
        if not shape and kind.dtype.is_float:
            return Number.of(elements[0], kind.dtype, "const")
        return ConstantData(np.array(elements, dtype=kind.dtype.np).reshape(shape))

    def constant(self, name: str) -> ConstantData:
        from ..ops.structure import ConstantData

        if name not in self.shared:
            if name not in self.constants:
                raise ParseError(f"graph text: no data was given for constant @{name} (line {self.at.now.line})")
            given = self.constants[name]
            self.shared[name] = given if isinstance(given, ConstantData) else ConstantData(given, name)
        return self.shared[name]

    def sum(self, known: Mapping[str, Expr]) -> Any:
        total = self.product(known)
        while self.at.sees("+") or self.at.sees("-"):
            minus = self.at.next().text == "-"
            part = self.product(known)
            total = readable(total - part if minus else total + part)
        return total

    def product(self, known: Mapping[str, Expr]) -> Any:
        total = self.factor(known)
        while self.at.sees("*") or self.at.sees("//"):
            divide = self.at.next().text == "//"
            part: Dim = self.factor(known)
            total = readable(floordiv(total, part) if divide else total * part)
        return total

    def factor(self, known: Mapping[str, Expr]) -> Any:
        at = self.at
        if at.accept("-"):
            return -self.factor(known)
        if at.now.kind == "number":
            text = at.next().text
            return int(text) if text.isdigit() else float(text)
        if at.accept("("):
            return self.tuple_or_group(known)
        word = at.take("word", "a value")
        if word in known:
            return known[word]
        if word in ("max", "min") and at.accept("("):
            a, b = self.listed(")", lambda: self.sum(known))
            return (maximum if word == "max" else minimum)(a, b)
        if word in WORDS:
            return WORDS[word]
        raise ParseError(f"graph text: {word!r} is not a known symbol or value (line {at.now.line})")

    def tuple_or_group(self, known: Mapping[str, Expr]) -> Any:
        """`(a, b)`, `(a,)` and `()` are tuples; `(a)` is a."""
        items: list[Any] = []
        comma = False
        while not self.at.accept(")"):
            items.append(self.value(known))
            if self.at.accept(","):
                comma = True
            elif not self.at.sees(")"):
                self.at.fail("expected ',' or ')'")
        return items[0] if len(items) == 1 and not comma else tuple(items)
