"""How soon the decode step of a model of 1.2 billion parameters is compiled for a GPU, and how soon it answers, each in a fresh process.

    python benchmarks/gpu_ready.py                   a random Llama-like model in Q4_K, written to a file for the purpose, and the bf16 step
    python benchmarks/gpu_ready.py --runs 5 --target sm_90a

`cold`: the caches of Tilewright and of the driver are empty; `cached`: an earlier process filled them. Without a GPU the time to the
first token (or the first step) is missing. Wanted: the step compiled in less than 10 s cold and 1 s cached.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

LIMITS = {"cold": 10.0, "cached": 1.0}
WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, INNER, VOCAB = 2048, 16, 32, 8, 64, 8192, 128256
LLM = """
import json, sys, time
start = time.monotonic()
import numpy, tilewright as tw
imported = time.monotonic()
from tilewright.runtime.cuda import driver as cuda_driver
llm = tw.load_llm(sys.argv[1], context_length=1024, target=sys.argv[2])
loaded = time.monotonic()
found = {"import": imported - start, "compile": loaded - imported}
found["parts"] = {name: seconds for name, seconds in llm.session.model.stages.items() if seconds >= 0.005}
if cuda_driver.available() == "":
    stream = llm.generate([1, 2, 3, 4, 5], max_tokens=8)
    next(stream)
    first = time.monotonic()
    found |= {"first": first - loaded, "tokens": stream.ids[:8]}
print(json.dumps(found))
"""
STEP = """
import json, sys, time
from gpu_decode import SIZES, build, shapes
import tilewright as tw
from tilewright.runtime.cuda import driver as cuda_driver
if cuda_driver.available() == "":
    import torch
    made = lambda *shape: torch.zeros(shape, device="cuda", dtype=torch.bfloat16)
    s = SIZES
    inputs = [torch.zeros(1, device="cuda", dtype=torch.int64), made(1, s.head // 2), made(1, s.head // 2)]
    inputs += [made(*shape) for shape in shapes(s).values()]
    inputs += [made(1, s.kv_heads, s.capacity, s.head) for _ in range(2 * s.layers)]
    torch.cuda.synchronize()
start = time.monotonic()
session = tw.compile(build(SIZES), target=sys.argv[2])
compiled = time.monotonic()
found = {"compile": compiled - start, "parts": {name: seconds for name, seconds in session.model.stages.items() if seconds >= 0.005}}
if cuda_driver.available() == "":
    session.in_place(*inputs)
    session.synchronize()
    found["first"] = time.monotonic() - compiled
print(json.dumps(found))
"""


def q4_k(rng: np.random.Generator, n: int, k: int) -> Any:
    """Random codes; scales that give numbers of a trained model's size."""
    raw = np.frombuffer(rng.bytes(n * k // 256 * 144), np.uint8).reshape(n, k // 256, 144).copy()
    for at, middle in ((0, 1.0), (2, 7.5)):
        raw[..., at : at + 2] = np.full((n, k // 256, 1), k**-0.5 / 130 * middle, np.float16).view(np.uint8)
    return raw.reshape(n, -1)


def write_model(path: Path) -> None:
    """The sizes of the decode step in `gpu_decode.py`, with a vocabulary of pairs of characters and the merges that make them."""
    from tilewright.llm.tiny import ARRAY, F32, STRING, U32, gguf_bytes
    from tilewright.llm.tokenizer import byte_of_character

    rng, single = np.random.default_rng(0), list(byte_of_character())
    pairs = [(a, b) for a in single for b in single]
    pairs += [(a + b, c) for a in single[:64] for b in single[:64] for c in single[:16]]
    pairs = pairs[: VOCAB - len(single) - 1]
    tokens = [*single, *(a + b for a, b in pairs), "<|end|>"]
    keys: list[tuple[str, int, Any]] = [
        ("general.architecture", STRING, "llama"), ("general.name", STRING, "random 1B"), ("llama.block_count", U32, LAYERS),
        ("llama.embedding_length", U32, WIDTH), ("llama.feed_forward_length", U32, INNER), ("llama.context_length", U32, 8192),
        ("llama.attention.head_count", U32, HEADS), ("llama.attention.head_count_kv", U32, KV_HEADS),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5), ("llama.rope.dimension_count", U32, HEAD),
        ("llama.rope.freq_base", F32, 5e5),
        ("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "gpt-2"), ("tokenizer.ggml.tokens", ARRAY, tokens),
        ("tokenizer.ggml.token_type", ARRAY, [1] * (len(tokens) - 1) + [3]),
        ("tokenizer.ggml.merges", ARRAY, [f"{a} {b}" for a, b in pairs]),
        ("tokenizer.ggml.eos_token_id", U32, len(tokens) - 1),
    ]
    norm = lambda: ((WIDTH,), 0, np.ones(WIDTH, np.float32))
    matrix = lambda n, k: ((n, k), 12, q4_k(rng, n, k))
    tensors = {"token_embd.weight": matrix(len(tokens), WIDTH), "output_norm.weight": norm()}
    for i in range(LAYERS):
        b = f"blk.{i}."
        tensors |= {
            b + "attn_norm.weight": norm(), b + "ffn_norm.weight": norm(), b + "attn_q.weight": matrix(HEADS * HEAD, WIDTH),
            b + "attn_k.weight": matrix(KV_HEADS * HEAD, WIDTH), b + "attn_v.weight": matrix(KV_HEADS * HEAD, WIDTH),
            b + "attn_output.weight": matrix(WIDTH, HEADS * HEAD), b + "ffn_gate.weight": matrix(INNER, WIDTH),
            b + "ffn_up.weight": matrix(INNER, WIDTH), b + "ffn_down.weight": matrix(WIDTH, INNER),
        }  # fmt: skip
    path.write_bytes(gguf_bytes(keys, tensors))


def child(code: str, model: Path, target: str, folder: Path, name: str) -> dict[str, Any]:
    """One fresh process with caches of its own; byte code is kept apart, as an installed package has its own."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"TILEWRIGHT_CACHE_DIR": f"{folder}/{name}", "CUDA_CACHE_PATH": f"{folder}/{name}.driver"}
    env["PYTHONPYCACHEPREFIX"] = f"{folder}/pyc"
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), env.get("PYTHONPATH", "")])
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code, str(model), target], env=env, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"process": time.monotonic() - start}


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--target", default="cuda")
    ap.add_argument("--runs", type=int, default=3)
    ap.add_argument("--model", type=Path, help="where the model is, or is to be written and left")
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or folder / "model.gguf"
        if not model.exists():
            write_model(model)
        for what, code in (("language model, Q4_K", LLM), ("decode step, bf16", STEP)):
            child(code, model, args.target, folder, f"{what}.first")  # byte code, and the model's pages
            rows = [("cold", child(code, model, args.target, folder, what))]
            rows += [("cached", child(code, model, args.target, folder, what)) for _ in range(args.runs)]
            for kind, found in rows:
                parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in found["parts"].items())
                verdict = "PASS" if found["compile"] < LIMITS[kind] else "FAIL"
                first = f"; then the first {'token' if code is LLM else 'step'} {found['first']:.2f} s" if "first" in found else ""
                print(f"{what}, {kind}: compiled in {found['compile']:.2f} s {verdict} ({parts}){first}; "
                      f"the process {found['process']:.2f} s {found.get('tokens', '')}", flush=True)


if __name__ == "__main__":
    main()
