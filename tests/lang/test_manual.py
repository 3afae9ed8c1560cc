"""The manual page shows the kernels of examples/kernels as they are, and the errors as they read."""

from __future__ import annotations

import inspect

import pytest

from tests.lang.examples import NAMES, example
from tests.meta.source import DOCS
from tilewright.lang.kernel import KernelFunction

PAGE = DOCS / "kernels-of-your-own.md"
KERNELS = [k for n in NAMES for k in vars(example(n)).values() if isinstance(k, KernelFunction)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.definition.name)
def test_kernels_are_shown_as_they_are(kernel: KernelFunction) -> None:
    assert inspect.getsource(kernel.definition.fn).rstrip() in PAGE.read_text()


def test_the_shown_error_names_its_line() -> None:
    lines = PAGE.read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if line.strip() == "t = x.load(i * B - 1, B)")
    assert f"({PAGE.name}:{number}: `t = x.load(i * B - 1, B)`)" in PAGE.read_text()


def test_every_function_of_the_language_is_on_the_page() -> None:
    from tilewright import lang as tl
    from tilewright.core.dtypes import DType

    text = PAGE.read_text()
    for name in tl.__all__:
        if not isinstance(getattr(tl, name), DType):
            assert f"`tl.{name}" in text or f"`{name}`" in text or f"`t.{name}" in text, name
