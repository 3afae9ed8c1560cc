"""The device tests under NVIDIA's compute-sanitizer, in several processes, each test by whoever is free next.

    PYTHONPATH=src:. python tests/cuda/sanitize.py --tools memcheck,racecheck --processes 12 --limit 600 [--keep PART…] [--logs FOLDER]

Tools: memcheck (accesses outside of memory), racecheck (hazards in shared memory), synccheck (wrong uses of barriers), initcheck (reads
of memory that nobody wrote). `--limit` is seconds for one tool; what is then still running is ended and counted. `--keep` takes test
ids that contain one of the parts. A run that finds logs of an earlier one in its folder goes on: what passed there is not run again.

Every tensor of PyTorch and every temporary of ours is an allocation of its own, so that the first byte behind it is outside (but for
racecheck and synccheck, which do not look there: our sessions have their arena). Only our kernels are checked:
those of PyTorch and its libraries, which make the references, are left out by name (but for initcheck, which must see who writes).
Beside the tests each tool must find a fault planted in one of our kernels, in a session like any other; else it is blind. Exit status
0: every test ran and passed, no tool is blind, none found anything.
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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests/cuda").glob("test_device*.py")), "tests/cuda/test_jit.py"]
FOREIGN = r"^(_Z|cutlass|nvjet|sm[0-9]+_|ampere_|volta_|turing_|hopper_|maxwell_|cublas|cudnn|triton_)"
ASKED = re.compile(
    "API call to (cuGetProcAddress|cuPointerGetAttribute)"
)  # where no is an answer: is there such a function, whose memory is it
# test -> why it is not run under a tool
UNFIT: dict[str, dict[str, str]] = {"memcheck": {}, "racecheck": {}, "synccheck": {}, "initcheck": {}}
CLAIMS, CHOSEN, UNTIL = "TILEWRIGHT_SANITIZE_CLAIMS", "TILEWRIGHT_SANITIZE_CHOSEN", "TILEWRIGHT_SANITIZE_UNTIL"
MARK = "@@sanitize"


# ── inside of a process under the tool: a plugin of pytest ──


def _say(*words: str) -> None:
    os.write(1, f"\n{MARK} {' '.join(words)}\n".encode())  # past pytest, in order with what the tool writes


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    tool, *parts = os.environ[CHOSEN].splitlines()
    chosen = [x for x in items if not parts or any(part in x.nodeid for part in parts)]
    fit = [x for x in chosen if x.nodeid.partition("::")[2].partition("[")[0] not in UNFIT[tool]]
    items[:] = sorted(fit, key=lambda x: _digest(x.nodeid))  # mixed: what time does not allow is no kind of test of its own
    _say("chosen", str(len(items)), str(len(chosen) - len(items)))


def _mine(name: str) -> bool:
    """A test belongs to the process that first makes its file."""
    try:
        os.close(os.open(Path(os.environ[CLAIMS]) / _digest(name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def pytest_runtestloop(session: Any) -> bool:
    """Shortly before the end no test is begun: a process that is killed loses what the tool has not yet written."""
    for item in session.items:
        if time.time() < float(os.environ[UNTIL]) and _mine(item.nodeid):
            _say("start", item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return True


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        _say("end", report.outcome, report.nodeid)


def pytest_configure(config: Any) -> None:
    if os.environ[CHOSEN].startswith(("memcheck", "initcheck")):
        temporaries_apart()


def temporaries_apart() -> None:
    """Sessions get an allocation for every temporary buffer where they have one arena: what lies behind a buffer is outside then."""
    from tilewright.runtime import cuda_driver as gpu
    from tilewright.runtime.cuda_executable import CudaExecutable

    whole = CudaExecutable.instantiate

    def instantiate(self: CudaExecutable, env: Mapping[str, int]) -> Any:
        self.load()
        place, memory = self.plan.place, gpu.Memory
        blocks: list[Any] = []
        arenas: list[Any] = []

        def placed(env: Mapping[str, int]) -> Any:
            found = place(env)
            blocks.extend(memory(found.sizes[b]) for b in found.offsets)
            return replace(found, offsets=dict(zip(found.offsets, (m.address for m in blocks), strict=True)))

        def arena(nbytes: int) -> Any:
            if arenas:  # the first that is asked for is the arena
                return memory(nbytes)
            arenas.append(SimpleNamespace(address=0, nbytes=nbytes, blocks=blocks))
            return arenas[0]

        with mock.patch.object(self.plan, "place", placed), mock.patch.object(gpu, "Memory", arena):
            return whole(self, env)

    mock.patch.object(CudaExecutable, "instantiate", instantiate).start()


# ── a fault in one of our kernels ──


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
    """A session with such a kernel, or (initcheck) with an input that nobody wrote."""
    import torch

    import tilewright as tw
    from tests.cuda.launching import graph
    from tilewright.core.dtypes import f32
    from tilewright.ops.composites import Softmax
    from tilewright.runtime import cuda_executable, cuda_modules

    if tool != "initcheck":
        vars(cuda_executable)["load_function"] = lambda text, *x: cuda_modules.load_function(spoilt(tool, text), *x)
    x = torch.empty(3, 8192, device="cuda") if tool == "initcheck" else torch.randn(3, 8192, device="cuda")
    tw.compile(graph(lambda v: Softmax(axis=1)(v), (f32, (3, 8192))), target="cuda")(x)
    torch.cuda.synchronize()


# ── outside ──


def command(tool: str, port: int, processes: int) -> list[str]:
    found = [shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer", "--tool", tool, "--port", str(port)]
    found += ["--destroy-on-device-error", "kernel", "--print-limit", "0", "--show-backtrace", "device", "--launch-timeout", "120"]
    if tool != "initcheck":
        found += ["--kernel-name-exclude", f"regex={FOREIGN}"]
    if tool == "racecheck":
        found += ["--racecheck-num-workers", str(max(1, (os.cpu_count() or 1) // processes))]
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
        if head and not re.match(r"COMPUTE-SANITIZER|.* SUMMARY:|Target application|Version|Copyright", head[1]) and not ASKED.search(line):
            body = [line]
            for more in lines[i + 1 : i + 12]:
                if not re.match(r"={9} {2,}\S", more):
                    break
                body.append(more)
            yield test, re.sub(r"0x[0-9a-f]+|[0-9]+", "#", head[1]), "\n".join(body)


def said(texts: Iterable[str]) -> list[list[str]]:
    """The words of the plugin's lines."""
    return [line.split(" ")[1:] for t in texts for line in t.splitlines() if line.startswith(MARK)]


def outcomes(texts: Iterable[str]) -> dict[str, str]:
    return {" ".join(w[2:]): w[1] for w in said(texts) if w[0] == "end"}


def run(tool: str, args: argparse.Namespace, logs: Path) -> bool:
    """Whether all ran and nothing was found."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = dict(os.environ, PYTORCH_NO_CUDA_MEMORY_CACHING="1", PYTHONUNBUFFERED="1", PYTHONPATH=paths)
    env[CHOSEN], env[UNTIL] = "\n".join([tool, *args.keep]), str(time.time() + 0.9 * args.limit)
    start = time.monotonic()
    until = start + args.limit
    earlier = sorted(logs.glob(f"{tool}.*.tests.log"))
    with tempfile.TemporaryDirectory() as claims:
        env[CLAIMS] = claims
        for test, result in outcomes([f.read_text(errors="replace") for f in earlier]).items():
            if result in ("passed", "skipped"):
                (Path(claims) / _digest(test)).touch()
        tests = ["-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "-p", "tests.cuda.sanitize", "--tb=short", *FILES]
        files = [logs / f"{tool}.{len(earlier) + i:03}.tests.log" for i in range(args.processes)]
        base = 49152 + 1000 * (list(UNFIT).index(tool))
        running = [started(command(tool, base + 20 + 20 * i, args.processes) + tests, f, env) for i, f in enumerate(files)]
        plant = logs / f"{tool}.planted.log"
        running.append(started([*command(tool, base, args.processes), "tests/cuda/sanitize.py", "--planted", tool], plant, env))
        ended(running, until)
    texts = [f.read_text(errors="replace") for f in [*earlier, *files]]
    chosen, unfit = max(((int(w[1]), int(w[2])) for w in said(texts) if w[0] == "chosen"), default=(0, 0))
    began = {" ".join(w[1:]) for w in said(texts) if w[0] == "start"}
    outcome = outcomes(texts)
    late = sorted(began - set(outcome))
    found = [r for t in texts for r in reports(t)]
    seen = sorted({h for _, h, _ in reports(plant.read_text(errors="replace"))})
    counts = Counter(outcome.values())
    print(f"{tool}: {chosen} tests chosen, {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped, "
          f"{unfit} unfit, {len(late)} ran out of time, {chosen - len(began)} not reached; "
          f"{len(found)} reports; {time.monotonic() - start:.0f} s")  # fmt: skip
    print(f"  the planted fault: {'; '.join(seen) if seen else 'NOT SEEN'}")
    for why in UNFIT[tool].items():
        print("  unfit: " + ": ".join(why))
    for test in late:
        print(f"  out of time: {test}")
    for test in sorted(t for t, o in outcome.items() if o == "failed"):
        print(f"  failed: {test}")
    for head, n in Counter(h for _, h, _ in found).most_common(20):
        print(f"  {n} x {head}")
        of = [(t, text) for t, h, text in found if h == head]
        for test, k in Counter(t for t, _ in of).most_common(8):
            print(f"      {k} in {test}")
        print("\n".join("      " + line for line in of[0][1].splitlines()))
    return bool(seen) and not found and chosen > 0 and counts["passed"] + counts["skipped"] == chosen


def main() -> int:
    p = argparse.ArgumentParser(description="The device tests under compute-sanitizer.")
    p.add_argument("--tools", default="memcheck,racecheck")
    p.add_argument("--processes", type=int, default=12)
    p.add_argument("--limit", type=float, default=600.0)
    p.add_argument("--keep", nargs="*", default=[])
    p.add_argument("--logs", default="")
    p.add_argument("--planted", choices=list(UNFIT))
    args = p.parse_args()
    if args.planted:
        planted(args.planted)
        return 0
    logs = Path(args.logs or tempfile.mkdtemp(prefix="sanitize."))
    logs.mkdir(parents=True, exist_ok=True)
    clean = [run(tool, args, logs) for tool in args.tools.split(",")]
    print(f"logs: {logs}")
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
