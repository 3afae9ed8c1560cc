"""Saved sessions: the same bits after loading, code only when it is ours or pinned, every byte checked, every file read once."""
from __future__ import annotations

import hmac
import os
import random
import re
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.session.saved import Saved, header_of, rewritten
from tilewright.core.errors import FileError, FormatError, TilewrightError
from tilewright.core.signature import Fixed, Signature
from tilewright.ir.text import to_text as to_text_of_graph
from tilewright.runtime.archive import file as archive_file
from tilewright.runtime.archive import session as archive
from tilewright.runtime.archive.user_key import key_path
from tilewright.tile.text import to_text


def test_load_gives_the_same_bits(saved: Saved) -> None:
    path, session, _ = saved
    loaded = tw.load(path)
    assert loaded.model.notes == []
    for n in (1, 5, 64):
        x = torch.randn(n, 24)
        got, want = loaded(x), session(x)
        assert list(got) == ["y", "h"]
        assert all(torch.equal(got[k], want[k]) for k in want)
    assert isinstance(loaded(np.ones((2, 24), np.float32))["y"], np.ndarray)


def test_weights_are_read_only_and_stored_once(saved: Saved) -> None:
    path, session, _ = saved
    loaded = tw.load(path)
    assert loaded.executable is not None
    assert session.executable is not None
    assert all(not c.flags.owndata and not c.flags.writeable for c in loaded.executable.constants)
    assert all(c.ctypes.data % 64 == 0 for c in loaded.executable.constants)
    _, header = header_of(path)
    assert len(header["constants"]) == len(session.executable.constants)  # type: ignore[arg-type]


def test_save_again_and_report(saved: Saved, tmp_path: Path) -> None:
    path, session, x = saved
    tw.load(path).save(tmp_path / "again.tw")
    again = tw.load(tmp_path / "again.tw")
    assert torch.equal(again(x)["y"], session(x)["y"])
    rows = again.report().data["launches"]
    assert again.executable is not None
    assert all("kernel @" in to_text(again.executable.kernel(row["kernel"])) for row in rows)


def test_another_cpu_rebuilds_from_the_graph(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    path, session, x = saved
    monkeypatch.setenv("TILEWRIGHT_CPU", "avx2")
    loaded = tw.load(path)
    assert "another kind of CPU" in loaded.model.notes[0]
    torch.testing.assert_close(loaded(x)["y"], session(x)["y"], rtol=1e-5, atol=1e-5)


def test_code_of_another_user_does_not_run(
        saved: Saved, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    path, session, x = saved
    unfit = f"(the key {key_path()} does not fit, or the file was changed since)"
    for key, why in ((bytes(32), unfit), (None, "as far as can be told (no key)")):
        monkeypatch.setattr(archive, "user_key", lambda key=key, **_: (key, "no key"))
        caplog.clear()
        loaded = tw.load(path)
        assert "compiled again from the stored graph: its machine code was not written by this user" in loaded.model.notes[0]
        assert why in loaded.model.notes[0]
        for way in ("trust=True", "`tilewright digest`", "TILEWRIGHT_KEY_FILE"):
            assert way in loaded.model.notes[0]
        assert loaded.model.notes[0] in caplog.messages
        assert f"note: {loaded.model.notes[0]}" in str(loaded.report())
        assert loaded.report().data["stages_s"]["select"] >= 0
        assert torch.equal(loaded(x)["y"], session(x)["y"])
    assert tw.load(path, trust=True).model.notes == []


def test_a_changed_header_loses_its_authentication(saved: Saved, tmp_path: Path) -> None:
    path, session, x = saved
    raw, header = header_of(path)
    program = header["program"]
    assert isinstance(program, dict)
    program["launches"][0]["grid"] = 10**9
    loaded = tw.load(rewritten(raw, header, tmp_path / "grid.tw"))
    assert "not written by this user" in loaded.model.notes[0]
    assert torch.equal(loaded(x)["y"], session(x)["y"])


def test_a_lost_page_is_noticed(saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the code when it would run, and of every weight, whoever the file is from."""
    raw, header = header_of(saved[0])
    (length,) = struct.unpack("<Q", raw[8:16])
    start = -(-(64 + length) // 4096) * 4096
    sections: list[tuple[str, int, int]] = [(f"object code '{name}'", *at) for name, at in header["code"].items()]  # type: ignore[attr-defined]
    sections += [(f"constant '{c['name']}'", c["offset"], c["nbytes"]) for c in header["constants"]]  # type: ignore[attr-defined]
    lost = tmp_path / "lost.tw"
    for what, at, nbytes in sections:
        damaged = bytearray(raw)
        damaged[start + at + nbytes // 2] ^= 1
        lost.write_bytes(damaged)
        message = f"archive: {lost} is damaged: {what} does not match its checksum, at or after its byte 0"
        with pytest.raises(FormatError, match=re.escape(message)):
            tw.load(lost)
        with pytest.raises(FormatError, match=re.escape(what)):
            archive.digest(lost)
    monkeypatch.setattr(archive, "user_key", lambda **_: (None, "no key"))
    with pytest.raises(FormatError, match=r"constant .* does not match its checksum"):
        tw.load(lost)


def test_a_file_is_read_once(saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write to the file changes nothing by doing so after the check, or while the session is in use."""
    path, session, x = saved
    copy = tmp_path / "copy.tw"
    copy.write_bytes(path.read_bytes())
    real, calls = hmac.compare_digest, []

    def meanwhile(a: bytes, b: bytes) -> bool:
        calls.append(copy.stat().st_size)
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", meanwhile)
    loaded = tw.load(copy)
    assert calls and loaded.model.notes == []
    with copy.open("r+b") as file:
        file.write(b"\x0f\x0b" * (calls[0] // 2))
    assert torch.equal(loaded(x)["y"], session(x)["y"])
    os.truncate(copy, 0)  # a mapped file would end the process here
    assert torch.equal(loaded(x)["h"], session(x)["h"])
    assert "return" in to_text_of_graph(loaded.model.graph)


def test_code_changed_between_check_and_use_does_not_run(saved: Saved, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    raw, header = header_of(saved[0])
    copy = tmp_path / "copy.tw"
    copy.write_bytes(raw)
    (length,) = struct.unpack("<Q", raw[8:16])
    start = -(-(64 + length) // 4096) * 4096
    real = hmac.compare_digest

    def meanwhile(a: bytes, b: bytes) -> bool:
        with copy.open("r+b") as file:
            for at, n in header["code"].values():  # type: ignore[attr-defined]
                file.seek(start + at + 64)
                file.write(b"\x0f\x0b" * ((n - 64) // 2))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", meanwhile)
    with pytest.raises(FormatError, match=r"object code .* does not match its checksum"):
        tw.load(copy)


def test_truncated_files(saved: Saved, tmp_path: Path) -> None:
    raw = saved[0].read_bytes()
    cut = tmp_path / "cut.tw"
    for n in (0, 7, 40, 63, 64, 500, len(raw) // 2, len(raw) - 1):
        cut.write_bytes(raw[:n])
        with pytest.raises(FormatError, match=r"archive: .*cut\.tw is (not a saved session|damaged)"):
            tw.load(cut)
    cut.write_bytes(raw + b"more")
    with pytest.raises(FormatError, match="bytes of data"):
        tw.load(cut)


def test_flipped_bytes_in_the_header(saved: Saved, tmp_path: Path) -> None:
    raw = saved[0].read_bytes()
    (length,) = struct.unpack("<Q", raw[8:16])
    rng = random.Random(4)
    for position in [0, 9, 15, 50, *(rng.randrange(64, 64 + length) for _ in range(20))]:
        path = tmp_path / "flip.tw"
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 0x15]) + raw[position + 1 :])
        with pytest.raises(FormatError, match="archive: "):
            tw.load(path)


def test_saving_over_a_file_keeps_it_when_writing_fails(saved: Saved, tmp_path: Path) -> None:
    path = tmp_path / "kept.tw"
    saved[1].save(path)
    before = path.read_bytes()
    model = saved[1].model
    original = model.signature
    try:
        model.signature = Signature((), original.in_spec, original.out_spec, (Fixed(object()),), (), ())
        with pytest.raises(TilewrightError, match="cannot be saved"):
            saved[1].save(path)
    finally:
        model.signature = original
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["kept.tw"]


def test_a_header_that_is_too_large(saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither written nor read: as Python objects it would take many times its size."""
    monkeypatch.setattr(archive_file, "MAX_HEADER", 1000)
    with pytest.raises(FormatError, match=r"the header of .*large.tw must have at most 1000 bytes, got \d+; save parts of it"):
        saved[1].save(tmp_path / "large.tw")
    with pytest.raises(FormatError, match=r"the header of \d+ bytes is cut off, or longer than 1000"):
        tw.load(saved[0])


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    missing, pipe = (tmp_path / "none.tw", "No such file or directory"), (tmp_path / "pipe", "it is no regular file")
    for path, what in (missing, (tmp_path, "it is a folder"), pipe):
        with pytest.raises(FileError, match=f"archive: could not read {path}: {what}; check the path"):
            tw.load(path)


def test_a_full_disk_keeps_the_old_file(saved: Saved, tmp_path: Path) -> None:
    path = tmp_path / "kept.tw"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, hard))
    try:
        with pytest.raises(FileError, match=r"archive: could not write .*File too large; there is no file of that name; make room"):
            saved[1].save(path)
        assert list(tmp_path.iterdir()) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(FileError, match=r"archive: could not write .*: it is a folder"):
        saved[1].save(tmp_path)
    with pytest.raises(FileError, match=r"archive: could not write .*No such file or directory; there is no folder .*none"):
        saved[1].save(tmp_path / "none" / "a.tw")


def test_a_digest_pins_a_file(saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                              capsys: pytest.CaptureFixture[str]) -> None:
    from tilewright.cli.main import main

    path, session, x = saved
    assert main(["digest", str(path)]) == 0
    pinned = capsys.readouterr().out.strip()
    monkeypatch.setattr(archive, "user_key", lambda **_: (None, "no key"))
    loaded = tw.load(path, digest=pinned)
    assert loaded.model.notes == [] and torch.equal(loaded(x)["y"], session(x)["y"])
    session.save(tmp_path / "again.tw")
    assert archive.digest(tmp_path / "again.tw") == pinned, "the same session, whoever saves it"
    raw, header = header_of(path)
    header["name"] = "other"
    with pytest.raises(FormatError, match=f"must have the digest {pinned}, got [0-9a-f]{{64}}; it is not the file that was pinned"):
        tw.load(rewritten(raw, header, tmp_path / "other.tw"), digest=pinned)
    with pytest.raises(tw.ConfigError, match="digest: must be 64 hexadecimal digits, as `tilewright digest` prints them, got 'abc'"):
        tw.load(path, digest="abc")
    assert main(["digest", str(tmp_path / "none.tw")]) == 1
    assert "FileError: archive: could not read" in capsys.readouterr().err
