"""ai.onnx.ml: classical models of scikit-learn and the like. Trees, linear models, kernels and scalers are compiled; labels that are
strings are looked up on the host."""
from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.errors import FormatError, UnsupportedError
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from ...ops import functions as F
from .host_ml import mapping
from .importer import Labels
from .registry import Context, NeedsHost
from .tables import ML, op, rows


@op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(c: Context, x: Value, ids: Value) -> Value:
    flat = F.reshape(ids, (ids.type.numel,))
    out = F.gather(x, flat, len(x.shape) - 1)
    return F.reshape(out, (1, *out.shape)) if len(out.shape) == 1 else out


@op("Scaler", domain=ML)
def scaler(c: Context, x: Value, *, offset: Any = (0.0,), scale: Any = (1.0,)) -> Value:
    wide = F.cast(x, dt.f32)
    return F.mul(F.sub(wide, c.constant(np.array(offset, np.float32))), c.constant(np.array(scale, np.float32)))


@op("Normalizer", domain=ML)
def normalizer(c: Context, x: Value, *, norm: str = "MAX") -> Value:
    wide, last = F.cast(x, dt.f32), (len(x.shape) - 1,)
    if norm == "MAX":
        size = F.max_(F.abs_(wide), last, keepdims=True)
    elif norm == "L1":
        size = F.sum_(F.abs_(wide), last, keepdims=True)
    else:
        size = F.sqrt(F.sum_(F.square(wide), last, keepdims=True))
    return F.div(wide, F.where(F.equal(size, 0.0), 1.0, size))


@op("Imputer", domain=ML)
def imputer(c: Context, x: Value, *, imputed_value_floats: Any = None, imputed_value_int64s: Any = None, replaced_value_float: float = 0.0,
            replaced_value_int64: int = 0) -> Value:
    if x.dtype.is_float:
        bad = F.one("is_nan", x) if np.isnan(replaced_value_float) else F.equal(x, replaced_value_float)
        new = c.constant(np.array(imputed_value_floats, x.dtype.np))
    else:
        bad, new = F.equal(x, replaced_value_int64), c.constant(np.array(imputed_value_int64s, x.dtype.np))
    return F.where(bad, new, x)


@op("FeatureVectorizer", domain=ML)
def feature_vectorizer(c: Context, *xs: Value, inputdimensions: Any = None) -> Value:
    rows = [F.cast(F.reshape(x, (x.shape[0], x.type.numel // x.shape[0]) if len(x.shape) != 2 else x.shape), dt.f32) for x in xs]
    for k, (x, size) in enumerate(zip(rows, inputdimensions or (), strict=False)):  # missing columns are zeros, others fall away
        if not 0 <= size < 1 << 31:
            raise FormatError(f"onnx: FeatureVectorizer gives input {k} {size} columns")
        rows[k] = F.slice_(F.pad(x, (0, 0), (0, max(size - x.shape[1], 0)), 0.0), 1, 0, size)
    return rows[0] if len(rows) == 1 else F.concat(rows, 1)


@op("OneHotEncoder", domain=ML)
def one_hot_encoder(c: Context, x: Value, *, cats_int64s: Any = None, cats_strings: Any = None, zeros: int = 1) -> Value:
    if cats_strings is not None:
        raise NeedsHost("its categories are strings")
    whole = F.cast(x, dt.i64)
    return F.cast(F.equal(F.reshape(whole, (*x.shape, 1)), c.constant(np.array(cats_int64s, np.int64))), dt.f32)


@op("LabelEncoder", domain=ML, since=2)
def label_encoder(c: Context, x: Value, **attrs: Any) -> Value:
    """Numbers for numbers: a comparison with every key. Strings are the host's."""
    keys, values = mapping(attrs)
    if any(isinstance(v, str) for v in (*keys, *values)) or len(keys) > 512:
        raise NeedsHost("it looks up strings or many keys")
    tensor = attrs.get("values_tensor")
    kind = np.asarray(tensor).dtype if tensor is not None else np.dtype(np.int64 if attrs.get("values_int64s") is not None else np.float32)
    default = attrs.get("default_tensor")
    if default is not None:
        fallback = np.asarray(default).reshape(-1)[0]
    else:
        fallback = kind.type(attrs.get("default_int64", -1) if kind.kind == "i" else attrs.get("default_float", -0.0))
    spread = F.reshape(x, (*x.shape, 1))
    table = np.array(keys, x.dtype.np)
    same = F.equal(spread, c.constant(table))
    if x.dtype.is_float and np.isnan(table).any():
        same = F.logical_or(same, F.logical_and(F.one("is_nan", spread), c.constant(np.isnan(table))))
    at = O.ArgMax(axis=len(x.shape))(F.cast(same, dt.i32))
    found = F.gather(c.constant(np.array(values, kind)), at, 0)
    return F.where(F.one("any", same, axes=(len(x.shape),)), found, c.constant(np.array(fallback, kind)))


# --- scores ---------------------------------------------------------------------------------------------------------------------------


def post(c: Context, scores: Value, how: str) -> Value:
    """The transform behind a model's raw scores."""
    last = len(scores.shape) - 1
    match how:
        case "NONE":
            return scores
        case "SOFTMAX":
            return F.softmax(scores, last)
        case "LOGISTIC":
            return F.sigmoid(scores)
        case "SOFTMAX_ZERO":
            zero = F.equal(scores, 0.0)
            e = F.where(zero, 0.0, F.exp(F.sub(scores, F.max_(scores, (last,), keepdims=True))))
            return F.div(e, F.sum_(e, (last,), keepdims=True))
        case "PROBIT":
            return F.mul(F.one("erfinv", F.sub(F.mul(scores, 2.0), 1.0)), float(np.sqrt(2.0)))
    raise UnsupportedError(f"the transform {how!r} of scores is not known")


def labels(c: Context, at: Value, ints: Any, strings: Any) -> Any:
    """The classes at these places."""
    if strings is not None and len(strings):
        return Labels(np.array(list(strings), object), at)
    return F.gather(c.constant(np.array(ints, np.int64)), at, 0)


@op("LinearRegressor", domain=ML)
def linear_regressor(c: Context, x: Value, *, coefficients: Any, intercepts: Any = None, post_transform: str = "NONE",
                     targets: int = 1) -> Value:
    wide = F.cast(x, dt.f32)
    w = np.array(coefficients, np.float32).reshape(targets, -1)
    out = F.matmul(_matrix(wide), c.constant(w, "coefficients"), transpose_b=True)
    out = out if intercepts is None else F.add(out, c.constant(np.array(intercepts, np.float32)))
    return post(c, out, post_transform)


def _matrix(x: Value) -> Value:
    return F.reshape(x, (1, x.shape[0])) if len(x.shape) == 1 else x


@op("LinearClassifier", domain=ML)
def linear_classifier(c: Context, x: Value, *, coefficients: Any, intercepts: Any = None, classlabels_ints: Any = None,
                      classlabels_strings: Any = None, multi_class: int = 0, post_transform: str = "NONE") -> Any:
    wide = _matrix(F.cast(x, dt.f32))
    names = classlabels_strings if classlabels_strings else classlabels_ints
    features = int(wide.shape[1])
    rows = len(intercepts) if intercepts else len(coefficients) // features
    w = np.array(coefficients, np.float32)[: rows * features].reshape(rows, features)  # ONNX Runtime leaves further ones unread
    scores = F.matmul(wide, c.constant(w, "coefficients"), transpose_b=True)
    scores = scores if intercepts is None else F.add(scores, c.constant(np.array(intercepts, np.float32)))
    if rows == 1 and len(names) == 2:
        at = F.cast(F.greater(F.reshape(scores, (scores.shape[0],)), 0.0), dt.i64)
        if post_transform == "LOGISTIC":
            p = F.sigmoid(scores)
            return labels(c, at, classlabels_ints, classlabels_strings), F.concat([F.sub(1.0, p), p], 1)
        both = F.concat([F.neg(scores), scores], 1)
        return labels(c, at, classlabels_ints, classlabels_strings), post(c, both, post_transform)
    at = O.ArgMax(axis=1)(scores)
    return labels(c, at, classlabels_ints, classlabels_strings), post(c, scores, post_transform)


# --- trees ----------------------------------------------------------------------------------------------------------------------------


LARGE = 1 << 23  # elements of a table of weights that few leaves fill
PARTS, TREES = 8, 24  # parts of a forest that are walked apart, at most, and the trees of one, at least


class Trees:
    """Trees as tables over all nodes for `ops.Forest`, whose nodes all ask whether a feature is at most a limit: other modes become such
    nodes, sets of values small trees of them."""

    MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
    LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)

    def __init__(self, feature: Any, threshold: Any, mode: Any, true: Any, false: Any, leaf: Any, roots: Any, missing_true: Any, kind: Any,
                 sets: dict[int, list[float]] | None = None) -> None:
        self.leaf = np.asarray(leaf, bool)
        own, mode = np.arange(len(self.leaf)), np.where(self.leaf, self.LEQ, mode)
        self.feature, self.limit = np.where(self.leaf, 0, feature), np.asarray(threshold, kind)
        yes, no = np.where(self.leaf, own, true), np.where(self.leaf, own, false)
        self.roots = np.asarray(roots)
        for table in (yes, no, self.roots):
            if table.size and (table.min() < 0 or table.max() >= len(own)):
                raise FormatError("onnx: a tree's branch leads to a node that is not there")
        nan = np.asarray(missing_true, bool) | (mode == self.NEQ)
        swapped = np.isin(mode, (self.GTE, self.GT, self.NEQ))  # the opposite question with the branches exchanged
        self.below, self.above, self.nan = np.where(swapped, no, yes), np.where(swapped, yes, no), np.where(swapped, ~nan, nan)
        strict = np.isin(mode, (self.LT, self.GTE))
        self.limit = np.where(strict, _before(self.limit), self.limit)
        several = {int(k): [float(self.limit[k])] for k in np.flatnonzero(np.isin(mode, (self.EQ, self.NEQ)))} | (sets or {})
        for k, values in several.items():
            self._member(k, values)
        alone = np.isnan(self.limit) & self.nan & ~self.leaf  # only a NaN passes: of all others it is known that they are at most infinite
        self.below, self.above = np.where(alone, self.above, self.below), np.where(alone, self.below, self.above)
        self.limit, self.nan = np.where(alone, np.inf, self.limit).astype(kind), self.nan & ~alone
        self.depth = self._depth()

    def _member(self, k: int, values: list[float]) -> None:
        """Node k asks whether a feature is one of these values: a binary search among the limits around each."""
        wanted = np.unique(np.array([v for v in values if not np.isnan(v)], self.limit.dtype))
        limits = np.stack([_before(wanted), wanted], 1).reshape(-1) if len(wanted) else np.array([np.nan], self.limit.dtype)
        ends = [self.above[k], *[self.below[k], self.above[k]] * len(wanted)] if len(wanted) else [self.below[k], self.above[k]]
        rows: list[list[Any]] = []  # limit, below, above, nan of a node; the first is node k itself
        last, where = len(self.leaf), 1 if len(wanted) else 0  # `where` is the end that a NaN goes to, if it goes to the set's

        def search(low: int, high: int) -> int:
            if low == high:
                return int(ends[low])
            mid, at = (low + high) // 2, len(rows)
            rows.append([limits[mid], 0, 0, self.nan[k] and low <= where <= mid])
            rows[at][1:3] = search(low, mid), search(mid + 1, high)
            return last + at - 1 if at else k

        search(0, len(ends) - 1)
        self.limit[k], self.below[k], self.above[k], self.nan[k] = rows[0]
        more = len(rows) - 1
        for name, column in (("limit", 0), ("below", 1), ("above", 2), ("nan", 3)):
            table = getattr(self, name)
            setattr(self, name, np.concatenate([table, np.array([r[column] for r in rows[1:]], table.dtype)]))
        self.feature, self.leaf = np.append(self.feature, [self.feature[k]] * more), np.append(self.leaf, [False] * more)

    def _depth(self) -> int:
        front, depth = np.unique(self.roots), 0
        while len(front) and not self.leaf[front].all():
            inner = front[~self.leaf[front]]
            front = np.unique(np.concatenate([self.below[inner], self.above[inner]]))
            depth += 1
            if depth > len(self.leaf):
                raise FormatError("onnx: a tree's branches lead back to where they came from")
        return depth

    def certain(self, said: Any) -> Any:
        """bool[targets]: what every row meets a leaf for, given what each node's leaf says."""
        inner = np.flatnonzero(~self.leaf)
        said = np.where(self.leaf[:, None], said, True)
        for _ in range(self.depth):
            said[inner] = said[self.below[inner]] & said[self.above[inner]]
        return said[self.roots].any(0)

    def walk(self, c: Context, x: Value, table: Any, how: str) -> Value:
        """The rows of `table` at the leaves, put together over the trees: [rows, targets], sums in f64."""
        most = x.shape[1] if isinstance(x.shape[1], int) else 1 << 31
        if self.feature.min() < 0 or self.feature.max() >= most:
            raise FormatError(f"onnx: a tree asks for features {self.feature.min()} to {self.feature.max()}, and x has {x.shape[1]}")
        if self.leaf.all():  # trees that ask nothing
            return F.one(how, F.expand(c.constant(table[self.roots], "leaves"), (x.shape[0], *table[self.roots].shape)), axes=(1,))
        order = np.argsort(self.leaf, kind="stable")  # leaves behind all others
        place, inner = np.argsort(order, kind="stable"), order[: int((~self.leaf).sum())]
        x = x if x.dtype.np == self.limit.dtype else F.cast(x, dt.dtype(self.limit.dtype))
        feature = self.feature
        if self.nan[inner].any():  # nodes that a NaN passes look at a copy of the features in which it is below everything
            low = F.where(F.one("is_nan", x), float("-inf"), x)
            if self.nan[inner].all():
                x = low
            else:
                pairs = F.concat([F.reshape(v, (*v.shape, 1)) for v in (x, low)], 2)
                x, feature = F.reshape(pairs, (x.shape[0], 2 * x.shape[1])), 2 * feature + self.nan
        columns = (feature, place[self.above], place[self.below])
        links, leaves = np.stack([column[inner] for column in columns], 1).astype(np.uint32), table[order[len(inner) :]]
        parts = min(PARTS, max(1, len(self.roots) // TREES))
        said = O.Forest(depth=self.depth, how=how, parts=parts)(x, c.constant(self.limit[inner], "limits"), c.constant(links, "links"),
                                                                c.constant(leaves, "leaves"),
                                                                c.constant(place[self.roots].astype(np.uint32), "roots"))
        return F.reshape(said, said.shape[1:]) if parts == 1 else F.one(how, said, axes=(0,))


def _before(limit: Any) -> Any:
    """The largest number below each: `x < limit` is `x <= this`. Nothing is below -inf, which NaN says."""
    return np.where(limit == -np.inf, np.nan, np.nextafter(limit, np.array(-np.inf, limit.dtype))).astype(limit.dtype)


def _combined(c: Context, trees: Trees, x: Value, table: Any, how: str, base: Any) -> Value:
    """The leaves' rows of `table`, summed (or averaged, or the extreme) over the trees. NaN in it: a leaf says nothing of a target; a
    target of which no leaf says anything is 0, without its base."""
    table = np.concatenate([table, np.full((len(trees.leaf) - len(table), table.shape[1]), np.nan, table.dtype)])
    silent = np.isnan(table)
    worst = {"MAX": -np.inf, "MIN": np.inf}.get(how, 0.0)
    out = trees.walk(c, x, np.where(silent, worst, table).astype(table.dtype), how.lower() if how in ("MAX", "MIN") else "sum")
    out = F.div(out, float(len(trees.roots))) if how == "AVERAGE" else out
    out = out if base is None or not len(base) else F.add(out, c.constant(np.array(base, out.dtype.np)))
    out = F.cast(out, dt.dtype(table.dtype))
    if not silent[trees.leaf].any() or trees.certain(~silent).all():
        return out
    return F.where(F.greater(trees.walk(c, x, (~silent).astype(table.dtype), "max"), 0.0), out, 0.0)


def _old_forest(attrs: dict[str, Any], kind: Any) -> tuple[Trees, dict[tuple[int, int], int]]:
    """A forest in the attributes of opsets before 5, and the number of every (tree, node)."""
    trees, ids = list(attrs["nodes_treeids"]), list(attrs["nodes_nodeids"])
    number = {(t, i): k for k, (t, i) in enumerate(zip(trees, ids, strict=True))}
    modes = list(attrs["nodes_modes"])
    leaf = [m == "LEAF" for m in modes]
    thresholds = attrs.get("nodes_values_as_tensor")
    thresholds = attrs.get("nodes_values") if thresholds is None else thresholds
    try:
        true = [0 if leaf[k] else number[t, n] for k, (t, n) in enumerate(zip(trees, attrs["nodes_truenodeids"], strict=True))]
        false = [0 if leaf[k] else number[t, n] for k, (t, n) in enumerate(zip(trees, attrs["nodes_falsenodeids"], strict=True))]
    except KeyError as e:
        raise FormatError(f"onnx: a tree's branch leads to node {e}, which is not there") from None
    below = {b for k, (a, f) in enumerate(zip(true, false, strict=True)) if not leaf[k] for b in (a, f)}
    roots, seen = [], set()
    for k, t in enumerate(trees):
        if t not in seen and k not in below:
            seen.add(t)
            roots.append(k)
    if not roots:
        raise FormatError("onnx: a tree has no root: its branches lead back to where they came from")
    missing = attrs.get("nodes_missing_value_tracks_true") or [0] * len(ids)
    codes = [0 if lf else Trees.MODES.index(m) for m, lf in zip(modes, leaf, strict=True)]
    forest = Trees(attrs["nodes_featureids"], thresholds, codes, true, false, leaf, roots, missing, kind)
    return forest, number


def _empty(nodes: int, targets: int, said: int, kind: Any) -> Any:
    """A table of what leaves say, in which nothing stands yet. Files that mention few targets of very many are refused."""
    if not 0 < targets or nodes * targets > max(LARGE, 256 * said):
        raise UnsupportedError(f"onnx: {nodes} nodes of trees that say {said} weights of {targets} targets are not supported")
    return np.full((nodes, targets), np.nan, kind)


def _leaf_table(attrs: dict[str, Any], name: str, number: dict[tuple[int, int], int], width: int, kind: Any) -> Any:
    table = _empty(len(number), width, len(attrs[f"{name}_ids"]), kind)
    weights = attrs.get(f"{name}_weights_as_tensor")
    weights = attrs[f"{name}_weights"] if weights is None else weights
    for t, i, k, w in zip(attrs[f"{name}_treeids"], attrs[f"{name}_nodeids"], attrs[f"{name}_ids"], weights, strict=True):
        if (t, i) not in number or not 0 <= k < width:
            raise FormatError(f"onnx: a tree gives a weight to node {(t, i)}, target {k}, which is not there")
        row = number[t, i]
        table[row, k] = w if np.isnan(table[row, k]) else table[row, k] + w
    return table


@op("TreeEnsembleRegressor", domain=ML)
def tree_regressor(c: Context, x: Value, *, n_targets: int = 1, aggregate_function: str = "SUM", post_transform: str = "NONE",
                   base_values: Any = None, base_values_as_tensor: Any = None, **attrs: Any) -> Value:
    kind = np.float64 if x.dtype is dt.f64 and attrs.get("nodes_values_as_tensor") is not None else np.float32
    forest, number = _old_forest(attrs, kind)
    table = _leaf_table(attrs, "target", number, n_targets, kind)
    base = base_values_as_tensor if base_values is None else base_values
    out = _combined(c, forest, _matrix(x), table, aggregate_function, base)
    return F.cast(post(c, out, post_transform), dt.f32)


@op("TreeEnsembleClassifier", domain=ML)
def tree_classifier(c: Context, x: Value, *, classlabels_int64s: Any = None, classlabels_strings: Any = None, post_transform: str = "NONE",
                    base_values: Any = None, base_values_as_tensor: Any = None, **attrs: Any) -> Any:
    kind = np.float64 if x.dtype is dt.f64 and attrs.get("nodes_values_as_tensor") is not None else np.float32
    names = classlabels_strings if classlabels_strings else classlabels_int64s
    count = len(names)
    forest, number = _old_forest(attrs, kind)
    ids = set(attrs["class_ids"])
    base = base_values_as_tensor if base_values is None else base_values
    if count == 2 and len(ids) == 1:  # one score says it all
        only = dict(attrs, class_ids=[0] * len(attrs["class_ids"]))
        weights = attrs.get("class_weights_as_tensor")
        weights = np.array(attrs["class_weights"] if weights is None else weights)
        first = ids == {0}
        given = None if base is None or (len(base) == 1 and not first) else base[:1] if len(base) == 1 else base[1:]
        score = _combined(c, forest, _matrix(x), _leaf_table(only, "class", number, 1, kind), "SUM", given)
        positive = bool(np.all(weights >= 0))
        at = F.cast(F.reshape(F.greater(score, 0.5 if positive else 0.0), (score.shape[0],)), dt.i64)
        score = F.cast(score, dt.f32)
        if not first:  # the score is the second class's own; the first has none
            both = post(c, F.concat([F.mul(score, 0.0), score], 1), post_transform)
        elif post_transform == "LOGISTIC":
            p = F.sigmoid(score)
            both = F.concat([F.sub(1.0, p), p], 1)
        else:
            both = F.concat([F.sub(1.0, score) if positive else F.neg(score), score], 1)
        return labels(c, at, classlabels_int64s, classlabels_strings), both
    scores = _combined(c, forest, _matrix(x), _leaf_table(attrs, "class", number, count, kind), "SUM", base)
    at = O.ArgMax(axis=1)(scores)
    return labels(c, at, classlabels_int64s, classlabels_strings), F.cast(post(c, scores, post_transform), dt.f32)


AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
POSTS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@op("TreeEnsemble", domain=ML, since=5)
def tree_ensemble(c: Context, x: Value, *, nodes_featureids: Any, nodes_modes: Any, nodes_splits: Any, nodes_truenodeids: Any,
                  nodes_falsenodeids: Any, nodes_trueleafs: Any, nodes_falseleafs: Any, tree_roots: Any, leaf_targetids: Any,
                  leaf_weights: Any, n_targets: int = 1, aggregate_function: int = 1, post_transform: int = 0,
                  membership_values: Any = None, nodes_hitrates: Any = None, nodes_missing_value_tracks_true: Any = None) -> Value:
    """Nodes and leaves are numbered apart here: leaf k is node n + k of our tables."""
    splits = np.asarray(nodes_splits)
    modes = np.asarray(nodes_modes).astype(np.int64).tolist()
    n, count = len(modes), len(leaf_targetids)
    feature, threshold = list(nodes_featureids), splits.tolist()
    true = [t + n if lf else t for t, lf in zip(nodes_truenodeids, nodes_trueleafs, strict=True)]
    false = [t + n if lf else t for t, lf in zip(nodes_falsenodeids, nodes_falseleafs, strict=True)]
    missing = list(nodes_missing_value_tracks_true or [0] * n)
    groups: list[list[float]] = [[]]
    for v in [] if membership_values is None else np.asarray(membership_values).tolist():
        if np.isnan(v):
            groups.append([])
        else:
            groups[-1].append(v)
    within = [k for k in range(n) if modes[k] == Trees.MEMBER]
    if len(within) > len(groups):
        raise FormatError(f"onnx: a tree has {len(within)} nodes that ask for members of sets, and {len(groups)} sets")
    none = [0] * count
    forest = Trees(feature + none, np.array(threshold + none), modes + none, true + none, false + none, [False] * n + [True] * count,
                   tree_roots, missing + none, splits.dtype, dict(zip(within, groups, strict=False)))
    table = _empty(n + count, n_targets, count, splits.dtype)
    for k, (t, w) in enumerate(zip(leaf_targetids, np.asarray(leaf_weights).reshape(-1).tolist(), strict=True)):
        if not 0 <= t < n_targets:
            raise FormatError(f"onnx: a tree's leaf gives a weight to target {t} of {n_targets}")
        table[n + k, t] = w
    out = _combined(c, forest, _matrix(x), table, AGGREGATES[aggregate_function], None)
    return F.cast(post(c, out, POSTS[post_transform]), x.dtype)


# --- kernels --------------------------------------------------------------------------------------------------------------------------


def _kernel(c: Context, x: Value, vectors: Any, kind: str, params: Any) -> Value:
    """K[rows, vectors]."""
    gamma, coef0, degree = (list(params) + [0.0, 0.0, 0.0])[:3] if params else (0.0, 0.0, 0.0)
    v = c.constant(vectors.astype(np.float32), "vectors")
    if kind == "RBF":
        squares = F.add(F.sum_(F.square(x), (1,), keepdims=True), c.constant((vectors.astype(np.float64) ** 2).sum(1).astype(np.float32)))
        return F.exp(F.mul(F.sub(squares, F.matmul(x, v, transpose_b=True, alpha=2.0)), -gamma))
    inner = F.matmul(x, v, transpose_b=True)
    if kind == "POLY":
        return F.pow_(F.add(F.mul(inner, gamma), coef0), float(degree))
    return F.tanh(F.add(F.mul(inner, gamma), coef0)) if kind == "SIGMOID" else inner


@op("SVMRegressor", domain=ML)
def svm_regressor(c: Context, x: Value, *, coefficients: Any, support_vectors: Any = None, kernel_type: str = "LINEAR",
                  kernel_params: Any = None, n_supports: int = 0, rho: Any = (0.0,), post_transform: str = "NONE",
                  one_class: int = 0) -> Value:
    wide = _matrix(F.cast(x, dt.f32))
    weights = c.constant(np.array(coefficients, np.float32).reshape(-1, 1))
    if n_supports:
        k = _kernel(c, wide, np.array(support_vectors, np.float32).reshape(n_supports, -1), kernel_type, kernel_params)
    else:
        k = wide
    out = F.add(F.matmul(k, weights), float(rho[0]))
    if one_class:
        out = F.where(F.greater(out, 0.0), c.scalar(1.0, dt.f32), c.scalar(-1.0, dt.f32))
    return post(c, out, post_transform)


def coupled(c: Context, wins: Value, pairs: list[tuple[int, int]], count: int) -> Value:
    """Probabilities of classes from those of pairs (Wu, Lin and Weng 2004, as libsvm iterates): wins[rows, pairs] -> [rows, classes]."""
    rows = wins.shape[0]
    back = F.sub(1.0, wins)
    zero = F.mul(F.slice_(wins, 1, 0, 1), 0.0)
    column = {}
    for k, (i, j) in enumerate(pairs):
        column[i, j], column[j, i] = F.slice_(wins, 1, k, 1), F.slice_(back, 1, k, 1)
    cells = []
    for t in range(count):
        for j in range(count):
            if t == j:
                total = zero
                for other in range(count):
                    total = total if other == t else F.add(total, F.square(column[other, t]))
                cells.append(total)
            else:
                cells.append(F.neg(F.mul(column[j, t], column[t, j])))
    table = F.reshape(F.concat(cells, 1), (rows, count, count))
    g = Graph("couple")
    p, done, q = g.input(TensorType(dt.f32, (rows, count)), "p"), g.input(TensorType(dt.bool_, (rows, 1)), "done"), g.input(table.type, "q")
    new = p
    qp = F.sum_(F.mul(q, F.reshape(p, (rows, 1, count))), (2,))
    pqp = F.sum_(F.mul(p, qp), (1,), keepdims=True)
    finished = F.logical_or(done, F.less(F.max_(F.abs_(F.sub(qp, pqp)), (1,), keepdims=True), 0.005 / count))
    for t in range(count):
        row = F.reshape(F.slice_(q, 1, t, 1), (rows, count))
        own, at = F.slice_(row, 1, t, 1), F.slice_(qp, 1, t, 1)
        step = F.div(F.sub(pqp, at), own)
        scale = F.add(step, 1.0)
        new = F.div(F.add(new, F.mul(step, g.constant(np.eye(count, dtype=np.float32)[t]))), scale)
        pqp = F.div(F.add(pqp, F.mul(step, F.add(F.mul(step, own), F.mul(at, 2.0)))), F.square(scale))
        qp = F.div(F.add(qp, F.mul(step, row)), scale)
    g.outputs = [F.where(finished, p, new), finished]
    start = c.full((rows, count), 1.0 / count, dt.f32)
    made: Value = O.Scan(body=g, carries=2, xs=0, length=max(100, count))(start, c.full((rows, 1), False, dt.bool_), table)[0]
    return made


@op("SVMClassifier", domain=ML)
def svm_classifier(c: Context, x: Value, *, coefficients: Any, support_vectors: Any = None, vectors_per_class: Any = None,
                   classlabels_ints: Any = None, classlabels_strings: Any = None, kernel_type: str = "LINEAR", kernel_params: Any = None,
                   rho: Any = (), prob_a: Any = None, prob_b: Any = None, post_transform: str = "NONE") -> Any:
    wide = _matrix(F.cast(x, dt.f32))
    names = classlabels_strings if classlabels_strings else classlabels_ints
    count = len(names)
    if not vectors_per_class:
        w = np.array(coefficients, np.float32).reshape(count, -1)
        scores = F.add(F.matmul(wide, c.constant(w), transpose_b=True), c.constant(np.array(rho, np.float32)[:1]))
        return labels(c, O.ArgMax(axis=1)(scores), classlabels_ints, classlabels_strings), post(c, scores, post_transform)
    per = list(vectors_per_class)
    total = sum(per)
    vectors = np.array(support_vectors, np.float32).reshape(total, -1)
    coef = np.array(coefficients, np.float32).reshape(count - 1, total)
    k = _kernel(c, wide, vectors, kernel_type, kernel_params)
    starts = np.concatenate([[0], np.cumsum(per)])
    columns, pairs = [], []
    for i in range(count):
        for j in range(i + 1, count):
            w = np.zeros(total, np.float32)
            w[starts[i] : starts[i + 1]] = coef[j - 1, starts[i] : starts[i + 1]]
            w[starts[j] : starts[j + 1]] = coef[i, starts[j] : starts[j + 1]]
            columns.append(w)
            pairs.append((i, j))
    decisions = F.add(F.matmul(k, c.constant(np.array(columns)), transpose_b=True), c.constant(np.array(rho, np.float32)))
    votes = np.zeros((2, len(pairs), count), np.float32)
    for p, (i, j) in enumerate(pairs):
        votes[0, p, i], votes[1, p, j] = 1, 1
    won = F.cast(F.greater(decisions, 0.0), dt.f32)
    ballots = F.add(F.matmul(won, c.constant(votes[0])), F.matmul(F.sub(1.0, won), c.constant(votes[1])))
    at = O.ArgMax(axis=1)(ballots)
    if prob_a:
        slope, shift = (c.constant(np.array(v, np.float32)) for v in (prob_a, prob_b))
        wins = F.minimum(F.maximum(F.sigmoid(F.neg(F.add(F.mul(decisions, slope), shift))), 1e-7), 1 - 1e-7)
        every = coupled(c, wins, pairs, count)
        return labels(c, at, classlabels_ints, classlabels_strings), every
    if count == 2:
        scores = F.concat([decisions, F.neg(decisions)], 1)
        return labels(c, at, classlabels_ints, classlabels_strings), post(c, scores, post_transform)
    return labels(c, at, classlabels_ints, classlabels_strings), post(c, decisions, post_transform)


rows({
    "Binarizer": lambda c, x, *, threshold=0.0: F.cast(F.greater(x, threshold), x.dtype),
}, domain=ML)
