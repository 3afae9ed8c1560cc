"""docs/op-set.md says what the registry holds."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.docs.op_set import KINDS, fact_table, kind_table
from tests.meta.source import DOCS
from tilewright.ops import REGISTRY


@pytest.mark.parametrize(("name", "table"), [("kind", kind_table), ("fact", fact_table)])
def test_the_page_is_up_to_date(name: str, table: Callable[[], list[str]], request: pytest.FixtureRequest) -> None:
    path = DOCS / "op-set.md"
    pattern = re.compile(rf"(<!-- {name} table: begin -->\n).*?(<!-- {name} table: end -->)", re.S)
    text = path.read_text()
    assert pattern.search(text), "the markers are gone"
    wanted = pattern.sub(lambda m: m[1] + "\n".join(table()) + "\n" + m[2], text)
    if request.config.getoption("--update-goldens"):
        path.write_text(wanted)
        text = wanted
    assert text == wanted, "out of date; run pytest tests/docs --update-goldens"


def test_kinds_name_ops_that_exist() -> None:
    named = {n for names in KINDS.values() if not names.startswith("–") for n in names.split()}
    assert named <= set(REGISTRY), named - set(REGISTRY)
