"""Bad input with malice: tensors of strange kinds, empty tables, options of the wrong type, sessions where they cannot go.

After each the same session must give its old bits: the process survives, and so does the next call.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw
from tilewright.core.errors import (
    CompileError,
    ConfigError,
    ExecutionError,
    FileError,
    InputError,
    ParseError,
    TilewrightError,
    UnsupportedError,
)

X = torch.randn(3, 8)
MODULE = nn.Linear(8, 4).eval()


@pytest.fixture(scope="module")
def session() -> tw.Session:
    found = tw.compile(MODULE, (X,))
    found(X)  # from now on the generated way
    return found


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
@pytest.mark.parametrize(("make", "message"), [
    (X.to_sparse, r"must be a dense tensor, got layout torch.sparse_coo; pass input.to_dense\(\)"),
    (X.to_mkldnn, r"must be a dense tensor, got layout torch._mkldnn; pass input.to_dense\(\)"),
    (lambda: torch.nested.nested_tensor([X, X]), r"must be f32\[3,8\], got a nested tensor; pass input.to_padded_tensor\(0\)"),
    (quantized, r"must be f32\[3,8\], got a quantized tensor; pass input.dequantize\(\)"),
    (lambda: X.to("meta"), r"must be on the CPU, got f32\[3,8\] on meta"),
    (lambda: X.to(torch.complex64), r"must be f32\[3,8\], got c64\[3,8\]"),
    (lambda: X.numpy().astype(object), r"must be f32\[3,8\], got object\[3,8\]"),
    (lambda: np.zeros((3, 8), [("a", "f4")]), r"must be f32\[3,8\], got .*\[3,8\]"),
    (lambda: [1.0], r"must be f32\[3,8\], got a list; pass a torch tensor or a NumPy array"),
])
def test_strange_tensors(session: tw.Session, make: Callable[[], Any], message: str) -> None:
    want = session(X)
    for _ in range(2):
        with pytest.raises(InputError, match=rf"^session: input 'input' {message}"):
            session(make())
        assert torch.equal(session(X), want)


@pytest.mark.parametrize("make", [
    lambda: X.numpy().astype(">f4"), lambda: np.frombuffer(b"\0" + X.numpy().tobytes(), np.uint8)[1:].view("f4").reshape(3, 8),
    lambda: X.numpy()[::-1][::-1], lambda: X.T.contiguous().T, lambda: X.clone().requires_grad_(), lambda: nn.Parameter(X),
    lambda: np.asfortranarray(X.numpy()),
])
def test_unusual_but_right(session: tw.Session, make: Callable[[], Any]) -> None:
    with torch.no_grad():  # a tensor that requires grad is warned of elsewhere
        assert torch.equal(torch.as_tensor(session(make())), session(X))


@pytest.mark.parametrize(("args", "kwargs", "message"), [
    ((), {"y": X}, r"unexpected argument 'y'; takes \(input\)"),
    ((X,), {"input": X}, r"argument 'input' is given by position and by name; takes \(input\)"),
    ((X,), {"y": X}, r"unexpected argument 'y'; takes \(input\)"),
    ((), {}, r"argument 'input' is missing; takes \(input\)"),
    ((X, X), {}, r"takes \(input\), got 2 positional arguments"),
])
def test_names_and_numbers_of_arguments(session: tw.Session, args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^session: {message}$"):
        session(*args, **kwargs)


IDS = torch.zeros(2, dtype=torch.long)


@pytest.mark.parametrize(("model", "args"), [
    (lambda w, i: F.embedding(i, w), (torch.zeros(0, 8), IDS)),
    (lambda x, i: torch.gather(x, 1, i[:, None]), (torch.zeros(2, 0), IDS)),
    (lambda x, i: x[i], (torch.zeros(0, 3), IDS)),
    (lambda x, i: x[i], (torch.zeros(0), IDS)),
])
def test_an_index_into_nothing(session: tw.Session, model: Any, args: tuple[Any, ...]) -> None:
    """Machine code read before the start of the table here and died."""
    empty = tw.compile(model, args)
    for _ in range(2):
        with pytest.raises(ExecutionError, match=r"index out of range, got 0 at position [01]"):
            empty(*args)
    nothing = (args[0], IDS[:0]) if args[0].ndim and args[0].shape[0] == 0 else None
    if nothing is not None:
        assert torch.equal(tw.compile(model, nothing)(*nothing), model(*nothing))


@pytest.mark.parametrize(("model", "x"), [
    (lambda x: F.pad(x, (1, 2), value=3.0), torch.zeros(3, 0)),
    (lambda x: x.sum(1), torch.zeros(2, 0)),
    (lambda x: x.softmax(-1), torch.zeros(2, 0)),
    (lambda x: x @ x.T, torch.zeros(2, 0)),
    (lambda x: torch.cat([x, x], 1), torch.zeros(2, 0)),
    (lambda x: F.layer_norm(x, (4,)), torch.zeros(0, 4)),
    (lambda x: F.max_pool1d(x, 2), torch.zeros(0, 2, 4)),
    (lambda x: torch.cumsum(x, 1), torch.zeros(3, 0)),
])
def test_nothing_in(model: Any, x: torch.Tensor) -> None:
    assert torch.equal(tw.compile(model, (x,))(x), model(x))


def test_a_padded_batch_that_may_be_empty() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 0, 1, 1), value=2.0)

    compiled = tw.compile(model, (torch.randn(3, 5),), dynamic={"x": {0: tw.Dim("N", 0, 8)}})
    for n in (0, 1, 8):
        x = torch.randn(n, 5)
        assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize(("options", "message"), [
    ({"passes": 5}, r"passes: must be a mapping from names to booleans, or the names to leave out, got 5"),
    ({"passes": {"nope": False}}, r"passes: 'nope' cannot be disabled"),
    ({"target": 5}, r"target: must be .*, got 5"),
    ({"dynamic": 5}, r"dynamic: must be a mapping from names to \{axis: tw.Dim\(...\)\}, got 5"),
    ({"dynamic_shapes": 5}, r"dynamic_shapes: must be torch.export's own form, got 5"),
    ({"kwargs": 5}, r"kwargs: must be a mapping from names to example inputs, got 5"),
    ({"threads": "two"}, r"config: threads must be an integer from 1 to 1024, got 'two'"),
    ({"threads": 2.5}, r"config: threads must be an integer from 1 to 1024, got '2.5'"),
    ({"validation": 5}, r"validation: must be one of strict, normal, none, got 5"),
])
def test_options_of_the_wrong_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        tw.compile(MODULE, (X,), **options)


@pytest.mark.parametrize(("limits", "message"), [
    (("S", 5, 2), "S needs 0 <= lo <= hi, got lo=5, hi=2"), (("S", 1.5, 3), "S needs integers as its limits"),
    (("S", "1", "2"), "S needs integers as its limits"), ((5, 1, 2), "a symbol's name must be an identifier, got 5"),
    (("a b", 1, 2), "a symbol's name must be an identifier, got 'a b'"),
])
def test_dims_that_make_no_sense(limits: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ParseError, match=f"^dim: {re.escape(message)}"):
        tw.Dim(*limits)


def test_no_example_inputs() -> None:
    with pytest.raises(CompileError, match=r"missing a required argument: 'input'; give example inputs for it: tw.compile\("):
        tw.compile(MODULE)()


def test_where_a_session_cannot_go(session: tw.Session, tmp_path: Path) -> None:
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UnsupportedError, match=r"cannot be pickled or copied; write it with save\(path\)"):
            way(session)
    with pytest.raises(FileError, match=r"^archive: could not write .*missing/model\.tw: No such file or directory"):
        session.save(tmp_path / "missing" / "model.tw")
    with pytest.raises(FileError, match=re.escape(str(tmp_path))):
        session.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    session.save(tmp_path / "model.tw")
    for threads in (0, "two", -1):
        with pytest.raises(ConfigError, match="threads must be an integer"):
            tw.load(tmp_path / "model.tw", threads=threads)  # type: ignore[arg-type]
    with pytest.raises(TilewrightError, match="validation: must be one of"):
        tw.load(tmp_path / "model.tw", validation="zz")
    assert torch.equal(tw.load(tmp_path / "model.tw")(X), session(X))
