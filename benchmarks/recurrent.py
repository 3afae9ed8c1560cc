#!/usr/bin/env python3
"""Recurrent language models: the decode of a Mamba as share of the memory bandwidth, and prompts of Hugging Face's modules beside PyTorch.

    python benchmarks/recurrent.py decode                 a random Mamba of 130M parameters, Q8_0 and F16
    python benchmarks/recurrent.py prompt                 transformers' Mamba (130M), tw.compile beside eager PyTorch
    python benchmarks/recurrent.py prompt --compile       … and torch.compile
    python benchmarks/recurrent.py prompt --model mamba2  another module: mamba, mamba2, qwen3next

Peers are timed in turns, the best of `--rounds` counts, `ratio` is a peer's time over ours. The bandwidth is measured between the rounds.
"""
from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.bench_llm import bandwidth
from tilewright.llm.tiny import write_tiny_model


def best(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of each, the best of several interleaved rounds."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - began)
    return found


def decode(args: argparse.Namespace) -> None:
    for format_ in ("Q8_0", "F16"):
        with tempfile.TemporaryDirectory() as folder:
            path = write_tiny_model(Path(folder) / "mamba.gguf", architecture="mamba", format=format_, width=768, layers=args.layers,
                                    vocab=50280, context=4096, scale=0.03)
            llm = tw.load_llm(path)
            state = llm.start()
            llm.feed(state, list(range(16)))
            seconds, speed = float("inf"), 0.0
            for _ in range(args.rounds):
                seconds = min(seconds, best({"step": partial(llm.feed, state, [5])}, 20)["step"])
                speed = max(speed, bandwidth(llm.session.threads))
            rate = llm.weight_bytes / seconds
            print(f"mamba {format_:5} {llm.weight_bytes / 1e6:7.1f} MB  {1 / seconds:7.1f} tokens/s  {rate / 1e9:6.1f} GB/s of weights, "
                  f"{rate / speed:.0%} of {speed / 1e9:.1f} GB/s; {len(llm.report().data['launches'])} launches")


def module(name: str, layers: int) -> Any:
    import torch
    import transformers as tf

    make = {
        "mamba": lambda: tf.MambaConfig(num_hidden_layers=layers, use_cache=False),
        "mamba2": lambda: tf.Mamba2Config(hidden_size=768, num_heads=24, head_dim=64, n_groups=1, num_hidden_layers=layers,
                                          vocab_size=50288, use_cache=False),
        "qwen3next": lambda: tf.Qwen3NextConfig(
            hidden_size=768, num_hidden_layers=layers, num_attention_heads=8, head_dim=128, num_experts=8, num_experts_per_tok=2,
            linear_num_key_heads=4, linear_num_value_heads=8, use_cache=False),
    }

    class LastLogits(torch.nn.Module):
        """What a prompt needs: the logits after its last token."""

        def __init__(self) -> None:
            super().__init__()
            self.model = tf.AutoModelForCausalLM.from_config(make[name]())

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.model(ids, logits_to_keep=1).logits
            return out

    return LastLogits().eval()


def prompt(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(args.threads)
    model = module(args.model, args.layers)
    ids = torch.randint(0, 1000, (args.batch, args.prompt))
    began = time.perf_counter()
    session = tw.compile(model, (ids,), threads=args.threads)
    print(f"{args.model}: {args.layers} layers, prompt {args.batch}x{args.prompt}; tw.compile {time.perf_counter() - began:.1f} s, "
          f"{len(session.report().data['launches'])} launches")
    with torch.no_grad():
        want = model(ids)
        calls: dict[str, Callable[[], Any]] = {"tilewright": lambda: session(ids), "eager": lambda: model(ids)}
        if args.compile:
            fast = torch.compile(model)
            began = time.perf_counter()
            fast(ids)
            print(f"torch.compile {time.perf_counter() - began:.1f} s")
            calls["torch.compile"] = lambda: fast(ids)
        got = np.asarray(session(ids))
        print(f"largest difference from eager: {np.abs(got - want.numpy()).max() / want.abs().max():.1e} of the largest logit")
        found = best(calls, args.rounds)
    for name, seconds in found.items():
        print(f"{name:14} {seconds * 1e3:10.1f} ms  ratio {seconds / found['tilewright']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decode", "prompt"))
    parser.add_argument("--model", default="mamba", choices=("mamba", "mamba2", "qwen3next"))
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="with torch.compile, which takes minutes")
    args = parser.parse_args()
    {"decode": decode, "prompt": prompt}[args.what](args)


if __name__ == "__main__":
    main()
