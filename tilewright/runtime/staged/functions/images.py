"""Images, decoded by Pillow."""

from __future__ import annotations

import io

import numpy as np

from tilewright.runtime.errors import ExecutionError
from tilewright.runtime.staged.functions.registry import HostFunction, prepared


@prepared
def decode_image(*, pixel_format: str) -> HostFunction:
    """The pixels of an encoded image, u8[height, width, channels]: "RGB", "BGR" or "Grayscale". ONNX operator
    `ImageDecoder`."""
    try:
        import PIL.Image
    except ImportError as error:
        raise ExecutionError(
            "the model decodes images, and the package pillow is not installed",
            hint="pip install pillow",
        ) from error

    def decode(encoded: np.ndarray) -> tuple[np.ndarray]:
        try:
            with PIL.Image.open(io.BytesIO(encoded.tobytes())) as image:
                pixels = np.asarray(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
        except (OSError, SyntaxError, PIL.Image.DecompressionBombError) as error:
            raise ValueError(f"the image cannot be decoded: {error}") from error
        if pixel_format == "Grayscale":
            pixels = pixels[:, :, None]
        return (np.array(pixels[:, :, ::-1] if pixel_format == "BGR" else pixels, order="C"),)

    return decode
