"""Drawn networks in bytes and 16 bits, as ONNX Runtime's quantiser and converters make them."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

FORMS = ("qdq", "qdq_channels", "operators", "dynamic", "float16")


def narrowed(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], rng: random.Random, path: Path) -> str:
    """Write the model in one of the forms: its name. ValueError where the tools refuse it."""
    form = rng.choice(FORMS)
    wide = path.with_suffix(".wide.onnx")
    onnx.save(model, wide)
    logging.getLogger().setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _write(form, wide, inputs, path)
    except Exception as error:  # of classes of its own
        raise ValueError(f"{form}: {error}") from error
    finally:
        wide.unlink()
    return form


def _write(form: str, wide: Path, inputs: Mapping[str, np.ndarray], path: Path) -> None:
    quantization = importlib.import_module("onnxruntime.quantization")
    if form == "float16":
        onnx.save(_in_16_bits(onnx.load(wide)), path)
    elif form == "dynamic":
        quantization.quantize_dynamic(str(wide), str(path))
    else:
        layout = quantization.QuantFormat.QOperator if form == "operators" else quantization.QuantFormat.QDQ
        quantization.quantize_static(str(wide), str(path), _reader(quantization, inputs), quant_format=layout,
                                     per_channel=form == "qdq_channels")  # fmt: skip


def _reader(quantization: Any, inputs: Mapping[str, np.ndarray]) -> Any:
    class Once(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [dict(inputs)]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.left.pop() if self.left else None

    return Once()


def _in_16_bits(model: onnx.ModelProto) -> onnx.ModelProto:
    """All floats, inputs too, between casts to and from float32."""
    converter = importlib.import_module("onnxruntime.transformers.float16")
    converted: onnx.ModelProto = converter.convert_float_to_float16(model, keep_io_types=True)
    return converted
