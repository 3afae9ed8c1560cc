"""Changes of plain data: values that no writer would write, at places that numbers choose."""

from __future__ import annotations

import copy
import random
from typing import Any

NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    3,
    7,
    31,
    32,
    33,
    64,
    255,
    256,
    65535,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
    1 << 70,
    0.0,
    -0.0,
    0.5,
    1.5,
    -1e-5,
    1e-45,
    1e38,
    1e308,
    float("inf"),
    -float("inf"),
    float("nan"),
    10**400,
]
WEIRD: list[Any] = [
    *NUMBERS,
    None,
    True,
    False,
    "",
    "x",
    "silu",
    "relu",
    "llama",
    "full_attention",
    "longrope",
    "\ud800",
    "\u0000",
    "é" * 40,
    "a" * 70000,
    "<|im_end|>",
    "{{ messages }}",
    [],
    [1],
    [[]],
    [None],
    ["x"],
    {},
    {"a": 1},
    {"type": "Sequence"},
    [0] * 100,
    {"full_attention": {}},
    {"String": "a"},
    {"Regex": "(a+)+$"},
    {"Regex": "("},
]


def weird(number: int) -> Any:
    return copy.deepcopy(WEIRD[number % len(WEIRD)])


def places(value: Any, most: int = 2000) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside, breadth first."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < most:
        v = waiting.pop(0)
        inner = list(v.items()) if isinstance(v, dict) else list(enumerate(v)) if isinstance(v, list) else []
        for key, item in inner:
            found.append((v, key))
            waiting.append(item)
    return found


def change(value: Any, at: int, how: int) -> Any:
    """`value` (which is changed) with one place changed: another value there, nothing, a second one, another name."""
    found = places(value)
    if not found:
        return weird(how)
    container, key = found[at % len(found)]
    kind, what = how % 8, how // 8
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, list):
        container.insert(what % (len(container) + 1), copy.deepcopy(container[key]))
    elif kind == 1:
        container[str(weird(what))[:50]] = container.pop(key)
    elif kind == 2:
        other, place = found[what % len(found)]
        container[key] = copy.deepcopy(other.get(place) if isinstance(other, dict) else other[place]) if _has(other, place) else None
    elif kind == 3 and isinstance(container[key], (int, float)) and not isinstance(container[key], bool):
        container[key] = container[key] + (what % 5 - 2)
    elif kind == 4 and isinstance(container[key], str):
        text = container[key]
        container[key] = text[: what % (len(text) + 1)] + chr(what % 0x2000) + text[what % (len(text) + 1) :]
    else:
        container[key] = weird(what)
    return value


def _has(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else isinstance(key, int) and key < len(container)


def scramble(data: bytes, at: int, how: int, reach: int | None = None) -> bytes:
    """A few bytes changed, cut, or doubled; in the first `reach` bytes."""
    if not data:
        return data
    rng = random.Random(how)
    out, end = bytearray(data), min(len(data), reach or len(data))
    place = at % end
    kind = rng.randrange(7)
    if kind == 0:
        return bytes(out[:place])
    if kind == 1:
        size = rng.choice((1, 2, 4, 8))
        out[place : place + size] = rng.choice((0, 1, 255, 1 << 31, (1 << 64) - 1, rng.getrandbits(64))).to_bytes(8, "little")[:size]
    elif kind == 2:
        del out[place : place + rng.randrange(1, 9)]
    elif kind == 3:
        out[place:place] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 4:
        size = rng.randrange(1, 60)
        out[place:place] = out[place : place + size]
    else:
        for _ in range(rng.randrange(1, 6)):
            out[rng.randrange(end)] = rng.randrange(256) if kind == 5 else rng.choice(b'{}[]",:019-.eE\\u ntfr')
    return bytes(out)
