"""`tilewright inspect --target cuda`, saved sessions and profiles of them, without a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tests.cuda.kernels import case
from tilewright.cli.inspect_cuda import barriers, inspect_cuda
from tilewright.cli.main import main
from tilewright.core.errors import ExecutionError
from tilewright.llm.tiny import write_tiny_model
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda.session import CudaSession
from tilewright.target.cuda.ptx.ptxas import find_ptxas


def session(name: str) -> CudaSession:
    found: Any = tw.compile(case(name), target="sm_90a")
    assert isinstance(found, CudaSession)
    return found


def test_everything_about_a_program_is_written(tmp_path: Path) -> None:
    s = session("softmax_long")
    (kernel,) = s.executable.code
    count, _ = inspect_cuda(s, tmp_path)
    assert count == len([p for p in tmp_path.rglob("*") if p.is_file()])
    assert ".visible .entry" in (tmp_path / f"kernels/{kernel}.ptx").read_text()
    assert "reduce" in (tmp_path / f"kernels/{kernel}.tile").read_text()
    data = json.loads((tmp_path / "report.json").read_text())["kernels"][kernel]
    assert [w["op"] for w in data["waits"]].count("bar.sync") == data["barriers"]["bar.sync"] > 0
    text = (tmp_path / "report.txt").read_text()
    assert "has written shared memory, line" in text and "what it wrote is read from here on" in text
    if find_ptxas() is None:
        assert "registers, spills and occupancy are unknown" in text and data["occupancy"] is None
    else:
        assert data["registers"] > 0 and 0 < data["occupancy"] <= 1


def test_waits_of_asynchronous_work_say_what_they_order(tmp_path: Path) -> None:
    inspect_cuda(session("matmul_bf16"), tmp_path)
    (kernel,) = json.loads((tmp_path / "report.json").read_text())["kernels"].values()
    assert kernel["unordered"] == [] and all(w["needed"] for w in kernel["waits"])
    assert {w["op"] for w in kernel["waits"]} >= {"mbarrier.try_wait", "wgmma.wait_group", "cp.async.bulk.wait_group", "fence.proxy.async"}
    text = (tmp_path / "report.txt").read_text()
    assert "(wgmma.mma_async.sync) comes after line" in text and "every asynchronous access is ordered by these" in text


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factory_of_a_graph.py").write_text("from tests.cuda.kernels import case\ndef one():\n    return case('gelu_odd')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", "factory_of_a_graph:one", "--target", "sm_80", "-o", "out"]) == 0
    assert "out/report.txt and 5 files beside it" in capsys.readouterr().out.replace("\\", "/")
    assert "sm_80" in (tmp_path / "out/report.txt").read_text()


def test_a_barrier_says_what_stands_on_both_sides() -> None:
    text = "st.shared.f32 [%r1], %f1;\nbar.sync 0;\nld.shared.f32 %f2, [%r1];\nbar.sync 0;\nret;"
    assert [(w["line"], w["why"]) for w in barriers(text)] == [
        (2, "line 1 has written shared memory, line 3 reads it"),
        (4, "shared memory has been read, it may be written again, other threads use it next"),
    ]


def test_a_session_is_saved_and_loaded(tmp_path: Path) -> None:
    s = session("rms_norm_of_sum")
    s.save(tmp_path / "m.tw")
    again: Any = tw.load(tmp_path / "m.tw")
    assert isinstance(again, CudaSession) and again.model.target.kind == "cuda"
    assert again.interface == s.interface
    if cuda_driver.available():
        assert again.ptx() == s.ptx()
        with pytest.raises(ExecutionError, match=r"^cuda: "):
            again.synchronize() if again._stream is not None else again.executable.load()


def test_a_saved_session_keeps_its_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session("gelu_odd").save(str(tmp_path / "gpu.tw"))
    assert main(["inspect", str(tmp_path / "gpu.tw"), "--target", "cuda", "-o", str(tmp_path / "out")]) == 0
    for wanted in ("cpu", "sm_80"):
        assert main(["inspect", str(tmp_path / "gpu.tw"), "--target", wanted, "-o", str(tmp_path / "out")]) != 0
        assert f"was compiled for cuda sm_90a, 132 SMs, 227K shared memory, L2 50M, not for {wanted}" in capsys.readouterr().err


def test_a_language_model_has_three_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", format="Q4_0", layers=1, context=32)
    assert main(["inspect", str(path), "-o", str(tmp_path / "cpu")]) == 0
    assert (tmp_path / "cpu" / "model" / "index.html").exists()
    assert main(["inspect", str(path), "-o", str(tmp_path / "cpu"), "--at", "S=many"]) == 1
    assert "--at takes sizes like B=1,S=16" in capsys.readouterr().err
    assert main(["inspect", str(path), "-o", str(tmp_path / "cpu"), "--at", "S=99,P=0"]) == 1
    assert re.search(r"report: 1 <= S <= 32 is needed, got S = 99", capsys.readouterr().err)
    assert main(["inspect", str(path), "--target", "cuda", "-o", str(tmp_path / "out")]) == 0
    for name in ("one_token", "prompts", "choice"):
        assert "registers" in (tmp_path / "out" / name / "report.txt").read_text()


def test_foreign_ptx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ".visible .entry k()\n{\n.reg .pred %p;\nsetp.eq.u32 %p, %tid.x, 0;\n{}\nbar.sync 0;\nret;\n}\n"
    path = tmp_path / "k.ptx"
    path.write_text(text.replace("{}", "@%p exit;"))
    assert main(["inspect", str(path)]) == 1
    assert "k: line 5: `@%p exit` lets threads leave before `bar.sync 0` (line 6)" in capsys.readouterr().out
    path.write_text(text.replace("{}", ""))
    assert main(["inspect", str(path)]) == 0
    path.write_text("nothing")
    assert main(["inspect", str(path)]) == 1 and "has no function with a body" in capsys.readouterr().err
