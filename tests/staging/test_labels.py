"""Labels, n-grams and maps against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import checked, loaded, model_of

ML = "ai.onnx.ml"


def text(*values: Any) -> np.ndarray:
    return np.array(values, object)


def both(op: str, given: Any, domain: str = ML, info: Any = None, version: int = 4, **attributes: Any) -> Any:
    """What one node gives, which is what ONNX Runtime gives."""
    node = h.make_node(op, ["x"], ["y"], domain=domain, **attributes)
    if info is None:
        type = T.STRING if given.dtype == object else h.np_dtype_to_tensor_dtype(given.dtype)
        info = h.make_tensor_value_info("x", type, [None] * given.ndim)
    model = model_of([node], [info], ["y"], {})
    model.opset_import[1].version = version
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"x": given})[0]
    ours = checked(model)
    for found in (ours(given)[0], loaded(ours)(given)[0]):
        if isinstance(wanted, np.ndarray):
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype
        else:
            assert found == wanted
    assert [a.type for a in ours.get_inputs()] == [a.type for a in session.get_inputs()]
    return wanted


WORDS = text("a", "b", "zz", "a", "")


@pytest.mark.parametrize(
    ("given", "attributes"),
    [
        (WORDS, {"keys_strings": ["a", "b"], "values_int64s": [7, -8], "default_int64": -3}),
        (WORDS[None], {"keys_strings": ["a", ""], "values_strings": ["p", "q"], "default_string": "?"}),
        (WORDS, {"keys_strings": ["a", ""], "values_floats": [0.1, 2]}),
        (np.array([1, 2, 3]), {"keys_int64s": [1, 2], "values_strings": ["x", "y"]}),
        (np.array([0.1, np.nan, 5], np.float32), {"keys_floats": [0.1, np.nan], "values_strings": ["x", "nan"]}),
        (np.array([[1.5, -0.0]], np.float32), {"keys_floats": [1.5, 0.0], "values_int64s": [4, 5]}),
    ],
)
def test_label_encoders(given: np.ndarray, attributes: dict[str, Any]) -> None:
    both("LabelEncoder", given, **attributes)


def test_labels_of_other_types() -> None:
    keys = onnx.numpy_helper.from_array(text("a", "b"), "k")
    values = onnx.numpy_helper.from_array(np.array([0.5, 0.25]), "v")
    default = onnx.numpy_helper.from_array(np.array([np.inf]), "d")
    both("LabelEncoder", WORDS, keys_tensor=keys, values_tensor=values, default_tensor=default)


def test_old_label_encoders_and_category_mappers() -> None:
    both("LabelEncoder", WORDS, version=1, classes_strings=["b", "a"], default_int64=9)
    both("LabelEncoder", np.array([1, 0, 5]), version=1, classes_strings=["b", "a"], default_string="no")
    both("CategoryMapper", WORDS, cats_strings=["b", "a"], cats_int64s=[3, 4])
    both("CategoryMapper", np.array([[3, 7]]), cats_strings=["b", "a"], cats_int64s=[3, 4])


def test_one_of_some_strings() -> None:
    both("OneHotEncoder", WORDS, cats_strings=["a", "b", ""], zeros=1)
    model = model_of(
        [h.make_node("OneHotEncoder", ["x"], ["y"], domain=ML, cats_strings=["a"], zeros=0)],
        [("x", T.STRING, ["n"])], ["y"], {},
    )  # fmt: skip
    assert checked(model)(text("a"))[0].tolist() == [[1]]
    with pytest.raises(tilewright.InputError, match="'b' is none of the 1 categories"):
        checked(model)(text("b"))


@pytest.mark.sweep(7)
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 1, 5])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 2), (2, 2), (1, 3)])
def test_ngrams(mode: str, skips: int, lengths: tuple[int, int]) -> None:
    pool = [2, 3, 5, 5, 6, 7, 8, 6, 7, 2, 3, 5]
    attributes = {
        "mode": mode, "max_skip_count": skips, "min_gram_length": lengths[0], "max_gram_length": lengths[1],
        "ngram_counts": [0, 3, 9], "ngram_indexes": [0, 2, 1, 4, 3, 5, 6], "weights": [1.0, 2, 3, 4, 5, 0.5, 7],
    }  # fmt: skip
    rng = np.random.default_rng(len(mode) + skips)
    numbers = rng.integers(2, 9, (3, 9))
    both("TfIdfVectorizer", numbers, "", pool_int64s=pool, **attributes)
    both("TfIdfVectorizer", numbers[0].astype(np.int32), "", pool_int64s=pool, **attributes)
    words = numbers.astype(str).astype(object)
    both("TfIdfVectorizer", words, "", pool_strings=list(map(str, pool)), **attributes)


def map_info(key: int, value: int) -> onnx.ValueInfoProto:
    return h.make_value_info("x", h.make_map_type_proto(key, h.make_tensor_type_proto(value, None)))


def test_maps_go_in() -> None:
    words = map_info(T.STRING, T.FLOAT)
    both("DictVectorizer", {"a": 1.5, "c": 2.0}, info=words, string_vocabulary=["c", "b", "a"])
    both("DictVectorizer", {3: 1.5}, info=map_info(T.INT64, T.FLOAT), int64_vocabulary=[1, 3])
    numbers = map_info(T.INT64, T.FLOAT)
    for attributes in ({"map_form": "DENSE"}, {"map_form": "SPARSE", "max_map": 5}):
        for to in ("TO_FLOAT", "TO_INT64"):
            both("CastMap", {4: 1.0, 2: 3.5}, info=numbers, cast_to=to, **attributes)
    node = h.make_node("CastMap", ["x"], ["y"], domain=ML, cast_to="TO_INT64")
    model = checked(model_of([node], [map_info(T.INT64, T.STRING)], ["y"], {}))
    assert model({4: "1", 2: "3"})[0].tolist() == [[3, 1]]


def test_maps_come_out() -> None:
    x = np.array([[0.25, 0.5], [1, 0]], np.float32)
    both("ZipMap", x, classlabels_strings=["no", "yes"])
    both("ZipMap", x, classlabels_int64s=[4, 2])
    both("ZipMap", x[0], classlabels_int64s=[4, 2])
    node = h.make_node("ZipMap", ["x"], ["y"], domain=ML, classlabels_strings=["no", "yes"])
    model = checked(model_of([node], [("x", T.FLOAT, ["n", "m"])], ["y"], {}))
    assert str(model.outputs[0]) == "y: sequence(map(string, float32[]))"
    with pytest.raises(tilewright.InputError, match="3 columns for 2 keys"):
        model(np.zeros((1, 3), np.float32))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([("a", 1.0)], "must be a dict, not list"),
        ({1: 2.0}, "has the key 1"),
        ({"a": "b"}, r"input 'x\['a'\]' must be an array, not str"),
        ({"a": [1.0]}, r"input 'x\['a'\]' must have 0 dims"),
    ],
)
def test_what_is_no_such_map_is_refused(given: Any, words: str) -> None:
    node = h.make_node("DictVectorizer", ["x"], ["y"], domain=ML, string_vocabulary=["a"])
    model = checked(model_of([node], [map_info(T.STRING, T.FLOAT)], ["y"], {}))
    with pytest.raises(tilewright.InputError, match=words):
        model(given)


@pytest.mark.parametrize(
    ("op", "domain", "attributes", "words"),
    [
        ("LabelEncoder", ML, {"keys_int64s": [1], "values_int64s": [1]}, "keys of int64 for string"),
        ("LabelEncoder", ML, {"keys_strings": ["1"], "values_int64s": [1, 2]}, "1 keys for 2 values"),
        ("LabelEncoder", ML, {"values_int64s": [1, 2]}, "needs the attribute 'keys_tensor'"),
        (
            "TfIdfVectorizer", "",
            {"pool_strings": ["a"], "ngram_counts": [0], "ngram_indexes": [0, 1], "mode": "TF", "max_skip_count": 0,
             "min_gram_length": 1, "max_gram_length": 1},
            "2 indexes for 1 n-grams",
        ),
    ],
)  # fmt: skip
def test_models_that_contradict_themselves(op: str, domain: str, attributes: dict, words: str) -> None:
    node = h.make_node(op, ["x"], ["y"], domain=domain, **attributes)
    with pytest.raises(tilewright.TilewrightError, match=words):
        checked(model_of([node], [("x", T.STRING, ["n"])], ["y"], {}))
