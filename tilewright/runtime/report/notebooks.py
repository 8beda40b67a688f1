"""Models in notebooks."""

from __future__ import annotations

from typing import Any

from tilewright.runtime.errors import printable, short_name
from tilewright.runtime.values.info import TensorInfo


class ShownInNotebooks:
    """What notebooks show of models."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    threads: int
    _loaded: Any

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{kind}</td><td>{escaped(short_name(info.name))}</td><td>{escaped(printable(info.type))}</td></tr>"
            for kind, infos in (("input", self.inputs), ("output", self.outputs))
            for info in infos
        )
        about = f"{self.threads} threads{'' if self._loaded else ', closed'}"
        return f"<b>tilewright model</b>, {escaped(printable(about))}<table>{rows}</table>"


def escaped(text: str) -> str:
    """As HTML has it."""
    from html import escape

    return escape(text)
