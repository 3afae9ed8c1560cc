"""Ways to say what is compiled and what for: names for inputs, dims and dtypes, files of torch.export, no example inputs at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tilewright as tw
from tilewright.core.dtypes import bf16
from tilewright.core.errors import CompileError, ConfigError, FormatError, InputError, ParseError


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        y: Tensor = self.out(self.table(ids))
        return y if mask is None else y * mask[..., None]


@pytest.fixture(scope="module")
def model() -> Words:
    torch.manual_seed(0)
    return Words().eval()


IDS = torch.arange(10).reshape(2, 5)
MASK = torch.tensor([[1.0, 0, 1, 1, 0], [0.0, 1, 1, 0, 1]])


def check(got: Any, want: Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(got), want.detach(), rtol=1e-5, atol=1e-6)


# --- integers --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_narrower_integers_are_widened(model: Words, target: str) -> None:
    session = tw.compile(model, (IDS,), target=target)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        for _ in range(2):
            check(session(IDS.to(dtype)), model(IDS))
        check(session(IDS.to(dtype).numpy()), model(IDS))
    check(session(IDS.int()[:, torch.arange(5)].T.contiguous().T), model(IDS))
    check(session(IDS.numpy().astype(">i4")), model(IDS))
    assert session.copies["ids"] >= 9
    own = tw.compile(model, (IDS.int(),), target=target)
    check(own(IDS.int()), model(IDS))
    assert own.copies == {}


def test_what_might_not_fit_is_refused(model: Words) -> None:
    session = tw.compile(model, (IDS.int(),))
    for bad, shown in ((IDS, "i64"), (IDS.to(torch.uint32), "u32"), (IDS.float(), "f32"), (IDS.bool(), "bool")):
        with pytest.raises(InputError, match=rf"input 'ids' must be i32\[2,5\], got {shown}\[2,5\]"):
            session(bad)
    with pytest.raises(InputError, match=r"input 'mask' must be f32\[2,5\], got f16"):
        tw.compile(model, (IDS, MASK))(IDS, MASK.half())


# --- names -----------------------------------------------------------------------------------------------------------------------------


def test_a_mapping_of_parameters(model: Words) -> None:
    given = {"mask": MASK, "ids": IDS}
    for session in (tw.compile(model, given), tw.compile(model, kwargs=given)):
        check(session(**given), model(**given))
        check(session(ids=IDS, mask=MASK), model(**given))
        check(session(IDS, MASK), model(**given))


def test_a_mapping_that_is_an_argument() -> None:
    def total(x: dict[str, Tensor]) -> dict[str, Any]:
        return {"y": x["a"] + x["b"], "z": [x["a"]]}

    x = {"a": torch.randn(3), "b": torch.randn(3)}
    for session in (tw.compile(total, (x,)), tw.compile(total, x)):  # its keys are no parameters
        out = session({"b": x["b"], "a": x["a"]})
        check(out["y"], x["a"] + x["b"])
        check(out["z"][0], x["a"])


@pytest.mark.parametrize("dynamic", [{"ids": {0: "N", 1: "S"}}, {"ids": ("N", "S")}, {"ids": {0: "N", 1: tw.Dim("S", 1, 99)}}])
def test_dims_by_name(model: Words, dynamic: Any) -> None:
    session = tw.compile(model, (IDS,), dynamic=dynamic)
    assert [s.name for s in session.interface.symbols] == ["N", "S"]
    for n, s in ((2, 5), (1, 1), (7, 30)):
        ids = torch.randint(0, 50, (n, s))
        check(session(ids), model(ids))


def test_one_name_is_one_dim(model: Words) -> None:
    session = tw.compile(model, (IDS, MASK), dynamic={"ids": {0: "N"}, "mask": {0: "N"}})
    check(session(IDS[:1], MASK[:1]), model(IDS[:1], MASK[:1]))
    with pytest.raises(InputError, match=r"input 'mask' must be f32\[N,5\] with N = 1 \(from 'ids'\), got f32\[2,5\]"):
        session(IDS[:1], MASK)
    with pytest.raises(ParseError, match="a symbol's name must be an identifier, got 'a b'"):
        tw.compile(model, (IDS,), dynamic={"ids": {0: "a b"}})


@pytest.mark.parametrize("name", ["bf16", "bfloat16", torch.bfloat16, bf16])
def test_dtypes_by_any_name(model: Words, name: Any) -> None:
    session = tw.compile(model, (IDS,), dtype=name)
    got = session(IDS)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, model(IDS), rtol=2e-2, atol=2e-2)
    assert not torch.equal(got, tw.compile(model, (IDS,))(IDS))


@pytest.mark.parametrize("name", [torch.float16, np.float16, "float16", "f16"])
def test_half_by_any_name(model: Words, name: Any) -> None:
    torch.testing.assert_close(tw.compile(model, (IDS,), dtype=name)(IDS), model(IDS), rtol=4e-3, atol=4e-3)


class Spectra(nn.Module):
    """Ops that have no small floats, between others that do."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.irfft(torch.fft.rfft(x * 2, n=24) * 0.5, n=24)[..., :16]
        return y + torch.linalg.solve(x @ x.T + 9 * torch.eye(3, dtype=x.dtype), x)


@pytest.mark.parametrize("name, limit", [("bf16", 2e-2), ("f16", 3e-3), ("f64", 1e-6)])
def test_ops_without_small_floats_stay_in_their_own(name: str, limit: float) -> None:
    x = torch.randn(3, 16)
    got = tw.compile(Spectra(), (x,), dtype=name)(x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), Spectra().double()(x.double()), rtol=limit, atol=limit)


@pytest.mark.parametrize("name, shown", [(torch.int8, r"torch\.int8"), ("int8", "'int8'"), (3, "3"),
                                         (torch.float8_e5m2, r"torch\.float8_e5m2")])
def test_dtypes_that_are_no_floats(model: Words, name: Any, shown: str) -> None:
    with pytest.raises(ConfigError, match=f"^dtype: must be a float dtype, one of 'f16', 'bf16', 'f32', 'f64', got {shown}$"):
        tw.compile(model, (IDS,), dtype=name)


# --- at the first call -----------------------------------------------------------------------------------------------------------------


def test_without_example_inputs(model: Words) -> None:
    session: Any = tw.compile(model, dynamic={"ids": {0: "N"}}, name="words")
    assert repr(session) == "<Words, compiled at its first call>"
    with pytest.raises(AttributeError, match=r"Words has been given no example inputs .* before you ask for 'report', or give inputs"):
        session.report()
    check(session(IDS), model(IDS))
    check(session(ids=IDS[:1]), model(IDS[:1]))
    assert session.name == "words" and "words" in repr(session) and session.report().data["inputs"] == {"ids": "i64[N,5] with N >= 1"}
    with pytest.raises(InputError, match=r"must be i64\[N,5\]"):
        session(IDS[:, :2])


def test_options_are_checked_before_the_first_call(model: Words) -> None:
    options: Any
    for options, message in (({"dtype": "i8"}, "dtype: must be"), ({"target": "tpu"}, "target: must be"),
                             ({"dynamic": 3}, "dynamic: must be"), ({"validation": "never"}, "validation")):
        with pytest.raises(ConfigError, match=message):
            tw.compile(model, **options)


def test_keywords_at_the_first_call(model: Words) -> None:
    session = tw.compile(model)
    check(session(IDS, mask=MASK), model(IDS, mask=MASK))
    check(session(IDS, mask=MASK * 2), model(IDS, mask=MASK * 2))


def test_what_needs_no_inputs_is_compiled_at_once() -> None:
    assert tw.compile(lambda: torch.arange(3.0)).executable is not None
    with pytest.raises(CompileError, match=r"missing a required argument: 'ids'; give example inputs for it"):
        tw.compile(Words())()


# --- files -----------------------------------------------------------------------------------------------------------------------------


def test_programs_of_torch_export(model: Words, tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(model, (IDS,), dynamic_shapes={"ids": {0: rows}})
    path = tmp_path / "words.pt2"
    torch.export.save(program, path)
    for given in (path, str(path), program):
        session = tw.compile(given)
        check(session(IDS), model(IDS))
        check(session(IDS[:1]), model(IDS[:1]))
    assert tw.compile(path).name == "words"
    with pytest.raises(FormatError, match=r"is not a saved session; programs of torch.export are compiled: tw.compile\(path\)"):
        tw.load(path)
    (tmp_path / "a.npy").write_bytes(b"nothing")
    with pytest.raises(FormatError, match=r"is not a saved session; arrays are loaded: tw.load_arrays\(path\)"):
        tw.load(tmp_path / "a.npy")
    with pytest.raises(InputError, match=r"must end in .npy, .npz or .safetensors, got 'words.pt2'; programs of torch.export are compiled"):
        tw.load_arrays(path)
    with pytest.raises(CompileError, match=r"there is no file '.*missing.pt2'; give a module"):
        tw.compile(tmp_path / "missing.pt2")
    for name, advice in [("model.gguf", r"tw.load_llm\(path\)"), ("model.tw", r"tw.load\(path\)"), ("model.pth", "module.load_state_dict")]:
        (tmp_path / name).write_bytes(b"nothing at all")
        with pytest.raises(CompileError, match=f"is no program that torch.export.save wrote; .*{advice}"):
            tw.compile(tmp_path / name)
    (tmp_path / "bad.pt2").write_bytes(b"nothing")
    with pytest.raises(CompileError, match=r"is no program that torch.export.save wrote"):
        tw.compile(tmp_path / "bad.pt2")


class Pairs(nn.Module):
    def forward(self, x: list[Tensor], y: dict[str, Tensor]) -> Tensor:
        return x[0].sum() + x[1] * y["a"].sum()


def test_the_advice_about_sizes_can_be_followed() -> None:
    """Inputs in lists and dicts: `dynamic=` is nested as they are."""
    args = ([torch.ones(2), torch.ones(3)], {"a": torch.ones(4)})
    session = tw.compile(Pairs(), args)
    others = [([torch.ones(2), torch.ones(5)], args[1]), (args[0], {"a": torch.ones(7)})]
    advices: list[dict[str, Any]] = [{"x": [None, {0: "N"}]}, {"y": {"a": {0: "N"}}}]
    for given, advice in zip(others, advices, strict=True):
        with pytest.raises(InputError) as caught:
            session(*given)
        assert str(caught.value).endswith(f"dynamic={advice}")
        check(tw.compile(Pairs(), args, dynamic=advice)(*given), Pairs()(*given))


def test_what_is_no_model_says_what_to_do() -> None:
    layer = torch.nn.Linear(8, 4).eval()
    with pytest.raises(CompileError, match=r"got the class Linear; make one of it: Linear\(...\)"):
        tw.compile(torch.nn.Linear)
    with pytest.raises(CompileError, match=r"got OrderedDict; weights alone say nothing .*module.load_state_dict"):
        tw.compile(layer.state_dict(), (torch.ones(2, 8),))
    with pytest.raises(CompileError, match=r"a constant \(8\); the model works for N = 8 only: leave N out of dynamic=$"):
        tw.compile(layer, (torch.ones(2, 8),), dynamic={"input": {1: "N"}})
    with pytest.raises(ConfigError, match=r"^dynamic: input.shape\[0\] must be a name or a tw.Dim, got 3.5$"):
        tw.compile(layer, (torch.ones(2, 8),), dynamic={"input": {0: 3.5}})
    with pytest.raises(CompileError, match=r"a required argument: 'x'; give example inputs for it: tw.compile\(model, \(x, ...\)\)$"):
        tw.compile(Pairs(), {"y": {"a": torch.ones(2)}})
    fixed = tw.compile(layer, (torch.ones(2, 8),))
    with pytest.raises(InputError, match=r"^report: takes sizes of dynamic dims by name, like {'N': 4}, got 4; dynamic dims: none$"):
        fixed.report(4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^report: there is no dim 'M'; dynamic dims: none$"):
        fixed.report({"M": 4})
    message = r"must be f32\[2,8\], got f32\[3,8\]; sizes that vary are named at the compile: dynamic={'input': {0: 'N'}}$"
    with pytest.raises(InputError, match=message):
        fixed(torch.ones(3, 8))


def test_torch_prints_nothing_about_a_branch_on_data(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CompileError, match=r"control flow and sizes may not depend on tensor values"):
        tw.compile(lambda x: x if x.sum() > 0 else -x, (torch.ones(3),))
    assert capfd.readouterr() == ("", "")
