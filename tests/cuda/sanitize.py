"""What the device tests launch, under NVIDIA's compute-sanitizer.

    PYTHONPATH=src:. python tests/cuda/sanitize.py --tools memcheck=5,racecheck=10 --limit 560 --logs FOLDER [--keep PART…]

First the tests run as they are, in `--processes` processes, while every distinct call of a session is written down (`recorded.py`); then
the calls are made again under all the tools at once, in as many processes as each is given: without PyTorch and the compiler, which would
take most of the time, and the results must have the same bits. (Loops of the host of more than 64 steps make the first and last 32: such
calls are `cut`.) `--limit` is the seconds for all. `--keep` takes test ids that contain one of the parts. A run that finds logs of an
earlier one in its folder goes on: tests whose calls all tools have seen are left out.

Tools: memcheck (accesses outside of memory: every tensor and every temporary is an allocation of its own, of exactly its bytes), racecheck
(hazards in shared memory: programs without any are left out), synccheck (wrong uses of barriers), initcheck (reads of memory that nobody
wrote: temporaries and results are such memory, and results are read back; it takes no notice of what TMA writes, and takes
every copy of `cp.async` for whole: programs with such kernels are left out). Each tool must also find a fault planted in one of our
kernels; else it is blind. Exit status 0: every test passed, every call was made under every tool, no tool is blind, none found anything.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests/cuda").glob("test_device*.py")), "tests/cuda/test_jit.py"]
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
NO_REPORT = re.compile("COMPUTE-SANITIZER|.* SUMMARY:|(Error: )?Target application|Version|Copyright")
ASKED = re.compile(
    "API call to (cuGetProcAddress|cuPointerGetAttribute)"
)  # where no is an answer: is there such a function, whose memory is it
UNFIT = {"test_calls_by_machine_code": "it wants the fast path into a session, which is closed while calls are written down"}
CALLS, CLAIMS, CHOSEN, UNTIL = (f"TILEWRIGHT_SANITIZE_{x}" for x in ("CALLS", "CLAIMS", "CHOSEN", "UNTIL"))
MARK = "@@sanitize"
TESTS = 0.4  # the share of the time, at most
WORKERS = 4  # threads that look for hazards, in each process of racecheck


def _say(*words: object) -> None:
    os.write(1, f"\n{MARK} {' '.join(map(str, words))}\n".encode())  # past pytest, in order with what the tool writes


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _mine(name: str) -> bool:
    """A test, or a file of calls, belongs to the process that first makes its file. Shortly before the end nothing is begun: a process that
    is killed loses what the tool has not yet written."""
    if time.time() >= float(os.environ[UNTIL]):
        return False
    try:
        os.close(os.open(Path(os.environ[CLAIMS]) / _digest(name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


# ── the tests: a plugin of pytest ──

_recorder: Any = None


def pytest_configure(config: Any) -> None:
    global _recorder
    from tests.cuda.recorded import Recorder

    _recorder = Recorder(Path(os.environ[CALLS]))


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    parts = os.environ[CHOSEN].splitlines()
    chosen = [x for x in items if not parts or any(part in x.nodeid for part in parts)]
    fit = [x for x in chosen if x.nodeid.partition("::")[2].partition("[")[0] not in UNFIT]
    items[:] = sorted(fit, key=lambda x: _digest(x.nodeid))  # mixed: what time does not allow is no kind of test of its own
    _say("chosen", len(items), len(chosen) - len(items))


def pytest_runtestloop(session: Any) -> bool:
    with _recorder.recording():
        for item in session.items:
            if _mine(item.nodeid):
                _say("start", item.nodeid)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                for file in _recorder.write(item.nodeid):
                    _say("calls", file, item.nodeid)
                _say("written", _recorder.large, item.nodeid)
                _recorder.large = 0
    return True


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        _say("end", report.outcome, report.nodeid)


# ── the calls, under a tool ──


def unfit(tool: str, entry: Any) -> str:
    """Why a tool does not look at a program."""
    if tool == "racecheck" and not entry.has("shared"):
        return "unshared"
    return "unseen" if tool == "initcheck" and entry.has("unseen") else ""


def again(tool: str, number: int) -> None:
    from tests.cuda.recorded import contents, in_order, read, replay, temporaries_apart

    folder = Path(os.environ[CALLS])
    with ExitStack() as stack:
        if tool in ("memcheck", "initcheck"):
            stack.enter_context(temporaries_apart())
        for e in in_order(contents(folder), "shared" if tool == "racecheck" else "", backwards=number % 3 == 0):
            if _mine(f"{tool} {e.name}"):
                if why := unfit(tool, e):
                    _say("made", e.name, f"{e.calls}x{why}", 0, e.test)
                    continue
                start = time.time()
                _say("start", e.test)
                outcomes = Counter(replay(read(folder, e.name)))
                _say("made", e.name, ",".join(f"{n}x{what}" for what, n in outcomes.items()), f"{time.time() - start:.2f}", e.test)


def spoilt(tool: str, text: str) -> str:
    """A kernel's text with what a tool is to find: stores far outside, no barriers, barriers that a warp meets in two halves."""
    if tool == "memcheck":
        return re.sub(r"(st\.global\S* \[%\w+)(\+\d+)?\]", r"\1+134217728]", text)
    if tool == "racecheck":
        return text.replace("bar.sync 0;", "")
    for i in range(text.count("bar.sync 0;")):
        halves = (f"{{ .reg .pred %odd; .reg .b32 %lane; mov.u32 %lane, %tid.x; and.b32 %lane, %lane, 1; setp.eq.u32 %odd, %lane, 1;\n"
                  f"@%odd bra TORN{i}; bar.sync 0 ; bra.uni JOINED{i};\nTORN{i}: bar.sync 0 ;\nJOINED{i}: }}")  # fmt: skip
        text = text.replace("bar.sync 0;", halves, 1)
    return text


def planted(tool: str) -> None:
    """A call of such a kernel, or (initcheck) of one the end of whose input nobody wrote."""
    import numpy as np

    import tilewright as tw
    from tests.cuda.launching import graph
    from tests.cuda.recorded import Call, make, session_of
    from tilewright.core.dtypes import f32
    from tilewright.ops.rows.norms import Softmax

    session: Any = tw.compile(graph(lambda v: Softmax(axis=1)(v), (f32, (3, 8192))), target="cuda")
    x = session.executable
    if tool != "initcheck":
        x.code = {name: replace(k, ptx=spoilt(tool, k.ptx)) for name, k in x.code.items()}
    given = np.random.default_rng().standard_normal((3, 8192), np.float32).view(np.uint8).reshape(-1)
    make(session_of(x), Call({}, [given], [], [0, 1], [0, 0], False), short=16 * (tool == "initcheck"))


# ── outside ──


def command(tool: str, port: int) -> list[str]:
    found = [shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer", "--tool", tool, "--port", str(port)]
    found += ["--destroy-on-device-error", "kernel", "--print-limit", "0", "--show-backtrace", "device", "--launch-timeout", "120"]
    if tool == "racecheck":
        found += ["--racecheck-num-workers", str(WORKERS)]
    return [*found, sys.executable]


def started(words: list[str], log: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=ROOT, start_new_session=True)


def ended(running: list[subprocess.Popen[bytes]], until: float) -> None:
    for number, seconds in ((signal.SIGINT, 0.0), (signal.SIGKILL, 4.0)):
        for p in running:
            try:
                p.wait(max(0.01, until + seconds - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, number)
    for p in running:
        p.wait()


def reports(log: str) -> Iterator[tuple[str, str, str]]:
    """(test, headline, whole text) of what the tool says in a log."""
    test, lines = "no test", log.splitlines()
    for i, line in enumerate(lines):
        if line.startswith(f"{MARK} start "):
            test = line.split(" ", 2)[2]
        head = re.match(r"={9} ([^\s=].*)", line)
        if head and not NO_REPORT.match(head[1]) and not ASKED.search(line):
            body = [line]
            for more in lines[i + 1 : i + 12]:
                if not re.match(r"={9} {2,}\S", more):
                    break
                body.append(more)
            yield test, re.sub(r"0x[0-9a-f]+|[0-9]+", "#", head[1]), "\n".join(body)


def said(texts: Iterable[str], kind: str) -> list[list[str]]:
    """The words of the lines of a kind, the rest of the line the last of them."""
    many = {"chosen": 2, "start": 1, "end": 2, "calls": 2, "written": 2, "made": 4}[kind]
    return [line.split(" ", many + 1)[2:] for t in texts for line in t.splitlines() if line.startswith(f"{MARK} {kind} ")]


def texts_of(files: Iterable[Path]) -> list[str]:
    return [f.read_text(errors="replace") for f in files]


def record(args: argparse.Namespace, logs: Path, env: dict[str, str], done: set[str]) -> bool:
    """Run the tests; whether all ran and passed."""
    start = time.monotonic()
    env = dict(env, **{CHOSEN: "\n".join(args.keep), UNTIL: str(time.time() + 0.95 * TESTS * args.limit)})
    for test in done:
        (Path(env[CLAIMS]) / _digest(test)).touch()
    tests = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "-p", "tests.cuda.sanitize", "--tb=short", *FILES]
    number = len(list(logs.glob("tests.*.log")))
    files = [logs / f"tests.{number + i:03}.log" for i in range(args.processes)]
    ended([started(tests, f, env) for f in files], start + TESTS * args.limit)
    texts = texts_of(files)
    chosen, unfit = max(((int(w[0]), int(w[1])) for w in said(texts, "chosen")), default=(0, 0))
    outcome = {w[1]: w[0] for w in said(texts, "end")}
    late = sorted({w[0] for w in said(texts, "start")} - {w[1] for w in said(texts, "written")})
    large = [w for w in said(texts, "written") if w[0] != "0"]
    counts, calls = Counter(outcome.values()), said(texts, "calls")
    print(f"tests: {chosen} chosen, {len(done)} done before, {counts['passed']} passed, {counts['failed']} failed, "
          f"{counts['skipped']} skipped, {unfit} unfit, {len(late)} ran out of time, {chosen - len(outcome) - len(done)} not reached; "
          f"{len(calls)} programs with calls of their own; {time.monotonic() - start:.0f} s")  # fmt: skip
    for why in UNFIT.items():
        print("  unfit: " + ": ".join(why))
    for words in (["failed: " + t for t, o in sorted(outcome.items()) if o == "failed"], ["out of time: " + t for t in late],
                  [f"{n} calls too large: {t}" for n, t in large]):  # fmt: skip
        print("".join(f"  {w}\n" for w in words), end="")
    return chosen > 0 and counts["passed"] + counts["skipped"] + len(done) >= chosen and not large


def finished(tool: str, logs: Path) -> set[str]:
    """The tests whose calls a tool has seen, all of them."""
    run = texts_of(logs.glob("tests.*.log"))
    passed = {w[1] for w in said(run, "end") if w[0] in ("passed", "skipped")} & {w[1] for w in said(run, "written")}
    made = {w[0] for w in said(texts_of(logs.glob(f"{tool}.*.calls.log")), "made")}
    return passed - {test for file, test in said(run, "calls") if file not in made}


def check(tools: dict[str, int], seconds: float, logs: Path, env: dict[str, str]) -> bool:
    """Make the calls under all tools at the same time; whether every call was made and nothing was found."""
    start = time.monotonic()
    running, files = [], {}
    env = dict(env, **{UNTIL: str(time.time() + 0.95 * seconds)})
    for t, (tool, processes) in enumerate(tools.items()):
        number = len(list(logs.glob(f"{tool}.*.calls.log")))
        files[tool] = [logs / f"{tool}.{number + i:03}.calls.log" for i in range(processes)]
        base = 49152 + 2000 * t
        for i, log in enumerate([*files[tool], logs / f"{tool}.planted.log"]):
            words = ["--planted", tool] if i == processes else ["--again", tool, "--number", str(i)]
            running.append(started([*command(tool, base + 20 * i), "tests/cuda/sanitize.py", *words], log, env))
    ended(running, start + seconds)
    clean = [summary(tool, logs, files[tool], env, time.monotonic() - start) for tool in tools]  # the summary of every tool
    return all(clean)


def summary(tool: str, logs: Path, files: list[Path], env: dict[str, str], seconds: float) -> bool:
    texts = texts_of(files)
    from tests.cuda.recorded import contents

    made, entries = said(texts, "made"), {e.name: e for e in contents(Path(env[CALLS]))}
    counts: Counter[str] = Counter()
    for _, words, _, _ in made:
        for part in words.split(","):
            n, _, what = part.partition("x")
            counts[what] += int(n)
    missing = entries.keys() - {w[0] for w in made}
    looked = {
        n: {k for k, found in e.kernels.items() if tool != "racecheck" or found["shared"]} for n, e in entries.items() if not unfit(tool, e)
    }
    kernels = [set[str]().union(*(of for n, of in looked.items() if n not in without)) for without in (missing, ())]
    last = max((float(w[2]) for w in made), default=0.0)
    found = [r for t in texts for r in reports(t)]
    seen = sorted({h for _, h, _ in reports((logs / f"{tool}.planted.log").read_text(errors="replace"))})
    print(f"{tool}: {len(made)} of {len(entries)} programs, {len(kernels[0])} of {len(kernels[1])} kernels; calls: {counts['same']} with "
          f"the same bits, {counts['cut']} cut, {counts['failed']} that find bad data, {counts['other']} with other bits; left out: "
          f"{counts['unshared']} without shared memory, {counts['unseen']} whose copies the tool does not follow; "
          f"{len(finished(tool, logs))} tests whole; {len(found)} reports; {seconds:.0f} s, at most {last:.0f} for a program")  # fmt: skip
    print(f"  the planted fault: {'; '.join(seen) if seen else 'NOT SEEN'}")
    for test in sorted({w[3] for w in made if "other" in w[1]}):
        print(f"  other bits: {test}")
    for test, many in sorted(Counter(entries[m].test for m in missing).items()):
        print(f"  {many} programs not made: {test}")
    for head, many in Counter(h for _, h, _ in found).most_common(20):
        print(f"  {many} x {head}")
        of = [(t, text) for t, h, text in found if h == head]
        for test, k in Counter(t for t, _ in of).most_common(8):
            print(f"      {k} in {test}")
        print("\n".join("      " + line for line in of[0][1].splitlines()))
    return bool(seen) and not found and not missing and not counts["other"] and bool(entries)


def main() -> int:
    p = argparse.ArgumentParser(description="The device tests under compute-sanitizer.")
    p.add_argument("--tools", default="memcheck=5,racecheck=10")
    p.add_argument("--processes", type=int, default=15)
    p.add_argument("--limit", type=float, default=560.0)
    p.add_argument("--keep", nargs="*", default=[])
    p.add_argument("--logs", default="")
    p.add_argument("--planted", choices=TOOLS)
    p.add_argument("--again", choices=TOOLS)
    p.add_argument("--number", type=int, default=0)
    args = p.parse_args()
    if args.planted or args.again:
        planted(args.planted) if args.planted else again(args.again, args.number)
        return 0
    logs = Path(args.logs or tempfile.mkdtemp(prefix="sanitize."))
    logs.mkdir(parents=True, exist_ok=True)
    tools = {tool: int(n) for tool, _, n in (t.partition("=") for t in args.tools.split(","))}
    done = set.intersection(*(finished(tool, logs) for tool in tools))
    with tempfile.TemporaryDirectory() as calls, tempfile.TemporaryDirectory() as claims:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONPATH=paths, CUDA_CACHE_MAXSIZE=str(4 << 30), **{CALLS: calls, CLAIMS: claims})
        end = time.monotonic() + args.limit
        clean = [record(args, logs, env, done)]
        clean.append(check(tools, end - time.monotonic(), logs, env))
    print(f"logs: {logs}")
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
