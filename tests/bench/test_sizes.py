"""Models with symbolic dims beside known ones: which dims may be symbolic, and the table of times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench import sizes
from bench.cases import Case, names_of_axes, write_arrays
from bench.sizes import ALL, BATCH, KNOWN, Row, best_times, symbolic_dims, table, why_not
from tilewright.session import Session


@pytest.mark.parametrize(
    ("shape", "dtype", "names"),
    [
        ((1, 3, 8, 8), np.float32, {0: "batch", 2: "height", 3: "width"}),
        ((1, 3, 4, 8, 8), np.float32, {0: "batch", 2: "depth", 3: "height", 4: "width"}),
        ((1, 7, 16), np.float32, {0: "batch", 1: "length"}),
        ((5, 16), np.float32, {0: "batch"}),
        ((1, 7), np.int64, {0: "batch", 1: "length"}),
        ((), np.float32, {}),
    ],
)
def test_channels_have_no_names(shape: tuple[int, ...], dtype: type, names: dict[int, str]) -> None:
    assert names_of_axes(np.zeros(shape, dtype)) == names


def test_dims_are_made_symbolic_one_after_the_other() -> None:
    arrays = {"x": np.zeros((1, 3, 8, 9), np.float32), "ids": np.zeros((1, 7), np.int64)}
    found = symbolic_dims(arrays, lambda shapes, dim: "it is 8" if dim == "height" else None)
    assert found.shapes == {"x": ("batch", 3, 8, "width"), "ids": ("batch", "length")}
    assert found.batch == {"x": ("batch", 3, 8, 9), "ids": ("batch", 7)}
    assert found.refused == ("height: it is 8",)


def test_a_dim_that_inputs_cannot_share_is_one_of_the_first() -> None:
    arrays = {"a": np.zeros((4, 4), np.float32), "b": np.zeros((4, 4), np.float32)}
    found = symbolic_dims(arrays, lambda shapes, dim: "no" if shapes["b"][0] == "batch" else None)
    assert found.shapes == {"a": ("batch", 4), "b": (4, 4)} and not found.refused


def _model(folder: Path) -> Case:
    """A sum with a constant of 7 rows: the batch may be any, the length may not."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 7, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 7, 16])],
        [numpy_helper.from_array(np.ones((7, 16), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    case = Case("operators", "sum", folder / "sum.onnx", folder / "sum.npz")
    onnx.save(model, case.model)
    write_arrays(case.arrays, {"x": np.zeros((1, 7, 16), np.float32)}, [])
    return case


def test_a_size_that_constants_have_is_refused_with_the_reason(tmp_path: Path) -> None:
    case = _model(tmp_path)
    x = {"x": np.zeros((1, 7, 16), np.float32)}
    assert why_not(case.model, x, {"x": ("batch", 7, 16)}, "batch") is None
    assert "length == 7" in str(why_not(case.model, x, {"x": (1, "length", 16)}, "length"))
    (row,) = sizes.measure(case, [1], 1, 0.001, Session(tmp_path / "cache"))
    assert set(row.ms) == {KNOWN, ALL} and row.dims == "batchx7x16"  # batch alone is all that may be symbolic
    assert [text.partition(":")[0] for text in row.refused] == ["length"]


def test_the_table_has_the_slowest_first_and_the_means() -> None:
    def row(name: str, ratio: float) -> Row:
        variants = {KNOWN: 1.0, BATCH: 1.0, ALL: ratio}
        return Row(name, 1, variants, variants, dict.fromkeys(variants, 2), "batchx3", ("height: it is 8",))

    lines = table([row("a", 1.0), row("b", 4.0)]).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| b", "| a"]
    assert "1 threads, all / known, 2 models: geometric mean 2.000, median 2.500, worst 4.000" in lines
    assert "a: height: it is 8" in lines


def test_without_turns_nothing_is_called() -> None:
    assert best_times({KNOWN: lambda: pytest.fail("it was called")}, 0, 1.0) == {}
