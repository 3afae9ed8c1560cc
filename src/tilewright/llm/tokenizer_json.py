"""The tokenizer of a Hugging Face folder: `tokenizer.json` through the `tokenizers` library, special ids from the configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import FormatError, UnsupportedError
from ..core.extras import need
from ..frontend.safetensors import HFFolder
from ..frontend.safetensors.folder import read_json
from .chat import LONGEST
from .tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED, SpecialIds, Tokenizer, byte_level, sentence_piece
from .tokenizer_checks import checked_tokenizer
from .tokenizer_library import library_encoder, library_errors

LIMIT = 40 << 20  # bytes of tokenizer.json; Gemma's has 33 MB


def tokenizer_from_folder(folder: HFFolder) -> Tokenizer:
    """Read `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and `chat_template.jinja`."""
    need("tokenizers", "tokenizer")
    from tokenizers import Tokenizer as Fast

    path = folder.path / "tokenizer.json"
    if not path.is_file():
        raise FormatError(f"tokenizer: no tokenizer.json in {folder.path}; save one with AutoTokenizer's save_pretrained")
    whole = checked_tokenizer(read_json(path, LIMIT), path)
    with library_errors("tokenizer.json cannot be read", path):
        fast = Fast.from_str(json.dumps(whole, ensure_ascii=False))  # what was checked, and nothing else
        fast.no_padding()
        fast.no_truncation()
        fast.encode_special_tokens = True  # means: encode the texts of special tokens as text; they are found before it sees a text
        vocabulary = fast.get_vocab(with_added_tokens=True)
        added = fast.get_added_tokens_decoder()
    del whole["model"]
    to_bytes, adds_space = _decoding(whole.get("decoder"), path)
    size = max(vocabulary.values(), default=-1) + 1
    if not 0 < size <= max(4 * len(vocabulary), 1 << 17):
        raise FormatError(f"tokenizer: {len(vocabulary)} tokens have ids up to {size - 1} ({path})")
    tokens, kinds = [f"[EMPTY_{i}]" for i in range(size)], [UNUSED] * size
    for text, i in vocabulary.items():
        tokens[i], kinds[i] = text, NORMAL
    for i, token in added.items():
        kinds[i] = CONTROL if token.special else USER_DEFINED
    config = folder.json("tokenizer_config.json")
    return Tokenizer(
        tokens=tokens,
        kinds=kinds,
        ids=_special_ids(folder, config, vocabulary),
        make_encoder=lambda _: library_encoder(fast, path),
        to_bytes=to_bytes,
        adds_bos=bool(config.get("add_bos_token", _template_adds_bos(whole, config))),
        adds_space=adds_space,
        chat_template=_template(folder, config),
        source=str(folder.path),
        eats_space=frozenset(a.content for a in added.values() if a.rstrip),
    )


def _decoding(decoder: Any, path: Path) -> tuple[Callable[[str], bytes], bool]:
    """(a token's bytes, whether the first space of a text is not part of it)."""
    steps = _steps(decoder, "decoders")
    kinds = {s.get("type") if isinstance(s.get("type"), str) else None for s in steps}
    if "ByteLevel" in kinds:
        return byte_level, False
    if kinds & {"Metaspace", "ByteFallback"}:
        strips = any(s.get("type") == "Strip" and s.get("content") == " " and s.get("start", 0) != 0 for s in steps)
        meta = any(s.get("type") == "Metaspace" and s.get("prepend_scheme", "always") != "never" for s in steps)
        return sentence_piece, strips or meta
    named = " ".join(sorted(map(str, kinds))) or "none"
    raise UnsupportedError(f"tokenizer: the decoder ({named}) is not supported; known: ByteLevel Metaspace ByteFallback ({path})")


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _special_ids(folder: HFFolder, config: Mapping[str, Any], vocabulary: Mapping[str, int]) -> SpecialIds:
    size = max(vocabulary.values()) + 1
    sources = (folder.json("generation_config.json"), folder.config)

    def named(name: str) -> list[int]:
        """Ids under `name`, the tokenizer's own first; a configuration may list several."""
        text = _token_text(config.get(f"{name}_token"))
        found = [vocabulary[text]] if text is not None and text in vocabulary else []
        for source in sources:
            value = source.get(f"{name}_token_id")
            found += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int) and 0 <= v < size]
        return found

    bos, eos, unknown, padding = (named(n) for n in ("bos", "eos", "unk", "pad"))

    def first(ids: list[int]) -> int | None:
        return ids[0] if ids else None

    return SpecialIds(bos=first(bos), eos=first(eos), unknown=first(unknown), padding=first(padding), others=tuple(dict.fromkeys(eos[1:])))


def _template_adds_bos(state: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether the post-processor starts a text with the BOS token."""
    text = _token_text(config.get("bos_token"))
    steps = _steps(state.get("post_processor"), "processors")
    singles = [s.get("single") for s in steps if s.get("type") == "TemplateProcessing"]
    first = [single[0].get("SpecialToken") for single in singles if isinstance(single, list) and single and isinstance(single[0], dict)]
    return any(isinstance(f, dict) and f.get("id") == text for f in first)


def _steps(part: Any, name: str) -> list[dict[str, Any]]:
    """The steps of a part of tokenizer.json: those of a sequence, or itself."""
    inner = part.get(name, [part]) if isinstance(part, dict) else []
    return [s for s in inner if isinstance(s, dict)] if isinstance(inner, list) else []


def _template(folder: HFFolder, config: Mapping[str, Any]) -> str | None:
    file = folder.path / "chat_template.jinja"
    if file.is_file():
        with file.open(encoding="utf-8", errors="replace") as text:
            return text.read(LONGEST + 1)
    value = config.get("chat_template")
    if isinstance(value, list):  # several templates with names
        named = {str(v.get("name")): v.get("template") for v in value if isinstance(v, dict)}
        value = named.get("default", next(iter(named.values()), None))
    return value if isinstance(value, str) else None
