"""Numbers and texts for people: counts, shares, axis ticks, attributes."""

from __future__ import annotations

from html import escape


def count(n: float) -> str:
    """`1.5 M`; for flops and the like.

    >>> count(0), count(999), count(1_500_000), count(2.5e9)
    ('0', '999', '1.50 M', '2.50 G')
    """
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(n) >= limit:
            return f"{n / limit:.2f} {unit}"
    return f"{n:.0f}" if n == int(n) else f"{n:.2f}"


def percent(share: float | None) -> str:
    """`12.5 %`; a dash for what was not measured.

    >>> percent(0.125), percent(None)
    ('12.5 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"


def byte_ticks(top: int, wanted: int = 6) -> list[int]:
    """Powers-of-two steps from 0 to at most `top` bytes.

    >>> byte_ticks(4096)
    [0, 1024, 2048, 3072, 4096]
    """
    if top <= 0:
        return [0]
    step = 1
    while top / step > wanted:
        step *= 2
    return list(range(0, top + 1, step))


def attribute(text: str) -> str:
    """`text` for between the quotes of an attribute; line breaks survive.

    >>> attribute('a "b"' + chr(10) + '<c>')
    'a &quot;b&quot;&#10;&lt;c&gt;'
    """
    return escape(text, quote=True).replace("\n", "&#10;")
