"""Models written in other formats, read by the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

import tilewright as tw
from tilewright.cli.main import main
from tilewright.core.errors import FormatError, InputError
from tilewright.llm.tiny import write_tiny_model


def read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray], gguf.GGUFReader]:
    file = gguf.GGUFReader(path)
    names = {t.name: t.tensor_type.name for t in file.tensors}
    return names, {t.name: np.asarray(gguf.quants.dequantize(t.data, t.tensor_type)) for t in file.tensors}, file


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "f32.gguf", format="F32", width=256, layers=1, context=32)


def test_k_quants_of_a_model(plain: Path, tmp_path: Path) -> None:
    """Matrices and the ends of the model change, vectors and metadata do not."""
    target = tmp_path / "q4.gguf"
    chosen = tw.quantize_gguf(plain, target, "Q4_K", formats={"*.attn_v.weight": "q6_k", "*.ffn_up.weight": "keep"})
    names, numbers, file = read(target)
    before, exact, old = read(plain)
    assert names == chosen and list(names) == list(before)
    assert {n for n, f in names.items() if f == "F32"} == {n for n in names if "norm" in n or "ffn_up" in n}
    assert names["token_embd.weight"] == names["blk.0.attn_v.weight"] == "Q6_K" and names["blk.0.attn_q.weight"] == "Q4_K"
    for name, x in exact.items():
        error = np.sqrt(((numbers[name] - x) ** 2).mean() / (x**2).mean())
        assert error < {"F32": 1e-9, "Q6_K": 0.03, "Q4_K": 0.1}[names[name]], name
    assert {k: v.contents() for k, v in old.fields.items() if not k.startswith("GGUF")} == {
        k: v.contents() for k, v in file.fields.items() if not k.startswith("GGUF")}


def test_rows_that_are_no_multiple_of_a_block_take_the_next_format(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "narrow.gguf", format="F32", width=64, layers=1, context=32)
    chosen = tw.quantize_gguf(source, tmp_path / "q5.gguf", "Q5_K")
    assert {chosen[n] for n in ("token_embd.weight", "blk.0.attn_q.weight")} == {"Q8_0", "Q5_1"}
    assert read(tmp_path / "q5.gguf")[0] == chosen


def test_the_command(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.gguf"
    assert main(["quantize", str(plain), str(target), "IQ4_XS", "--set", "output_norm.weight=keep"]) == 0
    out = capsys.readouterr().out
    assert "blk.0.attn_q.weight  F32[256, 256] -> IQ4_XS" in out and "% of" in out
    assert main(["quantize", str(plain), str(target), "--set", "Q6_K"]) == 1
    assert "--set needs TENSOR=FORMAT" in capsys.readouterr().err


def test_bad_requests_leave_no_file(plain: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.gguf"
    with pytest.raises(InputError, match="U4_32 is not written to GGUF files; those that are: F32 F16"):
        tw.quantize_gguf(plain, target, "U4_32")
    with pytest.raises(InputError, match=r"formats names 'blk\.9\.\*', which no tensor has"):
        tw.quantize_gguf(plain, target, formats={"blk.9.*": "Q8_0"})
    with pytest.raises(InputError, match="the target is the source"):
        tw.quantize_gguf(plain, plain)
    broken = tmp_path / "nan.gguf"
    raw = bytearray(plain.read_bytes())
    raw[-4096 * 4 : -4096 * 4 + 4] = np.float32(np.nan).tobytes()
    broken.write_bytes(raw)
    with pytest.raises(FormatError, match=r"tensor 'blk\.0\.ffn_down\.weight': .*finite numbers only"):
        tw.quantize_gguf(broken, target)
    assert not target.exists()
