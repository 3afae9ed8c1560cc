"""Files: written whole or not at all, through no link, and errors that name the file and say what to do."""
from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.meta.source import ROOT
from tilewright.core.errors import CheckpointError, FileError, MissingFileError, TilewrightError
from tilewright.core.files import LEFTOVER, append_text, open_file, read_file, remove_leftovers, write_file


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_file(path, b"one", subject="test")
    assert path.read_bytes() == b"one"
    path.chmod(0o640)
    write_file(path, lambda f: f.writelines([b"t", b"wo"]), subject="test")
    assert path.read_bytes() == b"two" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(tmp_path) == ["a"]


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Neither one in the place of the file nor one with a name that could be guessed."""
    victim, shared = tmp_path / "victim", tmp_path / "shared"
    victim.write_text("precious")
    shared.mkdir()
    for name in (".a.tmp", "a.tmp", "a"):
        (shared / name).symlink_to(victim)
    write_file(shared / "a", b"new", subject="test")
    assert victim.read_text() == "precious"
    assert (shared / "a").read_bytes() == b"new" and not (shared / "a").is_symlink()


def test_temporary_names_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open

    def noting(path: str, flags: int, mode: int = 0o777) -> int:
        opened.append((os.path.basename(path), flags))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", noting)
    for _ in range(2):
        write_file(tmp_path / "a", b"", subject="test")
    made = [(name, flags) for name, flags in opened if flags & os.O_CREAT]
    assert len({name for name, _ in made}) == 2
    for name, flags in made:
        assert LEFTOVER.fullmatch(name) and flags & os.O_EXCL and flags & os.O_NOFOLLOW


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_file(path, b"old", subject="test")

    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FileError, match=re.escape(f"test: could not write {path}: No space left on device; what was there before is "
                                                  "untouched; make room there or choose another folder")):
        write_file(path, fail, subject="test")
    with pytest.raises(FileError, match="No space left on device; there is no file of that name; make room"):
        write_file(tmp_path / "b", fail, subject="test")
    with pytest.raises(CheckpointError, match="checkpoint: could not write"):
        write_file(path, fail, subject="checkpoint", error=CheckpointError)

    def stop(file: BinaryIO) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(path, stop, subject="test")
    assert path.read_bytes() == b"old" and names(tmp_path) == ["a"]


def test_a_file_error_is_an_os_error_too() -> None:
    """Callers that catch what Python raises for a missing file go on to do so."""
    assert issubclass(FileError, OSError) and issubclass(FileError, TilewrightError)
    assert issubclass(MissingFileError, FileNotFoundError) and issubclass(MissingFileError, FileError)


def test_what_cannot_be_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path, "a folder"), (tmp_path / "pipe", "no regular file"), (Path("/dev/null"), "no regular file")):
        with pytest.raises(FileError, match=f"test: could not write .*: it is {what}; what was there before is untouched"):
            write_file(path, b"", subject="test")
        with pytest.raises(FileError, match=f"test: could not read .*: it is {what}; check the path"):
            open_file(path, subject="test")
    with pytest.raises(FileError, match=r"could not write .*: No such file or directory; there is no folder .*none; check the path"):
        write_file(tmp_path / "none" / "a", b"", subject="test")
    with pytest.raises(MissingFileError, match=r"could not read .*: No such file or directory; check the path"):
        open_file(tmp_path / "none", subject="test")
    with pytest.raises(CheckpointError, match=r"could not read .*: No such file or directory; check the path"):
        open_file(tmp_path / "none", subject="test", error=CheckpointError)
    with pytest.raises(FileError, match=r"test: could not write .*: Is a directory"):
        append_text(tmp_path, "x", subject="test")
    assert names(tmp_path) == ["pipe"]


def test_no_permission(tmp_path: Path) -> None:
    """As another user, where this one is root and may do everything."""
    code = textwrap.dedent("""
        import fcntl, os, pathlib, sys  # all that is needed: the other user may not read the library
        from tilewright.core.files import open_file, write_file
        if os.getuid() == 0:
            os.setgroups([]); os.setgid(12345); os.setuid(12345)
        for what in (lambda: write_file(sys.argv[1] + "/a", b"", subject="t"), lambda: open_file(sys.argv[1] + "/secret", subject="t")):
            try:
                what()
            except Exception as e:
                print(type(e).__name__, e)
        """)
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "secret").write_text("")
    (folder / "secret").chmod(0)
    folder.chmod(0o555)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", code, str(folder)], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, text=True,
                          capture_output=True, check=True)
    wrote, read = done.stdout.splitlines()
    assert "FileError t: could not write" in wrote
    assert "Permission denied; there is no file of that name; choose a file and a folder that this user may use" in wrote
    assert "FileError t: could not read" in read and "Permission denied; choose a file" in read


def test_a_long_name(tmp_path: Path) -> None:
    name = "é" * 127
    write_file(tmp_path / name, b"x", subject="test")
    assert names(tmp_path) == [name]


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk without room: writing fails in the middle in the same way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(FileError, match="File too large; there is no file of that name; make room"):
            write_file(tmp_path / "a", bytes(1 << 20), subject="test")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == []


def test_leftovers_go_and_nothing_else(tmp_path: Path) -> None:
    mine, live, link = (f".a.{k * 16}.tmp" for k in "012")
    others = [".b.0000000000000000.tmp", ".a.tmp", "a.0000000000000000.tmp", ".a.zzzzzzzzzzzzzzzz.tmp"]
    for name in (mine, live, *others):
        (tmp_path / name).write_text("")
    (tmp_path / link).symlink_to(tmp_path / others[0])
    with (tmp_path / live).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_file(tmp_path / "a", b"", subject="test")
        assert names(tmp_path) == sorted([live, link, *others, "a"])
    remove_leftovers(tmp_path, re.compile("[ab]"))
    assert names(tmp_path) == sorted([link, *others[1:], "a"])


def test_one_taken_for_a_leftover_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between making the temporary file and locking it another process may delete it."""
    real = fcntl.flock
    taken: list[Path] = []

    def beaten(handle: BinaryIO, how: int) -> None:
        if not taken:
            taken.append(next(tmp_path.iterdir()))
            taken[0].unlink()
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", beaten)
    write_file(tmp_path / "a", b"x", subject="test")
    assert taken and names(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_file_has(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"x: could not write .*; no file has such a name"):
        write_file(tmp_path / name, b"", subject="x")
    for read in (open_file, read_file):
        with pytest.raises(FileError, match=r"x: could not read .*; no file has such a name"):
            read(tmp_path / name, subject="x")
    assert list(tmp_path.iterdir()) == []


def test_whole_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert read_file(tmp_path / "a", subject="x") == b"abc"
    os.mkfifo(tmp_path / "p")
    for name, text in (("p", "it is no regular file"), (".", "it is a folder"), ("none", "No such file")):
        with pytest.raises(FileError, match=f"x: could not read .*: {text}"):
            read_file(tmp_path / name, subject="x")
    with pytest.raises(FileError, match="File name too long") as found:  # a name that a file gives for another one
        read_file(tmp_path / ("x" * 4000), subject="x")
    assert len(str(found.value)) < 1200
