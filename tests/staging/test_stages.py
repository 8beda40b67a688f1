"""Programs of a model in parts, at their levels."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import model_of
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.stages import programs


def test_each_part_is_shown() -> None:
    nodes = [
        h.make_node("Exp", ["x"], ["e"]),
        h.make_node("NonZero", ["e"], ["places"]),
        h.make_node("Add", ["places", "places"], ["y"]),
    ]
    model = model_of(nodes, [("x", T.FLOAT, ["n"])], ["y"], {})
    assert list(programs(model, "import")) == ["main"]
    graphs = programs(model, "graph")
    assert list(graphs) == ["part0.main", "part1.main"]
    assert "exp" in graphs["part0.main"] and "add" in graphs["part1.main"]
    kernels = programs(model, "loops")
    assert {name.partition(".")[0] for name in kernels} == {"part0", "part1"}
    name = next(iter(kernels)).partition(".")[2]
    assert programs(model, "loops", kernel=name)
    with pytest.raises(tilewright.OptionError, match="there is no kernel 'nowhere'"):
        programs(model, "loops", kernel="nowhere")


def test_a_model_without_native_code_has_no_kernels() -> None:
    model = model_of([h.make_node("Identity", ["x"], ["y"])], [("x", T.STRING, ["n"])], ["y"], {})
    assert programs(model, "loops") == {}


def test_calls_look_up_no_names_of_dtypes() -> None:
    """NumPy takes microseconds for the name of a dtype, which calls of small models would notice."""
    nodes = [h.make_node("NonZero", ["x"], ["places"]), h.make_node("Add", ["places", "places"], ["y"])]
    model = tilewright.compile(model_of(nodes, [("x", T.FLOAT, ["n"])], ["y"], {}), cache=False, threads=1)
    x = np.array([0, 1, 2], np.float32)
    model(x)
    named = numpy_dtype.cache_info().misses
    (y,) = model(x)
    assert y.tolist() == [[2, 4]] and numpy_dtype.cache_info().misses == named
