"""Calls into the `tokenizers` library: it raises bare `Exception`, and panics on some damaged vocabularies; both become FormatError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..core.errors import FormatError


@contextmanager
def library_errors(what: str, source: object) -> Iterator[None]:
    try:
        yield
    except Exception as e:
        raise FormatError(f"tokenizer: {what}: {e!s:.600} ({source})") from e
    except BaseException as e:
        if type(e).__name__ != "PanicException":  # Rust's panic arrives outside of Exception; Ctrl-C must pass
            raise
        raise FormatError(f"tokenizer: {what}: the tokenizers library gave up: {e!s:.600} ({source})") from e


def library_encoder(fast: Any, source: object) -> Callable[[str, bool], list[int]]:
    """`encode(text, first)` over the library's tokenizer, without the special tokens its post-processor adds."""

    def encode(text: str, first: bool) -> list[int]:
        with library_errors("the vocabulary is damaged", source):
            ids: list[int] = fast.encode(text, add_special_tokens=False).ids
        return ids

    return encode
