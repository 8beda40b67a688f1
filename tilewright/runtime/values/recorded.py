"""Values of inputs from files: arrays of NumPy, images and sound, told by their first bytes."""

from __future__ import annotations

import os
import stat
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.files import FIRST_BYTES, open_at_once
from tilewright.runtime.values.dtypes import numpy_dtype

FORMATS = ".npy, .npz, .png, .jpg, .bmp or .wav"

SUFFIXES = (".npy", ".npz", ".png", ".jpg", ".jpeg", ".bmp", ".wav")
"""How names of such files end."""

_IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"BM")
_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
_DAMAGED = (ValueError, EOFError, BadZipFile, KeyError)
"""What NumPy raises for a file of another kind."""

_HINT = "write it with numpy.save(path, array)"

_SAMPLES: dict[int, tuple[str, float, float]] = {
    1: ("u1", 128.0, 128.0), 2: ("<i2", 0.0, 2.0**15), 4: ("<i4", 0.0, 2.0**31),
}  # fmt: skip
"""Bytes of a sample of sound to its dtype, its zero and its full scale."""


def kind_of(path: Path) -> str:
    """"npy", "npz", "image", "sound", or "" for anything else; OSError."""
    with open(path, "rb", opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a regular file")
        begins = file.read(FIRST_BYTES)
    if begins.startswith(b"\x93NUMPY"):
        return "npy"
    if begins.startswith(b"PK"):
        return "npz"
    if begins.startswith(_IMAGES):
        return "image"
    return "sound" if begins.startswith(b"RIFF") and begins[8:12] == b"WAVE" else ""


def read_input(path: Path, info: TensorInfo, sizes: Mapping[str, int] = {}) -> np.ndarray:
    """The value of an input in a file. An image becomes what the shape says: of its channels, resized where extents
    are fixed (or in `sizes`), with floats from 0 to 1; sound becomes the mean of its channels, floats from -1 to 1.
    InputError for what is no such file."""
    where = f"input '{info.name}'"
    try:
        kind = kind_of(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", where=where) from error
    if kind == "image":
        return _image(path, info, sizes, where)
    if kind == "sound":
        return _sound(path, info, where)
    array = load_array(path, where, info.name)
    # NumPy writes the types of ml_dtypes as raw bytes
    dtype = numpy_dtype(info.dtype)
    return array.view(dtype) if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize else array


def load_array(path: Path, where: str, name: str = "") -> np.ndarray:
    """The array in a .npy file, or the one in a .npz file that is alone or has this name, for what `where` names."""
    arrays = load_arrays(path, where)
    if len(arrays) > 1 and name not in arrays:
        raise InputError(
            f"{path} holds several arrays: {', '.join(arrays)}", where=where,
            hint=f"write one with numpy.save, or one named '{name}'" if name else "write one with numpy.save",
        )  # fmt: skip
    return arrays[name] if name in arrays else next(iter(arrays.values()))


def load_arrays(path: Path, where: str) -> dict[str, np.ndarray]:
    """All arrays of a .npz file by name, or that of a .npy file under the name ""."""
    try:
        if kind_of(path) not in ("npy", "npz"):
            raise InputError(f"{path} is not a .npy file: it begins otherwise", where=where, hint=_HINT)
        found: Any = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {"": found}
        with found:
            arrays = {name: found[name] for name in found.files}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", where=where) from error
    except MemoryError as error:
        raise InputError(f"no memory for {path}: {error}", where=where, hint="is the file sound?") from error
    except _DAMAGED as error:
        raise InputError(f"{path} is not a .npy file: {error}", where=where, hint=_HINT) from error
    if not arrays:
        raise InputError(f"{path} holds no array", where=where, hint=_HINT)
    return arrays


def _image(path: Path, info: TensorInfo, sizes: Mapping[str, int], where: str) -> np.ndarray:
    try:
        import PIL.Image
    except ImportError as error:
        raise InputError(
            f"{path} is an image, and the package pillow is not installed",
            where=where,
            hint="pip install pillow, or give the pixels as a .npy file",
        ) from error
    axes = _image_axes(info, where)
    fixed = {axis: size if isinstance(size, int) else sizes.get(size) for axis, size in enumerate(info.shape)}
    channels = fixed[axes["channels"]] if "channels" in axes else 1
    try:
        with PIL.Image.open(path) as image:
            mode = _CHANNELS.get(channels or 3)
            if mode is None:
                raise InputError(f"{path} is an image, and the model takes {info.type}", where=where)
            given = image.convert(mode)
            width, height = fixed[axes["width"]] or given.width, fixed[axes["height"]] or given.height
            pixels = np.asarray(given.resize((width, height)) if (width, height) != given.size else given)
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as an image: {error}", where=where) from error
    pixels = pixels.reshape(height, width, -1)
    pixels = pixels.transpose(2, 0, 1) if axes.get("channels", 3) < axes["height"] else pixels
    if "channels" not in axes:
        pixels = pixels[..., 0]
    dtype = numpy_dtype(info.dtype)
    is_integer = np.issubdtype(dtype, np.integer)
    made = (pixels if is_integer else pixels / np.float32(255)).astype(dtype)
    batch = fixed[0] if "batch" in axes else None
    return np.array(np.broadcast_to(made, (batch or 1, *made.shape)) if "batch" in axes else made, order="C")


def _image_axes(info: TensorInfo, where: str) -> dict[str, int]:
    """Which axis of an input is what of an image."""
    rank = len(info.shape)
    if info.kind != "tensor" or rank not in (2, 3, 4):
        raise InputError(f"an image is no {info.type}", where=where, hint="give the pixels as a .npy file")
    if rank == 2:
        return {"height": 0, "width": 1}
    last = info.shape[-1] in _CHANNELS and info.shape[-3] not in (1, 3)
    first = rank - 3
    names = ("height", "width", "channels") if last else ("channels", "height", "width")
    return {**({"batch": 0} if first else {}), **{name: first + k for k, name in enumerate(names)}}


def _sound(path: Path, info: TensorInfo, where: str) -> np.ndarray:
    dtype = numpy_dtype(info.dtype)
    if info.kind != "tensor" or not 1 <= len(info.shape) <= 3 or dtype.kind not in "fiuV":
        raise InputError(f"sound is no {info.type}", where=where, hint="give the numbers as a .npy file")
    try:
        with wave.open(str(path), "rb") as file:
            width, channels = file.getsampwidth(), file.getnchannels()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        raise InputError(
            f"{path} cannot be read as sound: {error}", where=where, hint="samples must be PCM; or give a .npy file"
        ) from error
    if width == 3:  # as the upper bytes of 4
        data = b"".join(b"\0" + data[k : k + 3] for k in range(0, len(data) - 2, 3))
        width = 4
    kind, zero, scale = _SAMPLES[width]
    samples = np.frombuffer(data, kind).reshape(-1, channels)
    if np.issubdtype(dtype, np.integer):
        made = (samples if channels == 1 else samples.mean(axis=1, keepdims=True))[:, 0].astype(dtype)
    else:
        made = ((samples.astype(np.float64).mean(axis=1) - zero) / scale).astype(dtype)
    return made.reshape((1,) * (len(info.shape) - 1) + made.shape)
