"""GGUF files with changed keys, vocabularies, tensors, counts and bytes: opened and used, or a typed error that names the file."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .engine.campaign import MB, Campaign
from .language import samples as s
from .language.mutate import NUMBERS, scramble, weird
from .language.use import examine

KINDS = (*s.CODES, s.STRING, s.ARRAY, 13, 99, 1 << 31)


@dataclass(frozen=True)
class Edit:
    op: str
    at: int
    how: int


@dataclass(frozen=True)
class File:
    kind: str
    edits: tuple[Edit, ...]
    whole: bool


OPS = (
    "value",
    "value",
    "value",
    "kind",
    "drop",
    "twice",
    "name",
    "element",
    "element",
    "length",
    "counts",
    "shape",
    "shape",
    "type",
    "offset",
    "tdrop",
    "ttwice",
    "tname",
    "data",
    "add",
    "bytes",
    "bytes",
    "bytes",
    "sparse",
)


def draw(rng: np.random.Generator) -> File:
    edits = tuple(
        Edit(str(rng.choice(OPS)), int(rng.integers(1 << 20)), int(rng.integers(1 << 30))) for _ in range(int(rng.integers(1, 4)))
    )
    return File(str(rng.choice(list(s.CONFIGS))), edits, bool(rng.random() < 0.003))


ADDED = (
    "attention.scale",
    "attention.value_length",
    "logit_scale",
    "expert_count",
    "expert_used_count",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.freq_base_swa",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention.causal",
    "rope.scaling.original_context_length",
    "attention.sliding_window_pattern",
    "expert_gating_func",
    "tensor_data_layout",
)
GLOBAL = (
    "split.count",
    "split.no",
    "general.alignment",
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.precompiled_charsmap",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.remove_extra_whitespaces",
    "tokenizer.ggml.scores",
)


def build(subject: File) -> tuple[bytes, int]:
    """The file, and how long it is made (a sparse one is longer than its bytes)."""
    keys, parts, counts, late, long = list(s.gguf_keys(subject.kind)), s.gguf_tensors(subject.kind), None, [], 0
    for e in subject.edits:
        k, t = e.at % max(1, len(keys)), e.at % max(1, len(parts))
        if e.op in ("bytes", "sparse"):
            late.append(e)
        elif e.op == "counts":
            counts = (
                (abs(int(_number(e.how))), abs(int(_number(e.how // 64)))) if e.how % 3 else (len(parts) + e.how % 3, len(keys) - e.how % 2)
            )
        elif e.op == "add":
            arch = s.gguf_keys(subject.kind)[0][2]
            name = f"{arch}.{ADDED[e.at % len(ADDED)]}" if e.at % 2 else GLOBAL[e.at % len(GLOBAL)]
            keys.append((name, KINDS[e.how % len(KINDS)], weird(e.how // 16)))
        elif e.op in ("value", "kind", "drop", "twice", "name", "element", "length") and keys:
            name, kind, value = keys[k]
            if e.op == "value":
                keys[k] = name, kind, weird(e.how)
            elif e.op == "kind":
                keys[k] = name, KINDS[e.how % len(KINDS)], value
            elif e.op == "drop":
                del keys[k]
            elif e.op == "twice":
                keys.append(keys[k])
            elif e.op == "name":
                keys[k] = str(weird(e.how))[:100000] if e.how % 2 else keys[e.how % len(keys)][0], kind, value
            elif isinstance(value, tuple):
                inner, items = value[0], list(value[1])
                place = e.how % max(1, len(items))
                if e.op == "element" and items:
                    items[place] = weird(e.how // 7) if e.how % 2 else items[(e.how // 3) % len(items)]
                elif e.op == "length":
                    items = items[: e.how % (len(items) + 1)] if e.how % 2 else items + items[:place]
                keys[k] = name, kind, (inner, tuple(items))
        elif parts and e.op in ("shape", "type", "offset", "tdrop", "ttwice", "tname", "data"):
            name, shape, kind, data, offset = parts[t]
            if e.op == "shape":
                axis = e.how % max(1, len(shape))
                new = list(shape)
                new[axis : axis + 1] = ([int(_number(e.how // 4))], [], [1, new[axis]] if new else [], [new[axis] // 2] if new else [])[
                    e.how % 4
                ]
                shape = tuple(new)
            elif e.op == "type":
                kind = e.how % 45
            elif e.op == "offset":
                offset = int(_number(e.how))
            elif e.op == "data":
                fill = np.random.default_rng(e.how).integers(0, 256, len(data), np.uint8).tobytes()
                data = (fill, b"\xff" * len(data), b"", data[: e.how % (len(data) + 1)])[e.how % 4]
            if e.op == "tdrop":
                del parts[t]
            elif e.op == "ttwice":
                parts.append(parts[t])
            else:
                parts[t] = (
                    parts[e.how % len(parts)][0] if e.op == "tname" and e.how % 2 else "x" if e.op == "tname" else name,
                    shape,
                    kind,
                    data,
                    offset,
                )
    data = s.gguf_file(keys, parts, counts)
    for e in late:
        if e.op == "bytes":
            data = scramble(data, e.at, e.how, 12000)
        else:
            long = len(data) + (1 << (e.how % 38))
    return data, long


def _number(how: int) -> float:
    value = NUMBERS[how % len(NUMBERS)]
    return value if isinstance(value, int) or np.isfinite(value) else 0


def check(subject: File) -> None:
    data, long = build(subject)
    with tempfile.TemporaryDirectory(prefix="campaign") as folder:
        path = Path(folder) / "model.gguf"
        with path.open("wb") as f:
            f.write(data)
            if long:
                f.truncate(long)
        examine(path, whole=subject.whole)


CAMPAIGN = Campaign(draw=draw, check=check, quick=60, memory=1900 * MB, keep=("kind",), seconds=30.0)
