"""Sequences of operations on a language model against a plain one: a context is a list of tokens, its logits are those of a new state that
is fed the whole list, and a stream is a loop over them. States are fed in pieces, copied, truncated and given to streams that are left;
wrong calls are an InputError and change nothing. Every comparison is of bits."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.llm.tiny import write_tiny_model

from .engine.campaign import MB, Campaign

OPS = ("feed", "feed", "feed", "copy", "truncate", "generate", "generate", "batch", "leave", "wrong", "full")
MODELS = ({"format": "Q8_0"}, {"format": "F16", "experts": 4}, {"format": "Q4_1"})
CACHES = ("f16", "q8_0", "f32")
CONTEXT = 48
WRONG: tuple[Any, ...] = ([], [-1], [1 << 40], [0.5], [[1]], "text", None, [True], np.ma.masked_array([1, 2], [False, True]))


@dataclass(frozen=True)
class Step:
    op: str
    slot: int
    other: int
    number: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Talk:
    model: int
    cache: int
    steps: tuple[Step, ...]


def draw(rng: np.random.Generator) -> Talk:
    def step() -> Step:
        ids = tuple(int(i) for i in rng.integers(0, 256, int(rng.integers(1, 9))))
        return Step(str(rng.choice(OPS)), int(rng.integers(3)), int(rng.integers(3)), int(rng.integers(1 << 16)), ids)

    return Talk(int(rng.integers(len(MODELS))), int(rng.integers(len(CACHES))), tuple(step() for _ in range(int(rng.integers(1, 14)))))


@functools.cache
def loaded(model: int, cache: int) -> tuple[Any, dict[tuple[int, ...], bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_model(Path(folder) / "m.gguf", layers=1, context=CONTEXT, seed=model, **MODELS[model])  # type: ignore[arg-type]
        return tw.load_llm(path, threads=1 + (model + cache) % 2, cache_dtype=CACHES[cache]), {}


def sampling(number: int) -> dict[str, Any]:
    if number % 3 == 0:
        return {}
    return {"temperature": 0.2 + number % 7 / 5, "seed": number % 11, "top_k": number % 5 * 3, "top_p": 0.5 + number % 6 / 10,
            "repetition_penalty": 1.0 + number % 4 / 10}  # fmt: skip


def check(talk: Talk) -> None:
    llm, known = loaded(talk.model % len(MODELS), talk.cache % len(CACHES))
    states, lists = [llm.start() for _ in range(3)], [[] for _ in range(3)]  # type: list[Any], list[list[int]]

    def logits(ids: list[int]) -> bytes:
        """What a new state gives after all of it."""
        key = tuple(ids)
        if key not in known:
            known[key] = llm.feed(llm.start(), ids).tobytes()
            if len(known) > 4000:
                known.clear()
        return known.get(key) or logits(ids)

    def text(ids: list[int], options: dict[str, Any], most: int) -> tuple[list[int], str]:
        stream = llm.generate(ids, max_tokens=most, **options)
        shown = "".join(stream)
        return stream.ids, shown

    for s in talk.steps:
        state, ids = states[s.slot % 3], lists[s.slot % 3]
        room = CONTEXT - len(ids)
        given = [int(i) % llm.vocab for i in s.ids]
        options, most = sampling(s.number), s.number % 6
        if s.op == "feed" and given and len(given) <= room:
            got = llm.feed(state, given)
            ids += given
            assert got.tobytes() == logits(ids)
        elif s.op == "copy":
            states[s.other % 3], lists[s.other % 3] = state.copy(), list(ids)
        elif s.op == "truncate":
            keep = s.number % (len(ids) + 1)
            state.truncate(keep)
            del ids[keep:]
        elif s.op in ("generate", "leave") and given and len(given) <= room:
            stream = llm.generate(given, max_tokens=most, state=state, **options)
            if s.op == "leave":
                for _, _ in zip(range(s.number % 3), stream, strict=False):
                    pass
            else:
                shown = "".join(stream)
                if not ids:  # a penalty counts what the stream itself was given, so only an empty context is the same question
                    assert (stream.ids, shown) == text(given, options, most)
            if stream.state.length > len(ids):
                ids += [*given, *stream.ids][: stream.state.length - len(ids)]
            else:
                assert most == 0 or s.op == "leave"
        elif s.op == "batch" and given:
            prompts = [given, given[::-1], given[: 1 + s.number % len(given)]][: 1 + s.number % 3]
            assert llm.generate_batch(prompts, max_tokens=most, **options) == [text(p, options, most)[1] for p in prompts]
        elif s.op == "wrong":
            refused(llm.feed, state, WRONG[s.number % len(WRONG)])
            refused(state.truncate, len(ids) + 1)
        elif s.op == "full":
            refused(llm.feed, state, [1] * (room + 1))
            refused(llm.generate, [1] * (room + 1), state=state)
        assert state.length == len(ids), (s.op, state.length, len(ids))
    for state, ids in zip(states, lists, strict=True):
        if len(ids) < CONTEXT:
            assert llm.feed(state, [7]).tobytes() == logits([*ids, 7])


def refused(call: Any, *args: Any, **options: Any) -> None:
    try:
        call(*args, **options)
    except tw.InputError:
        return
    raise AssertionError("a wrong call was taken")


CAMPAIGN = Campaign(draw=draw, check=check, quick=40, memory=1536 * MB, keep=("op",))
