"""What a campaign does with a model that may be damaged: open it, perhaps compile it, use it. Only typed errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.llm.chat import encode_chat
from tilewright.llm.loading import assemble, named, open_model

TEXTS = ("Hello the thing, 123 <|im_end|>\n é 🤗", "<|im_start|>", "", "  the  the", "\u0000\uffff")
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the <|im_end|> thing"}]
LONGEST = 6000  # characters of an error


def examine(path: Path, *, whole: bool) -> bool:
    """Whether the model could be opened. With `whole` it is compiled and generates."""
    try:
        with named(path):
            config, weights, tokenizer = open_model(path)
            if whole:
                llm = assemble(config, weights, tokenizer, context_length=min(16, config.context), threads=1)
    except tw.TilewrightError as e:
        assert isinstance(e, (tw.FormatError, tw.UnsupportedError, tw.InputError, tw.ExecutionError)), f"{type(e).__name__}: {e}"
        assert str(path) in str(e), f"the error does not name the file: {e}"
        assert len(str(e)) < LONGEST, f"an error of {len(str(e))} characters"
        return False
    talk(tokenizer)
    if whole:
        with llm:
            try:
                state = llm.start()
                llm.feed(state, [1, 2, 3])
                stream = llm.generate([3], max_tokens=3, state=state)
                assert isinstance("".join(stream), str)
            except tw.ExecutionError as e:
                assert "NaN or infinite" in str(e), e
            except tw.InputError as e:
                assert "context of" in str(e) or "in 0.." in str(e) or "in the context already" in str(e), e
    return True


def talk(tokenizer: Any) -> None:
    """Encode, decode, chat."""
    for text in TEXTS:
        for special in (False, True):
            try:
                ids = tokenizer.encode(text, special=special)
                assert isinstance(tokenizer.decode(ids), str)
            except (tw.FormatError, tw.InputError, tw.UnsupportedError) as e:
                assert len(str(e)) < LONGEST
    try:
        encode_chat(tokenizer, CHAT)
    except (tw.FormatError, tw.InputError, tw.UnsupportedError) as e:
        assert len(str(e)) < LONGEST
