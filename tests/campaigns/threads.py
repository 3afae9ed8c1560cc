"""Threads that share a session, a jitted function, a language model, its states and streams, under a scheduler that switches often: every
result has the bits that it has alone. `TILEWRIGHT_CAMPAIGN_DEVICE=cuda` has all of them on the GPU."""

from __future__ import annotations

import functools
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.ir.types import TensorType
from tilewright.ops import functions as F
from tilewright.ops.base import single

from .engine.campaign import DEVICE, MB, Campaign

WORK = ("session", "session", "out", "jit", "grad", "new", "generate", "feed", "batch", "leave", "shared_state", "compile")
PROMPTS = ([3, 1, 4], [20], [7, 7, 7, 99, 100], [50, 60])


@dataclass(frozen=True)
class Task:
    what: str
    number: int


@dataclass(frozen=True)
class Crowd:
    threads: tuple[tuple[Task, ...], ...]
    seed: int


def draw(rng: np.random.Generator) -> Crowd:
    def task() -> Task:
        return Task(str(rng.choice(WORK)), int(rng.integers(40)))

    count = int(rng.integers(2, 7))
    return Crowd(tuple(tuple(task() for _ in range(int(rng.integers(1, 9)))) for _ in range(count)), int(rng.integers(1 << 32)))


@functools.cache
def shared() -> dict[str, Any]:
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    rows = TensorType(dt.f32, (sym("N", 1, 300), 64))
    session = tw.compile(single(lambda g, v: F.softmax(F.relu(F.matmul(v[0], g.constant(weights))), 1), rows), threads=2, target=DEVICE)
    with tempfile.TemporaryDirectory() as folder:
        llm = tw.load_llm(write_tiny(folder), threads=2, target=DEVICE)
    return {"session": session, "llm": llm, "jit": tw.jit(lambda x: tw.tanh(x @ x.T)), "grad": tw.grad(lambda x: tw.sum(tw.exp(x) * x))}


def write_tiny(folder: str) -> Path:
    from tilewright.llm.tiny import write_tiny_model

    return write_tiny_model(Path(folder) / "m.gguf", layers=1)


def rows(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).standard_normal((1 + number * 7 % 290, 64)).astype(np.float32)


def bits(result: Any) -> bytes:
    return bytes((result.numpy() if hasattr(result, "numpy") else np.asarray(result)).tobytes())


def given(x: np.ndarray[Any, Any]) -> Any:
    return x if DEVICE == "cpu" else tw.asarray(x).to(DEVICE)


@functools.cache
def alone(what: str, number: int) -> bytes:
    """The result of a task in a process where nothing else runs."""
    return perform(what, number, None)


def perform(what: str, number: int, state: Any) -> bytes:
    have = shared()
    llm, x = have["llm"], rows(number)
    options = {"max_tokens": number % 6, **({"temperature": 0.8, "seed": number} if number % 2 else {})}
    prompt = PROMPTS[number % len(PROMPTS)]
    if what == "session" or (what == "out" and DEVICE != "cpu"):
        return bits(have["session"](x))
    if what == "out":
        out = np.empty_like(x)
        have["session"](x, out=out)
        return out.tobytes()
    if what in ("jit", "grad"):
        return bits(have[what](given(x[: 1 + number % 9])))
    if what == "new":  # a new shape of a new function, compiled while others run
        return bits(tw.jit(lambda a: tw.sum(a * float(number), axis=0))(given(x)))
    if what == "compile":
        made = tw.compile(single(lambda g, v: F.add(F.exp(v[0]), float(number % 5)), TensorType(dt.f32, (3, 5))), threads=1 + number % 2,
                          target=DEVICE)  # fmt: skip
        with made:
            return bits(made(np.resize(x, (3, 5))))
    if what == "generate":
        return "".join(llm.generate(prompt, **options)).encode()
    if what == "batch":
        return "\0".join(llm.generate_batch([prompt, PROMPTS[0], [number]], **options)).encode()
    if what == "leave":
        stream = llm.generate(prompt, max_tokens=6)
        for _, _ in zip(range(number % 4), stream, strict=False):
            pass
        return b""
    if what == "feed":
        mine = llm.start()
        llm.feed(mine, prompt)
        return bits(llm.feed(mine.copy(), [number]))
    if state is not None:  # whole calls in some order: the length counts them
        llm.feed(state, [number])
    return b""


def check(crowd: Crowd) -> None:
    wanted = {t: alone(t.what, t.number) for tasks in crowd.threads for t in tasks}
    state, wrong = shared()["llm"].start(), list[str]()

    def thread(tasks: tuple[Task, ...], seed: int) -> None:
        chance = random.Random(seed)
        for t in tasks:
            time.sleep(chance.random() * 2e-4)
            try:
                if perform(t.what, t.number, state) != wanted[t]:
                    wrong.append(f"{t}: other bits than alone")
            except Exception as e:
                wrong.append(f"{t}: {type(e).__name__}: {e}")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        crew = [threading.Thread(target=thread, args=(tasks, crowd.seed + i)) for i, tasks in enumerate(crowd.threads)]
        for c in crew:
            c.start()
        for c in crew:
            c.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong, wrong[0]
    assert state.length == sum(t.what == "shared_state" for tasks in crowd.threads for t in tasks)


CAMPAIGN = Campaign(draw=draw, check=check, quick=8, seconds=30.0, memory=(1536 if DEVICE == "cpu" else 12288) * MB, keep=("what",))
