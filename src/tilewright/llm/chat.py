"""Chat templates: a list of messages becomes the prompt a model was trained on, through jinja2's sandbox.

A template comes from a model file and is untrusted: it runs in the immutable sandbox, without access to Python's internals, and what
goes wrong in it becomes an error that names the template's line.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from ..core.errors import FormatError, InputError
from .packages import need
from .tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LONGEST = 1 << 20  # characters of a template
NAME = "<chat template>"


def render_chat(
    template: str | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    tools: Sequence[Mapping[str, Any]] | None = None,
    **extra: Any,
) -> str:
    """The prompt text. Encode it with `special=True`.

    >>> render_chat(CHATML, [{"role": "user", "content": "Hi"}])
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    if not template:
        raise InputError("chat: the model has no chat template; pass one (tilewright.llm.chat.CHATML for models trained on ChatML)")
    need("jinja2", "chat")
    from jinja2 import TemplateError

    values = {
        **extra,
        "messages": [dict(m) for m in check_messages(messages)],
        "tools": tools,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    compiled = compile_template(template)
    try:
        text: str = compiled.render(values)
    except _Refused as e:
        raise InputError(f"chat: the model's template refuses these messages: {e}") from e
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError) as e:
        raise FormatError(f"chat: the template fails at line {_line(e)}: {type(e).__name__}: {e}") from e
    return text


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    template: str | None = None,
    add_generation_prompt: bool = True,
    special_in_content: bool = False,
    **extra: Any,
) -> list[int]:
    """Token ids of a conversation, with the model's template unless another is given.

    The texts of control tokens in a message's content stay text, so that nobody can end a turn by writing `<|im_end|>`;
    `special_in_content=True` lets them through.
    """
    hidden: dict[str, str] = {}
    if not special_in_content:
        messages, hidden = _hide_control(check_messages(messages), tokenizer)
    bos = "" if tokenizer.bos is None else tokenizer.tokens[tokenizer.bos]
    eos = "" if tokenizer.eos is None else tokenizer.tokens[tokenizer.eos]
    text = render_chat(
        template or tokenizer.chat_template,
        messages,
        add_generation_prompt=add_generation_prompt,
        bos_token=bos,
        eos_token=eos,
        **extra,
    )
    ids = tokenizer.encode(text, special=True, hidden=hidden)
    if tokenizer.adds_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
        ids.insert(0, tokenizer.bos)
    return ids


def _hide_control(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Messages in which each control token's text is one private character, and which character stands for which text."""
    contents = "".join(m["content"] for m in messages if isinstance(m.get("content"), str))
    texts = [t for t in tokenizer.control_texts if t in contents]
    if not texts:
        return [dict(m) for m in messages], {}
    free = (chr(c) for c in range(0xE000, 0xF8FF) if chr(c) not in contents)
    hidden = dict(zip(free, texts, strict=False))
    out = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            for mark, text in hidden.items():  # longest text first
                content = content.replace(text, mark)
        out.append({**message, "content": content} if "content" in message else dict(message))
    return out, hidden


def check_messages(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InputError(f"chat: messages must be a list of {{'role': …, 'content': …}}, got {type(messages).__name__}")
    if not messages:
        raise InputError("chat: messages must not be empty")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(f"chat: message {i} must be a dict with a 'role', got {message!r:.80}")
        if "content" not in message and "tool_calls" not in message:
            raise InputError(f"chat: message {i} has no 'content'")
    return messages


@lru_cache(16)
def compile_template(template: str) -> Any:
    """A compiled jinja2 template; FormatError with the line for one that is not valid."""
    from jinja2 import TemplateSyntaxError

    if len(template) > LONGEST:
        raise FormatError(f"chat: the template has {len(template)} characters, at most {LONGEST} are allowed")
    environment = _environment()
    try:
        code = environment.compile(template, NAME, NAME)
        return environment.template_class.from_code(environment, code, environment.globals)
    except TemplateSyntaxError as e:
        raise FormatError(f"chat: the template is not valid at line {e.lineno}: {e.message}") from e
    except (RecursionError, SyntaxError, ValueError, OverflowError) as e:
        raise FormatError(f"chat: the template cannot be compiled: {type(e).__name__}: {e}") from e


class _Refused(Exception):
    """Raised by a template through `raise_exception`."""


@lru_cache(1)
def _environment() -> Any:
    """The environment Hugging Face's templates are written for."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from .chat_extension import generation_extension

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[generation_extension(), loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: dt.datetime.now().strftime(pattern)
    return environment


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON as it stands: jinja2's own filter escapes <, > and & for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _line(error: BaseException) -> int | str:
    """The template's line in which an error arose (jinja2 puts it into the traceback)."""
    found: int | str = "?"
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == NAME:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
