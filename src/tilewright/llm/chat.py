"""Chat templates: a list of messages becomes the prompt a model was trained on, through a sandbox with limits (`chat_sandbox.py`).

What messages hold never becomes a control token, whatever a template does with it. The template runs a second time on messages in which
characters of control tokens are replaced by stand-ins (rare characters that the messages do not have). Where both results agree, everything
that looks like a control token in the second one is the template's own.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from numbers import Number
from typing import Any

from ..core.errors import FormatError, InputError
from ..core.extras import need
from .chat_budget import Exceeded
from .chat_sandbox import Refused, budget, environment
from .tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LONGEST = 1 << 17  # characters of a template: a few seconds for jinja2
NAME = "<chat template>"
RARE = range(0x20000, 0x2A6D7)  # ideographs: printed as they are, neither upper nor lower case
NAMED = ("role", "type")  # keys under which a template compares texts with names that it knows


def render_chat(template: str | None, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, bos_token: str = "",
                eos_token: str = "", tools: Sequence[Mapping[str, Any]] | None = None, source: str = "", now: dt.datetime | None = None,
                **extra: Any) -> str:
    """The prompt text, for a look at it; `encode_chat` makes the tokens. `source` says in errors where the template is from.

    >>> render_chat(CHATML, [{"role": "user", "content": "Hi"}])
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    if not template:
        raise InputError("chat: the model has no chat template; pass one (tilewright.llm.chat.CHATML for models trained on ChatML)")
    need("jinja2", "chat")
    values = {
        **extra,
        "messages": [dict(m) for m in check_messages(messages)],
        "tools": tools,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    where = f" ({source})" if source else ""
    compiled = compile_template(template, source)
    try:
        with budget(values, now):
            text: str = compiled.render(values)
    except Refused as e:
        raise InputError(f"chat: the model's template refuses these messages: {e}{where}") from e
    except Exceeded as e:
        raise FormatError(f"chat: the template goes too far at line {_line(e)}: {e}{where}") from e
    except Exception as e:  # filters raise what they like
        raise FormatError(f"chat: the template fails at line {_line(e)}: {type(e).__name__}: {e!s:.1000}{where}") from e
    return text


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, template: str | None = None,
                add_generation_prompt: bool = True, special_in_content: bool = False, **extra: Any) -> list[int]:
    """Token ids of a conversation, with the model's template unless another is given.

    The texts of control tokens in messages and tools stay text, so that nobody can end a turn by writing `<|im_end|>`;
    `special_in_content=True` lets them through.
    """
    names: dict[str, Any] = {
        "bos_token": "" if tokenizer.bos is None else tokenizer.tokens[tokenizer.bos],
        "eos_token": "" if tokenizer.eos is None else tokenizer.tokens[tokenizer.eos],
        "add_generation_prompt": add_generation_prompt,
        "source": "" if template else tokenizer.source,
        "now": dt.datetime.now(),  # the same whenever the template is rendered
    }

    def render(given: Mapping[str, Any]) -> str:
        return render_chat(template or tokenizer.chat_template, **given, **names)

    given = {**extra, "messages": _data(check_messages(messages), "messages"), "tools": _data(extra.get("tools"), "tools")}
    text = render(given)
    ids = tokenizer.encode(text, special=True, shield=None if special_in_content else _shield(tokenizer, text, given, render))
    if tokenizer.adds_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
        ids.insert(0, tokenizer.bos)
    return ids


def _shield(tokenizer: Tokenizer, text: str, given: Mapping[str, Any], render: Callable[[Mapping[str, Any]], str]) -> str:
    """The prompt with stand-ins for characters that came from the messages: nothing of theirs looks like a control token in it.

    With every character of control tokens replaced, a template that looks into messages may take another way. Then only those are
    replaced that are no letters and digits; and at last only whole texts of control tokens, and the control tokens must be the same ones,
    in the same order, as with every character replaced.
    """
    texts = tokenizer.control_texts
    if not any(t in text for t in texts):
        return text
    characters, taken = sorted(set("".join(texts))), set(text).union(*_texts(given))
    free = [chr(c) for c in RARE if chr(c) not in taken]
    if len(free) < len(characters):
        raise InputError(f"chat: the messages have too many of the characters U+{RARE[0]:X} to U+{RARE[-1]:X}; "
                         f"{len(characters)} must be free")
    stands = dict(zip(map(ord, characters), free, strict=False))
    back = {ord(mark): chr(c) for c, mark in stands.items()}
    marked = {ord(c) for t in texts for c in ([c for c in t if not c.isalnum()] or t)}
    whole = re.compile("|".join(map(re.escape, texts)))
    first: list[str] | None = None
    for some in (stands, {c: mark for c, mark in stands.items() if c in marked}, None):
        hidden = {key: _hide(value, stands, some, whole, named=key in ("messages", "tools")) for key, value in given.items()}
        try:
            shield = render(hidden)
        except (FormatError, InputError):
            continue  # the template has met a text that it does not know
        found = whole.findall(shield)
        first = found if some is stands else first
        if shield.translate(back) == text and (some is not None or found == first):
            return shield
    shown = next((t for t in texts if any(t in s for s in _texts(given))), texts[0])
    raise InputError(f"chat: the template looks into the messages, and {shown!r} there might become a control token; leave it away, "
                     f"or pass special_in_content=True")


def _hide(value: Any, stands: Mapping[int, str], some: Mapping[int, str] | None, whole: re.Pattern[str], *, named: bool) -> Any:
    """A value with stand-ins in all its texts: for the characters in `some`, or for whole texts of control tokens alone where it is None
    and where a template compares (keys, roles, types, settings)."""
    if isinstance(value, str):
        return value.translate(some) if named and some is not None else whole.sub(lambda found: found[0].translate(stands), value)
    if isinstance(value, Mapping):
        return {_hide(k, stands, None, whole, named=False): _hide(v, stands, some, whole, named=named and k not in NAMED)
                for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_hide(v, stands, some, whole, named=named) for v in value)
    return value


def _data(value: Any, name: str) -> Any:
    """Messages as plain data: nothing whose text could be seen by the template alone."""
    if value is None or isinstance(value, (bool, Number)):
        return value
    if isinstance(value, str):
        return "".join(value)
    try:
        if isinstance(value, Mapping):
            return {_data(k, name): _data(v, name) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return (tuple if isinstance(value, tuple) else list)(_data(v, name) for v in value)
    except RecursionError:
        raise InputError(f"chat: {name} must not hold themselves, nor be nested deeper than Python's recursion limit") from None
    raise InputError(f"chat: {name} may hold texts, numbers, lists and dicts, got {type(value).__name__} {value!r:.60}")


def _texts(value: Any) -> list[str]:
    """All texts in a value."""
    if isinstance(value, str):
        return [value]
    inner = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [text for v in inner for text in _texts(v)]


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
def compile_template(template: str, source: str = "") -> Any:
    """A compiled jinja2 template; FormatError with the line for one that is not valid."""
    from jinja2 import TemplateSyntaxError

    where = f" ({source})" if source else ""
    if len(template) > LONGEST:
        raise FormatError(f"chat: the template has {len(template)} characters, at most {LONGEST} are allowed{where}")
    sandbox = environment()
    try:
        with budget():
            code = sandbox.compile(template, NAME, NAME)
        return sandbox.template_class.from_code(sandbox, code, sandbox.globals)
    except TemplateSyntaxError as e:
        raise FormatError(f"chat: the template is not valid at line {e.lineno}: {e.message}{where}") from e
    except (RecursionError, SyntaxError, ValueError, OverflowError, MemoryError, Exceeded) as e:
        raise FormatError(f"chat: the template cannot be compiled: {type(e).__name__}: {e}{where}") from e


def _line(error: BaseException) -> int | str:
    """The template's line in which an error arose (jinja2 puts it into the traceback)."""
    found: int | str = "?"
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == NAME:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
