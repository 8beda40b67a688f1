"""Encoded images, where the package pillow is installed, and the error where it is not."""

from __future__ import annotations

import importlib.util
import io
import sys
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import checked, model_of

needs_pillow = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs the package pillow")
PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def decoder(pixel_format: str) -> tilewright.Model:
    """Decodes an image, and adds 1 to each element."""
    nodes = [
        h.make_node("ImageDecoder", ["x"], ["pixels"], pixel_format=pixel_format),
        h.make_node("Cast", ["pixels"], ["wide"], to=T.INT32),
        h.make_node("Add", ["wide", "one"], ["y"]),
    ]
    return checked(model_of(nodes, [("x", T.UINT8, ["n"])], ["y"], {"one": np.array(1, np.int32)}))


def encoded(form: str, **options: Any) -> np.ndarray:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, form, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


@needs_pillow
@pytest.mark.parametrize("form", ["png", "bmp", "tiff", "ppm"])
def test_colours(form: str) -> None:
    np.testing.assert_array_equal(decoder("RGB")(encoded(form))[0], PIXELS.astype(np.int32) + 1)
    np.testing.assert_array_equal(decoder("BGR")(encoded(form))[0], PIXELS[:, :, ::-1].astype(np.int32) + 1)


@needs_pillow
def test_grey() -> None:
    """By the weights of ITU-R 601, within rounding."""
    (found,) = decoder("Grayscale")(encoded("png"))
    assert found.shape == (4, 5, 1)
    np.testing.assert_allclose(found[..., 0] - 1, PIXELS @ [0.299, 0.587, 0.114], atol=1)


@needs_pillow
def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(tilewright.InputError, match="the image cannot be decoded"):
        decoder("RGB")(np.zeros(9, np.uint8))
    with pytest.raises(tilewright.InputError, match="the image cannot be decoded"):
        decoder("RGB")(encoded("png")[:-20])


def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(tilewright.TilewrightError, match="pillow is not installed") as caught:
        decoder("RGB")
    assert "pip install pillow" in str(caught.value)
