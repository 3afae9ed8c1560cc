"""The GGUF reader: what a good file says, and a clear FormatError for each way in which a file can lie."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.gguf.files import ARRAY, BOOL, F32, STRING, U32, build, key, sample, smollm, string, tensor
from tilewright.core.errors import FormatError
from tilewright.frontend.gguf import GGUFFile, open_gguf
from tilewright.ops import quant


def opened(tmp_path: Path, content: bytes) -> GGUFFile:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    return open_gguf(path)


def test_a_good_file(tmp_path: Path) -> None:
    f = opened(tmp_path, sample())
    m = f.metadata
    assert (f.version, f.alignment, f.architecture, len(m)) == (3, 32, "llama", 9)
    assert m["llama.block_count"] == 2 and m.integer("llama.block_count") == 2
    assert m.number("llama.rope.freq_base") == 1e4 and m.number("llama.block_count") == 2.0
    assert m.flag("flag") is True and m["big"] == 1 << 40
    tokens = m.strings("tokens")
    assert list(tokens) == ["a", "", "ä€", "long " * 20] == [tokens[i] for i in range(4)]
    assert tokens[1:3] == ["", "ä€"] and tokens[-1].startswith("long") and tokens.raw(2) == "ä€".encode()
    assert m.numbers("types").tolist() == [1, -2, 3]
    assert m["flags"].tolist() == [True, False]  # type: ignore[union-attr]
    nested = m["nested"]
    assert isinstance(nested, list) and nested[0].tolist() == [1, 2] and nested[1] == ["x"]
    w = f.tensors["w"]
    assert w.shape == (3, 64) and w.format is quant.by_name("Q8_0") and w.data.shape == (3, 68)
    assert not w.data.flags.writeable and bytes(w.data.reshape(-1)[:4]) == bytes(range(4))
    assert np.array_equal(w.row(1), w.dequantize()[1])
    assert f.tensor("v").array().tolist() == [0, 1, 2, 3, 4]
    assert f.nbytes == 204 + 20


def test_defaults_and_wrong_types(tmp_path: Path) -> None:
    m = opened(tmp_path, sample()).metadata
    assert m.integer("none", 7) == 7 and m.text("none", "") == "" and m.get("none") is None
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: m.integer("none"), r"metadata 'none' is missing"),
        (lambda: m.integer("general.architecture"), r"must be an integer, got str 'llama'"),
        (lambda: m.integer("flag"), r"must be an integer, got bool True"),
        (lambda: m.text("tokens"), r"must be a string, got an array of 4 strings"),
        (lambda: m.strings("types"), r"must be an array of strings, got an array of 3 int32"),
    ]
    for call, message in calls:
        with pytest.raises(FormatError, match=message):
            call()


@pytest.mark.parametrize("fmt", [f for f in quant.FORMATS.values() if f.type_id < 1000], ids=str)
def test_each_format_against_the_gguf_package(fmt: quant.BlockFormat, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="writes the files (pip install tilewright[dev])")
    if fmt.name in ("Q2_0", "F8_E4M3", "F8_E5M2"):
        pytest.skip(f"the gguf package has no type id for {fmt.name}")
    rng = fresh_rng()
    shape = (3, 2, 5 * fmt.elements)
    raw = rng.integers(0, 256, (3, 2, 5 * fmt.bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("before", np.arange(3, dtype=np.float32))
    if fmt.dtype not in (None, "bfloat16"):
        writer.add_tensor("t", raw.view(fmt.dtype))
    else:
        writer.add_tensor("t", raw, raw_dtype=gguf.GGMLQuantizationType(fmt.type_id))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    t = open_gguf(tmp_path / "m.gguf").tensor("t")
    assert t.format is fmt and t.shape == shape
    assert np.array_equal(t.data.reshape(-1), raw.reshape(-1))


HUGE = (1 << 64) - 1
BAD: list[tuple[str, bytes, str]] = [
    ("empty", b"", "at least 24 bytes, got 0"),
    ("short", b"GGUF\3\0\0\0", "at least 24 bytes, got 8"),
    ("magic", build([], [], magic=b"GGML"), "magic must be b'GGUF', got b'GGML'"),
    ("version 1", build([], [], version=1), "version must be 2 or 3, got 1"),
    ("big endian", build([], [], version=3 << 24), "big-endian"),
    ("many keys", build([], [], counts=(0, HUGE)), "metadata keys declared"),
    ("many tensors", build([], [], counts=(HUGE, 0)), "tensors declared"),
    ("one key too many", build([key("a", U32, 1)], [], counts=(0, 2)), "a metadata key is empty"),
    ("long key", build([struct.pack("<Q", HUGE) + bytes(40)], []), "the file ends inside a metadata key"),
    ("key above the limit", build([key("k" * 70000, U32, 1)], []), "70000 bytes, at most 65535"),
    ("key not utf-8", build([key(b"\xff\xfe", U32, 1)], []), "not UTF-8"),
    ("key twice", build([key("a", U32, 1), key("a", U32, 2)], []), "metadata 'a' is there twice"),
    ("value type", build([string("a") + struct.pack("<I", 13) + bytes(20)], []), "unknown type 13"),
    ("array type", build([string("a") + struct.pack("<IIQ", ARRAY, 99, 1) + bytes(20)], []), "array of unknown type 99"),
    ("long array", build([string("a") + struct.pack("<IIQ", ARRAY, U32, 1 << 61)], []), "elements in 'a' declared"),
    ("many strings", build([string("a") + struct.pack("<IIQ", ARRAY, STRING, 1 << 62)], []), "strings in 'a' declared"),
    ("long string", build([string("a") + struct.pack("<IIQQ", ARRAY, STRING, 1, HUGE)], []), "inside string 0 of an array of 1"),
    ("long value", build([string("a") + struct.pack("<IQ", STRING, 1 << 50)], []), "ends inside the string 'a'"),
    ("deep", build([string("a") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 6 + bytes(99)], []), "deeper than 4"),
    ("wide", build([string("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1 << 60)], []), "arrays in 'a' declared"),
    ("rank", build([], [tensor("t", (1,) * 5, 0, 0)], bytes(99)), "5 axes, at most 4"),
    ("huge rank", build([], [string("t") + struct.pack("<I", 0xFFFFFFFF) + bytes(60)]), "4294967295 axes"),
    ("huge shape", build([], [tensor("t", (1 << 62, 1 << 62), 0, 0)]), "impossible shape"),
    ("huge shape with a zero", build([], [tensor("t", (1 << 62, 0, 1 << 62), 0, 0)]), "impossible shape"),
    ("wrapping shape", build([], [tensor("t", (1 << 32, 1 << 32), 24, 0)], bytes(64)), "impossible shape"),
    ("type", build([], [tensor("t", (32,), 999, 0)], bytes(99)), "'t' has unknown type 999"),
    ("old type", build([], [tensor("t", (32,), 31, 0)], bytes(99)), "unknown type 31 Q4_0_4_4, which was removed"),
    ("odd row", build([], [tensor("t", (33,), 2, 0)], bytes(99)), "rows must be a multiple of 32"),
    ("scalar block", build([], [tensor("t", (), 2, 0)], bytes(99)), "a scalar in the block format Q4_0"),
    ("outside", build([], [tensor("t", (32,), 0, 0)], bytes(127)), "needs 128 bytes, the file has 127"),
    ("far outside", build([], [tensor("t", (32,), 0, HUGE - 31)], bytes(128)), "needs 128 bytes, the file has 0"),
    ("unaligned", build([], [tensor("t", (1,), 0, 4)], bytes(64)), "offset 4, which is no multiple of the alignment 32"),
    ("overlap", build([], [tensor("a", (16,), 0, 0), tensor("b", (16,), 0, 32)], bytes(128)), "'a' and 'b' overlap"),
    ("same place", build([], [tensor("a", (16,), 0, 0), tensor("b", (16,), 0, 0)], bytes(128)), "overlap"),
    ("name twice", build([], [tensor("a", (1,), 0, 0), tensor("a", (1,), 0, 32)], bytes(64)), "tensor 'a' is there twice"),
    ("alignment 0", build([key("general.alignment", U32, 0)], []), "general.alignment must be a power of two"),
    ("alignment 24", build([key("general.alignment", U32, 24)], []), "power of two and a multiple of 8, got 24"),
    ("alignment huge", build([key("general.alignment", U32, 1 << 31)], []), "power of two"),
    ("alignment text", build([key("general.alignment", STRING, "x")], []), "must be an integer, got str 'x'"),
    ("alignment float", build([key("general.alignment", F32, 32.0)], []), "must be an integer, got float"),
    ("alignment lie", build([key("general.alignment", U32, 4096)], [tensor("t", (1,), 0, 0)], bytes(32)), "needs 4 bytes, the file has 0"),
]


@pytest.mark.parametrize(("content", "message"), [(c, m) for _, c, m in BAD], ids=[n for n, _, _ in BAD])
def test_a_bad_file(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        opened(tmp_path, content)
    assert "m.gguf" in str(caught.value) and str(caught.value).startswith("gguf: ")


@pytest.mark.parametrize("cut", [1, 10, 31, 100, 220, -1])
def test_truncated_anywhere(cut: int, tmp_path: Path) -> None:
    whole = sample()
    with pytest.raises(FormatError, match=r"truncated|declared"):
        opened(tmp_path, whole[:cut] if cut > 0 else whole[:-1])


def test_every_truncation(tmp_path: Path) -> None:
    whole = sample()
    for cut in range(len(whole)):
        with pytest.raises(FormatError):
            opened(tmp_path, whole[:cut])


@pytest.mark.parametrize("head", [string("a") + struct.pack("<IIQ", ARRAY, STRING, 40_000_000),
                                  string("a") + struct.pack("<IIQ", ARRAY, ARRAY, 20_000_000)])
def test_a_sparse_file_cannot_ask_for_memory(head: bytes, tmp_path: Path) -> None:
    """320 MB long, a page on the disk: empty strings, each of which would be an object here."""
    path = tmp_path / "m.gguf"
    with path.open("wb") as f:
        f.write(build([head], []))
        f.truncate(320 << 20)
    with pytest.raises(FormatError, match=r"0000000 (strings|arrays) in 'a' declared; [0-9]+ of such things are the most that is read"):
        open_gguf(path)
    with path.open("wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 10_000_000, 0))
        f.truncate(320 << 20)
    with pytest.raises(FormatError, match="10000000 tensors declared; 262144 of such things"):
        open_gguf(path)


def test_odd_but_valid(tmp_path: Path) -> None:
    f = opened(tmp_path, build([], [tensor("s", (), 0, 0), tensor("e", (0, 7), 0, 0), tensor("z", (32, 0), 2, 32)], bytes(32)))
    assert f.tensor("s").shape == () and f.tensor("s").dequantize() == 0
    assert f.tensor("e").dequantize().shape == (7, 0) and f.tensor("z").data.shape == (0, 18)
    assert opened(tmp_path, build([], [])).tensors == {}
    f = opened(tmp_path, build([key("x", STRING, b"\xff ok"), key("b", BOOL, True)], [], version=2))
    assert f.metadata["x"] == "� ok" and f.version == 2
    with pytest.raises(FormatError, match=r"'w' is missing; the file has 0 tensors"):
        f.tensor("w")


def test_a_model_in_parts(tmp_path: Path) -> None:
    for i, name in enumerate("ab"):
        keys = [key("split.count", U32, 2), key("split.no", U32, i)]
        (tmp_path / f"m-0000{i + 1}-of-00002.gguf").write_bytes(build(keys, [tensor(name, (1,), 0, 0)], struct.pack("<f", i + 1.5)))
    f = open_gguf(tmp_path / "m-00001-of-00002.gguf")
    assert [t.dequantize()[0] for t in f.tensors.values()] == [1.5, 2.5]
    with pytest.raises(FormatError, match="part 2 of 2; open the one named"):
        open_gguf(tmp_path / "m-00002-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(FormatError, match="part 2 of 2 is missing"):
        open_gguf(tmp_path / "m-00001-of-00002.gguf")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_gguf(tmp_path / "none.gguf")


def test_smollm_agrees_with_gguf() -> None:
    f = open_gguf(smollm())
    assert f.architecture == "llama" and len(f.tensors) == 272 and len(f.metadata.strings("tokenizer.ggml.tokens")) == 49152
    gguf = pytest.importorskip("gguf")
    t = f.tensor("blk.7.ffn_down.weight")
    want = gguf.quants.dequantize(t.data, gguf.GGMLQuantizationType(t.format.type_id))
    assert np.array_equal(t.dequantize(), want.reshape(t.shape))
