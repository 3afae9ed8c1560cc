"""Speed of a language model: reading a prompt, decoding, time to the first token, and the bytes of weights read per second while decoding
beside the memory bandwidth measured in the same run.

    tilewright bench-llm model.gguf --prompt 512 --decode 64
"""
from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from .llm_options import model_arguments, open_llm

if TYPE_CHECKING:
    from ..llm.model import LLM

BANDWIDTH_BYTES = 256 << 20
FIRST = 16  # tokens of the prompt before decoding, and of that of the first token's time


def arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens of the prompt (default: 512)")
    parser.add_argument("--decode", type=int, default=64, metavar="N", help="tokens to decode (default: 64)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds, of which the median counts (default: 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")


def bandwidth(threads: int) -> float:
    """Bytes a second that `threads` threads read from memory, the best of seven."""
    import tilewright as tw

    from ..core import dtypes as dt
    from ..ir.graph import Graph
    from ..ir.types import TensorType
    from ..ops import sum_

    graph = Graph("bandwidth")
    shape = (BANDWIDTH_BYTES // 4 // 4096, 4096)
    graph.outputs = [sum_(graph.input(TensorType(dt.f32, shape), "x"), (1,))]
    session = tw.compile(graph, threads=threads)
    data, best = np.ones(shape, np.float32), float("inf")
    for _ in range(7):
        began = time.perf_counter()
        session(data)
        best = min(best, time.perf_counter() - began)
    return BANDWIDTH_BYTES / best


def measure(llm: LLM, prompt: int, decode: int, rounds: int) -> dict[str, float]:
    ids = [int(i) for i in np.random.default_rng(0).integers(0, llm.vocab, max(prompt, FIRST))]
    reading, decoding, first = [], [], []
    llm.feed(llm.start(), ids[:prompt])
    for _ in range(rounds):
        began = time.perf_counter()
        llm.feed(llm.start(), ids[:prompt])
        reading.append(prompt / (time.perf_counter() - began))
        stream = llm.generate(ids[:FIRST], max_tokens=decode + 1)
        stream.ends = frozenset()  # decode on, whatever comes
        began = time.perf_counter()
        stream.step()
        first.append(time.perf_counter() - began)
        while stream.finish_reason is None:
            stream.step()
        decoding.append(stream.decode_rate)
    speed = bandwidth(llm.session.threads)
    rate = statistics.median(decoding)
    return {"prompt_tokens_per_second": statistics.median(reading), "decode_tokens_per_second": rate,
            "first_token_seconds": statistics.median(first), "weight_bytes": llm.weight_bytes,
            "weight_bytes_per_second": rate * llm.weight_bytes, "memory_bytes_per_second": speed,
            "memory_share": rate * llm.weight_bytes / speed}


def run(args: argparse.Namespace) -> int:
    from ..core.errors import ConfigError

    if min(args.prompt, args.decode, args.rounds) < 1:
        raise ConfigError(f"bench-llm: prompt, decode and rounds must be at least 1, got {args.prompt}, {args.decode} and {args.rounds}")
    with open_llm(args) as llm:
        need = max(args.prompt, args.decode + FIRST)
        if need > llm.context_length:
            raise ConfigError(f"bench-llm: a prompt of {args.prompt}, and {args.decode} tokens after one of {FIRST}, need a context of "
                              f"{need}, got {llm.context_length}; give a larger --context or smaller numbers")
        row = measure(llm, args.prompt, args.decode, args.rounds)
        if args.json:
            print(json.dumps({"model": llm.name, "threads": llm.session.threads, **row}))
            return 0
        print(f"{llm!r} on {llm.session.threads} threads, {llm.weight_bytes / 1e6:.1f} MB of weights")
        print(f"prompt of {args.prompt:<5d} {row['prompt_tokens_per_second']:10.1f} tokens/s")
        print(f"decode {args.decode:<8d} {row['decode_tokens_per_second']:10.1f} tokens/s")
        print(f"first token     {row['first_token_seconds'] * 1e3:10.1f} ms (prompt of {FIRST})")
        print(f"weights at {row['weight_bytes_per_second'] / 1e9:.1f} GB/s while decoding, {row['memory_share']:.0%} of the measured "
              f"{row['memory_bytes_per_second'] / 1e9:.1f} GB/s")
    return 0
