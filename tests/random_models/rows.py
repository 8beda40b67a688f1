"""Steps of random models that add operators on rows of features: scalers, linear models, support vectors and trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.frontends.ml.models import MODES, random_trees
from tests.random_models.growth import Grown, Growth, Refused
from tests.random_models.templates import shaped

DOMAIN = "ai.onnx.ml"
MOST_FEATURES = 12


def _features(g: Growth, dtypes: tuple[str, ...] = ("float32",)) -> Grown:
    """A matrix of a few columns."""
    x = g.pick(lambda v: v.dtype in dtypes and v.array.size > 0)
    if x.rank == 2 and x.shape[1] <= MOST_FEATURES:
        return x
    return shaped(g, x, (g.random.randint(1, 9), g.random.randint(1, MOST_FEATURES)))


def _floats(g: Growth, count: int) -> list[float]:
    """Quarters, which are exact."""
    return [g.random.randint(-8, 8) / 4 for _ in range(count)]


def _add(g: Growth, op: str, *operands: Any, decides: bool = False, **attrs: Any) -> None:
    g.emit(op, *operands, decides=decides, domain=DOMAIN, **attrs)


def scaling(g: Growth) -> None:
    x = _features(g)
    count = g.random.choice((1, x.shape[1]))
    op = g.random.choice(("Scaler", "Normalizer", "Imputer", "Binarizer"))
    if op == "Scaler":
        _add(g, op, x, offset=_floats(g, count), scale=_floats(g, count))
    elif op == "Normalizer":
        _add(g, op, x, norm=g.random.choice(("MAX", "L1", "L2")))
    elif op == "Imputer":
        _add(g, op, x, imputed_value_floats=_floats(g, count), replaced_value_float=0.25, decides=True)
    else:
        _add(g, op, x, threshold=0.5, decides=True)


def choosing(g: Growth) -> None:
    x = _features(g, ("float32", "int64"))
    op = g.random.choice(("ArrayFeatureExtractor", "FeatureVectorizer", "LabelEncoder", "OneHotEncoder"))
    if op == "ArrayFeatureExtractor":
        _add(g, op, x, g.rng.integers(0, x.shape[1], g.random.randint(1, 4)))
    elif op == "FeatureVectorizer":
        _add(g, op, x, x, inputdimensions=[x.shape[1]] * 2)
    elif x.dtype != "int64":
        raise Refused
    elif op == "LabelEncoder":
        _add(g, op, x, keys_int64s=[0, 1, -2], values_floats=_floats(g, 3), default_float=0.5, decides=True)
    else:
        _add(g, op, x, cats_int64s=[0, 1, 3], zeros=1, decides=True)


def linear(g: Growth) -> None:
    x, count = _features(g), g.random.choice((1, 1, 3))
    post = g.random.choice(("NONE", "SOFTMAX", "LOGISTIC"))
    coefficients, intercepts = _floats(g, count * x.shape[1]), _floats(g, count)
    if g.chance(0.5):
        given = {"coefficients": coefficients, "intercepts": intercepts, "targets": count}
        _add(g, "LinearRegressor", x, post_transform="NONE", **given)
        return
    if not x.exact or count == 1:
        raise Refused
    g.emit(
        "LinearClassifier", x, outputs=2, decides=True, domain=DOMAIN, coefficients=coefficients,
        intercepts=intercepts, classlabels_ints=[4, 7, 9], post_transform=post, multi_class=1,
    )  # fmt: skip


def vectors(g: Growth) -> None:
    x = _features(g)
    supports = g.random.randint(1, 5)
    _add(
        g, "SVMRegressor", x, kernel_type=g.random.choice(("LINEAR", "POLY", "RBF", "SIGMOID")),
        kernel_params=[0.25, 0.5, 2.0], coefficients=_floats(g, supports), rho=_floats(g, 1), n_supports=supports,
        support_vectors=_floats(g, supports * x.shape[1]),
    )  # fmt: skip


def trees(g: Growth) -> None:
    x, targets = _features(g), g.random.choice((1, 3))
    full = g.chance(0.5)
    nodes, leaves = random_trees(g.rng, g.random.randint(1, 9), x.shape[1], g.random.randint(0, 5), MODES, full)
    weights = {
        "target_treeids": [tree for tree, _ in leaves], "target_nodeids": [node for _, node in leaves],
        "target_ids": [g.random.randrange(targets) for _ in leaves], "target_weights": _floats(g, len(leaves)),
    }  # fmt: skip
    aggregate = g.random.choice(("SUM", "AVERAGE", "MIN", "MAX"))
    attrs = {"n_targets": targets, "aggregate_function": aggregate, "post_transform": "NONE"}
    _add(g, "TreeEnsembleRegressor", x, decides=True, **nodes, **weights, **attrs)


ROWS: dict[str, tuple[Callable[[Growth], object], float]] = {
    "scaling of rows": (scaling, 0.4), "choosing features": (choosing, 0.4), "linear model": (linear, 0.3),
    "support vectors": (vectors, 0.2), "trees": (trees, 0.4),
}  # fmt: skip
