"""A process with little memory, few files, no HOME, an ASCII terminal, a folder that is none, or a fork in between: the right results, a
typed error of one line, or a lack of memory that is reported as such. Never a signal, never half a file under its final name."""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.shaken import HANG

from .engine.campaign import FOLDER, Campaign

ROOT = FOLDER.parents[1]
PARTS = ("arrays", "session", "model", "checkpoint")
MB = 1 << 20
# limit -> values; the smallest ones end Python itself, which is not our concern
LIMITS = {"none": (0,), "as": (600, 800, 1000, 1400, 2000), "files": (12, 16, 24, 40), "fsize": (0, 1, 40), "stack": (256, 1024)}
SURROUNDINGS = ("plain", "no_home", "no_path", "ascii", "ascii_strict", "no_tmp", "cache_is_file", "cache_is_proc", "cwd_gone",
                "threads_many", "threads_odd", "key_is_folder", "no_stdin", "umask")  # fmt: skip


@dataclass(frozen=True)
class Case:
    part: str
    limit: str
    value: int
    surroundings: tuple[str, ...]


def draw(rng: np.random.Generator) -> Case:
    limit = str(rng.choice(list(LIMITS)))
    around = tuple(str(s) for s in rng.choice(SURROUNDINGS, int(rng.integers(0, 3)), replace=False))
    return Case(str(rng.choice(PARTS)), limit, int(rng.choice(LIMITS[limit])), around)


@functools.cache
def right(part: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        done = child(part, Path(folder), {**os.environ}, "none", 0, ())
        assert done.returncode == 0, done.stderr
        return done.stdout


def child(
    part: str, folder: Path, env: dict[str, str], limit: str, value: int, around: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    env = {**env, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TILEWRIGHT_KEY_FILE": str(folder / "key")}
    env["OPENBLAS_NUM_THREADS"] = "1"

    def before() -> None:
        if "cwd_gone" in around:
            gone = tempfile.mkdtemp()
            os.chdir(gone)
            os.rmdir(gone)
        if "umask" in around:
            os.umask(0o777 if os.geteuid() == 0 else 0o077)
        if "no_stdin" in around:
            os.close(0)
        kinds = {"as": resource.RLIMIT_AS, "files": resource.RLIMIT_NOFILE, "fsize": resource.RLIMIT_FSIZE, "stack": resource.RLIMIT_STACK}
        if limit in kinds:
            size = value * {"as": MB, "files": 1, "fsize": 1024, "stack": 1024}[limit]
            resource.setrlimit(kinds[limit], (size, resource.getrlimit(kinds[limit])[1]))

    return subprocess.run([sys.executable, "-m", "tests.campaigns.processes.child", str(folder), part], env=env, cwd=ROOT, text=True,
                          capture_output=True, timeout=HANG, preexec_fn=before)  # fmt: skip


def check(case: Case) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, env = Path(place) / "work", dict(os.environ)
        folder.mkdir()
        for name in case.surroundings:
            if name == "no_home":
                env.pop("HOME", None)
                env.pop("TILEWRIGHT_CACHE_DIR", None)
            elif name == "no_path":
                env.pop("PATH", None)
            elif name == "ascii":
                env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
            elif name == "ascii_strict":
                env["PYTHONIOENCODING"] = "ascii:strict"
            elif name == "no_tmp":
                env |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder / "nowhere"))
            elif name == "cache_is_file":
                (Path(place) / "file").write_text("")
                env["TILEWRIGHT_CACHE_DIR"] = f"{place}/file"
            elif name == "cache_is_proc":
                env["TILEWRIGHT_CACHE_DIR"] = "/proc/self/tilewright"
            elif name == "threads_many":
                env["TILEWRIGHT_THREADS"] = "64"
            elif name == "threads_odd":
                env["TILEWRIGHT_THREADS"] = "many"
            elif name == "key_is_folder":
                (folder / "key").mkdir()
        before = {p.name for p in folder.iterdir()}
        done = child(case.part, folder, env, case.limit, case.value, case.surroundings)
        said = done.stderr.strip().splitlines()
        if done.returncode == 0:
            assert done.stdout == right(case.part), done.stdout
        elif done.returncode == 3:
            assert said and said[-1].startswith(("typed: ", "memory: ")), done.stderr
            assert not said[-1].startswith("memory: ") or case.limit == "as", done.stderr
        else:
            outside = ("import numpy", "ImportError", "failed to map segment", "Fatal Python error: init", "No module named")
            starved = case.limit in ("as", "files", "fsize") and any(o in done.stderr for o in outside)  # before our first line
            assert starved, f"status {done.returncode}\n{done.stderr[-3000:]}"
        whole = {"session.tw", "tiny.gguf", "c.safetensors", "key", "nowhere"}
        assert {p.name for p in folder.iterdir()} - before <= whole or done.returncode == 3, sorted(p.name for p in folder.iterdir())


CAMPAIGN = Campaign(draw=draw, check=check, quick=2, seconds=60.0, keep=("part", "limit", "surroundings"))
