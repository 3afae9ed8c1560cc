"""Saved sessions of strangers, with a right checksum: they import nothing, and what they say is checked against their graph."""
from __future__ import annotations

import re
import sys
import types
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tests.session.saved import Saved, header_of, rewritten
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32, i64
from tilewright.core.errors import FormatError, InputError, ShapeError
from tilewright.core.pytree import find_class
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops.index.indexing import GatherAlongAxis
from tilewright.runtime.archive import file as archive_file


@pytest.mark.parametrize(("key", "value"), [
    ("constants", [{"name": "w", "dtype": "f32", "shape": [1 << 40], "packed": ["plain", 0, False, ""], "nbytes": 1 << 42, "offset": 0}]),
    ("constants", [{"name": "w", "dtype": "f32", "shape": [-1], "packed": ["plain", 0, False, ""], "nbytes": 4, "offset": 0}]),
    ("constants", [{"name": "w", "dtype": "f32", "shape": [4], "packed": ["plain", 0, False, ""], "nbytes": 16, "offset": -64}]),
    ("constants", [{"name": "w", "dtype": "u8", "shape": [4, 18], "packed": ["quantized panels", 16, False, "Q7"],
                    "nbytes": 72, "offset": 0}]),
    ("constants", [{"name": "w", "dtype": "u8", "shape": [18], "packed": ["quantized panels", 16, False, "Q4_0"],
                    "nbytes": 288, "offset": 0}]),
    ("constants", [{"name": "w", "dtype": "u8", "shape": [4, 18], "packed": ["quantized panels", 16], "nbytes": 288, "offset": 0}]),
    ("constants", [{"name": "w", "dtype": "q7", "shape": [4], "packed": ["plain", 0, False, ""], "nbytes": 16, "offset": 0}]),
    ("constants", 5), ("interface", None), ("signature", {"params": 3}), ("graph", "graph x("), ("version", 99), ("data_bytes", 1),
    ("code", [1]), ("target", None),
])
def test_a_header_that_lies(saved: Saved, tmp_path: Path, key: str, value: object) -> None:
    raw, header = header_of(saved[0])
    header[key] = value
    with pytest.raises(FormatError, match="archive: "):
        tw.load(rewritten(raw, header, tmp_path / "lie.tw"))


def test_a_file_does_not_decide_what_is_imported(saved: Saved, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for named, kind in (("evil_module:Class", dict), ("evil_module:", dict), (":", dict), ("xml.etree.evil:A.b.c", dict)):
        raw, header = header_of(saved[0])
        header["signature"]["out"][0] = named  # type: ignore[index]
        loaded = tw.load(rewritten(raw, header, tmp_path / "import.tw"))
        assert type(loaded(saved[2])) is kind
    for named in ("evil_module", "evil_module.inner", "", "dicts"):
        raw, header = header_of(saved[0])
        header["signature"]["out"][0] = named  # type: ignore[index]
        with pytest.raises(FormatError, match=r"the field 'signature.out' cannot be read \(pytree: not a structure"):
            tw.load(rewritten(raw, header, tmp_path / "import.tw"))
    assert "evil_module" not in sys.modules


def test_looking_for_a_class_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with a `__getattr__` of its own (lazy imports) is not asked."""
    asked: list[str] = []
    lazy = types.ModuleType("lazy_module_of_a_test")
    lazy.__getattr__ = lambda name: asked.append(name)  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, lazy.__name__, lazy)
    assert find_class("lazy_module_of_a_test:Anything") is None and asked == []
    assert find_class("collections:OrderedDict") is OrderedDict


Pair = namedtuple("Pair", "left right")


def test_classes_that_are_imported_come_back(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> Pair:
            return Pair(x + 1, x * 2)

    path = tmp_path / "pair.tw"
    tw.compile(Two(), (torch.ones(3),)).save(path)
    assert type(tw.load(path)(torch.ones(3))) is Pair
    raw, header = header_of(path)
    header["signature"]["out"][2].append("leaf")  # type: ignore[index]
    header["signature"]["outputs"].append(["slot", 0])  # type: ignore[index]
    loaded = tw.load(rewritten(raw, header, tmp_path / "three.tw"))
    with pytest.raises(InputError, match="Pair cannot be made of 3 parts"):
        loaded(torch.ones(3))


@pytest.mark.parametrize(("where", "value", "message"), [
    ("interface.inputs", [["f32", [2, 24]]], "the field 'interface.inputs' does not fit the graph"),
    ("interface.inputs", [["f32", ["N", 25]]], "the field 'interface.inputs' does not fit the graph"),
    ("interface.inputs", [["f64", ["N", 24]]], "the field 'interface.inputs' does not fit the graph"),
    ("interface.inputs", [], "the field 'interface.inputs and .outputs' cannot be read .0 inputs have 1 names"),
    ("interface.outputs", [["f32", ["N", 7]], ["f32", ["N", 4]]], "the field 'interface.outputs' does not fit the graph"),
    ("interface.outputs", [["f32", ["N", 7]]], "the field 'signature.out' cannot be read"),
    ("interface.symbols", [["N", 1, 1000]], "the field 'interface.symbols' does not fit the graph|'interface.inputs' does not fit"),
    ("interface.symbols", [["N", 1, 64], ["N", 1, 64]], "cannot be read .a name is used twice"),
    ("interface.symbols", [["N", 1.5, 64]], "the field 'interface.symbols' cannot be read"),
    ("interface.names", ["y"], "the field 'signature.params and .names' cannot be read"),
    ("interface.donated", [[0, 5]], "the field 'interface.donated' cannot be read"),
    ("interface.donated", [[0, 0]], "a donated input has another type than its output"),
    ("interface.called", ["M"], "the field 'interface.called' cannot be read .there is no such symbol"),
    ("interface.called", ["N"], "the field 'interface.called' does not fit the graph"),
    ("interface.needs", [["N*", "", ""]], "the field 'interface.windows and .needs' cannot be read"),
    ("interface.windows", [1], "the field 'interface.windows and .needs' cannot be read"),
    ("signature.inputs", [["slot", 1]], "is no leaf"),
    ("signature.inputs", [["slot", -1]], "is no leaf"),
    ("signature.inputs", [["fixed", [1]]], "is no leaf"),
    ("signature.inputs", [["fixed", 1]], "each of 1 inputs must be a leaf"),
    ("signature.inputs", [], "must be a tuple and a dict, with a leaf for each input"),
    ("signature.in", "leaf", "must be a tuple and a dict"),
    ("signature.in", ["tuple", [], [["tuple", [], []], ["dict", [3], ["leaf"]]]], "named arguments have names"),
    ("signature.outputs", [["slot", 0], ["slot", 2]], "is no leaf"),
    ("signature.outputs", [["slot", 0]], "a structure with 2 leaves holds 1"),
    ("signature.outputs", [["slot", 0], ["size", "M"]], "cannot read the dim 'M'"),
    ("signature.updates", [[0, 0]], "an updated input has another type than its output"),
    ("signature.params", None, "the field 'signature.params and .names' cannot be read"),
    ("graph_constants.a.weight", 99, r"the field 'graph_constants.a.weight' must be one of \d constants, got 99"),
    ("graph_constants.a.weight", -1, "the field 'graph_constants.a.weight' must be one of"),
    ("graph_constants.a.weight", 1, "the graph cannot be read: "),
    ("passes", {"fuse": {"rule": "many"}}, "the field 'passes' must map names to counts"),
    ("target.cpu", 3, "the field 'target.cpu' must be a text, got 3"),
    ("sums", [], "the field 'sums' has no checksum for each"),
    ("name", None, "the field 'name' must be a text, got None"),
])
def test_what_a_file_says_is_checked_against_its_graph(
        saved: Saved, tmp_path: Path, where: str, value: object, message: str) -> None:
    """Files with a right checksum, of a stranger: the first one made kernels write 2000 rows into memory for two."""
    raw, header = header_of(saved[0])
    inner: Any = header
    first, _, last = where.partition(".")
    inner, last = (inner[first], last) if last else (inner, first)
    inner[last] = value
    path = rewritten(raw, header, tmp_path / "lie.tw")
    with pytest.raises(FormatError, match=re.escape(f"archive: {path} is damaged: ") + f".*({message})"):
        tw.load(path)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("N=1..64", "N=0..64", "does not fit the graph"),
    ("N=1..64", "N=1..64, M=1..2", ""),
    ("(%x)", "(%x to 0)", "the graph is not sound: .*donated input"),
    ("\n  return ", "\n  return %x, ", "does not fit the graph"),
    ("f32[N,24]", "f32[N,24.0]", "a size must be an integer from 0 on, got 24.0"),
    ("f32[N,24]", "f32[N,-24]", "a size must be an integer from 0 on, got -24"),
    ("f32[N,24]", "f32[N," + "9" * 5000 + "]", "the graph cannot be read"),
    ("f32[N,24]", "f32[N," + "(" * 3000 + "]", "the graph cannot be read"),
    ("f32[N,24]", "f32[N," + "*".join(["(N+1)"] * 40) + "]", "dim: must have at most 64 terms of 16 factors"),
    ("transpose_b=True", 'transpose_b="yes"', "attribute transpose_b must be bool, got 'yes'"),
    ("transpose_b=True", "transpose_b=(1,)", "attribute transpose_b must be bool"),
    ("transpose_b=True", "alpha=None", "attribute alpha must be float, got None"),
])
def test_graphs_of_strangers(saved: Saved, tmp_path: Path, old: str, new: str, message: str) -> None:
    raw, header = header_of(saved[0])
    text = header["graph"]
    assert isinstance(text, str) and old in text, text
    header["graph"] = text.replace(old, new, 1)
    path = rewritten(raw, header, tmp_path / "graph.tw")
    if message:
        with pytest.raises(FormatError, match=re.escape(f"archive: {path} is damaged: ") + f".*{message}"):
            tw.load(path)
    else:
        assert torch.equal(tw.load(path)(saved[2])["y"], saved[1](saved[2])["y"])


def test_a_program_that_does_not_fit_its_interface_does_not_run(saved: Saved, tmp_path: Path) -> None:
    """The same for a file that the user trusts."""
    raw, header = header_of(saved[0])
    header["interface"]["outputs"][0][1][1] = 6  # type: ignore[index]
    with pytest.raises(FormatError, match="executable: output out0 must have 28\\*N bytes, got 24\\*N"):
        tw.load(rewritten(raw, header, tmp_path / "lie.tw"), trust=True)


def test_sections_that_overlap_ask_for_no_memory(saved: Saved, tmp_path: Path) -> None:
    raw, header = header_of(saved[0])
    constants: Any = header["constants"]
    largest = max(constants, key=lambda c: c["nbytes"])
    sums: Any = header["sums"]
    header["sums"] = [*sums, *[sums[len(header["code"]) + constants.index(largest)]] * 5000]  # type: ignore[arg-type]
    header["constants"] = [*constants, *[largest] * 5000]
    with pytest.raises(FormatError, match="its sections overlap"):
        tw.load(rewritten(raw, header, tmp_path / "many.tw"))


def test_a_file_that_is_larger_than_the_memory(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_file, "available", lambda: 1000)
    with pytest.raises(FormatError, match=r"needs [\d,]+ bytes of memory, and 1,000 are available"):
        tw.load(saved[0])


def test_rules_that_a_file_leaves_out_hold(tmp_path: Path) -> None:
    """`take_along_axis` of more rows than there are reads behind its operand; the compile noted that rule, and the file forgets it."""
    g = Graph("along")
    x, ids = g.input(TensorType(f32, (sym("N", 1, 64), 3)), "x"), g.input(TensorType(i64, (sym("M", 1, 64), 1)), "ids")
    g.outputs = [GatherAlongAxis(axis=1)(x, ids)]
    path = tmp_path / "along.tw"
    tw.compile(g).save(path)
    raw, header = header_of(path)
    assert header["interface"]["needs"] != []  # type: ignore[index]
    header["interface"]["needs"] = []  # type: ignore[index]
    loaded = tw.load(rewritten(raw, header, tmp_path / "none.tw"))
    data, index = np.ones((2, 3), np.float32), np.zeros((2, 1), np.int64)
    np.testing.assert_array_equal(loaded(data, index), np.ones((2, 1), np.float32))
    with pytest.raises(ShapeError, match="ids must not be longer than x on axis 0"):
        loaded(data, np.zeros((50, 1), np.int64))
