"""Properties of runs: the same bits for threads, batches and repeats; eight Python threads on one session; GPT-2's logits."""
from __future__ import annotations

import copy
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from acceptance_common import MLP, Block, Check, Setup, distance, export, gpt2, minilm, tokens
from torch import nn

import tilewright as tw

Make = Callable[[int], tuple[Any, ...]]


def _models(setup: Setup) -> Iterator[tuple[str, nn.Module, Make]]:
    """name, module, inputs for a batch size."""
    torch.manual_seed(1)
    d = setup.pick(512, 64)
    yield f"MLP {d}", MLP(d).eval(), lambda b: (torch.randn(b, d),)
    d, s = setup.pick((256, 128), (64, 16))
    yield f"block d {d} s {s}", Block(d).eval(), lambda b: (torch.randn(b, s, d),)
    n = setup.pick(48, 9)
    yield f"GPT-2 S={n}", gpt2(setup.small), lambda b: (tokens(setup.small, b, n),)
    m = setup.pick(33, 9)
    yield f"MiniLM S={m}", minilm(setup.small), lambda b: (torch.randint(0, 900, (b, m)), torch.ones(b, m, dtype=torch.long))


def same_bits(setup: Setup) -> Iterator[Check]:
    for name, module, make in _models(setup):
        args = make(4)
        rows = torch.export.Dim("B", min=1, max=8)
        program = export(module, args, tuple({0: rows} for _ in args))
        outs, session = [], None
        for threads in (1, 2, 3):
            session = tw.compile(program, threads=threads)
            outs.append(session(*args))
        assert session is not None
        yield Check(f"{name}: outputs that differ for 1, 2, 3 threads", float(_differ(outs[0], outs[1]) + _differ(outs[0], outs[2])), 0.0)
        again = sum(_differ(outs[0], session(*args)) for _ in range(setup.pick(20, 3)))
        yield Check(f"{name}: ... for repeated runs", float(again), 0.0)
        alone = sum(_differ(outs[0][i], session(*(a[i : i + 1] for a in args))[0]) for i in range(4))
        static = tw.compile(module, tuple(a[:1].contiguous() for a in args))
        alone += _differ(outs[0][0], static(*(a[:1].contiguous() for a in args))[0])
        yield Check(f"{name}: ... for a row alone or in a batch", float(alone), 0.0)


def _differ(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((a != b).sum()) if a.shape == b.shape else a.numel()


def eight_callers(setup: Setup) -> Iterator[Check]:
    torch.manual_seed(2)
    work: list[tuple[str, nn.Module, Callable[[], torch.Tensor]]] = [
        ("MLP 32x512", MLP(512).eval(), lambda: torch.randn(32, 512)),
        ("block 1x128x256", Block(256).eval(), lambda: torch.randn(1, 128, 256)),
        ("block 1x512x768", Block(768).eval(), lambda: torch.randn(1, 512, 768)),
        ("GPT-2 S=64", gpt2(setup.small), lambda: tokens(setup.small, 1, 64)),
    ]
    for name, module, make in work[: setup.pick(4, 2)]:
        xs = [make() for _ in range(8)]
        session = tw.compile(module, (xs[0],))
        wants = [session(x) for x in xs]
        with torch.no_grad():
            worst = max(distance(w, module(x)) for w, x in zip(wants, xs, strict=True))
        if not worst < 5e-4:
            raise RuntimeError(f"{name} is wrong by {worst:.1e}")
        ratios, rates, wrong = [], [], 0
        for _ in range(setup.pick(7, 2)):
            one, bad_one = _throughput(session, xs[:1], wants, setup.pick(1.0, 0.2))
            eight, bad = _throughput(session, xs, wants, setup.pick(1.0, 0.2))
            ratios.append(eight / one)
            rates.append((one, eight))
            wrong += bad + bad_one
        one, eight = (statistics.median(r) for r in zip(*rates, strict=True))
        yield Check(f"{name}, 8 callers: wrong outputs", float(wrong), 0.0)
        yield Check(f"{name}, 8 callers: throughput over one caller", statistics.median(ratios), 0.9, at_least=True,
                    detail=f"{eight:.0f} calls/s, one caller {one:.0f}; worst round {min(ratios):.2f}")


def _throughput(session: tw.Session, xs: list[torch.Tensor], wants: list[torch.Tensor], seconds: float) -> tuple[float, int]:
    """Calls a second of as many Python threads as there are inputs, and how many of every 64th outputs were wrong."""
    counts, wrong = [0] * len(xs), [0] * len(xs)
    start, stop = threading.Barrier(len(xs) + 1), threading.Event()

    def caller(i: int) -> None:
        x, n = xs[i], 0
        start.wait()
        while not stop.is_set():
            y = session(x)
            if n % 64 == 0:
                wrong[i] += not torch.equal(y, wants[i])
            n += 1
        counts[i] = n

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(len(xs))]
    for t in threads:
        t.start()
    start.wait()
    begin = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for t in threads:
        t.join(60)
        if t.is_alive():
            raise RuntimeError("deadlock: a caller did not come back within 60 s")
    return sum(counts) / (time.perf_counter() - begin), sum(wrong)


def logits(setup: Setup) -> Iterator[Check]:
    """Against torch, and both against float64."""
    module = gpt2(setup.small)
    exact_module = copy.deepcopy(module).double()
    session = tw.compile(module, (tokens(setup.small, 1, 16),), dynamic={"x": {1: tw.Dim("S", 1, 1024)}})
    for s in setup.pick((16, 64, 256), (16,)):
        x = tokens(setup.small, 1, s)
        with torch.no_grad():
            want, exact = module(x), exact_module(x)
        got = session(x)
        yield Check(f"GPT-2 S={s}: logits, largest difference from torch", float((got - want).abs().max()), 2e-4)
        ours, theirs = distance(got, exact), distance(want, exact)
        yield Check(f"GPT-2 S={s}: error over torch's own", ours / theirs, 1.5, detail=f"against float64 {ours:.2e}, torch {theirs:.2e}")
