"""Printer and parser: round trips, stability, completeness, and errors that point at the place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.tile.kernels import CLASSICS, masked_copy, random_kernel
from tilewright.core.dtypes import bf16, f32
from tilewright.core.errors import ParseError, VerifyError
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.parse import parse
from tilewright.tile.text import format_attr, to_text
from tilewright.tile.verify import verify


@pytest.mark.parametrize("name", CLASSICS)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.tile", to_text(CLASSICS[name]()))


@pytest.mark.parametrize("name", CLASSICS)
def test_classics_round_trip(name: str) -> None:
    text = to_text(CLASSICS[name]())
    again = parse(text)
    verify(again)
    assert to_text(again) == text


@pytest.mark.parametrize("seed", range(25))
def test_random_round_trip(seed: int) -> None:
    text = to_text(random_kernel(seed))
    assert to_text(parse(text)) == text


def test_numbering_follows_structure() -> None:
    """Values that were made and never emitted, or made in another builder, do not show."""
    a, b = KernelBuilder("k"), KernelBuilder("k")
    for builder, skip in ((a, 0), (b, 7)):
        builder._count += skip
        x = builder.view("x", f32, (1,))
        builder.store(x, [0], builder.load(x, [builder.pid], (4,)) + 1.0)
    assert to_text(a.build()) == to_text(b.build())


@pytest.mark.parametrize(
    "value",
    [
        0,
        0.0,
        -0.0,
        True,
        False,
        1,
        1.0,
        float("inf"),
        float("-inf"),
        float("nan"),
        1e-30,
        3.4028234663852886e38,
        's"p ace',
        (),
        (1,),
        (1, (2, "x")),
        (True, 0.5),
        None,
        bf16,
        1 << 62,
    ],
)
def test_attributes_keep_their_kind(value: object) -> None:
    b = KernelBuilder("k")
    x = b.view("x", f32, (1,))
    b.mma(b.load(x, [0], (1,)).b.full((1, 1), 0.0), b.full((1, 1), 0.0), b.full((1, 1), 0.0), extra=value, other=1)
    text = to_text(b.build())
    found = next(i for i in parse(text).walk() if i.op == "mma").attrs.get("extra")
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_numpy_scalars_print_like_python() -> None:
    assert [format_attr(v) for v in (np.float32(1.5), np.int64(3), np.bool_(True))] == ["1.5", "3", "true"]
    with pytest.raises(VerifyError, match="an attribute must be an int, float"):
        format_attr({1})


def test_text_is_complete() -> None:
    """Kernels that differ in one thing have different texts."""
    texts = {to_text(masked_copy(lanes)) for lanes in (8, 16)}
    for strides in ((1,), (2,), (None,)):
        for other in (0.0, -0.0, 0):
            for name in ("x", "z"):
                b = KernelBuilder("masked_copy")
                x = b.view(name, f32, strides)
                b.store(x, [0], b.load(x, [0], (4,), limit=[b.pid], other=other))
                texts.add(to_text(b.build()))
    assert len(texts) == 2 + 18


def test_comments_and_blank_lines() -> None:
    text = to_text(masked_copy())
    assert to_text(parse("// a copy\n\n" + text.replace("\n  ", "\n\n  // next\n  ") + "\n// end\n")) == text


GOOD = """kernel @k(%x: view<f32[?,1] global>, %n: index) pid %pid {
  %0 = index.mul %pid, 16 : index
  %1 = load %x, %0, 0 {axes=(1,)} : tile<16xf32>
  store %x, %0, 0, %1 {axes=(1,)}
}
"""


@pytest.mark.parametrize(
    "old, new, line, at, message",
    [
        ("%x, %0, 0 {", "%x, %7, 0 {", 3, "%7, 0", "%7 is not defined here"),
        ("tile<16xf32>", "tile<16xf99>", 3, "tile<16xf99>", "dtype: 'f99' is not one of"),
        ("tile<16xf32>", "tale<16xf32>", 3, "tale<", "expected a type: index, token, tile"),
        ("global", "globe", 1, "globe>", "expected a memory space"),
        ("%1 = load", "%0 = load", 3, "%0 = load", "%0 is defined twice"),
        ("%1 = load", "load", 3, "load", "0 results need as many types, got 1"),
        ("axes=(1,)}", "axes=(1,}", 3, "} : tile", "expected a number, a string"),
        ("axes=(1,)}", "axes=what}", 3, "what}", "expected a number, a string"),
        ("16 : index", "16 : index extra", 2, "extra", "expected the end of the line"),
        ("pid %pid {", "pid {", 1, "{", "expected a value like %pid"),
        ("\n}\n", "\n", 5, "", "the text ends inside a kernel"),
        ("\n}\n", "\n}\nmore", 6, "more", "expected the end of the text"),
        ("@k", "k", 1, "k(", "expected '@'"),
    ],
)
def test_errors_point_at_the_place(old: str, new: str, line: int, at: str, message: str) -> None:
    with pytest.raises(ParseError, match=r"tile: line \d+: ") as caught:
        parse(GOOD.replace(old, new, 1))
    first, shown, caret = str(caught.value).split("\n")[:3]
    assert message in first
    assert first.startswith(f"tile: line {line}: ")
    assert shown[len(caret) - 1 :].startswith(at)
    assert caret.strip() == "^"


@pytest.mark.parametrize("names", [("x", "x"), ("pid",), ("1",), ("a b",)])
def test_parameter_names_are_identifiers_and_differ(names: tuple[str, ...]) -> None:
    b = KernelBuilder("k")
    for n in names:
        b.index(n)
    with pytest.raises(VerifyError, match="parameter name"):
        to_text(b.build())
