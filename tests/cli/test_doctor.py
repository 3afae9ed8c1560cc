"""`tilewright doctor`: says what is here, and fails only on a real problem."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.cli import doctor
from tilewright.cli.main import main


def test_all_is_well_here(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "c"))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in (
        "numpy",
        "llvmlite",
        "LLVM",
        "vectors",
        "threads",
        "generated code",
        "runs",
        str(tmp_path / "c"),
        "torch",
        "; pip install 'tilewright[cuda]'",
        "Everything needed is here.",
    ):
        assert word in out, word
    assert "\x1b[" not in out, "piped output is plain"


def test_json_is_the_same_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"versions", "cpu", "threads", "code", "cache", "optional"} <= {f["section"] for f in found}
    assert {f["status"] for f in found} <= {"ok", "note", "problem"}


def test_a_wrong_setting_is_one_problem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", "0")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "TILEWRIGHT_THREADS must be an integer" in out
    assert "1 problem." in out


def test_an_open_cache_folder_is_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert main(["doctor"]) == 1
    assert "chmod 700" in capsys.readouterr().out
    assert stat.S_IMODE(os.stat(tmp_path).st_mode) == 0o777, "the doctor changes nothing"


def test_a_switched_off_cache_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "0")
    assert [f.status for f in doctor.cache()] == ["note"]


def test_broken_code_generation_is_a_problem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE", doctor.PROBE.replace("mul", "add"))
    assert main(["doctor"]) == 1
    assert "computed 18 instead of 43" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "PROBE", "define nonsense")
    assert main(["doctor"]) == 1
    assert "CompileError: llvm: the IR does not parse" in capsys.readouterr().out


def test_more_threads_than_cores_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", "1000")
    [found] = doctor.threads()
    assert found.status == "note"
    assert "sleep" in found.value


def test_missing_packages_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["no-such-package>=1 ; extra == 'flying'", "numpy>=1; extra == \"arrays\"", "mypy ; extra == 'dev'", "rich>=13.7"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: lines)  # type: ignore[attr-defined]
    monkeypatch.setattr(doctor, "_installed", lambda _: True)
    missing, here = doctor.optional()
    assert missing.status == "note"
    assert missing.value == "not installed: the extra flying; pip install 'tilewright[flying]'"
    assert here.status == "ok"


def test_an_ascii_terminal_is_enough() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-m", "tilewright", "doctor"], env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"Everything needed is here." in done.stdout


@pytest.mark.parametrize("words", [["doctor"], ["cache", "list"], ["--help"]])
def test_a_full_or_closed_output_is_one_line(words: list[str]) -> None:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "tilewright", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "tilewright: cannot write: [Errno 28] No space left on device\n")
    done = subprocess.run(f"{shlex.join(command)} >&-", shell=True, env=env, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "tilewright: standard output is closed\n")
    piped = ["bash", "-c", f"{shlex.join(command)} | true; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(piped, env=env, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
