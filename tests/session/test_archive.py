"""Saved sessions: the same bits after loading, code only when it is ours, no trust in a damaged file."""
from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.core.errors import FormatError, TilewrightError
from tilewright.core.signature import Fixed, Signature
from tilewright.runtime import archive
from tilewright.tile.text import to_text


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(24, 40), nn.Linear(40, 7)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = torch.relu(self.a(x))
        return {"y": self.b(h), "h": h}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tw.Session, torch.Tensor]:
    torch.manual_seed(3)
    x = torch.randn(5, 24)
    session = tw.compile(Small().eval(), (x,), dynamic={"x": {0: tw.Dim("N", 1, 64)}})
    path = tmp_path_factory.mktemp("archive") / "small.tw"
    session.save(path)
    return path, session, x


def header_of(path: Path) -> tuple[bytes, dict[str, object]]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[8:16])
    return raw, json.loads(raw[64 : 64 + length])


def rewritten(raw: bytes, header: dict[str, object], path: Path) -> Path:
    """The file with another header, its checksum right: what an attacker would write."""
    (length,) = struct.unpack("<Q", raw[8:16])
    data = raw[-(-(64 + length) // 4096) * 4096 :]
    text = json.dumps(header, separators=(",", ":")).encode()
    start = -(-(64 + len(text)) // 4096) * 4096
    head = raw[:8] + struct.pack("<Q", len(text)) + raw[16:48] + archive._checksum(text) + text
    path.write_bytes(head.ljust(start, b"\0") + data)
    return path


def test_load_gives_the_same_bits(saved: tuple[Path, tw.Session, torch.Tensor]) -> None:
    path, session, _ = saved
    loaded = tw.load(path)
    assert loaded.model.notes == []
    for n in (1, 5, 64):
        x = torch.randn(n, 24)
        got, want = loaded(x), session(x)
        assert list(got) == ["y", "h"]
        assert all(torch.equal(got[k], want[k]) for k in want)
    assert isinstance(loaded(np.ones((2, 24), np.float32))["y"], np.ndarray)


def test_weights_are_mapped_and_stored_once(saved: tuple[Path, tw.Session, torch.Tensor]) -> None:
    path, session, _ = saved
    loaded = tw.load(path)
    assert loaded.executable is not None
    assert session.executable is not None
    assert all(not c.flags.owndata and not c.flags.writeable for c in loaded.executable.constants)
    assert all(c.ctypes.data % 64 == 0 for c in loaded.executable.constants)
    _, header = header_of(path)
    assert len(header["constants"]) == len(session.executable.constants)  # type: ignore[arg-type]


def test_save_again_and_report(saved: tuple[Path, tw.Session, torch.Tensor], tmp_path: Path) -> None:
    path, session, x = saved
    tw.load(path).save(tmp_path / "again.tw")
    again = tw.load(tmp_path / "again.tw")
    assert torch.equal(again(x)["y"], session(x)["y"])
    rows = again.report().data["launches"]
    assert again.executable is not None
    assert all("kernel @" in to_text(again.executable.kernel(row["kernel"])) for row in rows)


def test_another_cpu_rebuilds_from_the_graph(saved: tuple[Path, tw.Session, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    path, session, x = saved
    monkeypatch.setenv("TILEWRIGHT_CPU", "avx2")
    loaded = tw.load(path)
    assert "another kind of CPU" in loaded.model.notes[0]
    torch.testing.assert_close(loaded(x)["y"], session(x)["y"], rtol=1e-5, atol=1e-5)


def test_code_of_another_user_does_not_run(
        saved: tuple[Path, tw.Session, torch.Tensor], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    path, session, x = saved
    for key, why in ((bytes(32), "or the file was changed since"), (None, "as far as can be told: no key")):
        monkeypatch.setattr(archive, "user_key", lambda key=key, **_: (key, "no key"))
        caplog.clear()
        loaded = tw.load(path)
        assert "compiled again from the stored graph: its machine code was not written by this user" in loaded.model.notes[0]
        assert why in loaded.model.notes[0]
        assert loaded.model.notes[0] in caplog.messages
        assert f"note: {loaded.model.notes[0]}" in str(loaded.report())
        assert loaded.report().data["stages_s"]["select"] >= 0
        assert torch.equal(loaded(x)["y"], session(x)["y"])
    assert tw.load(path, trust=True).model.notes == []


def test_a_changed_header_or_code_loses_its_authentication(saved: tuple[Path, tw.Session, torch.Tensor], tmp_path: Path) -> None:
    path, session, x = saved
    raw, header = header_of(path)
    program = header["program"]
    assert isinstance(program, dict)
    program["launches"][0]["grid"] = 10**9
    loaded = tw.load(rewritten(raw, header, tmp_path / "grid.tw"))
    assert "not written by this user" in loaded.model.notes[0]
    assert torch.equal(loaded(x)["y"], session(x)["y"])
    (length,) = struct.unpack("<Q", raw[8:16])
    start = -(-(64 + length) // 4096) * 4096
    flipped = tmp_path / "code.tw"
    flipped.write_bytes(raw[: start + 200] + bytes([raw[start + 200] ^ 1]) + raw[start + 201 :])
    assert "not written by this user" in tw.load(flipped).model.notes[0]


def test_truncated_files(saved: tuple[Path, tw.Session, torch.Tensor], tmp_path: Path) -> None:
    raw = saved[0].read_bytes()
    cut = tmp_path / "cut.tw"
    for n in (0, 7, 40, 63, 64, 500, len(raw) // 2, len(raw) - 1):
        cut.write_bytes(raw[:n])
        with pytest.raises(FormatError, match=r"archive: .*cut\.tw is (not a saved session|damaged)"):
            tw.load(cut)
    cut.write_bytes(raw + b"more")
    with pytest.raises(FormatError, match="bytes of data"):
        tw.load(cut)


def test_flipped_bytes_in_the_header(saved: tuple[Path, tw.Session, torch.Tensor], tmp_path: Path) -> None:
    raw = saved[0].read_bytes()
    (length,) = struct.unpack("<Q", raw[8:16])
    rng = random.Random(4)
    for position in [0, 9, 15, 50, *(rng.randrange(64, 64 + length) for _ in range(20))]:
        path = tmp_path / "flip.tw"
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 0x15]) + raw[position + 1 :])
        with pytest.raises(FormatError, match="archive: "):
            tw.load(path)


@pytest.mark.parametrize(("key", "value"), [
    ("constants", [{"name": "w", "dtype": "f32", "shape": [1 << 40], "packed": ["plain", 0, False, ""], "nbytes": 1 << 42, "offset": 0}]),
    ("constants", [{"name": "w", "dtype": "f32", "shape": [-1], "packed": ["plain", 0, False, ""], "nbytes": 4, "offset": 0}]),
    ("constants", [{"name": "w", "dtype": "f32", "shape": [4], "packed": ["plain", 0, False, ""], "nbytes": 16, "offset": -64}]),
    ("constants", [{"name": "w", "dtype": "u8", "shape": [4, 18], "packed": ["strips", 16, False, "Q7"], "nbytes": 72, "offset": 0}]),
    ("constants", [{"name": "w", "dtype": "u8", "shape": [18], "packed": ["strips", 16, False, "Q4_0"], "nbytes": 288, "offset": 0}]),
    ("constants", [{"name": "w", "dtype": "u8", "shape": [4, 18], "packed": ["strips", 16], "nbytes": 288, "offset": 0}]),
    ("constants", [{"name": "w", "dtype": "q7", "shape": [4], "packed": ["plain", 0, False, ""], "nbytes": 16, "offset": 0}]),
    ("constants", 5), ("interface", None), ("signature", {"params": 3}), ("graph", "graph x("), ("version", 99), ("data_bytes", 1),
    ("code", [1]), ("target", None),
])
def test_a_header_that_lies(saved: tuple[Path, tw.Session, torch.Tensor], tmp_path: Path, key: str, value: object) -> None:
    raw, header = header_of(saved[0])
    header[key] = value
    with pytest.raises(FormatError, match="archive: "):
        tw.load(rewritten(raw, header, tmp_path / "lie.tw"))


def test_a_file_does_not_decide_what_is_imported(saved: tuple[Path, tw.Session, torch.Tensor], tmp_path: Path) -> None:
    raw, header = header_of(saved[0])
    signature = header["signature"]
    assert isinstance(signature, dict)
    signature["out"][0] = "antigravity:Class"
    loaded = tw.load(rewritten(raw, header, tmp_path / "import.tw"))
    assert type(loaded(saved[2])) is dict


def test_saving_over_a_file_keeps_it_when_writing_fails(saved: tuple[Path, tw.Session, torch.Tensor], tmp_path: Path) -> None:
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
