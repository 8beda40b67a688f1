"""Linear models, support vector machines and work on features, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import tilewright
from tests.frontends.ml.models import agree, features, ml_model

ROWS = (1, 5, 40)
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
RNG = np.random.default_rng(11)


def numbers(count: int) -> list[float]:
    return RNG.standard_normal(count).astype(np.float32).tolist()


def finite(rows: int, count: int, dtype: Any = np.float32) -> np.ndarray:
    return np.nan_to_num(features(RNG, rows, count, dtype), nan=0.25, posinf=2, neginf=-2)


@pytest.mark.parametrize(
    ("op", "attrs", "dtypes"),
    [
        ("Scaler", {"scale": numbers(3), "offset": numbers(3)}, (np.float32, np.float64, np.int64, np.int32)),
        ("Scaler", {"scale": numbers(1), "offset": numbers(1)}, (np.float32,)),
        ("Normalizer", {"norm": "MAX"}, (np.float32, np.int64)),
        ("Normalizer", {"norm": "L1"}, (np.float32, np.float64)),
        ("Normalizer", {"norm": "L2"}, (np.float32, np.int32)),
        ("OneHotEncoder", {"cats_int64s": [3, -1, 0, 2, 3], "zeros": 1}, (np.float32, np.float64, np.int64)),
        (
            "LinearRegressor",
            {"targets": 2, "coefficients": numbers(6), "intercepts": numbers(2)},
            (np.float32,),
        ),
        ("LinearRegressor", {"targets": 1, "coefficients": numbers(3)}, (np.float32,)),
    ],
)
def test_work_on_rows_is_as_that_of_onnxruntime(
    op: str, attrs: dict[str, Any], dtypes: tuple[Any, ...]
) -> None:
    for dtype in dtypes:
        rows = [features(RNG, n, 3, dtype) for n in ROWS]
        agree(ml_model(op, attrs, rows[0], version=1), *rows)


@pytest.mark.parametrize("replaced", [float("nan"), 0.5])
@pytest.mark.parametrize("count", [1, 3])
def test_missing_values_are_replaced(replaced: float, count: int) -> None:
    rows = [features(RNG, n, 3) for n in ROWS]
    attrs = {"imputed_value_floats": numbers(count), "replaced_value_float": replaced}
    agree(ml_model("Imputer", attrs, rows[0], version=1), *rows)


def test_missing_integers_are_replaced() -> None:
    rows = [features(RNG, n, 3, np.int64) for n in ROWS]
    attrs = {"imputed_value_int64s": [7, 8, 9], "replaced_value_int64": -1}
    agree(ml_model("Imputer", attrs, rows[0], version=1, outputs=("z",)), *rows)


def test_numbers_become_0_and_1() -> None:
    rows = [finite(n, 3) for n in ROWS]
    agree(ml_model("Binarizer", {"threshold": 0.5}, rows[0], version=1), *rows)


def test_features_are_taken_from_all_inputs() -> None:
    rows = [features(RNG, n, 3) for n in ROWS]
    model = ml_model(
        "FeatureVectorizer", {"inputdimensions": [2, 5, 3]}, rows[0], version=1, others=("x", "x")
    )
    agree(model, *rows)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "f"
    agree(model, *rows)


@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 3, 4)])
def test_features_are_picked(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    places = numpy_helper.from_array(np.array([3, 0, 0]), "places")
    agree(ml_model("ArrayFeatureExtractor", {}, x, version=1, others=("places",), constants=[places]), x)


@pytest.mark.parametrize("version", [2, 4])
def test_numbers_become_others(version: int) -> None:
    """NaN equals NaN from version 4 on."""
    x = np.array([[-1, 0.5, np.nan], [2, 7, np.inf]], np.float32)
    attrs = {"keys_floats": [0.5, float("nan"), -1.0, 7.0], "values_int64s": [5, 6, 7, 8], "default_int64": 9}
    agree(ml_model("LabelEncoder", attrs, x, version=version, outputs=("label",)), x)


def test_tables_may_be_tensors() -> None:
    x = np.array([3, 1, 4, 1, 5], np.int64)
    tables = {"keys": np.array([5, 1, 4]), "values": np.array([0.5, 0.1, 0.4]), "default": np.array([9.0])}
    attrs = {f"{name}_tensor": numpy_helper.from_array(a, name) for name, a in tables.items()}
    model = ml_model("LabelEncoder", attrs, x, version=4, outputs=("z",))
    (y,) = tilewright.compile(model.SerializeToString(), cache=False)(x)
    np.testing.assert_array_equal(y, [9.0, 0.1, 0.4, 0.1, 0.5])


@pytest.mark.sweep
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("classes", "labels"), [(1, [4, 2]), (2, [4, 2]), (3, [4, 2, 9])])
def test_linear_classes_are_those_of_onnxruntime(transform: str, classes: int, labels: list[int]) -> None:
    if classes == 1 and transform == "PROBIT":
        pytest.skip("ONNX Runtime leaves the second score undefined")
    attrs = {
        "coefficients": numbers(3 * classes),
        "intercepts": numbers(classes),
        "classlabels_ints": labels,
        "post_transform": transform,
    }
    rows = [finite(n, 3) for n in ROWS]
    atol = 2e-3 if transform == "PROBIT" else 1e-5  # which has no exact digits about 0
    agree(ml_model("LinearClassifier", attrs, rows[0], version=1, outputs=("label", "y")), *rows, atol=atol)


KERNELS = [
    {"kernel_type": "LINEAR"},
    {"kernel_type": "POLY", "kernel_params": [0.3, 0.2, 3.0]},
    {"kernel_type": "POLY", "kernel_params": [0.3, 2.0, 2.0]},
    {"kernel_type": "RBF", "kernel_params": [0.3, 0.0, 3.0]},
    {"kernel_type": "SIGMOID", "kernel_params": [0.3, 0.2, 3.0]},
]


@pytest.mark.sweep
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("vectors", [0, 5])
@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vector_regression_is_that_of_onnxruntime(
    kernel: dict[str, Any], vectors: int, one_class: int
) -> None:
    attrs = {
        "n_supports": vectors,
        "coefficients": numbers(vectors or 3),
        "rho": numbers(1),
        "one_class": one_class,
        "kernel_params": [0.0, 0.0, 0.0],
    }
    if vectors:
        attrs["support_vectors"] = numbers(3 * vectors)
    rows = [finite(n, 3) for n in ROWS]
    agree(ml_model("SVMRegressor", attrs | kernel, rows[0], version=1), *rows)


@pytest.mark.sweep
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize(
    ("sizes", "labels"), [([2, 3], [4, 2]), ([2, 1, 3], [4, 2, 9]), ([], [4, 2, 9]), ([], [4, 2])]
)
@pytest.mark.parametrize("probabilities", [False, True])
def test_support_vector_classes_are_those_of_onnxruntime(
    transform: str, sizes: list[int], labels: list[int], probabilities: bool
) -> None:
    count, pairs = len(labels), len(labels) * (len(labels) - 1) // 2
    attrs = {
        "coefficients": numbers((count - 1) * sum(sizes) if sizes else 3 * count),
        "rho": numbers(pairs if sizes else 1),
        "classlabels_ints": labels,
        "post_transform": transform,
        **KERNELS[3 if sizes else 0],
    }
    if sizes:
        attrs |= {"vectors_per_class": sizes, "support_vectors": numbers(3 * sum(sizes))}
    if sizes and probabilities:
        attrs |= {"prob_a": (-np.abs(numbers(pairs))).tolist(), "prob_b": numbers(pairs)}
    attrs.setdefault("kernel_params", [0.0, 0.0, 0.0])
    rows = [finite(n, 3) for n in ROWS]
    agree(ml_model("SVMClassifier", attrs, rows[0], version=1, outputs=("label", "y")), *rows, rtol=1e-3)


X = np.zeros((2, 3), np.float32)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Scaler", {"scale": [1.0, 2.0], "offset": [1.0, 2.0]}, r"2 scales for f32\[n, 3\]"),
    ("Scaler", {"scale": [1.0]}, "0 offsets for 1 scales"),
    ("Imputer", {"imputed_value_int64s": [1]}, "needs the attribute 'imputed_value_floats'"),
    ("Normalizer", {"norm": "L7"}, "no norm 'L7'"),
    ("FeatureVectorizer", {"inputdimensions": [1, 2]}, r"sizes \[1, 2\] for 1 inputs"),
    ("OneHotEncoder", {"zeros": 1}, "needs the attribute 'cats_int64s'"),
    ("LinearRegressor", {"targets": 2, "coefficients": [1.0, 2.0, 3.0]}, "3 numbers are not 2 rows"),
    ("LinearRegressor", {"targets": 1, "coefficients": [1.0, 2.0]}, "2 coefficients of a target for"),
    ("SVMRegressor", {"coefficients": [1.0], "n_supports": 2, "support_vectors": [0.0] * 6}, "'rho'"),
    (
        "SVMRegressor",
        {"coefficients": [1.0], "n_supports": 2, "support_vectors": [0.0] * 6, "rho": [0.0]},
        "1 coefficients for 2 support vectors",
    ),
    (
        "SVMRegressor",
        {
            "coefficients": [1.0],
            "n_supports": 1,
            "support_vectors": [0.0] * 3,
            "rho": [0.0],
            "kernel_type": "RBF",
        },
        "needs 3 kernel_params",
    ),
    ("LinearClassifier", {"coefficients": [1.0]}, "needs the attribute 'classlabels_ints'"),
    (
        "SVMClassifier",
        {"classlabels_ints": [1, 2], "vectors_per_class": [1]},
        "vectors of 1 classes for 2 labels",
    ),
]


@pytest.mark.parametrize(("op", "attrs", "reason"), REFUSED)
def test_models_that_contradict_themselves_are_refused(op: str, attrs: dict[str, Any], reason: str) -> None:
    outputs = ("label", "y") if op.endswith("Classifier") else ("y",)
    with pytest.raises(tilewright.ModelError, match=reason):
        tilewright.compile(
            ml_model(op, attrs, X, version=1, outputs=outputs).SerializeToString(), cache=False
        )


def test_categories_that_nobody_knows_are_reported_where_the_model_says_so() -> None:
    x = np.array([[1], [2]], np.int64)
    model = ml_model("OneHotEncoder", {"cats_int64s": [1, 2], "zeros": 0}, x, version=1)
    compiled = tilewright.compile(model.SerializeToString(), cache=False)
    np.testing.assert_array_equal(compiled(x)[0], [[[1, 0]], [[0, 1]]])
    with pytest.raises(tilewright.ExecutionError, match="a category is none of those that the model knows"):
        compiled(x + 1)


CLASSES = {"coefficients": numbers(6), "intercepts": numbers(2), "classlabels_strings": ["a", "b"]}


def test_labels_that_are_text() -> None:
    model = ml_model("LinearClassifier", CLASSES, X, version=1, outputs=("label", "y"))
    model.graph.output[0].type.tensor_type.elem_type = 8
    numbered = ml_model(
        "LinearClassifier",
        {**{k: v for k, v in CLASSES.items() if k != "classlabels_strings"}, "classlabels_ints": [0, 1]},
        X,
        version=1,
        outputs=("label", "y"),
    )
    x = finite(4, 3)
    numbers, wanted = tilewright.compile(numbered.SerializeToString(), cache=False)(x)
    words, scores = tilewright.compile(model.SerializeToString(), cache=False)(x)
    texts = CLASSES["classlabels_strings"]
    assert words.tolist() == [t.decode() if isinstance(t, bytes) else t for t in (texts[k] for k in numbers)]
    np.testing.assert_array_equal(scores, wanted)
    del model.graph.output[0]
    (alone,) = tilewright.compile(model.SerializeToString(), cache=False)(x)
    np.testing.assert_array_equal(alone, wanted)
