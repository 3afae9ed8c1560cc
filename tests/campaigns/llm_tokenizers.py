"""Tokenizers with changed rules and vocabularies: text to tokens and back, or a typed error; never the end of the process, which some
damaged files once were inside the `tokenizers` library."""

from __future__ import annotations

import copy
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.frontend.gguf.reader import parse
from tilewright.frontend.safetensors import HFFolder
from tilewright.llm.loading import named
from tilewright.llm.tokenizer_gguf import tokenizer_from_gguf
from tilewright.llm.tokenizer_json import tokenizer_from_folder

from .engine.campaign import MB, Campaign
from .language import samples as s
from .language.mutate import change, scramble, weird
from .language.use import talk


@dataclass(frozen=True)
class Edit:
    op: str
    at: int
    how: int


@dataclass(frozen=True)
class Vocabulary:
    kind: str
    edits: tuple[Edit, ...]


OPS = (
    "any",
    "any",
    "model",
    "normalizer",
    "pre_tokenizer",
    "decoder",
    "added_tokens",
    "post_processor",
    "token",
    "token",
    "merge",
    "option",
    "option",
    "text",
    "text",
)
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("continuing_subword_prefix", "x"),
    ("continuing_subword_prefix", "é"),
    ("continuing_subword_prefix", "t"),
    ("end_of_word_suffix", "é"),
    ("unk_token", "<unk>"),
    ("unk_token", "none"),
    ("unk_id", 1 << 40),
    ("unk_id", None),
    ("byte_fallback", True),
    ("fuse_unk", True),
    ("dropout", 1.5),
    ("dropout", 0.0),
    ("ignore_merges", True),
    ("type", "WordPiece"),
    ("type", "WordLevel"),
    ("type", "Unigram"),
    ("type", "BPE"),
    ("max_input_chars_per_word", 0),
    ("max_input_chars_per_word", 1 << 62),
    ("vocab", {}),
    ("vocab", []),
    ("merges", []),
)
STEPS: tuple[dict[str, Any], ...] = (
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    {"type": "Metaspace", "replacement": "▁▁"},
    {"type": "Split", "pattern": {"Regex": "(a|a)*b"}, "behavior": "MergedWithNext", "invert": True},
    {"type": "Digits", "individual_digits": True},
    {"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": False},
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "Replace", "pattern": {"Regex": "."}, "content": "é" * 8},
    {"type": "Replace", "pattern": {"String": ""}, "content": "ab"},
    {"type": "Strip", "content": "a", "start": 1 << 60, "stop": 3},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "FixedLength", "length": 0},
    {"type": "FixedLength", "length": 2},
    {"type": "UnicodeScripts"},
    {"type": "WhitespaceSplit"},
    {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True},
    {"type": "BPEDecoder", "suffix": "é"},
    {"type": "ByteFallback"},
    {"type": "Prepend", "prepend": ""},
    {"type": "Prepend", "prepend": "é" * 60},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
    {"type": "Nmt"},
    {"type": "StripAccents"},
    {"type": "ByteLevel"},
)


def draw(rng: np.random.Generator) -> Vocabulary:
    edits = tuple(
        Edit(str(rng.choice(OPS)), int(rng.integers(1 << 20)), int(rng.integers(1 << 30))) for _ in range(int(rng.integers(1, 5)))
    )
    return Vocabulary(str(rng.choice(["bytes", "scores", "gguf:llama", "gguf:qwen2", "gguf:gemma3_text"])), edits)


def check(subject: Vocabulary) -> None:
    with tempfile.TemporaryDirectory(prefix="campaign") as folder:
        path = Path(folder) / ("model.gguf" if subject.kind.startswith("gguf") else "tokenizer.json")
        try:
            with named(path.parent):
                tokenizer = from_gguf(subject, path) if subject.kind.startswith("gguf") else from_json(subject, path)
        except (tw.FormatError, tw.UnsupportedError) as e:
            assert str(path.parent) in str(e) and len(str(e)) < 3000, e
            return
        talk(tokenizer)


def from_json(subject: Vocabulary, path: Path) -> Any:
    whole: Any = copy.deepcopy(s.tokenizer_json(subject.kind))
    texts = []
    for e in subject.edits:
        if not isinstance(whole, dict):
            break
        model: Any = whole.get("model") if isinstance(whole.get("model"), dict) else {}
        if e.op == "text":
            texts.append(e)
        elif e.op == "any":
            whole = change(whole, e.at, e.how)
        elif e.op == "option":
            key, value = OPTIONS[e.at % len(OPTIONS)]
            model[key] = copy.deepcopy(value)
        elif e.op in ("token", "merge"):
            part = model.get("vocab" if e.op == "token" else "merges")
            if isinstance(part, (dict, list)) and part:
                change(part, e.at, e.how)
        elif e.op in ("normalizer", "pre_tokenizer", "decoder") and e.how % 2:
            whole[e.op] = copy.deepcopy(STEPS[e.at % len(STEPS)])
        else:
            whole[e.op] = change(whole[e.op], e.at, e.how) if isinstance(whole.get(e.op), (dict, list)) else weird(e.how)
    data = json.dumps(whole, ensure_ascii=bool(len(subject.edits) % 2)).encode(errors="surrogatepass")
    for e in texts:
        data = scramble(data, e.at, e.how, 9000)
    path.write_bytes(data)
    return tokenizer_from_folder(HFFolder(path.parent, {}, {}, {}))


def from_gguf(subject: Vocabulary, path: Path) -> Any:
    keys = [k for k in s.gguf_keys(subject.kind.split(":")[1]) if k[0].startswith("tokenizer")]
    for e in subject.edits:
        at = e.at % len(keys)
        name, kind, value = keys[at]
        if isinstance(value, tuple):
            items = list(value[1])
            place = e.how % max(1, len(items))
            new = (weird(e.how // 9), str(weird(e.how // 9))[:3], items[e.at % len(items)] if items else 0, e.how % 9 - 1)
            items[place : place + 1] = [[new[e.how % 4]], [], [*items[place : place + 1], new[e.at % 4]]][e.how % 3]
            keys[at] = name, kind, (value[0], tuple(items))
        elif e.how % 5 == 0:
            keys.append(
                (
                    "tokenizer.ggml.precompiled_charsmap",
                    s.ARRAY,
                    (0, tuple(np.random.default_rng(e.how).integers(0, 256, e.at % 600).tolist())),
                )
            )
        elif e.how % 5 == 1:
            keys[at] = name, kind, weird(e.how // 5)
        elif e.how % 5 == 2:
            keys.append((f"tokenizer.ggml.{('unknown', 'eot', 'bos', 'eom')[e.at % 4]}_token_id", s.U32, e.how % 300))
    unique = {k[0]: k for k in keys}
    return tokenizer_from_gguf(parse(memoryview(s.gguf_file(list(unique.values()), [])), path))


CAMPAIGN = Campaign(draw=draw, check=check, quick=60, memory=1900 * MB, keep=("kind",))
