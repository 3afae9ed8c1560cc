"""The object-code cache: keys, damage, foreign and read-only folders, bounds."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.meta.source import ROOT
from tilewright.core.config import Config, load
from tilewright.target.cpu import cache as module
from tilewright.target.cpu.cache import CodeCache, default_folder, object_key
from tilewright.target.cpu.host import host_target

KEYS = [hashlib.sha1(bytes([k])).hexdigest() for k in range(20)]
TEXT = "define i64 @f() {\n  ret i64 1\n}\n"


def config(folder: Path, **settings: object) -> Config:
    return load({}, cache_dir=str(folder), **settings)


def test_the_second_compile_comes_from_the_folder(tmp_path: Path) -> None:
    folder, target = tmp_path / "deep" / "cache", host_target()
    first, compiled = CodeCache(config(folder)).compile([TEXT, TEXT, TEXT.replace("1", "2")], target)
    assert compiled == 2 and first[0] == first[1] != first[2]
    assert folder.stat().st_mode & 0o777 == 0o700
    cache = CodeCache(config(folder))
    assert cache.compile([TEXT, TEXT, TEXT.replace("1", "2")], target) == (first, 0)
    assert cache.notes == [] and len(cache.entries()) == 2
    assert cache.clear() == 2 and cache.entries() == []
    assert cache.compile([TEXT], target) == ([first[0]], 1)


def test_a_cached_module_is_not_even_written(tmp_path: Path) -> None:
    written: list[str] = []

    def source(text: str) -> module.Source:
        return "stands for " + text, lambda: written.append(text) or text  # type: ignore[func-returns-value]

    cache, target = CodeCache(config(tmp_path)), host_target()
    first, compiled = cache.build([source(TEXT), source(TEXT.replace("1", "2")), source(TEXT)], target, threads=2)
    assert compiled == 2 and sorted(written) == sorted({TEXT, TEXT.replace("1", "2")})
    written.clear()
    assert CodeCache(config(tmp_path)).build([source(TEXT)], target) == (first[:1], 0) and written == []


def test_whatever_shapes_the_code_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def key() -> str:
        module._salt.cache_clear()
        return object_key(TEXT, host_target())

    base = host_target(level="baseline")
    keys = [key(), object_key(TEXT + " ", host_target()), object_key(TEXT, base), object_key(TEXT, host_target(), "O3")]
    monkeypatch.setattr(module, "ABI_VERSION", -1)
    keys.append(key())
    monkeypatch.setattr(module, "codegen_version", lambda: "another emitter")
    keys.append(key())
    monkeypatch.setattr(module, "llvm_version", lambda: "another LLVM")
    keys.append(key())
    module._salt.cache_clear()
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "grow", "swap"])
def test_a_damaged_entry_is_compiled_again(tmp_path: Path, damage: str) -> None:
    target = host_target()
    cache = CodeCache(config(tmp_path))
    good, _ = cache.compile([TEXT, TEXT.replace("1", "2")], target)
    path, other = (tmp_path / f"{object_key(t, target)}.o" for t in (TEXT, TEXT.replace("1", "2")))
    data = path.read_bytes()
    flipped = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    path.write_bytes({"flip": flipped, "cut": data[:-1], "empty": b"", "grow": data + b"x", "swap": other.read_bytes()}[damage])
    again = CodeCache(config(tmp_path))
    assert again.compile([TEXT], target) == (good[:1], 1)
    assert again.notes == [f"cache: entry {object_key(TEXT, target)} is damaged; compiled again"]
    assert path.read_bytes() == data


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    cache = CodeCache(config(tmp_path))
    assert cache.folder is None and f"others may write to {tmp_path}; compiling without a cache" in cache.notes[0]
    assert cache.compile([TEXT], host_target())[1] == 1 and list(tmp_path.iterdir()) == []
    assert cache.entries() == [] and cache.clear() == 0


def test_another_users_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    cache = CodeCache(config(tmp_path))
    assert cache.folder is None and "belongs to another user" in cache.notes[0]
    assert cache.compile([TEXT], host_target())[1] == 1


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        cache = CodeCache(config(folder))
        assert cache.folder is None and "compiling without a cache" in cache.notes[0]


def test_a_full_or_read_only_folder_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CodeCache(config(tmp_path))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    texts = [TEXT, TEXT.replace("1", "2")]
    codes, compiled = cache.compile(texts, host_target())
    assert compiled == len(codes) == 2
    (note,) = cache.notes
    assert note.startswith(f"cache: could not write {tmp_path}/") and "No space left on device" in note
    assert note.endswith("make room there or choose another folder; compiling without storing")


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CodeCache(config(tmp_path))

    def fail(source: object, target: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    cache.put(KEYS[0], b"code")
    assert "Input/output error" in cache.notes[0] and list(tmp_path.iterdir()) == []


def test_an_unreadable_entry_is_noted(tmp_path: Path) -> None:
    cache = CodeCache(config(tmp_path))
    (tmp_path / f"{KEYS[0]}.o").mkdir()
    assert cache.get(KEYS[0]) is None and "cannot read" in cache.notes[0]
    assert cache.entries() == []


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_entry_that_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    cache = CodeCache(Config(cache_dir=str(tmp_path)))
    cache.put("ab" * 20, b"code")
    (entry,) = tmp_path.glob("*.o")
    entry.unlink()
    os.mkfifo(entry) if kind == "pipe" else entry.symlink_to("/dev/zero")
    assert cache.get("ab" * 20) is None
    assert "it is no regular file" in cache.notes[-1]


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = CodeCache(config(tmp_path, cache_bytes=3000))
    now = time.time()
    for k in range(4):
        cache.put(KEYS[k], bytes(900))
        os.utime(tmp_path / f"{KEYS[k]}.o", (now - 9000 + k, now - 9000 + k))
    assert cache.get(KEYS[0]) == bytes(900), "reading makes it young"
    stale = tmp_path / f".{KEYS[9]}.o.0123456789abcdef.tmp"
    stale.write_bytes(b"")
    cache.trim()
    assert [entry.key for entry in cache.entries()] == [KEYS[2], KEYS[3], KEYS[0]] and not stale.exists()
    assert sum(entry.nbytes for entry in cache.entries()) <= 3000


def test_no_bytes_means_no_cache(tmp_path: Path) -> None:
    cache = CodeCache(config(tmp_path, cache_bytes=0))
    assert cache.folder is None and cache.notes == ["cache: switched off (TILEWRIGHT_CACHE_BYTES=0)"]
    cache.trim()
    assert cache.get("x") is None and cache.compile([TEXT], host_target())[1] == 1


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == str(tmp_path / "tilewright")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == str(tmp_path / ".cache" / "tilewright")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # the XDG rule: ignored
    assert default_folder() == str(tmp_path / ".cache" / "tilewright")


NOWHERE = """
import pwd
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
import numpy as np
import tilewright as tw
from tilewright.core.config import load
from tilewright.core.errors import ConfigError
from tilewright.runtime.archive.user_key import user_key
print(tw.jit(lambda x: x + 1)(np.ones(2, np.float32)), user_key(create=True))
try:
    load({"TILEWRIGHT_CACHE_DIR": "~/x"})
except ConfigError as e:
    print(e)
"""


def test_a_user_without_a_home_compiles_without_a_cache() -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TILEWRIGHT_", "XDG_")) and k != "HOME"}
    done = subprocess.run([sys.executable, "-c", NOWHERE], env={**env, "PYTHONPATH": str(ROOT / "src")}, text=True, capture_output=True)
    assert "[2. 2.]" in done.stdout, done.stderr
    assert "there is no home folder (HOME is not set); set TILEWRIGHT_KEY_FILE" in done.stdout
    assert "TILEWRIGHT_CACHE_DIR must be a folder, got '~/x'" in done.stdout
    warned = "cache: there is no home folder (HOME is not set); compiling without a cache, set TILEWRIGHT_CACHE_DIR"
    assert done.stderr.splitlines() == [warned], done.stderr


def test_a_folder_that_holds_other_things_loses_none_of_them(tmp_path: Path) -> None:
    """Neither by name alone nor by age: not in a compile that is over the bound, not by `clear`."""
    kept = ["new-chapter.txt", "main.o", f"{KEYS[0]}.o", f"{KEYS[1]}.o.bak", f"x{KEYS[2]}.o", f".{KEYS[3]}.o.tmp",
            f".main.o.{'0' * 16}.tmp"]
    for name in kept:
        (tmp_path / name).write_text("thesis")
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / f"{KEYS[4]}.o").symlink_to(tmp_path / "main.o")
    cache = CodeCache(config(tmp_path, cache_bytes=1))
    assert cache.compile([TEXT], host_target())[1] == 1
    for k in range(5, 9):
        cache.put(KEYS[k], bytes(900))
    cache.trim()
    assert cache.clear() == 0 and sorted(p.name for p in tmp_path.iterdir()) == sorted([*kept, f"{KEYS[4]}.o"])
    assert all((tmp_path / name).read_text() == "thesis" for name in kept)


def test_reading_twenty_entries_is_quick(tmp_path: Path) -> None:
    cache = CodeCache(config(tmp_path))
    for k in range(20):
        cache.put(KEYS[k], bytes(4000))
    best = float("inf")
    for _ in range(20):
        start = time.process_time()  # not the clock: a busy machine is no failure
        assert all(cache.get(KEYS[k]) for k in range(20))
        best = min(best, time.process_time() - start)
    assert best < 0.02  # 1 ms where system calls are quick
