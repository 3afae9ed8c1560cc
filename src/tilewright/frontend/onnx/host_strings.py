"""Strings: everything about them runs on the host."""
from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...core.errors import UnsupportedError
from .tables import ML, host, prepared, rows


def texts(x: Any) -> Any:
    """An array of str objects."""
    a = np.asarray(x)
    out = np.empty(a.size, object)
    out[:] = words(a)
    return out.reshape(a.shape)


def words(a: Any) -> list[str]:
    """The elements of an array as str."""
    flat = a.reshape(-1).tolist()
    if set(map(type, flat)) <= {str}:
        return flat  # type: ignore[no-any-return]
    return [text_of(v) for v in flat]


def text_of(v: Any) -> str:
    """An element of an array of strings as str."""
    return v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else str(v)


def _each(fn: Any, *arrays: Any) -> Any:
    wide = np.broadcast_arrays(*arrays)
    out = np.empty(wide[0].shape, object)
    for i in np.ndindex(out.shape):
        out[i] = fn(*(a[i] for a in wide))
    return out


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


@prepared("Tokenizer", domain="com.microsoft", steady=False)
def tokenizer(*, mark: int, mincharnum: int, pad_value: str, separators: Any = None, tokenexp: str | None = None) -> Any:
    """Strings [C] or [N, C] cut into words [..., most], the short ones dropped; `mark` puts the two control characters around each row."""
    try:
        words_of = [re.compile(p) for p in ([tokenexp] if tokenexp else separators or ()) if p]
    except re.error as e:
        raise UnsupportedError(f"onnx: Tokenizer: a pattern of {[tokenexp, *(separators or ())]} cannot be read: {e}") from None

    def cut(text: str) -> list[str]:
        if tokenexp:
            found = [m.group() for m in words_of[0].finditer(text)]
        elif not words_of:  # the separator without letters: characters
            found = list(text)
        else:
            found = [text]
            for separator in words_of:
                found = [part for piece in found for part in separator.split(piece)]
        return [w for w in found if len(w) >= max(mincharnum, 1)]

    def run(x: Any) -> Any:
        a = np.asarray(x)
        lines = [["\x02", *line, "\x03"] if mark else line for line in map(cut, words(a))]
        most = max(map(len, lines), default=0)
        out = np.empty((len(lines), most), object)
        for k, line in enumerate(lines):
            out[k] = line + [pad_value] * (most - len(line))
        return out.reshape(*a.shape, most)

    return run


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


@host("Cast")
def cast(step: Any, x: Any, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """Numbers from and to text."""
    from .elements import STRING, elem

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
    from .elements import STRING, elem_of

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


def _ints(x: Any) -> list[int]:
    return [int(v) for v in x]


def _reshaped(step: Any, x: Any, shape: Any, *, allowzero: int = 0) -> Any:
    return np.reshape(x, [np.shape(x)[i] if d == 0 and not allowzero else int(d) for i, d in enumerate(shape)])


rows({
    "StringConcat": lambda step, x, y: _each(lambda a, b: a + b, texts(x), texts(y)),
    "Equal": lambda step, x, y: _each(lambda a, b: a == b, texts(x), texts(y)).astype(bool),
    "Constant": lambda step, *, value=None, value_string=None, value_strings=None:
        np.array(value_string if value_strings is None else value_strings, object) if value is None else value,
    # Ops that only move elements, for strings.
    "Reshape": _reshaped,
    "Flatten": lambda step, x, *, axis=1: np.reshape(x, (int(np.prod(np.shape(x)[:axis])), -1)),
    "Squeeze": lambda step, x, axes=None: np.squeeze(x, None if axes is None else tuple(_ints(axes))),
    "Unsqueeze": lambda step, x, axes: np.expand_dims(x, tuple(_ints(axes))),
    "Transpose": lambda step, x, *, perm=None: np.transpose(x, perm),
    "Expand": lambda step, x, shape: np.broadcast_to(x, np.broadcast_shapes(np.shape(x), tuple(_ints(shape)))).copy(),
    "Tile": lambda step, x, repeats: np.tile(x, _ints(repeats)),
    "Concat": lambda step, *xs, axis: np.concatenate(xs, axis=axis),
    "Where": lambda step, condition, x, y: np.where(condition, x, y),
    "Shape": lambda step, x, *, start=0, end=None: np.array(np.shape(x), np.int64)[start:end],
    "Size": lambda step, x: np.array(np.size(x), np.int64),
    "Optional": lambda step, x=None, **_: x,
    "OptionalGetElement": lambda step, x: x,
    "OptionalHasElement": lambda step, x=None: np.array(x is not None),
    "SequenceConstruct": lambda step, *xs: list(xs),
    "SequenceAt": lambda step, xs, position: xs[int(np.asarray(position).reshape(-1)[0])],
    "SequenceLength": lambda step, xs: np.array(len(xs), np.int64),
    "ConcatFromSequence": lambda step, xs, *, axis, new_axis=0: np.stack(xs, axis) if new_axis else np.concatenate(xs, axis),
}, enter=host)


@host("CenterCropPad", "DepthToSpace", "GatherElements", "GatherND", "OneHot", "Pad", "ReverseSequence", "ScatterElements", "ScatterND",
      "Slice", "SpaceToDepth", "Split", "SplitToSequence", "TensorScatter", "Trilu", importing=True)
def moved(step: Any, *inputs: Any, **attrs: Any) -> Any:
    """Ops that only move elements: what is done to strings is done to their numbers. 0 is the string without letters."""
    from .importer import Builder

    pool, builder = [""], Builder(step.program.source, "strings")

    def numbers(x: Any) -> Any:
        if x is None or np.asarray(x).dtype.kind not in "OUS":
            return x
        first = len(pool)
        pool.extend(words(np.asarray(x)))
        return np.arange(first, len(pool)).reshape(np.shape(x))

    for name, x in zip(step.item.inputs, inputs, strict=True):
        if name:
            builder.scope.bindings[name] = builder.lift(numbers(x), name)
    builder.run([step.item])
    every = np.array(pool, object)

    def strings(b: Any) -> Any:
        return [strings(x) for x in b] if isinstance(b, list) else every[builder.context.contents.weights(b)]

    return tuple(strings(builder.scope.get(name)) for name in step.outputs if name)


@prepared("Identity")
def identity() -> Any:
    return lambda x: x


@prepared("Gather")
def gather(*, axis: int = 0) -> Any:
    def run(x: Any, ids: Any) -> Any:
        if type(ids) is np.ndarray and ids.shape == (1,) and axis == 1 and 0 <= (at := int(ids[0])) < x.shape[1]:
            return x[:, at : at + 1]  # one column is a view
        return np.take(x, ids, axis=axis)

    return run


@prepared("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor() -> Any:
    def run(x: Any, ids: Any) -> Any:
        out = x[..., at : at + 1] if ids.size == 1 and (at := ids.item()) >= 0 else np.take(x, np.reshape(ids, -1), axis=-1)
        return out.reshape(1, -1) if out.ndim == 1 else out

    return run


@host("SequenceInsert")
def sequence_insert(step: Any, xs: Any, x: Any, position: Any = None) -> Any:
    at = len(xs) if position is None else int(np.asarray(position).reshape(-1)[0])
    at = at + len(xs) if at < 0 else at
    return [*xs[:at], x, *xs[at:]]


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
