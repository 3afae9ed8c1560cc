"""Compiled models in the code cache: a second start imports nothing and computes the same bits; whatever differs is another entry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

import tilewright as tw
from tests.onnx.models import helper, info, model, numpy_helper, onnx, peer
from tilewright.compile import compile_graph
from tilewright.core.dtypes import bf16
from tilewright.core.errors import ExecutionError, FormatError, InputError
from tilewright.core.words import words_of
from tilewright.frontend.onnx import load, store
from tilewright.frontend.onnx.load import Source
from tilewright.frontend.onnx.store import initializers, key_of
from tilewright.ir.text import to_text
from tilewright.target.cpu.cache import CodeCache
from tilewright.target.cpu.host import host_target

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 8)).astype(np.float32)
WEIGHTS = {"w": RNG.standard_normal((8, 40)).astype(np.float32), "b": RNG.standard_normal(40).astype(np.float32),
           "v": RNG.standard_normal((40, 2)).astype(np.float32), "e": RNG.standard_normal((9, 2)).astype(np.float32)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests, so that kernels are compiled once: every test has models of its own."""
    return tmp_path_factory.mktemp("code") / "cache"


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[str]:
    """The names of graphs that were compiled."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(cache))
    names: list[str] = []

    def noting(graph: Any, *args: Any, **options: Any) -> Any:
        names.append(graph.name)
        return compile_graph(graph, *args, **options)

    monkeypatch.setattr(sys.modules["tilewright.compile"], "compile_graph", noting)  # the name in the package is the function
    return names


def network(name: str, rows: Any = "N") -> Any:
    n = helper.make_node
    nodes = [n("MatMul", ["x", "w"], ["a"]), n("Add", ["a", "b"], ["c"]), n("Relu", ["c"], ["d"]), n("MatMul", ["d", "v"], ["f"]),
             n("ArgMax", ["a"], ["g"], axis=1, keepdims=0), n("Mod", ["g", "nine"], ["h"]), n("Gather", ["e", "h"], ["i"]),
             n("Add", ["f", "i"], ["y"])]
    return model(nodes, [info("x", X, [rows, 8])], [info("y", X, [rows, 2])], {**WEIGHTS, "nine": np.array(9)}, producer_name=name)


@pytest.mark.parametrize("kind", ["path", "bytes", "proto"])
def test_a_second_start_imports_nothing_and_gives_the_same_bits(kind: str, compiles: list[str], tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    proto = network(kind)
    onnx.save(proto, tmp_path / "m.onnx")
    given: Any = {"path": tmp_path / "m.onnx", "bytes": proto.SerializeToString(), "proto": proto}[kind]
    first = tw.compile(given)
    want = first(X)
    np.testing.assert_allclose(want, peer(proto, {"x": X})[0], rtol=1e-5, atol=1e-5)
    with monkeypatch.context() as patch:
        patch.setattr(Source, "proto", property(lambda self: pytest.fail("the model was parsed")))
        again = tw.compile(given)
        assert np.array_equal(again(X), want) and again(X[:1]).shape == (1, 2)
        assert len(compiles) == 1 and repr(again) == repr(first)
    again.save(tmp_path / "saved")
    assert to_text(again.model.graph) == to_text(first.model.graph)
    assert np.array_equal(tw.load(tmp_path / "saved")(X), want)


def test_an_inference_session_from_the_cache_knows_its_arguments(compiles: list[str]) -> None:
    data = network("arguments").SerializeToString()
    one, two = tw.onnx.InferenceSession(data), tw.onnx.InferenceSession(data)
    for s in (one, two):
        assert [(i.name, i.type, i.shape) for i in (*s.get_inputs(), *s.get_outputs())] == [
            ("x", "tensor(float)", ["N", 8]), ("y", "tensor(float)", ["N", 2])]
    assert len(compiles) == 1 and np.array_equal(one.run(["y"], {"x": X})[0], two.run(None, {"x": X})[0])


def cut(name: str) -> Any:
    """A model whose second segment is planned for what the first one computes."""
    n = helper.make_node
    nodes = [n("MatMul", ["x", "w"], ["a"]), n("Greater", ["at", "zero"], ["big"]), n("Cast", ["big"], ["go"], to=7),
             n("Add", ["go", "one"], ["ends"]), n("Slice", ["a", "zero", "ends", "one"], ["y"])]
    weights = {"w": WEIGHTS["w"], "zero": np.array([0]), "one": np.array([1])}
    return model(nodes, [info("x", X, [3, 8]), info("at", np.array([1]), [1])], [info("y", X, [3, None])], weights, producer_name=name)


def test_a_call_of_several_segments_is_stored(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    proto = cut("segments")
    data = proto.SerializeToString()
    ends = [np.array([5]), np.array([-5])]
    first = tw.compile(data)
    want = [first(X, e) for e in ends]
    for e, y in zip(ends, want, strict=True):
        np.testing.assert_allclose(y, peer(proto, {"x": X, "at": e})[0], rtol=1e-5, atol=1e-5)
    before = len(compiles)
    again = tw.compile(data)
    with monkeypatch.context() as patch:
        patch.setattr(Source, "proto", property(lambda self: pytest.fail("the model was parsed")))
        assert np.array_equal(again(X, ends[1]), want[1]) and repr(again) == repr(first)
        assert again.arguments == first.arguments and len(compiles) == before
    assert np.array_equal(again(X, ends[0]), want[0])  # elements that the stored segments were not planned for
    with pytest.raises(InputError, match="must have shape"):
        again(X[:1], ends[0])
    assert "segment" in str(again.report())
    again.close()
    with pytest.raises(InputError, match="is closed"):
        again(X, ends[0])


def strings() -> tuple[Any, list[dict[str, Any]]]:
    """Words to numbers, numbers to words and to maps."""
    n, ml = helper.make_node, "ai.onnx.ml"
    nodes = [n("LabelEncoder", ["s"], ["f"], domain=ml, keys_strings=["a", "b", "c"], values_floats=[1.0, 2.0, 3.5], default_float=-1.0),
             n("OneHotEncoder", ["s"], ["h"], domain=ml, cats_strings=["a", "c"]), n("ReduceSum", ["h", "last"], ["k"], keepdims=0),
             n("Add", ["f", "k"], ["g"]), n("Mul", ["g", "g"], ["p"]), n("ZipMap", ["p"], ["m"], domain=ml, classlabels_strings=["u", "v"]),
             n("ArgMax", ["p"], ["at"], axis=1, keepdims=0),
             n("LabelEncoder", ["at"], ["y"], domain=ml, keys_int64s=[0, 1], values_strings=["left", "right"])]
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(8, helper.make_tensor_type_proto(1, [])))
    proto = model(nodes, [info("s", np.array(["a"], object), ["N", 2])],
                  [info("y", np.array(["a"], object), ["N"]), helper.make_value_info("m", maps)], {"last": np.array([2])},
                  domains=["ai.onnx.ml"])
    rows = np.array([["a", "b"], ["c", "zz"], ["b", "a"]], object)
    return proto, [{"s": rows}, {"s": rows[1:]}, {"s": np.repeat(rows, 2, axis=0)}, {"s": rows[:1]}]


def counted() -> tuple[Any, list[dict[str, Any]]]:
    """A size that data decides."""
    n = helper.make_node
    nodes = [n("NonZero", ["x"], ["at"]), n("Transpose", ["at"], ["rows"]), n("GatherND", ["x", "rows"], ["v"]), n("Exp", ["v"], ["y"])]
    a, b = np.maximum(X, 0), np.minimum(X, 0)
    return model(nodes, [info("x", X)], [info("y", X, [None])], {}), [{"x": v} for v in (a, b, X)]


def growing() -> tuple[Any, list[dict[str, Any]]]:
    """A loop over a value that grows, which ends when data says so and stacks what each round gives."""
    n = helper.make_node
    steps = [n("ReduceMax", ["state"], ["top"], keepdims=1), n("Mul", ["top", "w1"], ["new"]),
             n("Concat", ["state", "new"], ["longer"], axis=0), n("ReduceSum", ["longer"], ["sum"], keepdims=0),
             n("Less", ["sum", "limit"], ["more"]), n("Identity", ["new"], ["each"])]
    body = helper.make_graph(steps, "b", [info("i", np.array(0), []), info("go", np.array(True), []), info("state", X, [None])],
                             [info("more", np.array(True), []), info("longer", X, [None]), info("each", X, [1])],
                             [numpy_helper.from_array(np.array([0.9], np.float32), "w1")])
    nodes = [n("Loop", ["", "yes", "x"], ["last", "every"], body=body), n("Mul", ["last", "two"], ["y"])]
    proto = model(nodes, [info("x", X, [3]), info("limit", X, [])], [info("y", X, [None]), info("every", X, [None, 1])],
                  {"yes": np.array(True), "two": np.float32(2)})
    return proto, [{"x": np.array([1, 2, 1], np.float32), "limit": np.array(limit, np.float32)} for limit in (9, 13, 5)]


def written() -> tuple[Any, list[dict[str, Any]]]:
    """A loop that writes the row which it counts, as writers of Paddle's files have it, until data says so."""
    n = helper.make_node
    steps = [n("Add", ["i", "one"], ["end"]), n("Reshape", ["i", "all"], ["a"]), n("Reshape", ["end", "all"], ["b"]),
             n("Slice", ["h", "a", "b"], ["part"]), n("Add", ["part", "two"], ["new"]), n("Range", ["i", "end", "one"], ["rows"]),
             n("Unsqueeze", ["rows", "all"], ["at"]), n("ScatterND", ["h", "at", "new"], ["h2"]),
             n("ReduceSum", ["h2"], ["sum"], keepdims=0), n("Less", ["sum", "limit"], ["more"]), n("Identity", ["sum"], ["each"])]
    h = np.zeros((12, 2), np.float32)
    body = helper.make_graph(steps, "b", [info("i", np.array(0), []), info("go", np.array(True), []), info("h", h)],
                             [info("more", np.array(True), []), info("h2", h), info("each", X, [])])
    proto = model([n("Loop", ["", "yes", "x"], ["y", "every"], body=body)], [info("x", h), info("limit", X, [])],
                  [info("y", h), info("every", X, [None])],
                  {"yes": np.array(True), "one": np.array(1), "two": np.float32(2), "all": np.array([-1])})
    return proto, [{"x": h, "limit": np.array(limit, np.float32)} for limit in (31, 45, 7)]


def test_a_number_and_the_next_are_one_symbol(compiles: list[str]) -> None:
    proto, feeds = written()
    proto.producer_name = "counter"
    session = tw.onnx.InferenceSession(proto.SerializeToString())
    session.run(None, feeds[0])
    made = len(compiles)
    for feed in feeds[1:]:
        for y, e in zip(session.run(None, feed), peer(proto, feed), strict=True):
            np.testing.assert_array_equal(y, e)
    assert len(compiles) == made


@pytest.mark.parametrize("make", [strings, counted, growing, written])
def test_steps_of_the_host_are_stored(make: Any, compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    proto, feeds = make()
    data = proto.SerializeToString()
    first = tw.onnx.InferenceSession(data)
    want = [first.run(None, f) for f in feeds]
    for f, found in zip(feeds, want, strict=False):
        for y, e in zip(found, peer(proto, f), strict=True):
            if isinstance(e, list):
                assert [{k: pytest.approx(v, rel=1e-6) for k, v in row.items()} for row in e] == y
            elif e.dtype == object:
                assert np.array_equal(y, e)
            else:
                np.testing.assert_allclose(y, e, rtol=1e-5, atol=1e-6)
    before = len(compiles)
    monkeypatch.setattr(Source, "proto", property(lambda self: pytest.fail("the model was parsed")))
    again = tw.onnx.InferenceSession(data)
    for f, found in [*zip(feeds, want, strict=False)] * 2:
        for y, e in zip(again.run(None, f), found, strict=True):
            assert y == e if isinstance(e, list) else np.array_equal(y, e)
    assert len(compiles) == before


def test_steps_of_the_host_load_neither_the_compiler_nor_ml_dtypes(compiles: list[str], tmp_path: Path) -> None:
    for make in (strings, counted, growing):
        proto, (feed, *_) = make()
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        tw.onnx.InferenceSession(tmp_path / "m.onnx").run(None, feed)
        np.savez(tmp_path / "x.npz", **{k: v.astype("U2") if v.dtype == object else v for k, v in feed.items()})
        code = ("import sys, numpy as np, tilewright as tw; tw.onnx.InferenceSession('F/m.onnx').run(None, dict(np.load('F/x.npz'))); "
                "print([m for m in ('tilewright.ops', 'tilewright.passes', 'onnx', 'ml_dtypes', 'torch') if m in sys.modules])")
        done = subprocess.run([sys.executable, "-c", code.replace("F/", f"{tmp_path}/")], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]", make


def test_a_stored_call_serves_other_sizes(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    proto, (feed, *_) = strings()
    proto.producer_name = "sizes"
    data = proto.SerializeToString()
    first = tw.compile(data)
    rows = np.concatenate([feed["s"]] * 4)
    for n in (3, 2):  # the second makes the size a symbol
        first(rows[:n])
    want = peer(proto, {"s": rows[:11]})
    before = len(compiles)
    monkeypatch.setattr(Source, "proto", property(lambda self: pytest.fail("the model was parsed")))
    labels, maps = tw.compile(data)(rows[:11])
    assert np.array_equal(labels, want[0]) and len(compiles) == before
    assert [list(m.items()) for m in maps] == [[(k, pytest.approx(v, rel=1e-6)) for k, v in m.items()] for m in want[1]]


def test_what_scalars_decide_is_kept_for_the_sizes_beside_them(compiles: list[str]) -> None:
    n, flag = helper.make_node, np.array(True)
    then, other = (helper.make_graph([node], "branch", [], [helper.make_tensor_value_info(node.output[0], 1, None)])
                   for node in (n("Relu", ["y"], ["t"]), n("Concat", ["y", "y"], ["e"], axis=0)))
    nodes = [n("If", ["f"], ["z"], then_branch=then, else_branch=other), n("Shape", ["x"], ["s"], start=1, end=2),
             n("Cast", ["s"], ["sf"], to=1), n("Add", ["z", "sf"], ["o"])]
    proto = model(nodes, [info("x", X, ["N", "M"]), info("f", flag), info("y", X[0], ["K"])], ["o"], producer_name="columns")
    first = tw.compile(proto)
    for rows in (2, 3):  # the second makes the number of rows a symbol
        first(X[:rows], flag, X[0])
    want = [peer(proto, {"x": X[:1, :m], "f": flag, "y": X[0]})[0] for m in (8, 5)]
    again = tw.compile(proto)
    for m, expected in zip((8, 5), want, strict=True):
        assert np.array_equal(again(X[:1, :m].copy(), flag, X[0]), expected)


def test_elements_beside_scalars_choose_the_plan(compiles: list[str]) -> None:
    y, sizes = X[0], [np.array([k, 8]) for k in (2, 4, 2, 5)]
    n = helper.make_node
    nodes = [n("Cast", ["k"], ["f"], to=1), n("Expand", ["y", "s"], ["z"]), n("Add", ["z", "f"], ["o"])]
    proto = model(nodes, [info("y", y), info("k", np.array(1)), info("s", sizes[0])], ["o"], producer_name="expanded")
    for call in (tw.compile(proto), tw.compile(proto)):  # the second finds calls of the first
        for s in sizes:
            assert np.array_equal(call(y, np.array(3), s), peer(proto, {"y": y, "k": np.array(3), "s": s})[0])


def test_an_error_of_a_stored_step_names_its_node(compiles: list[str]) -> None:
    nodes = [helper.make_node("OneHotEncoder", ["s"], ["y"], name="hot", domain="ai.onnx.ml", cats_strings=["a"], zeros=0)]
    data = model(nodes, [info("s", np.array(["a"], object), [1])], [info("y", X, [1, 1])], {}, domains=["ai.onnx.ml"]).SerializeToString()
    assert np.array_equal(tw.compile(data)(np.array(["a"], object)), [[1]])
    for _ in range(2):
        with pytest.raises(ExecutionError, match="onnx: node OneHotEncoder 'hot': 'b' is none of its categories"):
            tw.compile(data)(np.array(["b"], object))


def test_a_start_from_the_cache_loads_neither_the_compiler_nor_ml_dtypes(compiles: list[str], tmp_path: Path) -> None:
    onnx.save(network("fresh"), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", X)
    want = tw.onnx.InferenceSession(tmp_path / "m.onnx").run(None, {"x": X})[0]
    code = ("import sys, numpy as np, tilewright as tw; s = tw.onnx.InferenceSession('F/m.onnx'); np.save('F/y.npy', s.run(None, "
            "{'x': np.load('F/x.npy')})[0]); print([m for m in ('tilewright.ops', 'tilewright.passes', 'onnx', 'ml_dtypes', 'torch') "
            "if m in sys.modules])").replace("F/", f"{tmp_path}/")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and np.array_equal(np.load(tmp_path / "y.npy"), want)


def test_a_function_is_the_first_thing_a_process_makes(tmp_path: Path) -> None:
    """Nothing was compiled that filled the tables of ops."""
    onnx.save(network("fresh"), tmp_path / "m.onnx")
    code = f"import tilewright as tw; apply, params = tw.from_onnx({str(tmp_path / 'm.onnx')!r}); print(sorted(params))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[")


def test_another_file_or_option_is_another_entry(compiles: list[str]) -> None:
    one = network("one")
    for given, options in ((one, {}), (network("two"), {}), (one, {"dtype": "f64"}), (one, {"name": "other"}), (one, {"passes": ()})):
        tw.compile(given, **options)
    assert len(compiles) == 4  # no passes switched off is the first again
    other = network("one")
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(WEIGHTS["w"] + 1, "w"))
    np.testing.assert_allclose(tw.compile(other)(X), peer(other, {"x": X})[0], rtol=1e-4, atol=1e-4)
    assert len(compiles) == 5


def test_external_data_is_read_where_it_lies_and_looked_at_again(compiles: list[str], tmp_path: Path) -> None:
    onnx.save(network("external"), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=64)
    want = tw.compile(tmp_path / "m.onnx")(X)
    assert np.array_equal(tw.compile(tmp_path / "m.onnx")(X), want) and len(compiles) == 1
    data = bytearray((tmp_path / "m.data").read_bytes())
    data[:4] = np.float32(100).tobytes()
    (tmp_path / "m.data").write_bytes(data)
    changed = tw.compile(tmp_path / "m.onnx")(X)
    assert len(compiles) == 2 and not np.array_equal(changed, want)
    np.testing.assert_allclose(changed, peer(str(tmp_path / "m.onnx"), {"x": X})[0], rtol=1e-4, atol=1e-4)


def test_a_large_file_is_neither_read_nor_hashed_again_until_it_changes(compiles: list[str], tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SMALL", 0)
    monkeypatch.setattr(store, "SETTLED_NS", -(1 << 62))
    path, proto = tmp_path / "m.onnx", network("large")
    onnx.save(proto, path)
    want = tw.compile(path)(X)
    with monkeypatch.context() as patch:
        patch.setattr(load.LargeFile, "read", lambda self: pytest.fail("the file was read"))
        hashed = getattr(store, "blake2b")  # noqa: B009 - the store's own name for it
        patch.setattr(store, "blake2b", lambda data, **size: hashed(data, **size) if isinstance(data, bytes) else pytest.fail("hashed"))
        again = tw.compile(path)
        assert np.array_equal(again(X), want) and len(compiles) == 1
    before = path.stat()
    data = path.read_bytes().replace(WEIGHTS["b"].tobytes(), (WEIGHTS["b"] + 1).tobytes())
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # size and time of the content are as before
    changed = tw.compile(path)(X)
    assert len(compiles) == 2
    np.testing.assert_allclose(changed, peer(data, {"x": X})[0], rtol=1e-4, atol=1e-4)
    os.utime(path)
    with pytest.raises(FormatError, match=r"onnx: .*m\.onnx has changed since it was opened; compile it again"):
        _ = again.model.graph
    assert np.array_equal(again(X), want), "a session keeps the weights of its compile"
    later = tw.compile(path)
    path.unlink()
    assert to_text(later.model.graph), "the file stays open"


def test_a_file_that_changed_just_now_is_hashed_each_time(compiles: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SMALL", 0)
    path = tmp_path / "m.onnx"
    onnx.save(network("recent"), path)
    folder = CodeCache().folder
    assert folder is not None
    before = len(list(folder.iterdir()))
    assert store.content_digest(Source(path)) == store.content_digest(Source(path.read_bytes()))
    assert len(list(folder.iterdir())) == before


def test_weights_stay_in_the_file(compiles: list[str]) -> None:
    proto = network("weights")
    data = proto.SerializeToString()
    places = dict(initializers(memoryview(data)))
    for i, t in enumerate(proto.graph.initializer):
        at, size = places[i]
        assert data[at : at + size] == t.raw_data
    tw.compile(data)
    folder = CodeCache().folder
    assert folder is not None
    stored = [path.read_bytes() for path in folder.iterdir()]
    assert stored and not any(WEIGHTS["w"].tobytes()[:64] in s or WEIGHTS["v"].tobytes()[:64] in s for s in stored)


@pytest.mark.parametrize("damage", [lambda d: d[: len(d) // 2], lambda d: d[:60] + b"{" + d[61:], lambda d: b""])
def test_a_damaged_entry_is_compiled_again(damage: Any, compiles: list[str], request: pytest.FixtureRequest) -> None:
    proto = network(request.node.name)
    want = tw.compile(proto)(X)
    key = key_of(Source(proto), host_target(), None, (), None)
    assert key is not None
    CodeCache().put(key, damage(CodeCache().get(key) or b""))
    for _ in range(2):
        assert np.array_equal(tw.compile(proto)(X), want) and len(compiles) == 2


@pytest.mark.parametrize("kind", ["pairs", "dynamic"])
def test_integer_weights_are_read_from_the_file(kind: str, compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = X.astype(np.float32), RNG.integers(-128, 128, (X.shape[-1], 67)).astype(np.int8)
    n, scale, weights = helper.make_node, np.float32(0.05), {"w": w, "s": np.float32(0.02), "z": np.int8(0)}
    if kind == "pairs":
        nodes = [n("QuantizeLinear", ["x", "sx", "zx"], ["q"]), n("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
                 n("DequantizeLinear", ["w", "s", "z"], ["v"]), n("MatMul", ["d", "v"], ["y"])]
        weights |= {"sx": scale, "zx": np.uint8(128)}
    else:
        nodes = [n("DynamicQuantizeLinear", ["x"], ["q", "sx", "zx"]), n("MatMulInteger", ["q", "w", "zx", "z"], ["i"]),
                 n("Cast", ["i"], ["f"], to=1), n("Mul", ["f", "sx"], ["g"]), n("Mul", ["g", "s"], ["y"])]
    proto = model(nodes, [info("x", x)], ["y"], weights)
    want = tw.compile(proto)(x)
    np.testing.assert_allclose(want, ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)
    entry = CodeCache().get(key_of(Source(proto), host_target(), None, (), None) or "")
    assert entry is not None and not any(row.tobytes() in entry for row in (*w, *w.T, words_of(w.T)[0]))
    with monkeypatch.context() as patch:
        patch.setattr(Source, "proto", property(lambda self: pytest.fail("the model was parsed")))
        assert np.array_equal(tw.compile(proto)(x), want)
    assert len(compiles) == 1


@pytest.mark.parametrize(("dtype", "error"), [
    (np.float32, 1e-4),
    pytest.param(bf16.np, 0.02, marks=pytest.mark.skipif(not host_target().multiplies_pairs, reason="not by Winograd with AMX")),
])
def test_weights_of_winograd_are_made_anew_from_the_file(compiles: list[str], monkeypatch: pytest.MonkeyPatch, dtype: Any,
                                                         error: float) -> None:
    """They are larger than the weights, so the cache holds what they are made of. Those of small floats may be rounded to them."""
    x, w = ((RNG.standard_normal(s) / s[1]).astype(dtype) for s in ((1, 64, 15, 16), (64, 64, 3, 3)))
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], [info("x", x)], ["y"], {"w": w})
    first = tw.compile(proto)
    want = first(x)
    wide = [torch.from_numpy(a.astype(np.float64)) for a in (x, w)]
    exact = torch.nn.functional.conv2d(wide[0], wide[1], padding=1)
    np.testing.assert_allclose(want.astype(np.float64), exact, rtol=error, atol=error * float(exact.abs().max()))
    assert first.model.passes["winograd"] == {"winograd": 1}
    entry = CodeCache().get(key_of(Source(proto), host_target(), None, (), None) or "")
    assert entry is not None and b"transformed" in entry and w.tobytes()[:64] not in entry
    with monkeypatch.context() as patch:
        patch.setattr(Source, "proto", property(lambda self: pytest.fail("the model was parsed")))
        assert np.array_equal(tw.compile(proto)(x), want)
    assert len(compiles) == 1
