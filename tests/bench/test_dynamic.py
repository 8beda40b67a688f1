"""Models whose work depends on data or sizes: legal, the same each time, and ours is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
from bench.__main__ import parser
from bench.cases import read_arrays, relative_error
from bench.commands import dynamic
from bench.dynamic.model import MODELS, make_case
from bench.references import by_onnxruntime

pytest.importorskip("onnxruntime")


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", MODELS)
def test_ours_computes_the_references(name: str, tmp_path: Path) -> None:
    case = make_case(name, tmp_path, by_onnxruntime)
    inputs, references = read_arrays(case.arrays)
    model = tilewright.compile(case.model, threads=1)
    results = model.run(inputs)
    assert [r.shape for r in results] == [r.shape for r in references]
    assert relative_error(results, references) < 1e-4
    again, _ = read_arrays(make_case(name, tmp_path, lambda *_: references).arrays)
    assert all(np.array_equal(again[k], inputs[k]) for k in inputs)


def test_names_that_do_not_exist_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such model: nowhere; there are loop_lstm, "):
        dynamic.run(parser().parse_args(["dynamic", "nowhere"]))
