"""The key of saved sessions: one per user wherever the cache lies, whole for every process, closed to others."""
from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tilewright as tw
from tests.shaken import HANG
from tilewright.runtime.archive.session import digest
from tilewright.runtime.archive.user_key import key_path as found_path
from tilewright.runtime.archive.user_key import user_key


def key_path() -> Path:
    found = found_path()
    assert found is not None
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a key."""
    monkeypatch.delenv("TILEWRIGHT_KEY_FILE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def test_another_cache_folder_does_not_compile_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 8)
    session = tw.compile(nn.Linear(8, 4), (x,))
    session.save(home / "linear.tw")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(home / "elsewhere"))
    loaded = tw.load(home / "linear.tw")
    assert loaded.model.notes == []
    assert torch.equal(loaded(x), session(x))


def test_where_it_lies(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_path() == home / "data/tilewright/archive.key"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")  # the XDG rule: ignored
    monkeypatch.setenv("HOME", str(home))
    assert key_path() == home / ".local/share/tilewright/archive.key"
    monkeypatch.setenv("TILEWRIGHT_KEY_FILE", str(home / "k"))
    assert key_path() == home / "k"


def test_made_once_and_only_when_asked(home: Path) -> None:
    assert user_key() == (None, f"there is no key {key_path()}")
    assert not key_path().parent.exists()
    key, problem = user_key(create=True)
    assert key is not None
    assert (len(key), problem) == (32, "")
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600
    assert user_key(create=True) == user_key() == (key, "")
    assert [p.name for p in key_path().parent.iterdir()] == ["archive.key"]


RACE = """
import sys
from tilewright.runtime.archive.user_key import user_key
sys.stdin.readline()
print(user_key(create=True)[0].hex())
"""


def test_processes_at_once_agree(home: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    made = [subprocess.Popen([sys.executable, "-c", RACE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            for _ in range(4)]
    for p in made:
        assert p.stdin is not None
        p.stdin.write("\n")
        p.stdin.flush()
    keys = {p.communicate(timeout=HANG)[0].strip() for p in made}
    assert len(keys) == 1
    assert keys == {user_key()[0].hex()}  # type: ignore[union-attr]


def test_one_that_comes_second_takes_the_first_ones_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the link another process makes the key."""
    real = os.link

    def beaten(source: str, target: str) -> None:
        Path(target).write_bytes(b"k" * 32)
        Path(target).chmod(0o600)
        real(source, target)

    monkeypatch.setattr(os, "link", beaten)
    assert user_key(create=True) == (b"k" * 32, "")
    assert [p.name for p in key_path().parent.iterdir()] == ["archive.key"]


def test_a_key_that_cannot_be_trusted(home: Path) -> None:
    user_key(create=True)
    key_path().chmod(0o644)
    assert user_key()[0] is None
    assert "others may read the key" in user_key()[1]
    key_path().chmod(0o600)
    key_path().write_bytes(b"short")
    assert user_key()[0] is None
    assert "is damaged" in user_key(create=True)[1]
    key_path().unlink()
    (home / "other").write_bytes(bytes(32))
    (home / "other").chmod(0o600)
    key_path().symlink_to(home / "other")
    assert user_key()[0] is None


def test_saving_without_a_key_says_so(home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_KEY_FILE", str(home / "file" / "archive.key"))
    x = torch.randn(3, 8)
    session = tw.compile(nn.Linear(8, 4), (x,))
    session.save(home / "linear.tw")
    assert any("is saved without authentication, loading it will compile again" in m for m in caplog.messages)
    assert torch.equal(tw.load(home / "linear.tw")(x), session(x))


def owned(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    """Files belong to this user from now on, as far as the key's reader is told."""
    real = os.fstat

    def told(descriptor: int) -> os.stat_result:
        found = list(real(descriptor))
        found[4] = uid
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", told)


def test_a_named_key_may_be_a_containers_secret(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to root, is readable for everybody, behind a link; the user's own key by default must be none of that."""
    (home / "secret").write_bytes(b"k" * 32)
    (home / "link").symlink_to("secret")
    for mode, owner in ((0o444, 0), (0o640, 0), (0o600, 0), (0o600, os.getuid())):
        (home / "secret").chmod(mode)
        owned(monkeypatch, owner)
        monkeypatch.setenv("TILEWRIGHT_KEY_FILE", str(home / "link"))
        assert user_key() == (b"k" * 32, ""), (mode, owner)
    for mode, owner, why in ((0o646, 0, "others may write the key"), (0o660, 0, "others may write the key"),
                             (0o600, 4321, "is not a file of this user or of root")):
        (home / "secret").chmod(mode)
        owned(monkeypatch, owner)
        assert why in user_key()[1]
    monkeypatch.delenv("TILEWRIGHT_KEY_FILE")
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    key_path().parent.mkdir(parents=True)
    key_path().write_bytes(b"k" * 32)
    for mode, owner, why in ((0o600, 0, "is not a file of this user"), (0o640, 4321, "others may read the key")):
        key_path().chmod(mode)
        owned(monkeypatch, owner)
        assert user_key()[0] is None and why in user_key()[1] and "or of root" not in user_key()[1]


def test_a_session_of_an_image_runs_in_its_container(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved under one home folder, loaded under another one: the stored code runs where the key was shipped or the digest is pinned."""
    x = torch.randn(3, 8)
    session = tw.compile(nn.Linear(8, 4), (x,))
    session.save(home / "linear.tw")
    shipped, pinned = key_path(), digest(home / "linear.tw")
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "container"))
    assert "not written by this user" in tw.load(home / "linear.tw").model.notes[0]
    loaded = [tw.load(home / "linear.tw", digest=pinned), tw.load(home / "linear.tw", trust=True)]
    monkeypatch.setenv("TILEWRIGHT_KEY_FILE", str(shipped))
    for each in (*loaded, tw.load(home / "linear.tw")):
        assert each.model.notes == [] and each.model.stages == {}
        assert torch.equal(each(x), session(x))
