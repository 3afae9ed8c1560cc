"""Strings: everything about them runs on the host."""
from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...core.errors import UnsupportedError
from .elements import STRING, elem
from .registry import host


def texts(x: Any) -> Any:
    """An array of str objects."""
    a = np.asarray(x)
    out = np.empty(a.shape, object)
    for i in np.ndindex(a.shape):
        v = a[i]
        out[i] = v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else str(v)
    return out


def _each(fn: Any, *arrays: Any) -> Any:
    wide = np.broadcast_arrays(*arrays)
    out = np.empty(wide[0].shape, object)
    for i in np.ndindex(out.shape):
        out[i] = fn(*(a[i] for a in wide))
    return out


@host("StringConcat")
def string_concat(step: Any, x: Any, y: Any) -> Any:
    return _each(lambda a, b: a + b, texts(x), texts(y))


@host("StringSplit")
def string_split(step: Any, x: Any, *, delimiter: str | None = None, maxsplit: int | None = None) -> Any:
    rows = texts(x)
    parts = _each(lambda s: s.split(delimiter or None, -1 if maxsplit is None else maxsplit), rows)
    counts = _each(len, parts).astype(np.int64)
    most = int(counts.max()) if counts.size else 0
    out = np.full((*rows.shape, most), "", object)
    for i in np.ndindex(rows.shape):
        out[i][: len(parts[i])] = parts[i]
    return out, counts


@host("RegexFullMatch")
def regex_full_match(step: Any, x: Any, *, pattern: str) -> Any:
    try:
        compiled = re.compile(pattern)
    except re.error as e:
        raise UnsupportedError(f"onnx: RegexFullMatch: the pattern {pattern!r} cannot be read: {e}") from None
    return _each(lambda s: compiled.fullmatch(s) is not None, texts(x)).astype(bool)


@host("StringNormalizer")
def string_normalizer(step: Any, x: Any, *, case_change_action: str = "NONE", is_case_sensitive: int = 0, locale: str = "",
                      stopwords: Any = ()) -> Any:
    rows = texts(x)

    def changed(s: str, action: str) -> str:
        return s.lower() if action == "LOWER" else s.upper() if action == "UPPER" else s

    fold = "NONE" if is_case_sensitive else "UPPER" if case_change_action == "UPPER" else "LOWER"
    stops = {changed(s, fold) for s in stopwords}
    flat = rows.reshape(-1)
    kept = [changed(s, case_change_action) for s in flat if changed(s, fold) not in stops]
    if not kept:
        kept = [""]
    out = np.array(kept, object)
    return out.reshape(1, -1) if rows.ndim == 2 else out


@host("Equal")
def equal(step: Any, x: Any, y: Any) -> Any:
    return _each(lambda a, b: a == b, texts(x), texts(y)).astype(bool)


@host("Identity")
def identity(step: Any, x: Any) -> Any:
    return x


@host("Constant")
def constant(step: Any, *, value: Any = None, value_string: Any = None, value_strings: Any = None) -> Any:
    return np.array(value_string if value_strings is None else value_strings, object) if value is None else value


@host("Cast")
def cast(step: Any, x: Any, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """Numbers from and to text."""
    a = np.asarray(x)
    if to == STRING:
        return _each(_text, a)
    target = elem(to)
    rows = texts(a)
    if target.held.is_bool:
        return _each(lambda s: bool(float(s)), rows).astype(bool)
    if target.held.is_int:
        return _each(lambda s: int(float(s)) if any(ch in s for ch in ".eE") else int(s), rows).astype(target.held.np).astype(target.np)
    return _each(float, rows).astype(np.float64).astype(target.np)


@host("CastLike")
def cast_like(step: Any, x: Any, like: Any, *, saturate: int = 1, round_mode: str = "up") -> Any:
    from .elements import elem_of

    return cast(step, x, to=STRING if np.asarray(like).dtype.kind in "OUS" else elem_of(like).number)


def _text(v: Any) -> str:
    if isinstance(v, str):
        return v
    a = np.asarray(v)
    if a.dtype.kind == "b":
        return "1" if v else "0"
    if a.dtype.kind in "iu":
        return str(int(v))
    if np.isnan(v):
        return "NaN"
    if np.isinf(v):
        return "INF" if v > 0 else "-INF"
    if 1e-4 <= abs(float(v)) < 1e8 or float(v) == 0:
        return np.format_float_positional(np.float32(v), trim="-", unique=True)
    return f"{float(v):.8g}"


def _moved(name: str) -> Any:
    """Ops that only move elements, for strings."""
    def fn(step: Any, x: Any, *rest: Any, **attrs: Any) -> Any:
        a = np.asarray(x)
        match name:
            case "Reshape":
                shape = [a.shape[i] if d == 0 and not attrs.get("allowzero") else int(d) for i, d in enumerate(rest[0])]
                return a.reshape(shape)
            case "Flatten":
                at = attrs.get("axis", 1)
                return a.reshape(int(np.prod(a.shape[:at])), -1)
            case "Squeeze":
                axes = attrs.get("axes") or (None if not rest or rest[0] is None else [int(v) for v in rest[0]])
                return np.squeeze(a, None if axes is None else tuple(axes))
            case "Unsqueeze":
                axes = attrs.get("axes") or [int(v) for v in rest[0]]
                return np.expand_dims(a, tuple(axes))
            case "Transpose":
                return np.transpose(a, attrs.get("perm"))
            case "Expand":
                return np.broadcast_to(a, np.broadcast_shapes(a.shape, tuple(int(v) for v in rest[0]))).copy()
            case "Tile":
                return np.tile(a, [int(v) for v in rest[0]])
            case "Gather":
                return np.take(a, rest[0], axis=attrs.get("axis", 0))
            case "Concat":
                return np.concatenate([a, *rest], axis=attrs["axis"])
            case "Where":
                return np.where(a, *rest)
            case "Shape":
                return np.array(a.shape, np.int64)[attrs.get("start", 0) : attrs.get("end")]
            case "Size":
                return np.array(a.size, np.int64)
        raise AssertionError(name)

    return fn


for _name in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Gather", "Concat", "Where", "Shape", "Size"):
    host(_name)(_moved(_name))


@host("SequenceConstruct")
def sequence_construct(step: Any, *xs: Any) -> Any:
    return list(xs)


@host("SequenceInsert")
def sequence_insert(step: Any, xs: Any, x: Any, position: Any = None) -> Any:
    at = len(xs) if position is None else int(np.asarray(position).reshape(-1)[0])
    at = at + len(xs) if at < 0 else at
    return [*xs[:at], x, *xs[at:]]


@host("SequenceAt")
def sequence_at(step: Any, xs: Any, position: Any) -> Any:
    return xs[int(np.asarray(position).reshape(-1)[0])]


@host("SequenceLength")
def sequence_length(step: Any, xs: Any) -> Any:
    return np.array(len(xs), np.int64)


@host("ConcatFromSequence")
def concat_from_sequence(step: Any, xs: Any, *, axis: int, new_axis: int = 0) -> Any:
    return np.stack(xs, axis) if new_axis else np.concatenate(xs, axis)


@host("TfIdfVectorizer")
def tf_idf(step: Any, x: Any, *, mode: str, min_gram_length: int, max_gram_length: int, max_skip_count: int, ngram_counts: Any,
           ngram_indexes: Any, pool_int64s: Any = None, pool_strings: Any = None, weights: Any = None) -> Any:
    """Counts of n-grams, with gaps of up to max_skip_count elements."""
    pool = list(pool_strings) if pool_strings is not None else [int(v) for v in pool_int64s]
    grams: dict[tuple[Any, ...], int] = {}
    ends = [*ngram_counts[1:], len(pool)]
    number = 0
    for n, (start, end) in enumerate(zip(ngram_counts, ends, strict=True), 1):
        for i in range(start, end, n):
            grams[tuple(pool[i : i + n])] = number
            number += 1
    rows = np.asarray(x)
    batched = rows.ndim == 2
    lines = rows if batched else rows.reshape(1, -1)
    lines = texts(lines) if lines.dtype.kind in "OUS" else lines
    out = np.zeros((lines.shape[0], max(ngram_indexes) + 1 if len(ngram_indexes) else 0), np.float32)
    for r, line in enumerate(lines.tolist()):
        for n in range(min_gram_length, max_gram_length + 1):
            for skip in range(1 if n == 1 else max_skip_count + 1):
                for i in range(len(line) - (n - 1) * (skip + 1)):
                    found = grams.get(tuple(line[i : i + (n - 1) * (skip + 1) + 1 : skip + 1]))
                    if found is not None:
                        out[r, ngram_indexes[found]] += 1
    scale = np.ones(out.shape[1], np.float32)
    if weights is not None:
        for k, w in zip(ngram_indexes, weights, strict=True):
            scale[k] = w
    if mode == "IDF":
        out = (out > 0) * scale
    elif mode == "TFIDF":
        out = out * scale
    out = out.astype(np.float32)
    return out if batched else out[0]

