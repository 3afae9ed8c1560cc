"""Memory of a block, and one GPT-2 for every length: no recompilation, flat memory, and the speed of a static compile."""
from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from acceptance_common import Block, Check, Setup, distance, gpt2, tokens

import tilewright as tw
from tilewright.target.cpu import jit

KIB = 1024


def block_memory(setup: Setup) -> Iterator[Check]:
    limits = [(64, 32, 48 * KIB), (256, 128, 768 * KIB), (512, 256, 4096 * KIB), (768, 512, 9216 * KIB)]
    for d, s, limit in limits[: setup.pick(4, 2)]:
        x = torch.randn(1, s, d)
        session = tw.compile(Block(d).eval(), (x,))
        session(x)
        data = session.report().data
        arena = data["arena"]
        how = arena["strategy"] + ", in place" * arena["inplace"]
        detail = f"bound {arena['bound'] / KIB:.0f}, unshared {arena['sum'] / KIB:.0f}; {how}"
        yield Check(f"block d {d} s {s}: activations", arena["bytes"] / KIB, limit / KIB, "KiB", detail=detail)
        yield Check(f"block d {d} s {s}: scratch a thread", data["scratch_per_thread"] / KIB, 256.0, "KiB")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def dynamic_gpt2(setup: Setup) -> tuple[Any, tw.Session]:
    module = gpt2(setup.small)
    return module, tw.compile(module, (tokens(setup.small, 1, 16),), dynamic={"x": {1: tw.Dim("S", 1, 1024)}})


def random_lengths(setup: Setup) -> Iterator[Check]:
    """300 lengths. Some results are compared with torch, after the memory has been measured."""
    module, session = dynamic_gpt2(setup)
    assert session.executable is not None
    code, entries = session.executable.code, len(list(setup.cache.iterdir()))
    compiles = 0
    original = jit.compile_ir

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return original(*args, **kwargs)

    jit.compile_ir = counted
    rng, after = random.Random(7), []
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    base = 0
    start = time.perf_counter()
    try:
        for k in range(setup.pick(300, 60)):
            s = rng.randint(1, 1024)
            x = tokens(setup.small, 1, s)
            y = session(x)
            if len(kept) < 6 and s < 500:
                kept.append((x, y[0, -1].clone()))
            del y
            if k == 19:
                gc.collect()
                base = resident()
            elif k > 19:
                after.append(resident() - base)
    finally:
        jit.compile_ir = original
    seconds = time.perf_counter() - start
    gc.collect()
    new = compiles + abs(len(list(setup.cache.iterdir())) - entries) + (session.executable.code is not code)
    yield Check("GPT-2, random lengths: recompilations", float(new), 0.0, detail=f"{k + 1} lengths in {seconds:.0f} s")
    detail = f"at the end {(resident() - base) / 2**20:.1f}"
    yield Check("GPT-2, random lengths: growth after 20", max(after) / 2**20, 16.0, "MiB", detail=detail)
    with torch.no_grad():
        worst = max(distance(last, module(x)[0, -1]) for x, last in kept)
    yield Check("GPT-2, random lengths: difference from torch", worst, 2e-4)


SHORT, LONG = (1, 7, 16, 33, 64, 100), (128, 255, 256, 400, 512, 1000)
_ratios: dict[int, float] = {}


def dynamic_short(setup: Setup) -> Iterator[Check]:
    yield from _dynamic(setup, SHORT)


def dynamic_long(setup: Setup) -> Iterator[Check]:
    yield from _dynamic(setup, LONG)


def _dynamic(setup: Setup, lengths: Sequence[int]) -> Iterator[Check]:
    """Dynamic against static, call by call in turns, at each length; the ratio is the median over pairs of calls."""
    module, dynamic = dynamic_gpt2(setup)
    for s in lengths:
        x = tokens(setup.small, 1, s)
        static = tw.compile(module, (x,))
        if not torch.equal(dynamic(x), static(x)):
            raise RuntimeError(f"dynamic and static compiles differ in bits at length {s}")
        pairs = _in_turns(dynamic, static, x, setup.pick(6.0, 0.5))
        ratio = statistics.median(a / b for a, b in pairs)
        ours, theirs = (statistics.median(t) * 1e3 for t in zip(*pairs, strict=True))
        _ratios[s] = ratio
        static.close()
        yield Check(f"GPT-2 S={s}: dynamic over static", ratio, 1.25, detail=f"{ours:.2f} ms, static {theirs:.2f} ms, {len(pairs)} pairs")
    good = sum(_ratios[s] <= 1.10 for s in lengths)
    if len(_ratios) == len(SHORT) + len(LONG):
        yield Check("GPT-2: lengths within 1.10 of static", float(sum(r <= 1.10 for r in _ratios.values())), 10.0, at_least=True,
                    detail=f"of {len(_ratios)}")
    else:
        yield Check(f"GPT-2: lengths within 1.10, of these {len(lengths)}", float(good), None)


def _in_turns(dynamic: tw.Session, static: tw.Session, x: torch.Tensor, seconds: float) -> list[tuple[float, float]]:
    """Pairs of times; who goes first changes, and each timed call follows an untimed one of the same session."""
    once = _timed(static, x)
    burst = max(1, min(20, int(0.02 / once)))
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(pairs) < 7 or (time.perf_counter() < end and len(pairs) < 201):
        found = {}
        order = [dynamic, static] if len(pairs) % 2 else [static, dynamic]
        for session in order:
            if once < 0.1:
                session(x)
            found[id(session)] = statistics.median(_timed(session, x) for _ in range(burst))
        pairs.append((found[id(dynamic)], found[id(static)]))
    return pairs


def _timed(session: tw.Session, x: torch.Tensor) -> float:
    start = time.perf_counter()
    session(x)
    return time.perf_counter() - start
