"""A layered drawing of a graph: ranks from top to bottom, few crossings, straight-ish edges (the Sugiyama method, small).

Edges that span several ranks pass through dummy points, so that they never run behind a box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Key = tuple[str, int]  # (node, 0), or (edge name, rank) for a dummy point


@dataclass(frozen=True)
class Drawing:
    """Columns (centres, in units of box widths) and ranks of the nodes, and for each edge the points it passes."""

    column: dict[str, float]
    rank: dict[str, int]
    edges: dict[tuple[str, str], list[tuple[float, int]]]


def layered(nodes: Sequence[str], sources: Mapping[str, Sequence[str]], sweeps: int = 6) -> Drawing:
    """Place `nodes` (in topological order), each reading its `sources`.

    >>> layered(["a", "b"], {"b": ["a"]}).rank
    {'a': 0, 'b': 1}
    """
    rank: dict[str, int] = {}
    for n in nodes:
        rank[n] = max((rank[s] + 1 for s in sources.get(n, ())), default=0)
    for n in reversed(nodes):  # a source of data sits just above its first reader
        readers = [rank[m] for m in nodes if n in sources.get(m, ())] if not sources.get(n) else []
        if readers:
            rank[n] = max(rank[n], min(readers) - 1)
    rows: list[list[Key]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    above: dict[Key, list[Key]] = {}
    below: dict[Key, list[Key]] = {}
    paths: dict[tuple[str, str], list[Key]] = {}
    for n in nodes:
        rows[rank[n]].append((n, 0))
    for n in nodes:
        for s in dict.fromkeys(sources.get(n, ())):
            path: list[Key] = [(s, 0), *((f"{s}→{n}", r) for r in range(rank[s] + 1, rank[n])), (n, 0)]
            paths[s, n] = path
            for key in path[1:-1]:
                rows[key[1]].append(key)
            for up, down in zip(path, path[1:], strict=False):
                above.setdefault(down, []).append(up)
                below.setdefault(up, []).append(down)
    for sweep in range(sweeps):
        _sort(rows if sweep % 2 == 0 else rows[::-1], above if sweep % 2 == 0 else below)
    x = _columns(rows, above, below)
    points = {e: [(x[k], rank[k[0]] if k[0] in rank else k[1]) for k in path] for e, path in paths.items()}
    return Drawing({n: x[n, 0] for n in nodes}, rank, points)


def _sort(rows: Sequence[list[Key]], neighbours: Mapping[Key, list[Key]]) -> None:
    """Order each row by the mean position of its neighbours in the row before."""
    place: dict[Key, float] = {}
    for row in rows:
        wish = {k: _mean([place[n] for n in neighbours.get(k, []) if n in place], i) for i, k in enumerate(row)}
        row.sort(key=lambda k: wish[k])
        place.update({k: i - (len(row) - 1) / 2 for i, k in enumerate(row)})


def _columns(rows: Sequence[list[Key]], above: Mapping[Key, list[Key]], below: Mapping[Key, list[Key]]) -> dict[Key, float]:
    """Pull every point towards its neighbours, keeping the order of its row and a distance of one box (less for dummies)."""
    width = {k: 1.0 if k[1] == 0 and "→" not in k[0] else 0.35 for row in rows for k in row}
    x: dict[Key, float] = {}
    for row in rows:
        at = 0.0
        for k in row:
            x[k] = at + width[k] / 2
            at += width[k]
        for k in row:
            x[k] -= at / 2
    for turn in range(12):
        for row in rows if turn % 2 == 0 else rows[::-1]:
            wish = [_mean([x[n] for n in (*above.get(k, []), *below.get(k, []))], x[k]) for k in row]
            for k, w in zip(row, _spread(wish, [width[k] for k in row]), strict=True):
                x[k] = w
    return x


def _spread(wish: list[float], width: list[float]) -> list[float]:
    """Positions in order, at least the widths apart, near the wishes: the mean of a push from the left and one from the right."""
    left, right = wish[:], wish[:]
    for i in range(1, len(wish)):
        left[i] = max(left[i], left[i - 1] + (width[i - 1] + width[i]) / 2)
    for i in reversed(range(len(wish) - 1)):
        right[i] = min(right[i], right[i + 1] - (width[i] + width[i + 1]) / 2)
    return [(a + b) / 2 for a, b in zip(left, right, strict=True)]


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
