"""ai.onnx.ml against ONNX Runtime: trees in every mode, linear models, kernels, encoders and scalers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.numpy_helper import from_array

import tilewright as tw
from tests.fresh import fresh_rng
from tests.onnx.models import agree, info, model, one
from tilewright.core.errors import ExecutionError
from tilewright.frontend.onnx.program import Program

ML = "ai.onnx.ml"


def f(*shape: int) -> Any:
    return fresh_rng().standard_normal(shape).astype(np.float32)


def tree(x: Any, modes: list[str], **attrs: Any) -> tuple[Any, dict[str, Any]]:
    """Two trees of three inner nodes and four leaves each."""
    inner: dict[str, Any] = {"nodes_treeids": [0] * 7 + [1] * 7, "nodes_nodeids": [*range(7)] * 2, "nodes_featureids": [0, 1, 2, 0, 0, 0, 0] * 2,  # noqa: E501
             "nodes_modes": [*modes, "LEAF", "LEAF", "LEAF", "LEAF"] * 2, "nodes_values": [0.1, -0.3, 0.4, 0, 0, 0, 0, -0.2, 0.5, 0.0, 0, 0, 0, 0],  # noqa: E501
             "nodes_truenodeids": [1, 3, 5, 0, 0, 0, 0] * 2, "nodes_falsenodeids": [2, 4, 6, 0, 0, 0, 0] * 2}  # fmt: skip
    node = helper.make_node("TreeEnsembleRegressor" if "n_targets" in attrs else "TreeEnsembleClassifier", ["x"],
                            ["y"] if "n_targets" in attrs else ["label", "scores"], domain=ML, **inner, **attrs)
    return model([node], [info("x", x)], list(node.output), domains=[ML]), {"x": x}


LEAVES = {"treeids": [0] * 4 + [1] * 4, "nodeids": [3, 4, 5, 6] * 2}
SAME = ["BRANCH_LEQ"] * 3
MIXED = ["BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"]


def target(**more: Any) -> dict[str, Any]:
    return {"n_targets": 2, "target_treeids": LEAVES["treeids"], "target_nodeids": LEAVES["nodeids"],
            "target_ids": [0, 1, 0, 1, 1, 0, 1, 0], "target_weights": [0.5, -1.0, 2.0, 0.25, 1.5, -0.5, 0.75, 3.0], **more}  # fmt: skip


@pytest.mark.parametrize("modes", [SAME, MIXED])
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressor(modes: list[str], how: str) -> None:
    more = {} if how in ("MIN", "MAX") else {"base_values": [0.5, -0.5]}
    attrs = target(aggregate_function=how, **more)
    if how in ("MIN", "MAX"):
        attrs |= {"n_targets": 1, "target_ids": [0] * 8}
    agree(*tree(f(17, 3), modes, **attrs))


def classes(ids: list[int], **more: Any) -> dict[str, Any]:
    return {"class_treeids": LEAVES["treeids"], "class_nodeids": LEAVES["nodeids"], "class_ids": ids,
            "class_weights": [0.5, 0.1, 0.2, 0.25, 0.15, 0.5, 0.75, 0.3], **more}  # fmt: skip


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("labels", [{"classlabels_int64s": [7, 8, 9]}, {"classlabels_strings": ["ant", "bee", "cat"]}])
def test_tree_classifier(post: str, labels: dict[str, Any]) -> None:
    agree(*tree(f(17, 3), SAME, **classes([0, 1, 2, 0, 1, 2, 0, 1], post_transform=post, **labels)))


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
def test_binary_tree_classifier(post: str) -> None:
    agree(*tree(f(17, 3), MIXED, **classes([1] * 8, post_transform=post, classlabels_int64s=[0, 1])))


CASES: dict[str, Any] = {
    "linear": lambda: one("LinearRegressor", [f(5, 3)], domain=ML, coefficients=[0.5, -1.0, 2.0, 0.1, 0.2, 0.3], intercepts=[1.0, 2.0], targets=2),  # noqa: E501
    "classes": lambda: one("LinearClassifier", [f(5, 3)], domain=ML, outputs=2, coefficients=[0.5, -1.0, 2.0, 0.1, 0.2, 0.3, 1.0, 0.0, -1.0],  # noqa: E501
                           intercepts=[1.0, 2.0, 0.0], classlabels_ints=[3, 5, 7], post_transform="SOFTMAX"),
    "words": lambda: one("LinearClassifier", [f(5, 3)], domain=ML, outputs=2, coefficients=[0.5, -1.0, 2.0, 0.1, 0.2, 0.3],
                         intercepts=[1.0, 2.0], classlabels_strings=["no", "yes"], post_transform="LOGISTIC", multi_class=1),
    "svr": lambda: one("SVMRegressor", [f(5, 3)], domain=ML, kernel_type="RBF", kernel_params=[0.3, 0.0, 3.0], n_supports=2, rho=[0.4],
                       coefficients=[0.7, -0.2], support_vectors=[0.1, 0.2, 0.3, -0.4, 0.5, 0.6]),
    "svr_poly": lambda: one("SVMRegressor", [f(5, 3)], domain=ML, kernel_type="POLY", kernel_params=[0.3, 0.5, 2.0], n_supports=2, rho=[0.4],  # noqa: E501
                            coefficients=[0.7, -0.2], support_vectors=[0.1, 0.2, 0.3, -0.4, 0.5, 0.6]),
    "svc": lambda: one("SVMClassifier", [f(5, 2)], domain=ML, outputs=2, kernel_type="RBF", kernel_params=[0.3, 0.0, 3.0],
                       classlabels_ints=[3, 4, 5], vectors_per_class=[1, 1, 1], rho=[0.1, -0.2, 0.3], coefficients=[0.7, -0.2, 0.4, 0.9, -0.8, -0.5],  # noqa: E501
                       support_vectors=[0.1, 0.2, 0.3, -0.4, 0.5, 0.6], prob_a=[-1.0, -1.5, -0.7], prob_b=[0.1, 0.2, -0.1]),
    "scaler": lambda: one("Scaler", [f(5, 3)], domain=ML, offset=[0.5, -1.0, 2.0], scale=[2.0, 3.0, 4.0]),
    "l2": lambda: one("Normalizer", [f(5, 3)], domain=ML, norm="L2"),
    "l1": lambda: one("Normalizer", [f(5, 3)], domain=ML, norm="L1"),
    "one_hot": lambda: one("OneHotEncoder", [np.array([[1, 2], [3, 1]])], domain=ML, cats_int64s=[1, 2, 3]),
    "imputer": lambda: one("Imputer", [np.array([[1, np.nan, 3]], np.float32)], domain=ML, imputed_value_floats=[0.5, 1.5, 2.5],
                           replaced_value_float=float("nan")),
    "binarizer": lambda: one("Binarizer", [f(5, 3)], domain=ML, threshold=0.2),
    "features": lambda: one("FeatureVectorizer", [f(5, 3), f(5, 2)], domain=ML, inputdimensions=[3, 2]),
    "padded features": lambda: one("FeatureVectorizer", [f(5, 3), f(5, 4)], domain=ML, inputdimensions=[5, 2]),
    "encoder": lambda: one("LabelEncoder", [np.array([[1, 5, 9]])], domain=ML, keys_int64s=[1, 9], values_floats=[0.5, 2.5], default_float=-3.0),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_models(name: str) -> None:
    agree(*CASES[name](), tol=2e-5)


def test_strings_to_numbers_and_back() -> None:
    made, _ = one("LabelEncoder", [np.zeros((2, 2), np.int64)], domain=ML, keys_int64s=[1, 2], values_strings=["ant", "bee"])
    out = tw.compile(made)(np.array([[1, 2], [3, 1]]))
    assert out.tolist() == [["ant", "bee"], ["_Unused", "ant"]]
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain=ML, keys_strings=["ant", "bee"], values_int64s=[4, 5])
    made = model([node], [helper.make_tensor_value_info("x", 8, [3])], ["y"], domains=[ML])
    assert tw.compile(made)(np.array(["bee", "ant", "cow"], object)).tolist() == [5, 4, -1]


def test_zip_map_gives_one_dict_a_row() -> None:
    node = helper.make_node("ZipMap", ["x"], ["y"], domain=ML, classlabels_strings=["a", "b"])
    made = model([node], [info("x", f(2, 2))], ["y"], domains=[ML])
    (rows,) = tw.compile(made)(np.array([[0.25, 0.75], [1.0, 0.0]], np.float32))
    assert rows == [{"a": 0.25, "b": 0.75}, {"a": 1.0, "b": 0.0}]


def random_forest(rng: Any, trees: int, modes: list[str], targets: int, missing: bool) -> dict[str, Any]:
    """Trees of random shape over 4 features, whose limits are halves, so that rows of halves meet them."""
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    made: dict[str, list[Any]] = {f"nodes_{n}": [] for n in names}
    leaves: dict[str, list[Any]] = {f"target_{n}": [] for n in ("treeids", "nodeids", "ids", "weights")}
    for t in range(trees):
        shape: list[tuple[int, int] | None] = [None]  # children of each node
        for _ in range(int(rng.integers(0, 40))):
            k = int(rng.choice([i for i, c in enumerate(shape) if c is None]))
            shape[k] = (len(shape), len(shape) + 1)
            shape += [None, None]
        for i, c in enumerate(shape):
            row = (t, i, int(rng.integers(4)), "LEAF" if c is None else str(rng.choice(modes)), float(rng.integers(-4, 5)) / 2,
                   *(c or (0, 0)), int(missing and rng.integers(2)))
            for n, v in zip(names, row, strict=True):
                made[f"nodes_{n}"].append(v)
            for k in range(targets) if c is None else ():
                for n, w in zip(("treeids", "nodeids", "ids", "weights"), (t, i, k, float(rng.standard_normal())), strict=True):
                    leaves[f"target_{n}"].append(w)
    return {**made, **leaves, "n_targets": targets}


@pytest.mark.parametrize("modes", [["BRANCH_LEQ"], ["BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_LEQ"], ["BRANCH_EQ", "BRANCH_NEQ"]])
@pytest.mark.parametrize(("trees", "targets", "rows"), [(1, 1, 70), (60, 3, 75), (9, 11, 3)])
def test_random_forests(modes: list[str], trees: int, targets: int, rows: int) -> None:
    rng = fresh_rng()
    for missing in (False, True):
        attrs = random_forest(rng, trees, modes, targets, missing)
        x = rng.integers(-5, 6, (rows, 4)).astype(np.float32) / 2
        x[rng.random(x.shape) < 0.1] = np.nan if missing or modes[0] == "BRANCH_LEQ" else np.inf
        node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, **attrs)
        agree(model([node], [info("x", x)], ["y"], domains=[ML]), {"x": x}, tol=1e-4)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_trees_ask_for_members_of_sets(kind: Any) -> None:
    """x in {-1, 0.5, 3}? leaf 0, otherwise x < 2? leaf 1 : leaf 2; against plain Python."""
    members = np.array([3.0, -1.0, 0.5, np.nan], kind)
    modes, splits, weights = (from_array(np.array(v, k)) for v, k in (([6, 1], np.uint8), ([0, 2], kind), ([10, 20, 30], kind)))
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain=ML, nodes_featureids=[1, 1], nodes_modes=modes, nodes_splits=splits, nodes_truenodeids=[0, 1],
        nodes_trueleafs=[1, 1], nodes_falsenodeids=[1, 2], nodes_falseleafs=[0, 1], tree_roots=[0], leaf_targetids=[0, 0, 0],
        leaf_weights=weights, membership_values=from_array(members), n_targets=1)
    near = [np.nextafter(kind(3), kind(4)), np.nextafter(kind(-1), kind(0))]
    values = np.array([3.0, -1.0, *near, 0.5, 0.0, 2.0, np.nan, np.inf, -np.inf, 1.9], kind)
    x = np.stack([np.zeros_like(values), values], 1)
    made = model([node], [info("x", x)], ["y"])
    made.opset_import.append(helper.make_opsetid(ML, 5))
    want = [10 if v in (3.0, -1.0, 0.5) else 20 if v < 2 else 30 for v in values.tolist()]
    assert tw.compile(made)(x).reshape(-1).tolist() == want


def test_ties_of_a_forest_are_ties() -> None:
    """Fifty trees for each class with weights of 0.01, in turns: the sums are equal, and the first class wins, as in scikit-learn."""
    zero, each = [0] * 100, [*range(100)]
    attrs: dict[str, Any] = {"nodes_treeids": each, "nodes_nodeids": zero, "nodes_featureids": zero, "nodes_modes": ["LEAF"] * 100,
                             "nodes_values": [0.0] * 100, "nodes_truenodeids": zero, "nodes_falsenodeids": zero, "class_treeids": each,
                             "class_nodeids": zero, "class_ids": [int(k % 3 > 0) if k < 75 else 0 for k in each],
                             "class_weights": [0.01] * 100}
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain=ML, classlabels_int64s=[5, 6], **attrs)
    label, scores = tw.compile(model([node], [info("x", f(2, 3))], ["label", "scores"], domains=[ML]))(f(2, 3))
    assert label.tolist() == [5, 5] and (scores[:, 0] == scores[:, 1]).all()


def test_rows_of_strings_and_numbers_need_no_plan_for_every_size() -> None:
    nodes = [helper.make_node("OneHotEncoder", ["s"], ["h"], domain=ML, cats_strings=["ant", "bee"]),
             helper.make_node("Flatten", ["h"], ["g"]), helper.make_node("Concat", ["g", "x"], ["y"], axis=1)]
    inputs = [helper.make_tensor_value_info("s", 8, [None, 1]), helper.make_tensor_value_info("x", 1, [None, 2])]
    made = model(nodes, inputs, ["y"], domains=[ML])
    session: Any = tw.compile(made)
    for rows in (1, 5, 3, 9, 2, 7, 4):
        words = np.array(["bee", "cow", "ant"] * rows, object)[:rows].reshape(rows, 1)
        x = f(rows, 2)
        want = np.concatenate([words == "ant", words == "bee", x], 1).astype(np.float32)
        assert np.array_equal(session(words, x), want)
        if rows == 9:
            plans = session.report().count("segment")
    assert session.report().count("segment") == plans and "each set of sizes" not in session.report()


def test_a_call_of_known_types_and_sizes_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where these decide the stages: words of any kind and numbers, a constant result, an error that names its node."""
    n = helper.make_node
    nodes = [n("OneHotEncoder", ["s"], ["h"], domain=ML, cats_strings=["ant", "bee", "ant"]), n("Flatten", ["h"], ["g"]),
             n("Concat", ["g", "x"], ["p"], axis=1), n("ReduceSum", ["p", "one"], ["last"], keepdims=0),
             n("OneHotEncoder", ["t"], ["k"], name="strict", domain=ML, cats_strings=["u", "v"], zeros=0),
             n("ZipMap", ["p"], ["maps"], domain=ML, classlabels_strings=["a", "b", "a2", "c", "d"]), n("Identity", ["one"], ["fixed"])]
    inputs = [helper.make_tensor_value_info(c, 8, [None, 1]) for c in "st"] + [helper.make_tensor_value_info("x", 1, [None, 2])]
    data = model(nodes, inputs, ["last", "k", "maps", "fixed"], {"one": np.array([1])}, domains=[ML]).SerializeToString()
    first, x = tw.onnx.InferenceSession(data), f(3, 2)
    t = np.array([["v"], ["u"], ["v"]], object)
    for session in (first, tw.onnx.InferenceSession(data)):
        for kind, words in ((str, ["bee", "cow", "ant"]), (object, ["bee", "cow", "ant"]), (object, ["ant", "ant", "bee"])):
            s = np.array(words, kind).reshape(3, 1)
            hot = np.concatenate([s == "ant", s == "bee", np.zeros((3, 1)), x], 1).astype(np.float32)
            last, k, maps, fixed = session.run(None, {"s": s, "t": t.astype(kind), "x": x})
            np.testing.assert_allclose(last, hot.sum(1), rtol=1e-6, atol=1e-6)
            assert np.array_equal(k[:, 0], np.concatenate([t == "u", t == "v"], 1)) and fixed == [1]
            assert maps == [dict(zip(["a", "b", "a2", "c", "d"], row.tolist(), strict=True)) for row in hot]
            fixed[0] = 7  # the caller's own
            if kind is object:
                monkeypatch.setattr(Program, "_following", lambda *_: pytest.fail("the next stage was looked for"))
        t[1] = "w"
        with pytest.raises(ExecutionError, match="onnx: node OneHotEncoder 'strict': 'w' is none of its categories"):
            session.run(None, {"s": np.array([["ant"]] * 3, object), "t": t, "x": x})
        t[1] = "u"
        monkeypatch.undo()


STRINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # other inputs, attributes
    "Slice": ({"a": np.array([1, 0]), "b": np.array([4, 9]), "c": np.array([0, 1]), "d": np.array([2, 1])}, {}),
    "Split": ({"a": np.array([1, 2])}, {"axis": 1}),
    "GatherND": ({"a": np.array([[0, 2], [3, 1]])}, {}),
    "GatherElements": ({"a": np.array([[2, 0, 1], [0, -1, 2]])}, {"axis": 0}),
    "ScatterND": ({"a": np.array([[0], [3]]), "b": np.array([["u", "v", "w"], ["", "y", "z"]], object)}, {}),
    "ScatterElements": ({"a": np.array([[1, 0, 2]]), "b": np.array([["u", "v", "w"]], object)}, {"axis": 0}),
    "ArrayFeatureExtractor": ({"a": np.array([[2, 0]])}, {"domain": ML}),
    "Gather": ({"a": np.array([1])}, {"axis": 1}),
}


@pytest.mark.parametrize("op", STRINGS)
def test_strings_are_moved(op: str) -> None:
    """A column that is empty, a word that is not ASCII."""
    more, attrs = STRINGS[op]
    x = np.array(["ant", "bee", "cat", "", "ewe", "fück", "gnu", "hen", "ibis", "jay", "kea", "lynx"], object).reshape(4, 3)
    x = x[fresh_rng().permutation(4)]
    node = helper.make_node(op, ["x", *more], ["y", "z"] if op == "Split" else ["y"], **attrs)
    strings = [helper.make_tensor_value_info("x", 8, [None, 3])]
    proto = model([node], strings, list(node.output), {k: v for k, v in more.items() if v.dtype != object}, domains=[ML])
    proto.graph.initializer.extend(helper.make_tensor(k, 8, v.shape, [s.encode() for s in v.reshape(-1)]) for k, v in more.items()
                                   if v.dtype == object)
    agree(proto, {"x": x})


def test_strings_that_an_encoder_does_not_know() -> None:
    known = helper.make_node("LabelEncoder", ["x"], ["y"], domain=ML, keys_strings=["ant", "bee"], values_floats=[4.0, 5.0],
                             default_float=-7.0)
    hot = helper.make_node("OneHotEncoder", ["x"], ["h"], domain=ML, cats_strings=["bee", "ant"], zeros=1)
    proto = model([known, hot], [helper.make_tensor_value_info("x", 8, [None, None])], ["y", "h"], domains=[ML])
    for x in (["bee", "ant"], ["bee", "cat"], []):
        agree(proto, {"x": np.array([x, x], object).reshape(2, -1)})


@pytest.mark.parametrize("attrs", [{"tokenexp": "[a-z]+", "mincharnum": 2}, {"separators": [""], "mincharnum": 1},
                                   {"separators": [" ", "[,;]"], "mincharnum": 1}, {"tokenexp": "[a-z0-9]+", "mincharnum": 1, "mark": 1}])
def test_words_of_a_text(attrs: dict[str, Any]) -> None:
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **{"mark": 0, "pad_value": "#", **attrs})
    texts = np.array(["a red, fox;runs", "i", "x9 y", "two  blanks", "ende"], object)[fresh_rng().permutation(5)]
    for x, shape in ((texts, [None]), (texts[:4].reshape(2, 2), [None, None])):
        agree(model([node], [helper.make_tensor_value_info("x", 8, shape)], ["y"], domains=["com.microsoft"]), {"x": x})
