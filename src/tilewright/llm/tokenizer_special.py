"""Tokens with a meaning beyond their text: which ones end an answer, and how text is cut at them before it is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Kinds of tokens in `tokenizer.ggml.token_type`.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Files often name one end token only; these texts end a turn or a document wherever they are tokens (as in llama.cpp).
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]",
               "<｜end▁of▁sentence｜>", "<end_of_utterance>")  # fmt: skip
END_OF_GENERATION = (*END_OF_TURN, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<turn|>",
                     "<|tool_response>", "[e~[")  # fmt: skip
END_OF_FILE = (("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
               ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"), ("<|file_sep|>",))  # fmt: skip
C_SPACE = " \t\n\v\f\r"


@dataclass(frozen=True)
class Special:
    """A token that is looked for in text. `always`: also in plain text (user-defined ones). `eats_space`: and the space behind it."""

    text: str
    id: int
    always: bool
    eats_space: bool = False


def longest_first(specials: Iterable[Special]) -> tuple[Special, ...]:
    return tuple(sorted(specials, key=lambda s: -len(s.text.encode())))


def partition(text: str, specials: tuple[Special, ...], *, everything: bool, shield: str | None = None) -> list[str | int]:
    """Cut `text` at special tokens, longer ones first: pieces of text, and ids. Without `everything` control tokens stay text.

    `shield` is the text with other characters wherever it must not be read as a control token.
    """
    parts: list[range | int] = [range(len(text))] if text else []
    for special in specials:
        seen = text if special.always or shield is None else shield
        if (everything or special.always) and special.text in seen:
            parts = [piece for part in parts for piece in (_cut(text, seen, part, special) if isinstance(part, range) else [part])]
    return [text[part.start : part.stop] if isinstance(part, range) else part for part in parts]


def _cut(text: str, seen: str, part: range, special: Special) -> list[range | int]:
    parts: list[range | int] = []
    start = part.start
    while (at := seen.find(special.text, start, part.stop)) >= 0:
        if at > start:
            parts.append(range(start, at))
        parts.append(special.id)
        start = at + len(special.text)
        while special.eats_space and start < part.stop and text[start] in C_SPACE:
            start += 1
    return [*parts, range(start, part.stop)] if start < part.stop else parts


def stop_ids(ids: Mapping[str, int], named: Iterable[int | None]) -> frozenset[int]:
    """Every token after which a model has nothing more to say."""
    found = {i for i in named if i is not None}
    found |= {ids[t] for t in END_OF_GENERATION if t in ids}
    for family in END_OF_FILE:
        found |= {ids[t] for t in family if t in ids}
    harmony = {t for t in ("<|return|>", "<|call|>", "<|calls|>", "<|flush|>") if t in ids}
    if harmony >= {"<|return|>", "<|call|>"} or harmony >= {"<|calls|>", "<|flush|>"}:
        found.discard(ids.get("<|end|>", -1))  # there it only ends a part of an answer
    return frozenset(found)
