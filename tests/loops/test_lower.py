"""What is written into its readers rather than into a buffer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import parser

import tilewright
from tilewright.stages import programs

X = np.random.default_rng(5).standard_normal((7, 9)).astype(np.float32)
AT = np.array([3, 0, -1, 2, 6])


def loops_of(body: str, folder: Path) -> tuple[str, tilewright.Model]:
    """All kernels of rows of x, and the model."""
    text = f"g (float[7, 9] x, int64[5] at) => (float[5, 9] y) {{\n rows = Gather (x, at)\n{body}\n}}"
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{text}')
    path = folder / "model.onnx"
    onnx.save(model, path)
    return "\n".join(programs(path, "loops").values()), tilewright.compile(path, threads=1, cache=False)


def test_what_one_element_reads_often_is_computed_once_for_it(tmp_path: Path) -> None:
    text, model = loops_of("a = Sub (rows, rows)\n b = Mul (a, rows)\n y = Add (b, rows)", tmp_path)
    assert "alloc" not in text and text.count("bind") == text.count("y[")
    np.testing.assert_allclose(model(X, AT)[0], X[AT])
