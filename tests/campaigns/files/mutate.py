"""Mutations of files as plain data, so that a failing one can be shrunk: of JSON trees, of graph text and of bytes."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

NUMBERS = [
    0, 1, 2, 3, 7, 8, 63, 64, 65, 255, 4096, -1, -2, -64, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 61, (1 << 62) - 1,
    1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30, 1.5, -0.0, 1e308, True, False,
]  # fmt: skip
TEXTS = [
    "", "leaf", "tuple", "dict", "slot", "fixed", "size", "f32", "i8", "bool", "c128", "f8e4m3", "plain", "panels", "strips", "taps",
    "folded", "fragments", "evil_module", "evil_module:Evil", "evil_module:", ":", "collections:OrderedDict", "S", "N", "S+1", "N//0",
    "S*S*S", "-1", "max(S,1)", "__import__('os')", "\0", "\n", "ü" * 30, "x" * 3000, "(" * 500, "9" * 5000,
]  # fmt: skip
ATTRIBUTES = [
    "axis=1", "axis=-1", "axis=7", "perm=(0, 1)", "keepdims=True", "k=3", "shape=(2, 3)", "sizes=(9,)", "dtype=i8", "causal=True",
    "offset=-5", "window=-3", "groups=0", "stride=(0, 0)", "n=100000", "bits=5", 'kind="x"', "scale=inf", "starts=(-9,)",
]  # fmt: skip


@dataclass(frozen=True)
class Change:
    """`at` picks a place, `how` what happens to it, `value` with what."""

    at: int
    how: str
    value: int


TREE = ("number", "text", "none", "list", "near", "drop", "double", "swap", "copy", "empty", "more")
LINE = ("number",) * 4 + ("near",) * 4 + ("op",) * 2 + ("attribute",) * 3 + ("dtype", "word", "drop", "double", "swap", "insert")
BYTES = ("flip", "byte", "zeros", "cut", "grow", "move", "number")


def drawn(rng: np.random.Generator, hows: tuple[str, ...]) -> tuple[Change, ...]:
    count = int(rng.choice([1, 1, 1, 2, 3]))
    return tuple(Change(int(rng.integers(1 << 31)), str(rng.choice(hows)), int(rng.integers(1 << 31))) for _ in range(count))


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a tree."""
    found = [at] if at else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found += places(value, (*at, key))
    return found


def changed_tree(tree: Any, changes: tuple[Change, ...]) -> Any:
    tree = copy.deepcopy(tree)
    for c in changes:
        ways = places(tree)
        if not ways:
            return tree
        # one half of the changes to the upper levels: most values are at the bottom
        upper = [w for w in ways if len(w) <= 3]
        way = upper[c.at // 2 % len(upper)] if c.at % 2 and upper else ways[c.at // 2 % len(ways)]
        holder = tree
        for key in way[:-1]:
            holder = holder[key]
        _change(holder, way[-1], c, tree, ways)
    return tree


def _change(holder: Any, key: Any, c: Change, tree: Any, ways: list[tuple[Any, ...]]) -> None:
    value = holder[key]
    if c.how == "drop":
        del holder[key]
    elif c.how == "double":
        if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(value))
        else:
            holder[f"{key}x"] = copy.deepcopy(value)
    elif c.how == "swap":
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        other = keys[c.value % len(keys)]
        holder[key], holder[other] = holder[other], holder[key]
    elif c.how == "copy":
        found = tree
        for k in ways[c.value % len(ways)]:
            found = found[k]
        holder[key] = copy.deepcopy(found)
    elif c.how == "near" and isinstance(value, (int, float)):
        holder[key] = value + [1, -1, 64, -64, value, 0.5][c.value % 6]
    elif c.how == "near" and isinstance(value, str) and value:
        at = c.value % len(value)
        holder[key] = value[:at] + chr(33 + c.value % 90) + value[at + 1 :]
    elif c.how == "more" and isinstance(value, list):
        value.extend(copy.deepcopy(value) * (1 + c.value % 3))
    elif c.how == "empty":
        holder[key] = type(value)() if isinstance(value, (list, dict, str)) else 0
    elif c.how == "none":
        holder[key] = None
    elif c.how == "list":
        holder[key] = [value]
    elif c.how == "text":
        holder[key] = TEXTS[c.value % len(TEXTS)]
    else:
        holder[key] = NUMBERS[c.value % len(NUMBERS)]


NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")
WORD = re.compile(r"[%@]?[A-Za-z_][\w.]*")


def changed_text(text: str, changes: tuple[Change, ...], ops: list[str]) -> str:
    """Graph text with other numbers, words, ops and lines."""
    for c in changes:
        lines = text.split("\n")
        nodes = [i for i, line in enumerate(lines) if " = " in line]
        at = c.at // 4 % len(lines) if c.at % 4 == 0 or not nodes else nodes[c.at // 4 % len(nodes)]
        line = lines[at]
        if c.how == "drop":
            del lines[at]
        elif c.how == "double":
            lines.insert(at, re.sub(r"%([\w.]+)", r"%\1_again", line, count=1))
        elif c.how == "swap":
            other = c.value % len(lines)
            lines[at], lines[other] = lines[other], lines[at]
        elif c.how == "insert":
            lines[at] = line[: c.value % (len(line) + 1)] + "(,)[]{}=%@\"*+-/:.0"[c.value % 18] + line[c.value % (len(line) + 1) :]
        elif c.how == "op":
            lines[at] = re.sub(r"= [a-z_0-9]+", f"= {ops[c.value % len(ops)]}", line)
        elif c.how == "attribute":
            added = ATTRIBUTES[c.value % len(ATTRIBUTES)]
            old, new = (r"= ([a-z_0-9]+)\{", rf"= \1{{{added}, ") if "{" in line else (r"= ([a-z_0-9]+)", rf"= \1{{{added}}}")
            lines[at] = re.sub(old, new, line)
        else:
            pattern = NUMBER if c.how in ("number", "near") else WORD
            found = list(pattern.finditer(line))
            if c.at % 3 and "{" in line:  # attributes rather than types, which are made to fit
                found = [m for m in found if m.start() > line.index("{")] or found
            if found:
                m = found[c.value % len(found)]
                lines[at] = line[: m.start()] + _other(m.group(), c, text) + line[m.end() :]
        text = "\n".join(lines)
    return text


def _other(word: str, c: Change, text: str) -> str:
    if c.how == "number":
        return repr(NUMBERS[c.value // 7 % len(NUMBERS)])
    if c.how == "near":
        return str(float(word) + 1 if "." in word or "e" in word else int(word) + [1, -1, 2, -2, 64, int(word)][c.value // 7 % 6])
    if c.how == "dtype":
        return ["f32", "i8", "i64", "u8", "bool", "f16", "bf16", "c64", "f64", "f8e5m2"][c.value // 7 % 10]
    words = sorted(set(WORD.findall(text)))
    same = [w for w in words if w[:1] == word[:1] or not word.startswith(("%", "@"))]
    return same[c.value // 7 % len(same)] if same else word


def changed_bytes(data: bytes, changes: tuple[Change, ...]) -> bytes:
    raw = bytearray(data)
    for c in changes:
        if not raw:
            break
        at = c.at % len(raw) if c.value % 3 else c.at % min(len(raw), 256)  # the head gets its share
        n = [1, 8, 64, 4096][c.value // 3 % 4]
        if c.how == "flip":
            raw[at] ^= 1 << c.value % 8
        elif c.how == "byte":
            raw[at] = c.value // 5 % 256
        elif c.how == "zeros":
            raw[at : at + n] = bytes(len(raw[at : at + n]))
        elif c.how == "cut":
            del raw[at : at + n if c.value % 2 else len(raw)]
        elif c.how == "grow":
            raw[at:at] = bytes([c.value // 5 % 256]) * n
        elif c.how == "move":
            to = c.value % len(raw)
            raw[at : at + n] = raw[to : to + len(raw[at : at + n])]
        else:
            number = NUMBERS[c.value // 7 % 26]
            raw[at : at + 8] = (int(number) % (1 << 64)).to_bytes(8, "little")[: len(raw[at : at + 8])]
    return bytes(raw)
