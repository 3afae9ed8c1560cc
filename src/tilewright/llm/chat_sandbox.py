"""The sandbox that chat templates run in: jinja2's immutable one, in which everything a template does is counted.

A template comes from a model file and is untrusted. It can read what it is given and nothing else (jinja2 sees to that), and it ends: every
call, operator, filter, test and turn of a loop takes steps, more of them for longer operands, and what it makes is measured before it is
made (`chat_budget.py`). A template that passes a limit raises `Exceeded`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from json import JSONEncoder
from types import GeneratorType
from typing import Any, NoReturn

from .chat_budget import ELEMENT, Budget, Exceeded

BITS = 1 << 14  # the most bits of an integer
LAZY = frozenset({"map", "select", "selectattr", "reject", "rejectattr"})  # filters that give generators
TEXTUAL = frozenset(
    [
        "abs",
        "attr",
        "capitalize",
        "center",
        "count",
        "d",
        "default",
        "e",
        "escape",
        "filesizeformat",
        "first",
        "float",
        "forceescape",
        "format",
        "indent",
        "int",
        "last",
        "length",
        "lower",
        "replace",
        "reverse",
        "round",
        "safe",
        "string",
        "title",
        "tojson",
        "trim",
        "truncate",
        "upper",
        "urlencode",
        "wordcount",
    ]
)  # filters that take a text as a whole
SHORT = frozenset({"length", "count", "first", "last", "default", "d"})  # filters that do not go through what they are given
REMOVED = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")  # slow on long texts, or not the same twice


class Refused(Exception):
    """Raised by a template through `raise_exception`."""


CURRENT: ContextVar[Budget] = ContextVar("tilewright_chat_budget")


@contextmanager
def budget(values: Any = None, now: dt.datetime | None = None) -> Iterator[None]:
    """Whatever a template does inside is counted against one budget."""
    token = CURRENT.set(Budget(values, now))
    try:
        yield
    finally:
        CURRENT.reset(token)


@lru_cache(1)
def environment() -> Any:
    """The environment that Hugging Face's templates are written for, with limits."""
    from jinja2 import nodes, pass_context
    from jinja2.compiler import CodeGenerator, operators
    from jinja2.ext import loopcontrols
    from jinja2.runtime import LoopContext, Undefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    from .chat_extension import generation_extension

    class Generator(CodeGenerator):
        """Code in which loops, comparisons, slices and `~` go through the environment, too."""

        def visit_For(self, node: Any, frame: Any) -> None:
            attribute = nodes.EnvironmentAttribute("counted", lineno=node.lineno)
            node.iter = nodes.Call(attribute, [node.iter], [], None, None, lineno=node.lineno)
            super().visit_For(node, frame)

        def visit_Concat(self, node: Any, frame: Any) -> None:
            escapes = "context.eval_ctx.autoescape" if frame.eval_ctx.volatile else repr(bool(frame.eval_ctx.autoescape))
            self.write(f"environment.joined(markup_join if {escapes} else str_join, (")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

        def _weighed(self, node: Any, frame: Any) -> None:
            self.write("environment.weighed(")
            self.visit(node, frame)
            self.write(")")

        def visit_Compare(self, node: Any, frame: Any) -> None:
            self.write("(")
            self._weighed(node.expr, frame)
            for op in node.ops:
                self.visit(op, frame)
            self.write(")")

        def visit_Operand(self, node: Any, frame: Any) -> None:
            self.write(f" {operators[node.op]} ")
            self._weighed(node.expr, frame)

        def visit_Getitem(self, node: Any, frame: Any) -> None:
            if not isinstance(node.arg, nodes.Slice):
                super().visit_Getitem(node, frame)
            else:
                self.write("environment.counted_result(")
                self._weighed(node.node, frame)
                self.write("[")
                self.visit(node.arg, frame)
                self.write("])")

        def visit_Dict(self, node: Any, frame: Any) -> None:
            self.write("{")
            for item in node.items:
                self._weighed(item.key, frame)
                self.write(": ")
                self.visit(item.value, frame)
                self.write(", ")
            self.write("}")

    class Named(Namespace):
        """A namespace may come to hold itself, so it is not printed with what it holds."""

        def __repr__(self) -> str:
            return "<namespace>"

    class Sandbox(ImmutableSandboxedEnvironment):
        code_generator_class = Generator
        intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

        def counted(self, items: Any) -> Any:
            """What a loop goes through."""
            if isinstance(items, Undefined):
                return items
            if hasattr(items, "__len__"):
                CURRENT.get().step(len(items))
                return items
            return CURRENT.get().each(items)

        def weighed(self, value: Any) -> Any:
            CURRENT.get().weigh(value)
            return value

        def counted_result(self, value: Any) -> Any:
            return CURRENT.get().result(value)

        def joined(self, join: Callable[[Any], str], parts: tuple[Any, ...]) -> str:
            left = CURRENT.get()
            left.make(sum(left.weigh(p) for p in parts))
            return join(parts)

        def concat(self, pieces: Any) -> str:
            left, out, size = CURRENT.get(), list[str](), 0
            for piece in pieces:
                size += len(piece)
                if size > left.largest:
                    break
                out.append(piece)
            left.make(size)
            return "".join(out)

        def getitem(self, obj: Any, argument: Any) -> Any:
            if isinstance(argument, tuple):
                CURRENT.get().weigh(argument)
            return super().getitem(obj, argument)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            now = CURRENT.get()
            now.step()
            sized = (str, bytes, list, tuple)
            if operator == "%" and isinstance(left, (str, bytes)):
                now.percent(left, right)
            elif operator == "+" and isinstance(left, sized) and isinstance(right, sized):
                now.make((len(left) + len(right)) * (1 if isinstance(left, (str, bytes)) else ELEMENT))
            elif operator == "*" and (isinstance(left, sized) or isinstance(right, sized)):
                many, count = (left, right) if isinstance(left, sized) else (right, left)
                now.make(len(many) * max(0, count if isinstance(count, int) else 0) * (1 if isinstance(many, (str, bytes)) else ELEMENT))
            elif isinstance(left, int) and isinstance(right, int):
                bits = left.bit_length() * max(0, right) if operator == "**" else left.bit_length() + right.bit_length()
                if bits > BITS:
                    raise Exceeded("it computes with numbers of too many digits")
            return super().call_binop(context, operator, left, right)

        def wrap_str_format(self, value: Any) -> Any:
            plain = super().wrap_str_format(value)
            if plain is None:
                return None

            @wraps(plain)
            def counted(*args: Any, **named: Any) -> str:
                CURRENT.get().braces(value.__self__, (args, named))
                return str(plain(*args, **named))

            return counted

        def call(__self, __context: Any, __obj: Any, *args: Any, **named: Any) -> Any:  # noqa: N805
            left, given = CURRENT.get(), list(args)
            left.step()
            for value in (*args, *(v for k, v in named.items() if k not in ("_loop_vars", "_block_vars", "caller"))):
                left.weigh(value)
                left.step(len(value) if isinstance(value, range) else 0)
            owner = getattr(__obj, "__self__", None)
            if isinstance(__obj, LoopContext):  # a recursive loop
                given = [__self.counted(x) for x in args]
            elif isinstance(owner, (str, bytes)):
                left.method(owner, getattr(__obj, "__name__", ""), given)
            elif isinstance(owner, int):
                left.make(max((abs(x) for x in args if type(x) is int), default=0))
            elif isinstance(owner, (list, tuple)):
                left.weigh(owner)
            return left.result(super().call(__context, __obj, *given, **named))

    def counted(name: str, plain: Callable[..., Any], *, grows: bool) -> Callable[..., Any]:
        skip = 1 if hasattr(plain, "jinja_pass_arg") else 0  # the environment or context comes first

        @wraps(plain)
        def bounded(*args: Any, **named: Any) -> Any:
            left = CURRENT.get()
            left.step()
            given = list(args[skip:])
            if grows and name not in LAZY:
                given = [list(a) if isinstance(a, GeneratorType) else a for a in given]
            for value in (*given[1 if name in LAZY | SHORT else 0 :], *named.values()):
                left.weigh(value)
            if given and name not in (TEXTUAL if isinstance(given[0], str) else SHORT) and hasattr(given[0], "__len__"):
                left.step(len(given[0]))
            if grows:
                left.filter(name, given, named)
            return left.result(plain(*args[:skip], *given, **named))

        return bounded

    @pass_context
    def shown(_: Any, value: Any) -> Any:
        """What is printed. (Takes the context, so that nothing is computed when a template is compiled.)"""
        CURRENT.get().weigh(value)
        return value

    made = Sandbox(trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=shown, extensions=[generation_extension(), loopcontrols])
    made.globals |= {"raise_exception": _refuse, "strftime_now": _now, "namespace": Named}
    del made.globals["lipsum"]
    for name in REMOVED:
        made.filters.pop(name, None)
    made.filters["tojson"] = _tojson
    tables: tuple[tuple[dict[str, Any], bool], ...] = ((made.filters, True), (made.tests, False))
    for table, grows in tables:
        table.update({name: counted(name, plain, grows=grows) for name, plain in table.items()})
    return made


def _refuse(message: Any = "") -> NoReturn:
    raise Refused(f"{message!s:.1000}")


def _now(pattern: str) -> str:
    if not isinstance(pattern, str) or len(pattern) > 256:
        raise TypeError("strftime_now takes a pattern of at most 256 characters")
    return (CURRENT.get().now or dt.datetime.now()).strftime(pattern)


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON as it stands: jinja2's own filter escapes <, > and & for HTML."""
    encoder = JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return str(environment().concat(encoder.iterencode(value)))
