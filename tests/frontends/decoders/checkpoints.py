"""Small checkpoints for tests: weights follow from the names of tensors by a formula."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RECORDED = Path(__file__).with_name("recorded.json")
VOCABULARY = 61
IDS = [3, 60, 7, 7, 21, 0, 44, 13, 5, 58, 31]
SHOWN = 6
"""Of the logits every sixth is recorded."""


def cases() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def tensor(name: str, shape: Sequence[int]) -> np.ndarray:
    """f32[shape]: numbers that the name decides, of a size that keeps activations near 1."""
    normal = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) > 1:
        return (0.2 * normal).astype(np.float32)
    is_scale = name.endswith(".weight")
    return (is_scale + 0.2 * normal).astype(np.float32)


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    header, data = {}, b""
    for name, array in tensors.items():
        dtype = {"float32": "F32", "float16": "F16", "int32": "I32"}[array.dtype.name]
        begin, data = len(data), data + array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A folder of Hugging Face; `tensors` stand in place of those of the formula."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    made = {name: tensor(name, shape) for name, shape in shapes.items()}
    write_safetensors(folder / "model.safetensors", {**made, **(tensors or {})})
    return folder
