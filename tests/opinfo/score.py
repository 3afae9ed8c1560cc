"""Score ops of PyTorch's OpInfo database: `python tests/opinfo/score.py [--names add,mul.x] [--match 'nn.functional.[a-h]*']`.

For each op: its f32 and i64 samples forward, its f32 gradients, its error samples (calls.py says how they are run, compare.py what is
equal). The scores go to results.jsonl beside this file and from there to docs/internals/opinfo.md. A run is resumable: `--missing` takes
only ops without a score, `--failing` those that fail, and `--budget` ends a run after so many seconds. Ops run in a process of their own,
which is replaced when it dies or an op takes longer than `--limit` seconds. `--print` shows the scores instead of storing them, with all
reasons.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import logging
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.opinfo import results  # noqa: E402
from tests.opinfo.excluded import EXCLUDED, WITHOUT_GRADIENT  # noqa: E402

MARK = "score: "


def database() -> dict[str, Any]:
    """Entries by name and variant."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.full_name: op for op in op_db}


def score(op: Any, seed: int = 0, errors_only: bool = False) -> results.Record:
    """All kinds of samples of one op."""
    import torch

    from tests.opinfo import calls

    found: results.Record = {}
    if errors_only:
        return {"error": vars(calls.errors(op))}
    for kind, dtype in (("f32", torch.float32), ("i64", torch.int64)):
        if op.supports_dtype(dtype, "cpu"):
            found[kind] = vars(calls.run(calls.forward, op, calls.samples_of(op, dtype, False, seed), seed))
    if op.full_name not in WITHOUT_GRADIENT and op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu"):
        samples = [c for c in calls.samples_of(op, torch.float32, True, seed) if any(t.requires_grad for t in c.tensors)]
        found["grad"] = vars(calls.run(calls.gradient, op, samples, seed))
    found["error"] = vars(calls.errors(op))
    return found


def work() -> None:
    """The worker: names come in on stdin, a record goes out for each."""
    import torch

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an op prints is not a record
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)  # torch logs the errors that error samples provoke
    ops = database()
    print(MARK + json.dumps(sorted(ops)), file=out, flush=True)
    for line in sys.stdin:
        name, *options = line.split()
        begin = time.process_time()
        try:
            if options[:1] == ["backend"]:
                from tests.opinfo import backend

                found = backend.score(ops[name], options[1].split(","), int(options[2]), int(options[3])) if backend.runs(name) else {}
            else:
                found = score(ops[name], errors_only="errors" in options)
        except Exception as e:
            from tests.opinfo.compare import reason

            found = {"stopped": reason(e)}
        found["seconds"] = round(time.process_time() - begin, 1)
        print(MARK + json.dumps(found), file=out, flush=True)


class Worker:
    """A process that scores ops; restarted when it has to be."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.names: list[str] = []

    def start(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.names = self._answer(600)

    def _answer(self, limit: float) -> Any:
        """The next record; None when the process died, TimeoutError when it takes too long."""
        process = self._process
        assert process is not None and process.stdout is not None
        if not select.select([process.stdout], [], [], limit)[0]:
            self.stop()
            raise TimeoutError
        line = process.stdout.readline()
        return json.loads(line.removeprefix(MARK)) if line.startswith(MARK) else None

    def score(self, name: str, limit: float, how: str = "") -> results.Record:
        if self._process is None:
            self.start()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{name} {how}\n")
        self._process.stdin.flush()
        try:
            found = self._answer(limit)
        except TimeoutError:
            return {"stopped": f"takes longer than {limit:.0f} seconds"}
        if found is None:
            code = self._process.wait()
            self._process = None
            return {"stopped": f"the process died with status {code}"}
        return dict(found)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def chosen(names: list[str], options: argparse.Namespace) -> list[str]:
    """The ops to run, by the options."""
    if options.names:
        wanted = options.names.split(",")
        unknown = [n for n in wanted if n not in names]
        if unknown:
            sys.exit(f"score: no entry {unknown[0]!r} in the database")
        names = wanted
    if options.match:
        patterns = options.match.split(",")
        names = [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    if options.without:
        patterns = options.without.split(",")
        names = [n for n in names if not any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    known = results.load()
    if options.missing:
        names = [n for n in names if n not in known]
    if options.failing:
        kinds = results.KINDS
        names = [n for n in names if n in known and (any(known[n].get(k, {}).get("failed") for k in kinds) or "stopped" in known[n])]
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", help="ops, separated by commas")
    parser.add_argument("--match", help="patterns of names, separated by commas")
    parser.add_argument("--without", help="patterns of names to leave out")
    parser.add_argument("--missing", action="store_true", help="only ops without a score")
    parser.add_argument("--failing", action="store_true", help="only ops that fail")
    parser.add_argument("--errors", action="store_true", help="only the error samples; other scores stay")
    parser.add_argument("--limit", type=float, default=300, help="seconds an op may take")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no further op is begun")
    parser.add_argument("--print", action="store_true", help="print the scores, store nothing")
    parser.add_argument("--backend", metavar="DTYPES", help="samples of dtypes (f64,bf16,...) through torch.compile; printed")
    parser.add_argument("--most", type=int, default=4, help="samples of a kind, with --backend")
    parser.add_argument("--seed", type=int, default=0, help="which samples, with --backend")
    parser.add_argument("--page", action="store_true", help="only write docs/internals/opinfo.md from the stored scores")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.print |= bool(options.backend)
    if options.worker:
        work()
        return
    if not options.page:
        begin, worker = time.monotonic(), Worker()
        worker.start()
        names = chosen(worker.names, options)
        for i, name in enumerate(names):
            if time.monotonic() - begin > options.budget:
                print(f"{len(names) - i} left")
                break
            if options.backend:
                record = worker.score(name, options.limit, f"backend {options.backend} {options.seed} {options.most}")
            else:
                record = {} if name in EXCLUDED else worker.score(name, options.limit, "errors" if options.errors else "")
            _tell(name, record, options.print)
            if not options.print:
                kept = results.load().get(name, {}) if options.errors else {}
                results.update({name: kept | {k: v for k, v in record.items() if k != "seconds"}})
        worker.stop()
    if not options.print:
        results.PAGE.write_text(results.page(results.load()))


def _tell(name: str, record: results.Record, reasons: bool) -> None:
    kinds = {k: s for k, s in record.items() if isinstance(s, dict) and "samples" in s}
    parts = [f"{k} {s['samples'] - s['failed']}/{s['samples']}" for k, s in kinds.items()]
    failed = any(s["failed"] for s in kinds.values()) or "stopped" in record
    what = f"{', '.join(parts)} {record.get('stopped', '')} {record.get('seconds', 0)} s"
    print(f"{'FAIL' if failed else 'ok  '} {name}: {what}", flush=True)
    if reasons:
        for kind, found in kinds.items():
            for text in found["reasons"]:
                print(f"       {kind}: {text}", flush=True)
        for text, count in record.get("splits", {}).items():
            print(f"       in PyTorch x{count}: {text}", flush=True)


if __name__ == "__main__":
    main()
