"""`tw.compile` from a torch module: options, structure, reference target, report and profile."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.compile import Stages, compile_graph, disabled
from tilewright.core.errors import ConfigError, InputError, UnsupportedError
from tilewright.core.validation import LEVELS, PHASES, registered


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(20, 33), nn.Linear(33, 5)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        h = torch.tanh(self.a(x))
        y = self.b(h)
        return (y if scale is None else y * scale), {"hidden": h}


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def check(session: tw.Session, net: Net, x: torch.Tensor, **kwargs: Any) -> None:
    with torch.no_grad():
        want = net(x, **kwargs)
    got = session(x, **kwargs)
    assert list(got[1]) == ["hidden"]
    torch.testing.assert_close(got[0], want[0], rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(got[1]["hidden"], want[1]["hidden"], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_structure_and_keywords(net: Net, target: str) -> None:
    x, scale = torch.randn(7, 20), torch.randn(5)
    check(tw.compile(net, (x,), target=target), net, x)
    session = tw.compile(net, (x,), {"scale": scale}, target=target, validation="strict")
    check(session, net, x, scale=scale)
    check(session, net, torch.randn(7, 20), scale=torch.randn(5))
    out = session(x.numpy(), scale=scale.numpy())
    assert isinstance(out[1]["hidden"], np.ndarray)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_one_compile_for_every_length(net: Net, target: str) -> None:
    session = tw.compile(net, (torch.randn(4, 20),), dynamic={"x": {0: tw.Dim("N", 1, 50)}}, target=target)
    for n in (1, 2, 13, 50):
        check(session, net, torch.randn(n, 20))
    with pytest.raises(InputError, match=r"^session: input 'x' must be f32\[N,20\] with 1 <= N <= 50, got f32\[51,20\]$"):
        session(torch.randn(51, 20))
    check(session, net, torch.randn(3, 20))


def test_inputs_must_agree_on_a_symbol() -> None:
    n = tw.Dim("N", 1, 50)
    session = tw.compile(lambda a, b: a + b, (torch.randn(4), torch.randn(4)), dynamic={"a": {0: n}, "b": {0: n}})
    x = torch.randn(9)
    assert torch.equal(session(x, x), x + x)
    for _ in range(2):
        with pytest.raises(InputError, match=r"^session: input 'b' must be f32\[N\] with N = 9 \(from 'a'\), got f32\[8\]$"):
            session(x, torch.randn(8))
    assert torch.equal(session(x, x), x + x)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64"])
def test_dtype_converts_weights_and_keeps_the_interface(net: Net, dtype: str) -> None:
    x = torch.randn(6, 20)
    session = tw.compile(net, (x,), dtype=dtype)
    with torch.no_grad():
        want = net.double()(x.double())[0].float()
        net.float()
    got = session(x)[0]
    assert got.dtype == torch.float32
    tolerance = {"bf16": 3e-2, "f16": 4e-3, "f64": 1e-6}[dtype]
    error = (got - want).abs().max().item()
    assert error < tolerance
    if dtype != "f64":
        assert error > 1e-6, "nothing was converted"
    assert session.executable is not None
    assert {c.dtype.itemsize for c in session.executable.constants if c.size > 33} == {8 if dtype == "f64" else 2}


def test_f16_and_bf16_modules_run_through_data_ptr() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        x = torch.randn(11).to(dtype)
        session = tw.compile(lambda x: x + x, (x,))
        for _ in range(2):
            assert torch.equal(session(x), x + x)


def test_passes_can_be_switched_off(net: Net) -> None:
    x = torch.randn(5, 20)
    fused, plain = tw.compile(net, (x,)), tw.compile(net, (x,), passes={"fuse": False, "cse": True})
    assert fused.executable is not None
    assert plain.executable is not None
    assert len(plain.executable.launches) > len(fused.executable.launches)
    check(plain, net, x)
    assert disabled(None) == ()
    assert disabled(["fuse"]) == disabled({"fuse": False}) == disabled("fuse") == ("fuse",)
    with pytest.raises(ConfigError, match="passes: 'nonsense' cannot be disabled, the optional passes are"):
        tw.compile(net, (x,), passes=["nonsense"])


@pytest.mark.parametrize(("options", "message"), [
    ({"threads": 0}, "config: threads must be an integer from 1 to"),
    ({"threads": "2"}, "threads: must be an integer from 1 to"),
    ({"target": "tpu"}, "target: must be 'cpu', 'cuda', .* or 'reference', got 'tpu'"),
    ({"validation": "lax"}, "validation: must be one of strict, normal, none, got 'lax'"),
    ({"dtype": "i8"}, "dtype: must be a float dtype"),
])
def test_options_that_make_no_sense(net: Net, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tw.compile(net, (torch.randn(2, 20),), **options)


def test_threads_give_the_same_bits(net: Net) -> None:
    x = torch.randn(64, 20)
    outs = [tw.compile(net, (x,), threads=n)(x)[0] for n in (1, 2, 3)]
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_report_and_profile(net: Net, tmp_path: Path) -> None:
    x = torch.randn(300, 20)
    session = tw.compile(net, (x,), threads=2)
    session(x)
    report = session.report()
    data = report.data
    assert len(session._free) == 1, "a report gives back what it takes"
    assert data["arena"]["bytes"] >= data["arena"]["bound"] - 64
    assert set(data["stages_s"]) == {"import", "passes", "select", "code", "pack", "plan"}
    assert all(row["us"] > 0 and row["flops"] > 0 and row["bytes"] > 0 and 0 < row["roofline"] <= 1 for row in data["launches"])
    assert all(row["bound"] in ("flops", "math", "L1", "L2", "L3", "memory", "launch") for row in data["launches"])
    text = str(report)
    assert "input x: f32[300,20]" in text
    assert text.count("\n") >= len(data["launches"])
    json.dumps(data)
    profile = session.profile(x)
    profile.save(tmp_path / "trace.json")
    events = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["args"]["launch"] for e in events} == set(range(len(profile.rows)))
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in events)
    assert "us on" in str(profile)
    check(session, net, x)
    with pytest.raises(UnsupportedError, match="profile: the reference target has no kernels"):
        tw.compile(net, (x,), target="reference").profile(x)


def test_a_copied_input_shows_in_the_report(net: Net) -> None:
    session = tw.compile(net, (torch.randn(4, 20),))
    session(torch.randn(20, 4).T)
    assert session.report().data["input_copies"] == {"x": 1}
    assert "input 'x' was copied in 1 call: it was not contiguous" in str(session.report())


def test_a_graph_compiles_too() -> None:
    from tilewright.core.dtypes import f32
    from tilewright.ir.graph import Graph
    from tilewright.ir.types import TensorType
    from tilewright.ops import Relu

    graph = Graph("relu")
    graph.outputs = [Relu()(graph.input(TensorType(f32, (9,)), "x"))]
    x = np.random.default_rng(0).standard_normal(9).astype(np.float32)
    np.testing.assert_array_equal(tw.compile(graph)(x), np.maximum(x, 0))


def test_progress_callback_and_silence(net: Net, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    tw.compile(net, (torch.randn(2, 20),), progress=seen.append)
    assert seen == ["import", "passes", "select", "code", "pack", "plan"]
    tw.compile(net, (torch.randn(2, 20),))
    assert capfd.readouterr() == ("", "")
    shown = Stages("test", True)
    with shown.stage("one"):
        pass
    shown.close()
    assert shown.seconds["one"] >= 0


def test_validators_are_registered_for_every_phase() -> None:
    import tilewright.plan.validate
    import tilewright.runtime.validate  # noqa: F401

    assert all(registered(phase) for phase in PHASES)
    assert LEVELS == ("strict", "normal", "none")
    assert callable(compile_graph)


def test_the_function_keeps_its_name_when_the_module_is_imported() -> None:
    code = "import tilewright.compile, tilewright as tw; from tilewright.compile import Stages; print(tw.compile.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "compile"


def test_import_is_light() -> None:
    code = "import sys, tilewright; print([m for m in ('torch', 'llvmlite', 'rich', 'tilewright.ops') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_report_is_a_table_on_a_terminal(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tw.compile(net, (torch.randn(2, 20),)).report()
    plain = str(report)
    assert "\x1b[" not in plain
    for columns, shown in (("80", False), ("160", True)):
        with monkeypatch.context() as m:
            m.setattr(sys.stdout, "isatty", lambda: True)
            m.setenv("COLUMNS", columns)
            rich = str(report)
        assert "\x1b[" in rich
        assert "roofline" in rich
        assert ("Mflop" in rich) == shown
    assert "launches" not in tw.compile(net, (torch.randn(2, 20),), target="reference").report().data


def test_scratch_and_arena_grow_with_the_shape() -> None:
    softmax = tw.compile(lambda x: torch.softmax(x @ x.T, -1) @ x, (torch.randn(8, 40),), dynamic={"x": {0: tw.Dim("N", 1, 300)}})
    for n in (3, 300, 5, 299, 128):
        x = torch.randn(n, 40)
        torch.testing.assert_close(softmax(x), torch.softmax(x @ x.T, -1) @ x, rtol=1e-4, atol=1e-4)


def test_reference_reports_a_bad_index_and_small_floats() -> None:
    table = nn.Embedding(5, 3)
    for target in ("cpu", "reference"):
        session = tw.compile(table, (torch.tensor([1, 2]),), target=target)
        with pytest.raises(tw.ExecutionError, match="index"):
            session(torch.tensor([1, 7]))
        assert torch.equal(session(torch.tensor([4, 0])), table.weight.detach()[[4, 0]])
    x = torch.randn(6).bfloat16()
    assert torch.equal(tw.compile(lambda x: x * 2, (x,), target="reference")(x), x * 2)


def test_a_model_without_inputs_and_one_with_nested_inputs() -> None:
    weight = torch.arange(6.0)
    nothing = tw.compile(lambda: weight * 2, ())
    for _ in range(3):
        got = nothing()
        assert isinstance(got, torch.Tensor)
        assert torch.equal(got, weight * 2)

    def nested(pair: tuple[torch.Tensor, dict[str, torch.Tensor]], *, bias: torch.Tensor) -> list[torch.Tensor]:
        return [pair[0] + pair[1]["b"], pair[0] * bias]

    a, b, c = (torch.randn(7) for _ in range(3))
    session = tw.compile(nested, ((a, {"b": b}),), {"bias": c})
    for _ in range(3):
        total, product = session((a, {"b": b}), bias=c)
        assert torch.equal(total, a + b)
        assert torch.equal(product, a * c)
    strided = torch.randn(7, 2)[:, 0]
    assert torch.equal(session((strided, {"b": b}), bias=c)[0], strided + b)
    with pytest.raises(InputError, match=r"session: argument 'pair'\[1\]: expected keys \['b'\], got \['z'\]"):
        session((a, {"z": b}), bias=c)
    with pytest.raises(InputError, match=r"must be f32\[7\], got f32\[8\]"):
        session((torch.randn(8), {"b": b}), bias=c)
    outs = [torch.empty(7), torch.empty(7)]
    assert session((a, {"b": b}), bias=c, out=outs) is outs
    assert torch.equal(outs[1], a * c)


def test_an_array_that_the_model_writes_to_must_be_writable() -> None:
    session = tw.compile(lambda x: x.add_(1) * 2, (torch.zeros(3),))
    x = np.zeros(3, np.float32)
    np.testing.assert_array_equal(session(x), np.full(3, 2.0))
    np.testing.assert_array_equal(x, np.ones(3))
    x.setflags(write=False)
    with pytest.raises(InputError, match="session: the model writes to input 'x', and the array is read-only; pass a copy"):
        session(x)
    np.testing.assert_array_equal(x, np.ones(3))
