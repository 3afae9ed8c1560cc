"""What `cpu.py` does not measure: ready times, memory, dynamic shapes, bits, concurrency, exactness. Each check has its limit.

    python benchmarks/acceptance.py                   every part
    python benchmarks/acceptance.py ready memory      parts whose name contains one of the words
    python benchmarks/acceptance.py --small           tiny models, few repeats: does the benchmark itself work?
    python benchmarks/acceptance.py --json out.jsonl  one JSON object a check as well
    python benchmarks/acceptance.py --lock FILE       hold an exclusive lock on FILE meanwhile, so that others wait

Run it with nothing else on the machine. The exit status is the number of failed checks (at most 99).
"""
from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

warnings.filterwarnings("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from acceptance_common import Check, Setup  # noqa: E402


def parts() -> dict[str, Callable[[Setup], Iterator[Check]]]:
    """name -> what it measures; imported late, so that `--help` is quick."""
    import acceptance_ready as ready
    import acceptance_runs as runs
    import acceptance_shapes as shapes

    return {
        "import": ready.import_time, "identity": ready.identity_call, "block-ready": ready.block_cold, "ready-cold": ready.gpt2_cold,
        "ready-cache": ready.gpt2_from_cache, "ready-saved": ready.gpt2_saved, "memory": shapes.block_memory,
        "lengths": shapes.random_lengths, "dynamic-short": shapes.dynamic_short, "dynamic-long": shapes.dynamic_long,
        "bits": runs.same_bits, "callers": runs.eight_callers, "logits": runs.logits,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--lock", metavar="FILE")
    options = parser.parse_args()
    table = parts()
    wanted = {n: f for n, f in table.items() if not options.words or any(w in n for w in options.words)}
    if not wanted:
        parser.error(f"no part named like {' '.join(options.words)}; the parts are {' '.join(table)}")
    failed = 0
    with ExitStack() as stack:
        if options.lock:
            fcntl.flock(stack.enter_context(open(options.lock, "a")), fcntl.LOCK_EX)
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-acceptance-"))
        os.chmod(cache, 0o700)
        os.environ["TILEWRIGHT_CACHE_DIR"] = cache
        setup = Setup(options.small, Path(cache))
        print(f"{'check':46s} {'measured':>12s} {'limit':>14s}")
        for name, part in wanted.items():
            start = time.perf_counter()
            count = 0
            for check in part(setup):
                count += 1
                failed += check.ok is False
                print(check.line(), flush=True)
                if options.json:
                    with open(options.json, "a") as file:
                        file.write(json.dumps({"part": name, **check.data()}) + "\n")
            print(f"  ({name}: {count} checks in {time.perf_counter() - start:.0f} s)", flush=True)
    print("all passed" if not failed else f"{failed} FAILED")
    return min(failed, 99)


if __name__ == "__main__":
    sys.exit(main())
