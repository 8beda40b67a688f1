"""Files of other kinds that are given as models: what each is, and how a model is made of it. Nothing is unpickled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.frontends.files import first_bytes, open_regular
from tilewright.ir.diag import ModelError

_EXPORT = (
    "make the module in the program that defines it, load the weights, and give tilewright.compile(module, (x,)) the "
    "module with an example of its input, or save it: torch.export.save(torch.export.export(module, (x,)), 'model.pt2')"
)
_ORIGIN = "export the model that it was made of, by torch.export or to ONNX"
_TENSORFLOW = "convert it: python -m tf2onnx.convert, or tf.lite.TFLiteConverter, and give the .onnx or .tflite file"


@dataclass(frozen=True)
class Foreign:
    """What a file is, and the way from it to a model."""

    what: str
    hint: str

    def error(self, source: Any) -> ModelError:
        """For a source that was given as a model."""
        where = str(source) if isinstance(source, Path) else "the given bytes"
        return ModelError(f"the model is {self.what}", where=where, hint=self.hint)


_WEIGHTS = Foreign(
    "a file of weights (safetensors), without the program that computes with them",
    f"of a language model give the folder, which has its config.json; else {_EXPORT}",
)
_CHECKPOINT = Foreign(
    "a checkpoint of PyTorch (torch.save): weights, or a pickled module that only its own source can load; it is not "
    "opened here, as that could run any code",
    _EXPORT,
)
_SCRIPT = Foreign(
    "TorchScript (torch.jit.save)",
    "convert it: torch.onnx.export(torch.jit.load(path), (x,), 'model.onnx', dynamo=False), or export the module that "
    "it was made of by torch.export",
)
_PROGRAM = Foreign("an exported program of PyTorch under another suffix", "give the file the suffix .pt2")
_KERAS = Foreign("a model of Keras", "convert it: keras' model.export('model.onnx', format='onnx'), or to TFLite")
_ARRAYS = Foreign("arrays of NumPy, without a program", "give the model that takes them; --input takes the arrays")
_COMPILED = Foreign("a model that tilewright has compiled", "tilewright.load runs it, and so does `tilewright run`")

_BEGINNINGS: tuple[tuple[bytes, Foreign], ...] = (
    (b"\x89TWM\r\n\x1a\n", _COMPILED),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", _CHECKPOINT),  # of versions before 1.6
    (b"\x89HDF\r\n\x1a\n", Foreign("an HDF5 file: a model of Keras, or its weights", _KERAS.hint)),
    (b"ggml", Foreign("weights for llama.cpp in a format of before GGUF", "fetch the model as a .gguf file")),
    (b"version https://git-lfs", Foreign("a pointer of Git LFS in place of the file", "fetch the file: git lfs pull")),
    (b"\x93NUMPY", _ARRAYS),
    (b"7767517", Foreign("a model of ncnn", "give the model that it was converted from")),
    (b"ftrt", Foreign("an engine of TensorRT", "give the .onnx file that it was built from")),
    (b"ptrt", Foreign("an engine of TensorRT", "give the .onnx file that it was built from")),
    (b"\x1f\x8b", Foreign("compressed (gzip)", "unpack it, and give the model in it")),
    (b"BZh", Foreign("compressed (bzip2)", "unpack it, and give the model in it")),
    (b"\xfd7zXZ", Foreign("compressed (xz)", "unpack it, and give the model in it")),
    (b"7z\xbc\xaf", Foreign("an archive (7z)", "unpack it, and give the model in it")),
)
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_PICKLE = Foreign(
    "a pickled Python object, which is not opened here, as that could run any code",
    "load it in the program that made it, and export the model from there, to ONNX or by torch.export",
)
_READ = 512


def foreign_format(source: Any) -> Foreign | None:
    """What a path or bytes are, if they are no model but of a known kind; None for anything else. Nothing is read but
    the beginning, and of an archive the names of what is in it."""
    if isinstance(source, Path) and _is_folder(source):
        return _folder(source)
    begins = first_bytes(source, _READ)
    found = next((foreign for beginning, foreign in _BEGINNINGS if begins.startswith(beginning)), None)
    if found is not None or not begins:
        return found
    if begins.startswith(b"PK"):
        return _archive(source)
    if begins.startswith(_PICKLES):
        return _PICKLE
    if begins[8:10] == b'{"' and int.from_bytes(begins[:8], "little") < 1 << 32:
        return _WEIGHTS
    if begins[4:8] == b"ORTM":
        return Foreign("a model in ONNX Runtime's own format (.ort)", "give the .onnx file that it was made of")
    if begins[257:262] == b"ustar":
        return Foreign("an archive (tar)", "unpack it, and give the model in it")
    return _text(begins) or _protobuf(source, begins)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _folder(path: Path) -> Foreign | None:
    try:
        names = {file.name for file in path.iterdir()}
    except OSError:
        return None
    if "saved_model.pb" in names:
        return Foreign("a SavedModel of TensorFlow", _TENSORFLOW)
    if path.suffix == ".mlpackage":
        return Foreign("a model of Core ML", "give the model that it was converted from")
    has_weights = any(name.endswith(".safetensors") for name in names)
    if "config.json" in names and has_weights:
        return None
    if "config.json" in names and any(name.endswith(".bin") for name in names):
        return Foreign(
            "a folder of transformers with weights as .bin, which are not opened here, as that could run any code",
            "save the model again: model.save_pretrained(folder, safe_serialization=True)",
        )
    models = sorted(name for name in names if name.endswith((".onnx", ".tflite", ".pt2", ".mlir", ".gguf")))
    if models:
        return Foreign(f"a folder, which holds {', '.join(models[:3])}", "give one of these files")
    if has_weights or names & {"config.json", "tokenizer.json", "generation_config.json"}:
        config = "" if "config.json" in names else "config.json"
        missing = " and without ".join(filter(None, [config, "" if has_weights else "weights as .safetensors"]))
        return Foreign(f"a folder of transformers without {missing}", "fetch all files of the model")
    return Foreign(
        "a folder without config.json, weights as .safetensors, or a file of a known format",
        "give a model's file, or a folder with all files of a model",
    )


def _archive(source: Any) -> Foreign | None:
    """By the names in a .zip file; None for an exported program, and for what only a plugin may know."""
    if not isinstance(source, Path):
        return None
    from zipfile import BadZipFile, ZipFile

    try:
        with open_regular(source) as file, ZipFile(file) as archive:
            names = archive.namelist()
    except (OSError, BadZipFile, ValueError, NotImplementedError):
        return None
    inner = {name.partition("/")[2] for name in names}
    if inner & {"archive_format", "archive_version"} or "serialized_exported_program.json" in names:
        return None if source.suffix == ".pt2" else _PROGRAM
    if "data.pkl" in inner:
        return _SCRIPT if "constants.pkl" in inner or any(name.startswith("code/") for name in inner) else _CHECKPOINT
    if {"config.json", "model.weights.h5"} <= {*names}:
        return _KERAS
    if names and all(name.endswith(".npy") for name in names):
        return _ARRAYS
    return None


def _text(begins: bytes) -> Foreign | None:
    text = begins.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return Foreign("a web page, so that the download went wrong", "download the file itself")
    if text.startswith((b"<?xml", b"<net ")) and b"<net " in text:
        return Foreign("a model of OpenVINO", "give the model that it was converted from")
    return None


def _protobuf(source: Any, begins: bytes) -> Foreign | None:
    """TensorFlow's graphs have no mark of their own: by the suffix."""
    if isinstance(source, Path) and source.suffix == ".pb" and begins[:1] in (b"\n", b"\x08"):
        return Foreign("a graph of TensorFlow", _TENSORFLOW)
    return None
