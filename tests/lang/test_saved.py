"""Saved sessions that contain kernels of users: machine code runs anywhere, the graph is compiled where the kernel is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import lang as tl
from tilewright.core.errors import UnsupportedError
from tilewright.ops import kernels
from tilewright.runtime.archive import session as archive


@tw.kernel("T[N], T[N] -> T[N]", grid=lambda N, BLOCK: tl.cdiv(N, BLOCK))
def summed(x: Any, y: Any, z: Any, *, BLOCK: int = 256) -> None:
    i = tl.program_id(0)
    xs, ys, zs = x.partition(BLOCK), y.partition(BLOCK), z.partition(BLOCK)
    zs[i] = xs[i] + ys[i]


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """The file of a function with a kernel in it and in a loop, its arguments and its result."""
    x, y = np.random.default_rng(0).standard_normal((2, 3, 1000), np.float32)
    f = tw.jit(lambda x, y: tw.vmap(summed)(x, y) * 2 + summed(x[0], y[0], BLOCK=64))
    f.save(tmp_path / "f.tw", x, y)
    return tmp_path / "f.tw", (x, y), np.asarray(f(x, y))


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_why_not", lambda *_: "its machine code is for another kind of CPU")


def test_machine_code_needs_no_source(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, args, want = saved
    np.testing.assert_array_equal(tw.load(path)(*args), want)
    np.testing.assert_allclose(want, (args[0] + args[1]) * 2 + (args[0][0] + args[1][0]), rtol=1e-6)
    monkeypatch.setattr(kernels, "_known", {})
    loaded = tw.load(path)
    np.testing.assert_array_equal(loaded(*args), want)
    assert "kernel_summed" in str(loaded.report())


def test_the_graph_is_compiled_where_the_kernel_is_known(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, args, want = saved
    elsewhere(monkeypatch)
    np.testing.assert_array_equal(tw.load(path)(*args), want)
    monkeypatch.setattr(kernels, "_known", {})
    with pytest.raises(UnsupportedError, match=r"kernel_summed, which must be compiled here, .* import the module that defines it"):
        tw.load(path)


def test_kernels_take_no_constants_from_files_of_others(saved: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, args, want = saved
    monkeypatch.setenv("TILEWRIGHT_KEY_FILE", str(tmp_path / "another.key"))
    with pytest.raises(UnsupportedError, match="takes its constants from a file that is not trusted; load it with trust=True"):
        tw.load(path)
    np.testing.assert_array_equal(tw.load(path, trust=True)(*args), want)
    elsewhere(monkeypatch)
    np.testing.assert_array_equal(tw.load(path, trust=True)(*args), want)


def test_two_kernels_of_one_name_and_source(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, _ = saved
    _again = tw.kernel("T[N], T[N] -> T[N]", grid=lambda N, BLOCK: tl.cdiv(N, BLOCK))(summed.definition.fn)
    elsewhere(monkeypatch)
    with pytest.raises(UnsupportedError, match="2 kernels of this process have its name and source"):
        tw.load(path)


def test_functions_of_the_process_are_not_saved(tmp_path: Path) -> None:
    @tw.host_op("T[N] -> T[N]")
    def doubled(x: Any) -> Any:
        return x * 2

    x = np.ones((2, 3), np.float32)
    for f in (lambda x: doubled(x[0]), tw.vmap(doubled)):
        with pytest.raises(UnsupportedError, match=r"contains .*doubled, a function of this process"):
            tw.jit(f).save(tmp_path / "f.tw", x)
