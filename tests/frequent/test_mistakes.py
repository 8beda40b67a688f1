"""Frequent sizes that cannot be, and artefacts whose variants do not fit, end in errors that say the way out."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.frequent.models import W, data, of_products, products, staged
from tests.staging.models import model_of
from tilewright.program.native import GroupNative
from tilewright.runtime import Artifact
from tilewright.runtime.sizes_seen import SizesSeen
from tilewright.runtime.storage.container import Section, container_bytes, read_container


@pytest.mark.parametrize(
    ("frequent", "message", "hint"),
    [
        ({"batch": 1}, "give a list of dicts", r"frequent=\[\{'batch': 1"),
        ("batch=1", "give a list of dicts", "such as"),
        (3, "give a list of dicts", "such as"),
        ([["batch", 1]], "each entry is a dict of names", "such as"),
        ([{1: 2}], "each entry is a dict of names", "such as"),
        ([{"batch": 0}], "a whole number from 1 on", "a dict for each combination"),
        ([{"batch": -1}], "a whole number from 1 on", "a dict for each combination"),
        ([{"batch": True}], "a whole number from 1 on", "a dict for each combination"),
        ([{"batch": 1.5}], "a whole number from 1 on", "a dict for each combination"),
        ([{"batch": [1, 8]}], "a whole number from 1 on", "a dict for each combination"),
        ([{"batch": k} for k in range(1, 18)], "names 17 combinations of sizes, and at most 16", "the most frequent"),
        ([{"batsch": 1}], "no symbolic dim 'batsch'; its symbolic dims are: batch, length", ""),
        ([{"batch": 2**41}], "the size 2199023255552 of 'batch' is not possible", "the most is"),
    ],
)
def test_sizes_that_cannot_be(frequent: Any, message: str, hint: str) -> None:
    for call in (tilewright.compile, tilewright.check):
        with pytest.raises(tilewright.OptionError, match=message) as caught:
            call(products(), frequent=frequent)
        assert hint.replace("\\", "") in (caught.value.hint or "")


def test_the_place_is_named() -> None:
    with pytest.raises(tilewright.OptionError) as caught:
        tilewright.compile(products(), frequent=[{"batch": 3, "size": 7}])
    assert caught.value.where == "with the frequent sizes batch=3, size=7"


def test_a_model_of_fixed_shapes_has_no_frequent_sizes() -> None:
    with pytest.raises(tilewright.OptionError, match="'batch'; all its dims are fixed"):
        tilewright.compile(products(), shapes={"x": [1, 5, 64]}, frequent=[{"batch": 1}])


def test_sizes_that_operators_refuse() -> None:
    nodes = [h.make_node("Add", ["x", "y"], ["z"])]
    made = model_of(nodes, [("x", T.FLOAT, ["n"]), ("y", T.FLOAT, ["m"])], ["z"], {})
    tilewright.compile(made, frequent=[{"n": 3, "m": 3}, {"n": 4}])
    with pytest.raises(tilewright.TilewrightError) as caught:
        tilewright.compile(made, frequent=[{"n": 2, "m": 3}])
    assert caught.value.where is not None and "with the frequent sizes n=2, m=3" in caught.value.where


def test_sizes_that_are_no_multiple() -> None:
    nodes = [h.make_node("Reshape", ["x", "shape"], ["y"])]
    made = model_of(nodes, [("x", T.FLOAT, ["n"])], ["y"], {"shape": np.array([-1, 4])})
    (y,) = tilewright.compile(made, frequent=[{"n": 8}])(data(8))
    assert y.shape == (2, 4)
    with pytest.raises(tilewright.TilewrightError) as caught:
        tilewright.compile(made, frequent=[{"n": 7}])
    assert "with the frequent sizes n=7" in str(caught.value)


def test_sizes_that_the_general_program_refuses() -> None:
    """A dim of length 1 would be squeezed away, which changes the rank: a variant never means anything else."""
    made = model_of([h.make_node("Squeeze", ["x"], ["y"])], [("x", T.FLOAT, ["n", 1])], ["y"], {})
    with pytest.raises(tilewright.OptionError, match="the general program refuses these sizes") as caught:
        tilewright.compile(made, frequent=[{"n": 1}])
    assert "these shapes" in (caught.value.hint or "") and "with the frequent sizes n=1" in str(caught.value)


def test_sizes_are_merged() -> None:
    seen = [SizesSeen({"batch": 2}, 9), SizesSeen({}, 3)]
    model = tilewright.compile(products(), frequent=[*seen, {"batch": np.int64(2)}, {}, {"length": 5, "batch": 2}])
    assert [v.text for v in model.artifact.variants] == ["length=5, batch=2", "batch=2"]
    assert tilewright.compile(products(), frequent=None).artifact.variants == ()


def changed(model: Any, frequent: list[dict[str, int]], change: Callable[[dict[str, Any]], object]) -> bytes:
    """The bytes of an artefact whose metadata were changed, with sound checksums."""
    metadata, sections, *_ = read_container(tilewright.compile(model, frequent=frequent).artifact.to_bytes())
    change(metadata)
    return container_bytes(metadata, [Section(s.kind, s.data) for s in sections])


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda m: m["variants"][0].update({key: value})


def _in_variant(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda m: change(m["variants"][0]["artifact"])


NOT_FITTING: dict[str, Callable[[dict[str, Any]], object]] = {
    "no list": lambda m: m.update(variants={}),
    "no dict": lambda m: m["variants"].append([]),
    "more entries": _set("size", {}),
    "other size": _set("sizes", {"batch": 9}),
    "other dim": _set("sizes", {"length": 8}),
    "unknown dim": _set("sizes", {"batch": 8, "width": 1}),
    "no size": _set("sizes", {}),
    "text": _set("sizes", {"batch": "8"}),
    "truth": _set("sizes", {"batch": True}),
    "negative": _set("sizes", {"batch": -8}),
    "list": _set("sizes", [8]),
    "no artefact": _set("artifact", None),
    "no sizes": lambda m: m["variants"][0].pop("sizes"),
    "less inputs": _in_variant(lambda a: a["inputs"].pop()),
    "other input": _in_variant(lambda a: a["inputs"][0].update(name="z")),
    "other dtype": _in_variant(lambda a: a["inputs"][0].update(dtype="float64")),
    "other rank": _in_variant(lambda a: a["inputs"][0]["shape"].pop()),
    "other output": _in_variant(lambda a: a["outputs"][0].update(dtype="float64")),
    "more outputs": _in_variant(lambda a: a["outputs"].append(a["outputs"][0])),
    "variant in variant": _in_variant(lambda a: a.update(variants=[{"sizes": {"batch": 8}, "artifact": deepcopy(a)}])),
}


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", NOT_FITTING)
def test_variants_that_do_not_fit(name: str) -> None:
    raw = changed(products(), [{"batch": 8}], NOT_FITTING[name])
    with pytest.raises(tilewright.ArtifactError, match="the metadata is malformed") as caught:
        tilewright.load(raw)
    assert caught.value.hint == "compile the model again"


@pytest.mark.parametrize("symbol", ["run_symbol", "plan_symbol"])
def test_variants_without_code(symbol: str) -> None:
    raw = changed(products(), [{"batch": 8}], _in_variant(lambda a: a.update({symbol: "tw_none"})))
    with pytest.raises(tilewright.ArtifactError, match="lacks the function tw_none"):
        tilewright.load(raw)


@pytest.mark.parametrize("where", ["general", "variant"])
@pytest.mark.parametrize("change", ["missing part", "wrong number"])
def test_parts_that_are_missing(where: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(metadata: dict[str, Any]) -> None:
        artifact = metadata if where == "general" else metadata["variants"][0]["artifact"]
        if change == "missing part":
            artifact["parts"].pop()
        else:
            step = next(s for s in artifact["program"]["steps"] if s["step"] == "RunPart")
            step["part"] = -1

    monkeypatch.setattr(GroupNative, "run", lambda *_: None)  # the host calls all parts
    with pytest.raises(tilewright.ArtifactError, match=r"there are [12] parts, and (-1|1) is called"):
        tilewright.load(changed(staged(), [{"batch": 8}], broken))


def test_any_cut_of_a_file_is_found(tmp_path: Path) -> None:
    raw = tilewright.compile(products(), frequent=[{"batch": 8}]).artifact.to_bytes()
    for length in range(0, len(raw), 997):
        with pytest.raises(tilewright.ArtifactError):
            Artifact.load(raw[:length])
    x = data(8, 2, 64)
    np.testing.assert_allclose(tilewright.load(raw)(x)[0], of_products(x), rtol=1e-4, atol=1e-3)
    assert W.shape == (64, 64)
