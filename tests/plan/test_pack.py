"""Packing: no two items that live together share bytes, and the result lies between the bound and the sum."""
from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.plan.pack import ORDERS, Item, Packing, _greedy, align, lower_bound, pack

items_strategy = st.lists(
    st.builds(lambda size, first, length: Item(size, first, first + length), st.integers(0, 5000), st.integers(0, 20), st.integers(0, 8)),
    max_size=24,
)


def overlaps(items: list[Item], packing: Packing) -> list[tuple[int, int]]:
    """Pairs of items that are wrongly on the same bytes, by brute force over steps."""
    bad = []
    for i, j in itertools.combinations(range(len(items)), 2):
        together = set(range(items[i].first, items[i].last + 1)) & set(range(items[j].first, items[j].last + 1))
        a, b = packing.offsets[i], packing.offsets[j]
        if together and a < b + items[j].size and b < a + items[i].size:
            bad.append((i, j))
    return bad


@settings(max_examples=150, deadline=None)
@given(items_strategy)
def test_random_lifetimes_never_overlap(items: list[Item]) -> None:
    packing = pack(items)
    assert overlaps(items, packing) == []
    assert all(o % 64 == 0 for o in packing.offsets)
    assert lower_bound(items) <= packing.size <= sum(align(i.size) for i in items)
    assert all(o + i.size <= packing.size for i, o in zip(items, packing.offsets, strict=True))


def test_the_overlap_check_notices_a_wrong_offset() -> None:
    items = [Item(64, 0, 2), Item(64, 1, 3)]
    assert overlaps(items, Packing((0, 0), 64, "wrong")) == [(0, 1)]


def test_exact_search_beats_every_greedy_order() -> None:
    shapes = [(2, 5, 6), (4, 7, 9), (4, 6, 10), (9, 3, 7), (8, 6, 6), (1, 8, 8), (7, 7, 11)]  # every order of the greedy ones needs 25
    items = [Item(s * 64, a, b) for s, a, b in shapes]
    for key in ORDERS.values():
        order = sorted(range(len(items)), key=lambda i, key=key: key(items[i]))  # type: ignore[misc]
        assert min(_greedy(items, order, best)[1] for best in (False, True)) >= 25 * 64
    packing = pack(items)
    assert packing.strategy == "exact"
    assert overlaps(items, packing) == []
    assert packing.size == lower_bound(items) == 24 * 64


def test_chain_needs_only_two_buffers() -> None:
    packing = pack([Item(1024, k, k + 1) for k in range(40)])
    assert packing.size == 2048


def test_nothing_to_pack() -> None:
    assert pack([]).size == 0
    assert pack([Item(0, 0, 5)]).size == 0
