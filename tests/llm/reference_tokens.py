"""What a model file says to fixed prompts, recorded where llama.cpp and the CPU target run, and compared where a GPU is.

    python -m tests.llm.cut_model MODEL.gguf build/llm/cut.gguf --layers 11
    python -m tests.llm.reference_tokens record build/llm/cut.gguf          needs llama-cpp-python; writes build/llm/cut.npz
    python -m tests.llm.reference_tokens compare build/llm/cut.gguf --target cuda

For each prompt the tokens that llama.cpp chooses greedily, and its logits (in f16) after the prompt and after each of these tokens, which
every program is then fed: one step's difference does not change the next. A step's error is the norm of the difference of logits over
the norm of llama.cpp's; the CPU target's are recorded, too. A step's margin is the distance between llama.cpp's two largest logits: a
token must be the same where it is more than twice the largest difference of any logit at that step.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

Array = np.ndarray[Any, Any]
PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n    if n <",
    "List the planets of the solar system in order of their distance from the sun, and say one thing about each of them.\n\n1.",
)
STEPS = 12
CONTEXT = 256


@dataclass(frozen=True)
class Comparison:
    """How the tokens of one prompt compare."""

    errors: Array  # [steps]
    wrong: list[int]  # steps with another token where the margin forbids it
    equal: int  # steps with the same token
    steps: int


def greedy_by_llama(path: Path, ids: list[int], steps: int) -> tuple[list[int], Array]:
    """Tokens, and logits [steps, vocab]."""
    import llama_cpp

    model = llama_cpp.Llama(str(path), n_ctx=CONTEXT, logits_all=True, verbose=False, n_threads=2)
    tokens: list[int] = []
    logits = []
    fed = ids
    for _ in range(steps):
        model.eval(fed)
        logits.append(np.array(model.scores[model.n_tokens - 1], np.float32))
        tokens.append(int(logits[-1].argmax()))
        fed = tokens[-1:]
    return tokens, np.stack(logits)


def forced(llm: Any, ids: list[int], tokens: list[int]) -> Array:
    """The logits of a model of ours after the prompt and after each token but the last."""
    state = llm.start()
    return np.stack([llm.feed(state, fed) for fed in (ids, *([t] for t in tokens[:-1]))])


def record(path: Path, out: Path, steps: int = STEPS) -> None:
    llm = tw.load_llm(path, context_length=CONTEXT)
    found: dict[str, Array] = {}
    for i, prompt in enumerate(PROMPTS):
        ids = llm.encode(prompt, add_bos=llm.tokenizer.adds_bos)
        tokens, logits = greedy_by_llama(path, ids, steps)
        two = np.sort(logits, axis=1)[:, -2:]
        ours = judge(forced(llm, ids, tokens), logits, two[:, 1] - two[:, 0], tokens)
        found |= {f"ids{i}": np.array(ids), f"tokens{i}": np.array(tokens), f"llama{i}": logits.astype(np.float16)}
        found |= {f"margins{i}": two[:, 1] - two[:, 0], f"cpu{i}": ours.errors}
    np.savez(out, **found)  # type: ignore[arg-type]


def compare(llm: Any, recorded: Any) -> list[Comparison]:
    """A model of ours against llama.cpp, prompt by prompt."""
    out = []
    for i in range(sum(name.startswith("ids") for name in recorded)):
        ids, tokens = recorded[f"ids{i}"].tolist(), recorded[f"tokens{i}"].tolist()
        out.append(judge(forced(llm, ids, tokens), recorded[f"llama{i}"].astype(np.float32), recorded[f"margins{i}"], tokens))
    return out


def judge(got: Array, want: Array, margins: Array, tokens: list[int]) -> Comparison:
    errors, worst = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1), np.abs(got - want).max(axis=1)
    same = got.argmax(axis=1) == np.array(tokens)
    return Comparison(errors, np.flatnonzero(~same & (margins > 2 * worst)).tolist(), int(same.sum()), len(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("model", type=Path)
    parser.add_argument("--target", default="cpu")
    args = parser.parse_args()
    beside = args.model.with_suffix(".npz")
    if args.what == "record":
        record(args.model, beside)
        print(f"{beside}: {beside.stat().st_size / 1e6:.1f} MB")
        return
    llm, recorded = tw.load_llm(args.model, context_length=CONTEXT, target=args.target), np.load(beside)
    for i, c in enumerate(compare(llm, recorded)):
        cpu = recorded[f"cpu{i}"]
        errors = f"error of logits {c.errors.mean():.4f}, at most {c.errors.max():.4f} (CPU target {cpu.mean():.4f}, {cpu.max():.4f})"
        print(f"prompt {i}: {c.equal} of {c.steps} tokens as llama.cpp, {errors}")
        if c.wrong:
            sys.exit(f"prompt {i}: another token at steps {c.wrong}, where the margin forbids it")
    rate = llm.generate(PROMPTS[-1], max_tokens=64)
    text = "".join(rate)
    print(f"prompts at {rate.prompt_rate:.0f} and decoding at {rate.decode_rate:.1f} tokens a second: {text[:60]!r}")


if __name__ == "__main__":
    main()
