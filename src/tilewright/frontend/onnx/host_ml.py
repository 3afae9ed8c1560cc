"""ai.onnx.ml on the host: labels and categories that are strings, maps, and many keys."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...core.errors import FormatError
from .host_strings import text_of, texts, words
from .tables import MICROSOFT, ML, host, prepared


class _Table(dict[Any, Any]):
    """Values by key. In a table of strings another object is looked up as its text; what is not there has the value `other`."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]], other: Any) -> None:
        super().__init__(pairs)
        self.other = other
        self.strings = any(isinstance(k, str) for k in self)
        self.nan = next((v for k, v in self.items() if isinstance(k, float) and np.isnan(k)), other)

    def __missing__(self, key: Any) -> Any:
        if self.strings and type(key) is not str:
            return self[text_of(key)]
        return self.other if key == key else self.nan


def mapping(attrs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Keys and values of a LabelEncoder."""
    kinds = ("strings", "int64s", "floats", "tensor")
    def first(what: str) -> list[Any] | None:
        return next((np.asarray(attrs[n]).reshape(-1).tolist() for n in (f"{what}_{k}" for k in kinds) if attrs.get(n) is not None), None)

    keys, values = first("keys"), first("values")
    if keys is None or values is None or len(keys) != len(values):
        raise FormatError("onnx: LabelEncoder needs as many keys as values")
    return keys, values


@prepared("LabelEncoder", domain=ML, since=2)
def label_encoder(**attrs: Any) -> Any:
    keys, values = mapping(attrs)
    tensor, default = attrs.get("values_tensor"), attrs.get("default_tensor")
    if attrs.get("values_strings") is not None or (tensor is not None and np.asarray(tensor).dtype.kind in "OUS"):
        kind, fallback = np.dtype(object), attrs.get("default_string", "_Unused")
    elif tensor is not None:
        kind, fallback = np.asarray(tensor).dtype, -1
    elif attrs.get("values_int64s") is not None:
        kind, fallback = np.dtype(np.int64), attrs.get("default_int64", -1)
    else:
        kind, fallback = np.dtype(np.float32), attrs.get("default_float", -0.0)
    if default is not None:
        fallback = np.asarray(default).reshape(-1).tolist()[0]
    get = _Table(reversed(list(zip(keys, values, strict=True))), fallback).__getitem__

    def run(x: Any) -> Any:
        found = map(get, x.reshape(-1).tolist())
        if kind.kind != "O":
            return np.fromiter(found, kind, x.size).reshape(x.shape)
        out = np.empty(x.size, kind)
        out[:] = list(found)
        return out.reshape(x.shape)

    return run


@host("LabelEncoder", domain=ML, until=1)
def label_encoder1(step: Any, x: Any, *, classes_strings: Any, default_int64: int = -1, default_string: str = "_Unused") -> Any:
    a = np.asarray(x)
    if a.dtype.kind in "OUS":
        number = {s: i for i, s in enumerate(classes_strings)}
        return np.array([number.get(s, default_int64) for s in texts(a).reshape(-1)], np.int64).reshape(a.shape)
    names = [classes_strings[i] if 0 <= i < len(classes_strings) else default_string for i in a.reshape(-1)]
    return np.array(names, object).reshape(a.shape)


@host("CategoryMapper", domain=ML)
def category_mapper(step: Any, x: Any, *, cats_int64s: Any, cats_strings: Any, default_int64: int = -1,
                    default_string: str = "_Unused") -> Any:
    a = np.asarray(x)
    if a.dtype.kind in "OUS":
        number = dict(zip(cats_strings, cats_int64s, strict=True))
        return np.array([number.get(s, default_int64) for s in texts(a).reshape(-1)], np.int64).reshape(a.shape)
    name = dict(zip(cats_int64s, cats_strings, strict=True))
    return np.array([name.get(int(i), default_string) for i in a.reshape(-1)], object).reshape(a.shape)


@prepared("OneHotEncoder", domain=ML)
def one_hot_encoder(*, cats_strings: Any, zeros: int = 1, **_: Any) -> Any:
    none, eye = len(cats_strings), np.eye(len(cats_strings) + 1, len(cats_strings), dtype=np.float32)
    place = label_encoder(keys_strings=cats_strings, values_int64s=range(none), default_int64=none)

    def run(x: Any) -> Any:
        at = place(x)
        if not zeros and (at == none).any():
            raise ValueError(f"{x[at == none][0]!r} is none of its categories")
        return eye[at]

    return run


@prepared("ZipMap", domain=ML)
def zip_map(*, classlabels_int64s: Any = None, classlabels_strings: Any = None) -> Any:
    names = list(classlabels_strings) if classlabels_strings else list(classlabels_int64s)
    if 0 < len(names) <= 64 and len(set(names)) == len(names):  # a display of a dict is made several times as fast as a dict of pairs
        keys, values = ([f"{c}{i}" for i in range(len(names))] for c in "kv")
        each = ", ".join(f"{k}: {v}" for k, v in zip(keys, values, strict=True))
        rows = eval(f"lambda {', '.join(keys)}: lambda rows: [{{{each}}} for ({', '.join(values)},) in rows]")(*names)
    else:
        def rows(rows: Any) -> Any:
            return [dict(zip(names, row, strict=True)) for row in rows]

    def run(x: Any) -> Any:
        a = np.asarray(x)
        return rows((a if a.ndim == 2 else a.reshape(1, -1)).tolist())

    return run


@host("DictVectorizer", domain=ML)
def dict_vectorizer(step: Any, x: Any, *, int64_vocabulary: Any = None, string_vocabulary: Any = None) -> Any:
    words = list(string_vocabulary) if string_vocabulary else list(int64_vocabulary)
    rows = x if isinstance(x, list) else [x]
    values = [[row.get(w, 0) for w in words] for row in rows]
    kind = np.int64 if all(isinstance(v, (int, np.integer)) for r in values for v in r) else np.float32
    return np.array(values, kind)


@host("CastMap", domain=ML)
def cast_map(step: Any, x: Any, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Any:
    items = sorted(x.items())
    values = [v for _, v in items]
    if map_form == "SPARSE":
        given = dict(items)
        values = [given.get(i, 0) for i in range(max_map)]
    if cast_to == "TO_STRING":
        return np.array([[str(v) for v in values]], object)
    return np.array([values], np.float32 if cast_to == "TO_FLOAT" else np.int64).astype(np.float32 if cast_to == "TO_FLOAT" else np.int64)


def murmur(data: bytes, seed: int) -> int:
    """MurmurHash3 of 32 bits."""
    full, h = len(data) & ~3, seed & 0xFFFFFFFF
    for at in range(0, len(data), 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        h ^= (k << 15 | k >> 17) * 0x1B873593 & 0xFFFFFFFF
        h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & 0xFFFFFFFF if at < full else h
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


@prepared("MurmurHash3", domain=MICROSOFT)
def murmur_hash(*, seed: int = 0, positive: int = 1) -> Any:
    def run(x: Any) -> Any:
        a = np.asarray(x)
        parts = [w.encode("utf-8", "surrogateescape") for w in words(a)] if a.dtype.kind in "OUS" else \
            [v.tobytes() for v in a.reshape(-1)]
        out = np.array([murmur(p, seed) for p in parts], np.uint32).reshape(a.shape)
        return out if positive else out.view(np.int32)

    return run
