"""demo, bench, inspect and benchmarks/bench.py from end to end, on small models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from benchmarks import bench, peers, workloads
from tests.meta.source import ROOT
from tilewright.cli import demo
from tilewright.cli.inspection import boxes
from tilewright.cli.main import main
from tilewright.cli.sample import Sample
from tilewright.cli.timing import Call


def test_demo_needs_only_the_core_dependencies() -> None:
    """torch, transformers and the like cannot be imported, and the demo does not notice."""
    blocked = "import sys; sys.modules.update({n: None for n in ('torch', 'transformers', 'onnx', 'onnxruntime', 'openvino', 'scipy')});"
    code = blocked + "from tilewright.cli.main import main; sys.exit(main(['demo', '--width', '64', '--length', '16']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "src", env={**os.environ, "CI": "true"}, check=False
    )
    assert done.returncode == 0, done.stderr
    for words in (
        "sequence length S from 1 to 512",
        "Compiled in",
        "The interpreter agrees",
        "the same bits",
        "numpy",
        "recognized: ",
        "attention",
        "kernel launches",
    ):
        assert words in done.stdout, words
    assert done.stderr == "", "progress is silent when piped"


def test_demo_notices_wrong_results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "TOLERANCE", 0.0)
    assert main(["demo", "--width", "64", "--length", "4"]) == 1
    assert "machine code and interpreter differ" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--width", "65"], ["--width", "0"], ["--length", "0"], ["--length", "513"]])
def test_demo_rejects_odd_sizes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *arguments]) == 1
    assert "demo: width must be a multiple of 64" in capsys.readouterr().err


def test_bench_times_and_writes_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    assert bench.main(["mlp 1x512", "--rounds", "2", "--json", str(out)]) == 0
    [row] = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["name"] == "mlp 1x512"
    assert set(row["us"]) == {"tilewright", "eager"}
    assert 0 < row["low"] <= row["ratio"] <= row["high"]
    assert row["error"] < 1e-5
    assert "1 workloads" in capsys.readouterr().out


def test_bench_ablates_every_optional_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tilewright.passes.pipeline import optional_passes

    out = tmp_path / "rows.jsonl"
    assert bench.main(["block 1x16x64", "--ablate", "--rounds", "1", "--json", str(out)]) == 0
    rows = {r["without"]: r for r in map(json.loads, out.read_text().splitlines())}
    assert set(rows) == {"", *optional_passes()}
    same = {k for k, r in rows.items() if r.get("same_program")}
    assert {"absorb-masks", "dce"} <= same, "a block without masks or dead code"
    assert same.isdisjoint({"", "fuse", "merge-matmuls"})
    assert f"the same program without {', '.join(sorted(same))}" in " ".join(capsys.readouterr().out.split())
    assert all(r["error"] < 1e-4 for k, r in rows.items() if k not in same)
    assert rows["fuse"]["launches"] > rows[""]["launches"], "without fusion there is more to launch"


def test_a_peer_that_fails_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Call:
        raise RuntimeError("no such engine")

    monkeypatch.setitem(peers.PEERS, "ort", broken)
    monkeypatch.setitem(peers.PEERS, "openvino", lambda *_: lambda: np.zeros(3))
    assert bench.main(["softmax", "--rounds", "1", "--peers", "ort,openvino"]) == 0
    out = capsys.readouterr().out
    assert "ort left out: RuntimeError: no such engine" in out
    assert "openvino left out: ArithmeticError: disagrees with eager" in out


def test_a_wrong_result_fails_the_bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CLOSE", 0.0)
    assert bench.main(["softmax", "--rounds", "1"]) == 1
    assert "differs from eager by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing-like-this"], "no workload contains nothing-like-this"),
        (["mlp", "--peers", "eager,abacus"], "peers must be among eager, compile, ort, openvino, got abacus"),
        (["mlp", "--rounds", "0"], "rounds must be at least 1, got 0"),
    ],
)
def test_bench_rejects(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*arguments]) == 1
    assert message in capsys.readouterr().err


def test_bench_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--list"]) == 0
    assert set(capsys.readouterr().out.splitlines()) == set(workloads.workloads())


def test_the_command_bench_times_an_onnx_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), str(tmp_path / "m.onnx"))
    rows = tmp_path / "rows.jsonl"
    assert main(["bench", str(tmp_path / "m.onnx"), "--rounds", "1", "--json", str(rows)]) == 0
    assert "tilewright" in capsys.readouterr().out
    assert json.loads(rows.read_text())["tilewright"] > 0
    assert main(["bench", "m.onnx", "--rounds", "0"]) == 1
    assert "rounds must be at least 1, got 0" in capsys.readouterr().err


def test_distance() -> None:
    a = np.array([1.0, 2.0])
    assert bench.distance([a], [a]) == 0
    assert bench.distance([a], [a, a]) == float("inf")
    assert bench.distance([a[:1]], [a]) == float("inf")
    assert bench.distance([a], [a + 0.5]) == pytest.approx(0.2)
    assert bench.distance([np.zeros(0)], [np.zeros(0)]) == 0
    assert [x.shape for x in bench.flat({"a": (a, [a]), "b": a})] == [(2,)] * 3


def test_inspect_writes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "tilewright.cli.sample:example", "-o", str(tmp_path / "out")]) == 0
    assert "index.html" in capsys.readouterr().out
    names = sorted(p.name for p in (tmp_path / "out" / "graph").iterdir())
    assert names[0] == "00-import.txt"
    assert any(n.endswith("-fuse.txt") for n in names)
    figures = json.loads((tmp_path / "out" / "report.json").read_text())
    kernels = {p.stem for p in (tmp_path / "out" / "kernels").iterdir()}
    assert kernels == {s["kernel"] for s in figures["launches"]}
    for stem in kernels:
        assert "define" in (tmp_path / "out" / "kernels" / f"{stem}.ll").read_text()
        assert "ret" in (tmp_path / "out" / "kernels" / f"{stem}.s").read_text()
    assert all(b["offset"] + b["size"] <= figures["arena"]["bytes"] for b in figures["arena"]["blocks"])
    assert {s["kind"] for s in figures["launches"]} >= {"matmul", "attention", "norm"}
    text = (tmp_path / "out" / "index.html").read_text()
    assert 'class="block k-attention"' in text
    places = set(re.findall(r' id="([^"]+)"', text))
    assert {link for link in re.findall(r'href="#([^"]+)"', text) if link not in places} == set(), "links that lead nowhere"
    assert "recognize" in text


def test_inspect_reads_a_saved_session(tmp_path: Path) -> None:
    session = tw.compile(Sample(64, 1).graph(1, 8))
    session.save(tmp_path / "m.tw")
    assert main(["inspect", str(tmp_path / "m.tw"), "-o", str(tmp_path / "out")]) == 0
    assert [p.name for p in (tmp_path / "out" / "graph").iterdir()] == ["00-final.txt"]
    assert session.executable is not None
    kernels = tmp_path / "out" / "kernels"
    symbols = {row["kernel"] for row in session.report().data["launches"]}
    assert len(list(kernels.glob("*.tile"))) == len(symbols)
    for symbol in symbols:
        (found,) = [p for p in kernels.glob("*.tile") if f"@{symbol}(" in p.read_text()]
        assert found.read_text().count("\n") > 3, "the kernel's own text, not an empty one"
        assert f"{symbol}:" in found.with_suffix(".s").read_text()


def test_inspect_takes_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "factories_here.py").write_text(
        "import torch\ndef pair(): return torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),)\n"
        "def triple(): return torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),), {'passes': ['fuse'], 'name': 'lin'}\n"
        "def session():\n    import tilewright as tw\n    return tw.compile(*pair())\n"
        "def wrong(): return 3, 4, 5, 6\n"
        "def nothing(): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("pair", "session"):
        assert main(["inspect", f"factories_here:{name}", "-o", name]) == 0
        assert (tmp_path / name / "index.html").is_file()
    assert main(["inspect", "factories_here:triple"]) == 0
    assert not list((tmp_path / "lin-inspect" / "graph").glob("*-fuse.txt")), "the pass was switched off"
    assert main(["inspect", "factories_here:wrong"]) == 1
    assert main(["inspect", "factories_here:nothing"]) == 1
    assert "factories_here:nothing() must return (module, inputs)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no_such_module_here:make", "cannot import no_such_module_here"),
        ("tilewright.cli.sample:nothing", "has no function nothing"),
        ("tilewright.cli.sample", "must be a .tw, .onnx, .gguf or .ptx file, a folder of a language model, or module:factory"),
        ("missing.tw", "there is no file missing.tw"),
        ("json:dumps", "json:dumps must be a function without arguments: missing a required argument: 'obj'"),
    ],
)
def test_inspect_rejects(model: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", model]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "inspect", "digest", "generate", "quantize"])
def test_names_that_no_file_has(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"generate": ["hello"], "quantize": ["y.gguf"]}.get(command, [])
    for name in ("x" * 5000, "x/" * 3000 + ".tw"):
        assert main([command, name, *more]) == 1
        assert "Error: " in capsys.readouterr().err


def test_a_pipe_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Opening one would wait for a writer."""
    os.mkfifo(tmp_path / "m.gguf")
    for command, more in (("quantize", [str(tmp_path / "out.gguf")]), ("generate", ["hello"]), ("inspect", [])):
        assert main([command, str(tmp_path / "m.gguf"), *more]) == 1
        assert "Error: " in capsys.readouterr().err


def test_a_disk_that_fails_while_a_session_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.tw").write_bytes(bytes(999))

    def fails(*_: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(tw.core.errors.FileError, match=r"archive: could not read .*m\.tw: Input/output error"):
        tw.load(tmp_path / "m.tw")


def test_inspect_says_where_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("a file")
    assert main(["inspect", "tilewright.cli.sample:example", "-o", str(tmp_path / "out")]) == 1
    assert "inspect: could not make the folder" in capsys.readouterr().err


def test_boxes_see_through_views_and_list_weights() -> None:
    found = {b.name: b for b in boxes(Sample(8, 2).graph(1, 3))}
    assert found["x"].kind == "input"
    assert not any(b.title in ("reshape", "transpose", "constant") for b in found.values())
    first = next(b for b in found.values() if b.title == "matmul")
    assert first.kind == "matmul"
    assert "q.weight: f32[8,8]" in first.detail
    names = set(found)
    assert all(s in names for b in found.values() for s in b.sources)


def test_interrupt_and_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", stop)
    assert main(["demo"]) == 130
    with pytest.raises(SystemExit) as info:
        main(["--version"])
    assert info.value.code == 0
    assert "tilewright" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "smollm2", "hi", "--tokens", "5"], "generate: error: unrecognized arguments: --tokens 5; did you mean --max-tokens?"),
        (["doctor", "--frob"], "tilewright doctor: error: unrecognized arguments: --frob\n"),
        (["splat", "render", "a.ply", "-o", "b", "--cam"], "expected one argument"),
        (["inspct", "model.onnx"], "there is no command 'inspct'; did you mean inspect?"),
        (["frob"], "invalid choice: 'frob' (choose from"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that was meant says what it does not know."""
    try:
        code: object = main(words)
    except SystemExit as e:
        code = e.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_no_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "inspect" in capsys.readouterr().out


def test_reasons_in_the_table_of_ops_name_cases() -> None:
    from benchmarks.op_cases import WHY, cases, why

    assert set(WHY) <= set(cases())
    assert why("tan", "L3", 0.5) == WHY["tan"]
    assert why("relu", "L3", 0.934) == "reaches 93% of what L3 would allow"


def test_bench_ops_times_single_ops(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    assert bench.main(["ops", "relu", "--rounds", "1", "--json", str(rows)]) == 0
    out = capsys.readouterr().out
    assert "leaky relu" in out and "3 ops, geometric mean" in out
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert {r["name"] for r in found} == {"relu", "leaky relu", "prelu"}
    assert all(0 < r["roofline"] <= 1 and r["ratio"] > 0 and r["error"] == 0 for r in found)
    assert bench.main(["ops", "rsqrt", "small", "--wide", "--rounds", "1", "--threads", "1", "--json", str(rows)]) == 0
    assert "2 cases, geometric mean" in capsys.readouterr().out
    found = [json.loads(line) for line in rows.read_text().splitlines()][3:]
    assert [(r["name"], r["size"], r["dtype"], r["launches"]) for r in found] == [("rsqrt", "small", d, 1) for d in ("f32", "bf16")]
    assert bench.main(["ops", "nothing of the kind"]) == 1
    assert "no op contains nothing of the kind" in capsys.readouterr().err
