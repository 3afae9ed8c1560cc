"""The object-code cache: keys, damage, foreign and read-only folders, bounds."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from tilewright.core.config import Config, load
from tilewright.target.cpu import cache as module
from tilewright.target.cpu.cache import CodeCache, default_folder, object_key
from tilewright.target.cpu.host import host_target

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
    assert again.notes == [f"cache: entry {object_key(TEXT, target)} is damaged; deleted and compiled again"]
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

    monkeypatch.setattr(tempfile, "mkstemp", full)
    texts = [TEXT, TEXT.replace("1", "2")]
    codes, compiled = cache.compile(texts, host_target())
    assert compiled == len(codes) == 2
    assert cache.notes == [f"cache: cannot write to {tmp_path} (No space left on device); compiling without storing"]


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CodeCache(config(tmp_path))

    def fail(self: Path, target: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "replace", fail)
    cache.put("key", b"code")
    assert "Input/output error" in cache.notes[0] and list(tmp_path.iterdir()) == []


def test_an_unreadable_entry_is_noted(tmp_path: Path) -> None:
    cache = CodeCache(config(tmp_path))
    (tmp_path / "key.o").mkdir()
    assert cache.get("key") is None and "cannot read" in cache.notes[0]
    assert cache.entries() == []


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = CodeCache(config(tmp_path, cache_bytes=3000))
    now = time.time()
    for k in range(4):
        cache.put(f"k{k}", bytes(900))
        os.utime(tmp_path / f"k{k}.o", (now - 9000 + k, now - 9000 + k))
    assert cache.get("k0") == bytes(900), "reading makes it young"
    stale = tmp_path / "new-left-behind"
    stale.write_bytes(b"")
    os.utime(stale, (now - 9000, now - 9000))
    cache.trim()
    assert [entry.key for entry in cache.entries()] == ["k2", "k3", "k0"] and not stale.exists()
    assert sum(entry.nbytes for entry in cache.entries()) <= 3000


def test_no_bytes_means_no_cache(tmp_path: Path) -> None:
    cache = CodeCache(config(tmp_path, cache_bytes=0))
    assert cache.folder is None and cache.notes == ["cache: switched off (TILEWRIGHT_CACHE_BYTES=0)"]
    cache.trim()
    assert cache.get("x") is None and cache.compile([TEXT], host_target())[1] == 1


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "tilewright"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "tilewright"


def test_reading_twenty_entries_is_quick(tmp_path: Path) -> None:
    cache = CodeCache(config(tmp_path))
    for k in range(20):
        cache.put(f"k{k}", bytes(4000))
    best = float("inf")
    for _ in range(5):
        start = time.process_time()  # not the clock: a busy machine is no failure
        assert all(cache.get(f"k{k}") for k in range(20))
        best = min(best, time.process_time() - start)
    assert best < 0.005
