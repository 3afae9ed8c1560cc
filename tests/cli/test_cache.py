"""`tilewright cache list | clear | path`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.cli.main import main
from tilewright.target.cpu.cache import CodeCache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"


def test_list_and_clear(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = CodeCache()
    cache.put("a" * 40, b"x" * 2000)
    cache.put("b" * 40, b"y" * 100)
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert "a" * 40 in out
    assert "2 entries" in out
    assert "2.0 KiB" in out
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith("2 entries deleted")
    assert main(["cache", "list"]) == 0
    assert "0 entries" in capsys.readouterr().out
    assert not list(folder.iterdir())


def test_no_cache_is_an_error_that_says_why(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "0")
    assert main(["cache"]) == 1
    assert "switched off (TILEWRIGHT_CACHE_BYTES=0)" in capsys.readouterr().err


def test_a_file_in_the_folders_place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("not a folder")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["cache", "clear"]) == 1
    assert "compiling without a cache" in capsys.readouterr().err


def test_a_wrong_action_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        main(["cache", "burn"])
    assert info.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_a_wrong_setting_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "lots")
    assert main(["cache"]) == 1
    assert capsys.readouterr().err.startswith("tilewright cache: ConfigError: config: TILEWRIGHT_CACHE_BYTES must be")
