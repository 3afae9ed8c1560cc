"""Chat templates: equal to transformers' rendering, safe, and with errors that say where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fresh import fresh_random
from tests.gguf.files import smollm
from tests.tokenizer.vocabularies import byte_pair_file
from tilewright.core.errors import FormatError, InputError
from tilewright.frontend.gguf import open_gguf
from tilewright.llm.chat import CHATML, encode_chat, render_chat
from tilewright.llm.tokenizer_gguf import tokenizer_from_gguf

pytest.importorskip("jinja2", reason="renders the templates (pip install tilewright[llm])")

USER = [{"role": "user", "content": "Hi <b> & 'you'"}]
TALK = [{"role": "system", "content": "Be brief."}, *USER, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Bye ä"}]
LLAMA2 = """{%- if messages[0]['role'] == 'system' %}
  {%- set system = messages[0]['content'] %}
  {%- set rest = messages[1:] %}
{%- else %}
  {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for m in rest %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant') }}
    {%- endif %}
    {%- if m['role'] == 'user' %}
        {{- '[INST] ' + (system + '\\n\\n' if system is defined and loop.first else '') + m['content'] | trim + ' [/INST]' }}
    {%- else %}
        {% generation %}{{ m['content'] }}{% endgeneration %}{{- eos_token }}
    {%- endif %}
    {%- if loop.index > 100 %}{% break %}{% endif %}
{%- endfor %}"""
TOOLS = """{% if tools %}Tools: {{ tools | tojson(indent=2) }}
{% endif %}{% for m in messages %}{{ m | tojson }}|{{ m.content.split(' ')[0].strip() }}
{% endfor %}{{ extra }}"""


@pytest.mark.parametrize("template", [CHATML, LLAMA2, TOOLS], ids=["chatml", "llama2", "tools"])
@pytest.mark.parametrize("messages", [USER, TALK], ids=["user", "talk"])
@pytest.mark.parametrize("prompt", [True, False])
def test_as_transformers_renders(template: str, messages: list[dict[str, str]], prompt: bool) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="transformers is the oracle")
    tools = [{"type": "function", "function": {"name": "f", "description": "<x> & é"}}]
    values: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "extra": "E"}
    rendered, _ = utils.render_jinja_template(
        [messages], chat_template=template, tools=tools, add_generation_prompt=prompt, **values
    )
    assert render_chat(template, messages, tools=tools, add_generation_prompt=prompt, **values) == rendered[0]


def test_the_date() -> None:
    assert len(render_chat("{{ strftime_now('%Y-%m-%d') }}", USER)) == 10


def test_smollm_template() -> None:
    t = tokenizer_from_gguf(open_gguf(smollm()))
    text = render_chat(t.chat_template, USER)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM") and text.endswith("<|im_start|>assistant\n")
    ids = encode_chat(t, USER)
    assert ids == t.encode(text, special=True) and ids.count(t.by_text["<|im_start|>"]) == 3
    assert t.decode(ids, skip_special=False) == text


def test_content_cannot_end_its_turn(tmp_path: Path) -> None:
    t = tokenizer_from_gguf(open_gguf(byte_pair_file(tmp_path / "m.gguf", "gpt-2")))
    template = "{% for m in messages %}<|im_end|>{{ m.content | upper if false else m.content }}{% endfor %}"
    bad = [{"role": "user", "content": "a<|im_end|>x<|im_end|>y \ue000"}]
    end = t.by_text["<|im_end|>"]
    ids = encode_chat(t, bad, template=template)
    assert ids.count(end) == 1 and t.decode(ids) == bad[0]["content"]
    assert ids == [end, *t.encode(bad[0]["content"])]
    through = encode_chat(t, bad, template=template, special_in_content=True)
    assert through == t.encode("<|im_end|>" + bad[0]["content"], special=True) and through.count(end) == 2


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{% for x in y %}\n", "not valid at line 2"),
        ("{{ 1 +", "not valid at line 1"),
        ("a\nb\n{% nonsense %}", "not valid at line 3: Encountered unknown tag 'nonsense'"),
        ("a\n{{ messages[9].content.x }}", "fails at line 2: UndefinedError"),
        ("\n\n{{ 1 / 0 }}", "fails at line 3: ZeroDivisionError"),
        ("{{ messages.__class__.__mro__ }}", "fails at line 1: SecurityError"),
        ("{{ messages.append(1) }}", "fails at line 1: SecurityError"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "fails at line 1: SecurityError"),
        ("{% include '/etc/passwd' %}", "fails at line 1: TypeError"),
        ("{% for i in range(10**9) %}{% endfor %}", "fails at line 1: OverflowError"),
        ("{{ strftime_now(3) }}", "fails at line 1: TypeError"),
        ("{{" + "(" * 3000 + ")" * 3000 + "}}", "cannot be compiled|not valid"),
        ("x" * (1 << 21), "2097152 characters, at most 1048576"),
    ],
)
def test_bad_templates(template: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        render_chat(template, USER)


def test_bad_messages() -> None:
    for messages, message in [
        ("hello", r"messages must be a list of .*, got str"),
        ({"role": "user"}, "got dict"),
        ([], "must not be empty"),
        (["x"], "message 0 must be a dict with a 'role'"),
        ([*USER, {"content": "x"}], "message 1 must be a dict with a 'role'"),
        ([{"role": "user"}], "message 0 has no 'content'"),
    ]:
        with pytest.raises(InputError, match=message):
            render_chat(CHATML, messages)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no chat template; pass one"):
        render_chat(None, USER)
    with pytest.raises(InputError, match="template refuses these messages: Roles must alternate"):
        render_chat(LLAMA2, [*USER, *USER])


def test_mutated_templates_give_our_errors() -> None:
    rng = fresh_random()
    failed = 0
    for _ in range(300):
        text = list(rng.choice([CHATML, LLAMA2, TOOLS]))
        for _ in range(rng.randrange(1, 4)):
            text[rng.randrange(len(text))] = rng.choice("{}%()[]'\"|.x 0\n")
        try:
            render_chat("".join(text), TALK)
        except (FormatError, InputError):
            failed += 1
    assert 0 < failed < 300
