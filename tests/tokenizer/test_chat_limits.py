"""Templates that want to run forever, or to fill the memory: an error that says what they do, soon."""

from __future__ import annotations

import pytest

from tilewright.core.errors import FormatError
from tilewright.llm.chat import render_chat

pytest.importorskip("jinja2", reason="renders the templates (pip install tilewright[llm])")

SHARED = ("{% set n = namespace(a=(0, 1), b=(0, 1)) %}{% for i in range(60) %}{% set n.a = (n.a, n.a) %}{% set n.b = (n.b, n.b) %}"
          "{% endfor %}")
LONG = "{% set s = 'x' * 4000000 %}{% set t = 'y' * 2000000 ~ 'x' %}{% for i in range(99999) %}{% for j in range(99999) %}"
STEPS, MAKES, HOLDS = "takes too many steps", "makes (texts or lists of|too much text)", "handles lists that hold too much"


@pytest.mark.parametrize(("template", "message"), [
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", STEPS),
    ("{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}", STEPS),
    ("{% for i in [1] recursive %}{% if loop.depth < 9 %}{{ loop(range(9999)) }}{% endif %}{% endfor %}", STEPS),
    ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", STEPS),
    ("{% for i in range(99999) %}{{ range(99999) | selectattr('x') | first }}{% endfor %}", STEPS),
    ("{% for i in range(99999) %}{{ range(99999) | map('string') | select('eq', 'x') | first }}{% endfor %}", STEPS),
    ("{% for i in range(99999) %}{{ {}.fromkeys(range(99999)) | length }}{% endfor %}", STEPS),
    (LONG + "{{ s == t }}{% endfor %}{% endfor %}", STEPS), (LONG + "{{ t in s }}{% endfor %}{% endfor %}", STEPS),
    (LONG + "{{ s.islower() }}{% endfor %}{% endfor %}", STEPS), (LONG + "{{ s is eq t }}{% endfor %}{% endfor %}", STEPS),
    (LONG + "{{ s.rfind(t) }}{% endfor %}{% endfor %}", STEPS), (LONG + "{{ s.strip(t) }}{% endfor %}{% endfor %}", STEPS),
    (LONG + "{{ s | trim(t) }}{% endfor %}{% endfor %}", STEPS),
    (LONG + "{{ s[1:] | length }}{% endfor %}{% endfor %}", f"{STEPS}|{MAKES}"),
    ("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}", MAKES),
    ("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}", MAKES),
    ("{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}", MAKES),
    ("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set t %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = t %}{% endfor %}", MAKES),
    ("{% set n = namespace(l=[]) %}{% for i in range(999) %}{% set n.l = [n.l, 'x' * 4000000] %}{% endfor %}", MAKES),
    ("{% set n = namespace(l=[]) %}{% for i in range(999) %}{% set n.l = [n.l, range(99999) | list] %}{% endfor %}", f"{STEPS}|{MAKES}"),
    ("{{ 'a' * 3000000000 }}", MAKES), ("{{ ([0] * 1000000000) | length }}", MAKES), ("{{ 3 * [0] * 1000000000 }}", MAKES),
    ("{{ 'x'.center(2000000000) }}", MAKES), ("{{ 'x'.ljust(2000000000) }}", MAKES), ("{{ 'x'.rjust(2000000000) }}", MAKES),
    ("{{ 'x'.zfill(2000000000) }}", MAKES), ("{{ '\t'.expandtabs(2000000000) }}", MAKES), ("{{ 'x' | center(2000000000) }}", MAKES),
    ("{{ ['x'] | map('center', 2000000000) | list }}", MAKES), ("{{ '%2000000000d' % 1 }}", MAKES),
    ("{{ '%*d' % (2000000000, 1) }}", MAKES),
    ("{{ '%.2000000000f' % 1.5 }}", MAKES), ("{{ '%(a)2000000000d' % {'a': 1} }}", MAKES), ("{{ '%2000000000d' | format(1) }}", MAKES),
    ("{{ '{:2000000000}'.format(1) }}", MAKES), ("{{ '{x:2000000000}'.format_map({'x': 1}) }}", MAKES),
    ("{{ '{:{}}'.format(1, 2000000000) }}", "formats with a width that is a field itself"),
    ("{{ ('%' * 99999) % 1 }}", "formats with a pattern of 99999 characters"),
    ("{{ ('x' * 99999).format(1) }}", "formats with a pattern of 99999 characters"),
    ("{{ ('x\n' * 999999) | indent(999999) }}", MAKES), ("{{ ('x\n' * 99999) | indent('y' * 99999) }}", MAKES),
    ("{{ ('x' * 999999) | replace('', 'y' * 999999) }}", MAKES), ("{{ ('x' * 999999).replace('x', 'y' * 99) }}", MAKES),
    ("{{ range(99999) | join('y' * 99999) }}", MAKES), ("{{ ('y' * 99999).join(range(9999) | map('string')) }}", MAKES),
    ("{{ 'x'.translate({120: 'y' * 4000000}).translate({121: 'z' * 99}) }}", MAKES),
    ("{{ [1] | slice(2000000000) | list }}", MAKES), ("{{ [1] | batch(2000000000, 0) | list }}", MAKES),
    ("{{ ([1] * 99999) | tojson(separators=('y' * 99999, ':')) }}", MAKES), ("{{ (1).to_bytes(2000000000, 'big') }}", MAKES),
    ("{{ [[1]] | tojson(indent=2000000000) }}", "writes JSON with an indent of more than 16"),
    ("{{ ('ä' * 99).encode('punycode') }}", "handles bytes"),
    ("{{ 10 ** (10 ** 8) }}", "computes with numbers of too many digits"),
    ("{% set n = namespace(x=2) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}", "computes with numbers of too many"),
    ("{{ 1.5 | round(1000000000, 'floor') }}", "rounds to 1000000000 digits"), ("{{ [[0], [1]] | sum(start=[]) }}", "adds up lists"),
    ("{{ (('<!---->' * 99999) | safe).striptags() }}", "searches a text of 699993 characters for tags"),
    *((SHARED + use, f"{HOLDS}|{STEPS}") for use in (
        "{{ n.a }}", "{{ n.a == n.b }}", "{{ n.a in [n.b] }}", "{{ {n.a: 1} }}", "{{ {}[n.a] }}", "{{ n.a is eq n.b }}",
        "{{ n.a | tojson }}", "{{ [n.a].index(n.b) }}", "{{ [n.a] | unique | list }}", "{{ [n.a] | map('default') | join }}",
        "{{ '{}'.format(n.a) }}",
        "{{ '%s' % (n.a,) }}", "{{ n.a | string }}", "{{ n.a ~ '' }}", "{{ '%s' | format(n.a) }}", "{{ [n.a, n.b] | sort }}",
        "{% for i in range(3) %}{{ loop.changed(n.a if i == 1 else n.b) }}{% endfor %}")),
])
def test_a_template_can_neither_hang_nor_fill_memory(template: str, message: str) -> None:
    with pytest.raises(FormatError, match=rf"^chat: the template goes too far at line [0-9?]+: it ({message})"):
        render_chat(template, [{"role": "user", "content": "Hi"}])
