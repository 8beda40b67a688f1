"""Programs of a model in parts, at their levels."""

from __future__ import annotations

import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import model_of
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
