"""`python -m tests.campaigns`: random campaigns for minutes or hours, and a failing seed again.

    python -m tests.campaigns                              # all, an hour together
    python -m tests.campaigns exact gguf --budget 10       # two of them, ten minutes together
    python -m tests.campaigns exact --seed 123456          # one case again: shrunk and printed as a test
    python -m tests.campaigns exact --seed 123456 --here   # in this process, for a debugger
"""

from __future__ import annotations

import argparse
import functools
import os
import secrets
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .engine.campaign import find, names
from .engine.runner import Report, replay, run, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description="Random campaigns; see CONTRIBUTING.md.")
    parser.add_argument("names", nargs="*", help=f"campaigns, all if none are named: {' '.join(names())}")
    parser.add_argument("--seed", type=int, nargs="+", help="replay these cases of one campaign, in this order in one process")
    parser.add_argument("--here", action="store_true", help="replay in this process")
    parser.add_argument("--budget", type=float, default=60.0, help="minutes for all campaigns together")
    parser.add_argument("--base", type=int, default=secrets.randbits(32), help="the seed of the run, from which all cases' seeds follow")
    parser.add_argument("--count", type=int, help="cases of each campaign, if the time allows")
    parser.add_argument("--jobs", type=int, default=1, help="campaigns at a time")
    parser.add_argument("--shrink", type=float, default=120.0, help="seconds for making a failure smaller")
    parser.add_argument("--json", type=Path, help="a file to which the JSON lines are appended")
    args = parser.parse_args()
    unknown = [n for n in args.names if ":" not in n and n not in names()]
    if unknown:
        parser.error(f"no campaign {' '.join(unknown)}; there are: {' '.join(names())}")
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:  # neither the user's code cache nor the user's key
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", f"{folder}/cache")
        os.environ.setdefault("TILEWRIGHT_KEY_FILE", f"{folder}/archive.key")
        if args.seed is not None:
            if len(args.names) != 1:
                parser.error("--seed replays cases of one campaign: name it")
            failure = replay(find(args.names[0]), args.seed, args.shrink, here=args.here)
            print(failure or "no failure")
            return failure is not None
        chosen = args.names or names()
        print(f"seed of the run: --base {args.base}", flush=True)

        said = functools.partial(print, flush=True)

        def one(name: str) -> Report:
            seconds = 60 * args.budget * min(args.jobs, len(chosen)) / len(chosen)
            report = run(find(name), args.base, count=args.count, seconds=seconds, shrinking=args.shrink, say=said)
            print(report.json(), flush=True)
            if args.json:
                with args.json.open("a") as f:
                    f.write(report.json() + "\n")
            return report

        with ThreadPoolExecutor(args.jobs) as pool:
            reports = list(pool.map(one, chosen))
        print(table(reports))
        return any(r.failures for r in reports)


if __name__ == "__main__":
    sys.exit(main())
