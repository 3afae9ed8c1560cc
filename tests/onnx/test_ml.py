"""ai.onnx.ml against ONNX Runtime: trees in every mode, linear models, kernels, encoders and scalers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.fresh import fresh_rng
from tests.onnx.models import agree, info, model, one

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
