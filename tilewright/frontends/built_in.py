"""The front ends that the compiler brings; plugins add others. They import what they need when they load a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.front_end import FrontEnd, Remember
from tilewright.frontends.onnx import OnnxFrontEnd
from tilewright.frontends.stablehlo import StablehloFrontEnd
from tilewright.frontends.tflite import TfliteFrontEnd
from tilewright.frontends.torch import TorchFrontEnd
from tilewright.runtime.errors import OptionError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.core import Module


class GraphFrontEnd:
    """Graphs that are programs of ours already, which tools make of others. What is compiled is a copy."""

    name = "graph"
    formats = "graphs (tilewright.ir.core.Module)"

    def accepts(self, source: Any) -> bool:
        """Whoever has a module has imported its class."""
        return type(source).__module__ == "tilewright.ir.core" and type(source).__name__ == "Module"

    def digest(self, source: Any, remember: Remember) -> bytes:
        from tilewright.ir.text import print_module

        found = hashlib.blake2b(print_module(source).encode(), digest_size=16)
        for name, array in sorted(source.constants.items()):
            found.update(f"{name}{array.dtype}{array.shape}".encode())
            found.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
        return found.digest()

    def load(
        self,
        source: Any,
        *,
        constants: Mapping[str, np.ndarray],
        shapes: Mapping[str, Sequence[int | str]],
    ) -> Module:
        if constants or shapes:
            raise OptionError(
                "constants= and shapes= were given for a graph, whose inputs are what they are",
                hint="give them where the graph is imported",
            )
        from tilewright.ops.written_out import write_out

        copy: Module = source.copy()
        write_out(copy)
        return copy


FRONT_ENDS: tuple[FrontEnd, ...] = (
    OnnxFrontEnd(), TorchFrontEnd(), TfliteFrontEnd(), StablehloFrontEnd(), DecoderFrontEnd(), GraphFrontEnd(),
)  # fmt: skip
