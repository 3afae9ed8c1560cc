"""Bad input: each gets a message that says what is wrong (or simply works), the process lives on, and the next call is right."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tests.e2e.compare import assert_close, eager
from tests.e2e.families import FAMILIES, imported, module_of
from tilewright.compile import compile_graph, target_spec
from tilewright.core.errors import CompileError, ConfigError, ExecutionError, InputError, UnsupportedError

GPT2 = FAMILIES["gpt2"]


@pytest.fixture(scope="module")
def block() -> tw.Session:
    return tw.compile(module_of("block"), FAMILIES["block"].args(2, 7), dynamic=FAMILIES["block"].dynamic)


@pytest.fixture(scope="module")
def gpt2() -> list[tw.Session]:
    """On one thread, on several, and for one shape only."""
    found, fixed = imported("gpt2", dynamic=True), imported("gpt2", b=1, s=7)
    sessions = [compile_graph(found.graph, found.signature, target_spec("cpu"), threads=n) for n in (1, 3)]
    return [*sessions, compile_graph(fixed.graph, fixed.signature, target_spec("cpu"))]


def assert_alive(session: tw.Session, name: str) -> None:
    """The next call works."""
    args = FAMILIES[name].args(2, 6)
    assert_close(session(*args), eager(module_of(name), args))


X = r"session: input 'x' must be f32\[B,S,24\] with 1 <= B <= 16, 1 <= S <= 64, got "


@pytest.mark.parametrize("frame", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
@pytest.mark.parametrize(("shape", "dtype", "got"), [
    ((2, 7, 25), np.float32, r"f32\[2,7,25\]"),
    ((2, 65, 24), np.float32, r"f32\[2,65,24\]"),
    ((17, 7, 24), np.float32, r"f32\[17,7,24\]"),
    ((0, 7, 24), np.float32, r"f32\[0,7,24\]"),
    ((2, 0, 24), np.float32, r"f32\[2,0,24\]"),
    ((7, 24), np.float32, r"f32\[7,24\]"),
    ((1, 2, 7, 24), np.float32, r"f32\[1,2,7,24\]"),
    ((), np.float32, r"f32\[\]"),
    ((2, 7, 24), np.float64, r"f64\[2,7,24\]"),
    ((2, 7, 24), np.float16, r"f16\[2,7,24\]"),
    ((2, 7, 24), np.int64, r"i64\[2,7,24\]"),
    ((2, 7, 24), np.bool_, r"bool\[2,7,24\]"),
    ((2, 7, 24), np.complex64, r"c64\[2,7,24\]"),
])
def test_shape_dtype_and_rank(block: tw.Session, frame: Callable[[Any], Any], shape: tuple[int, ...], dtype: Any, got: str) -> None:
    for _ in range(2):
        with pytest.raises(InputError, match=f"^{X}{got}(; cast it first)?$"):
            block(frame(np.zeros(shape, dtype)))
        assert_alive(block, "block")


@pytest.mark.parametrize(("args", "kwargs", "message"), [
    ((), {}, r"session: argument 'x' is missing; takes \(x\)"),
    ((torch.zeros(2, 7, 24), torch.zeros(2)), {}, r"session: takes \(x\), got 2 positional arguments"),
    ((torch.zeros(2, 7, 24),), {"y": 1}, r"session: unexpected argument 'y'; takes \(x\)"),
    ((torch.zeros(2, 7, 24),), {"x": torch.zeros(2, 7, 24)}, r"session: "),
    (([[1.0]],), {}, X + r"a list; pass a torch tensor or a NumPy array"),
    ((None,), {}, X + r"None; pass a torch tensor or a NumPy array"),
    (("text",), {}, X + r"a str; pass a torch tensor or a NumPy array"),
])
def test_number_and_names(block: tw.Session, args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        block(*args, **kwargs)
    assert_alive(block, "block")
    assert_close(block(x=(x := torch.randn(1, 3, 24))), eager(module_of("block"), (x,)))


def test_another_device_or_layout(block: tw.Session) -> None:
    with pytest.raises(InputError, match=r"^session: input 'x' must be on the CPU, got f32\[2,7,24\] on meta; pass x.cpu\(\)$"):
        block(torch.empty(2, 7, 24, device="meta"))
    with pytest.raises(InputError, match=r"^session: input 'x' must be a dense tensor, got layout torch.sparse_coo; pass x.to_dense\(\)$"):
        block(torch.zeros(2, 7, 24).to_sparse())
    assert_alive(block, "block")


@pytest.mark.parametrize("bad", [-1, 101, 2**31, -(2**40), 2**63 - 1])
def test_an_embedding_index_out_of_range(gpt2: list[tw.Session], bad: int) -> None:
    for session in gpt2:
        ids = GPT2.args(1, 7)[0]
        ids[0, 3] = bad
        with pytest.raises(ExecutionError, match=rf"index out of range, got {bad} at position 3; .* \(.*wte, in gpt2\)$"):
            session(ids)
        good = GPT2.args(1, 7)
        assert_close(session(*good), eager(module_of("gpt2"), good))


def test_a_symbol_that_two_inputs_disagree_on() -> None:
    family = FAMILIES["bert"]
    session = tw.compile(module_of("bert"), family.args(2, 7), dynamic=family.dynamic)
    message = r"^session: input 'mask' must be i64\[B,S\] with B = 2 \(from 'ids'\), S = 7 \(from 'ids'\), got i64\[2,8\]$"
    with pytest.raises(InputError, match=message):
        session(family.args(2, 7)[0], family.args(2, 8)[1])
    assert_alive(session, "bert")


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Unsupported(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        factors, pivots = torch.linalg.ldl_factor(x)
        return torch.linalg.ldl_solve(factors, pivots, x), torch.linalg.ldl_solve(factors, pivots, x * 2)


class Writes(nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


def test_models_that_cannot_be_compiled() -> None:
    x = torch.randn(4, 4)
    message = r"^torch\.export: .*control flow and sizes may not depend on tensor values.*test_bad_input\.py:\d+"
    with pytest.raises(CompileError, match=message):
        tw.compile(DataDependent(), (x,))
    with pytest.raises(UnsupportedError) as caught:
        tw.compile(Unsupported(), (x,))
    text = str(caught.value)
    assert "ldl_factor" in text
    assert "ldl_solve.default x2" in text
    assert "test_bad_input.py" in text
    with pytest.raises(UnsupportedError, match=r"^torch: the model writes to .*count"):
        tw.compile(Writes(), (x,))
    with pytest.raises(CompileError, match=r"compile: takes a torch.nn.Module, a function, an ExportedProgram or an ONNX file, got int"):
        tw.compile(5, (x,))
    with pytest.raises(CompileError, match=r"^torch\.export: "):
        tw.compile(module_of("block"), (torch.randn(3),))
    with pytest.raises(ConfigError, match=r"^dynamic: there is no argument 'nope'; the arguments are x"):
        tw.compile(module_of("block"), FAMILIES["block"].args(2, 7), dynamic={"nope": {0: tw.Dim("B", 1, 4)}})
    with pytest.raises(ConfigError, match=r"^dynamic: x.shape\[1\]: the example has S=7, outside 8..9$"):
        tw.compile(module_of("block"), FAMILIES["block"].args(2, 7), dynamic={"x": {1: tw.Dim("S", 8, 9)}})
    assert torch.equal(tw.compile(nn.ReLU(), (x,))(x), x.relu())


@pytest.mark.parametrize(("options", "message"), [
    ({"threads": 0}, r"^config: threads must be an integer from 1 to 1024, got '0'$"),
    ({"threads": -2}, r"^config: threads must be an integer from 1 to 1024, got '-2'$"),
    ({"target": "tpu"}, r"^target: must be 'cpu', 'cuda', .* or 'reference', got 'tpu'$"),
    ({"dtype": "i8"}, r"^dtype: must be a float dtype, one of 'f16', 'bf16', 'f32', 'f64', got 'i8'$"),
    ({"dtype": "int8"}, r"^dtype: must be a float dtype, one of 'f16', 'bf16', 'f32', 'f64', got 'int8'$"),
    ({"dtype": torch.int16}, r"^dtype: must be a float dtype, one of .*, got torch.int16$"),
    ({"dtype": 16}, r"^dtype: must be a float dtype, one of .*, got 16$"),
    ({"passes": ["decompose"]}, r"^passes: 'decompose' cannot be disabled, the optional passes are "),
])
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tw.compile(nn.ReLU(), (torch.randn(3),), **options)


def test_a_thread_count_of_zero_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", "0")
    with pytest.raises(ConfigError, match=r"^config: TILEWRIGHT_THREADS must be an integer from 1 to 1024, got '0'$"):
        tw.compile(nn.ReLU(), (torch.randn(3),))
    monkeypatch.setenv("TILEWRIGHT_THREADS", "2")
    assert tw.compile(nn.ReLU(), (torch.randn(3),)).threads == 2


def cache_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tw.Session:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    args = FAMILIES["mlp"].args(2, 1)
    session = tw.compile(module_of("mlp"), args)
    assert_close(session(*args), eager(module_of("mlp"), args))
    return session


def test_a_read_only_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    session = cache_works(tmp_path, monkeypatch)
    if os.getuid() != 0:  # root writes anywhere
        assert any(n.startswith("cache: ") for n in session.model.notes)
    tmp_path.chmod(0o700)


def test_a_cache_folder_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    session = cache_works(tmp_path / "file", monkeypatch)
    assert any("is no folder; compiling without a cache" in n for n in session.model.notes)


def test_a_full_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing fails as it does on a full disk: the compile goes on and says so."""
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tilewright.core.files._temporary", full)
    session = cache_works(tmp_path, monkeypatch)
    assert any("No space left on device" in n for n in session.model.notes)
    assert list(tmp_path.iterdir()) == []


def test_a_corrupt_cache_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_works(tmp_path, monkeypatch)
    entries = sorted(tmp_path.glob("*.o"))
    assert entries
    for k, entry in enumerate(entries):
        raw = entry.read_bytes()
        entry.write_bytes([raw[: len(raw) // 2], b"", raw[:60] + bytes([raw[60] ^ 1]) + raw[61:]][k % 3])
    session = cache_works(tmp_path, monkeypatch)
    assert any("is damaged; compiled again" in n for n in session.model.notes)
    assert session.report().data["compiled_kernels"] > 0
    assert cache_works(tmp_path, monkeypatch).report().data["compiled_kernels"] == 0
