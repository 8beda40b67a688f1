"""The PyTorch front end. This module imports neither torch nor the translation."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.frontends.exported import ExportedDecoder
from tilewright.frontends.files import digest_of_file
from tilewright.frontends.front_end import ModelWithExamples, Remember

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.core import Module


class TorchFrontEnd:
    """Modules with examples of their inputs, exported programs, and the files that `torch.export.save` writes."""

    name = "torch"
    formats = "PyTorch (torch.nn.Module with example_inputs=, torch.export.ExportedProgram, .pt2 files)"

    def accepts(self, source: Any) -> bool:
        """Whoever has an object of PyTorch's has imported it."""
        if isinstance(source, ExportedDecoder):
            return self.accepts(source.source)
        if isinstance(source, Path):
            return source.suffix == ".pt2"
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        model = source.model if isinstance(source, ModelWithExamples) else source
        return isinstance(model, torch.nn.Module) or type(model).__name__ in ("ExportedProgram", "Captured")

    def digest(self, source: Any, remember: Remember) -> bytes:
        if isinstance(source, ExportedDecoder):
            return self.digest(source.source, remember) + b"decoder"
        if isinstance(source, Path):
            return remember(source, digest_of_file) + _version_of_torch() + _autocast()
        from tilewright.frontends.torch.identity import digest_of
        from tilewright.frontends.torch.load import program_of

        return digest_of(program_of(source))

    def load(
        self,
        source: Any,
        *,
        constants: Mapping[str, np.ndarray],
        shapes: Mapping[str, Sequence[int | str]],
    ) -> Module:
        from tilewright.frontends.torch.load import load_captured, program_of

        if not isinstance(source, ExportedDecoder):
            return load_captured(program_of(source), constants=constants, shapes=shapes)
        from tilewright.frontends.exported.one_sequence import settled

        captured = program_of(source.source)
        return settled(
            lambda known: load_captured(captured, constants=constants, shapes={**shapes, **known}, is_decoder=True)
        )


def _version_of_torch() -> bytes:
    """What tells which PyTorch is installed, which is not imported: it decides how programs are decomposed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return b"none"
    stat = Path(spec.origin).with_name("version.py").stat()
    return f"{stat.st_size}:{stat.st_mtime_ns}".encode()


def _autocast() -> bytes:
    """The region of autocast around the call, which decides on the types that programs compute in."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_autocast_enabled("cpu"):
        return b""
    return str(torch.get_autocast_dtype("cpu")).encode()
