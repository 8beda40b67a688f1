"""The HTML file: data, scripts and styles in one, so that it opens without a network."""

from __future__ import annotations

import html
import json
import math
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from tilewright.runtime.errors import printable
from tilewright.runtime.storage.records import plain
from tilewright.viewer.records import Page

LIBRARY, LICENCE = "uPlot.iife.min.js", "LICENSE.uPlot"
"""What others wrote, in `assets/vendor` (its README.md says from where), and what must come with each copy of it."""

SCRIPTS = (
    "dom.js", "data.js", "colours.js", "layered.js", "layout.js", "graph.js", "inspector.js", "search.js", "table.js",
    "timeline.js", "memory.js", "roofline.js", "compiling.js", "reasons.js", "main.js",
)  # fmt: skip
"""What is ours, in the order in which it is read: each file uses those before it."""


def page_html(page: Page) -> str:
    """The text of the file. What the data say is text wherever it is shown, whatever characters it has."""
    assets = files("tilewright.viewer") / "assets"
    vendor = assets / "vendor"
    parts = {
        "TITLE": html.escape(printable(page.title)),
        "STYLE": "\n".join((_read(vendor, "uPlot.min.css"), _read(assets, "style.css"))),
        "DATA": escaped_json(plain(page)),
        "LIBRARIES": f"<script>/*!\n{_read(vendor, LICENCE)}\n*/</script>\n{_scripts(vendor, (LIBRARY,))}",
        "SCRIPTS": _scripts(assets, SCRIPTS),
    }
    begin, *rest = _read(assets, "page.html").split("{{")
    made = [begin]
    for piece in rest:
        name, after = piece.split("}}", 1)
        made += parts[name], after
    return "".join(made)


def escaped_json(data: Any) -> str:
    """JSON data for a script element: no markup can end it, as `<`, `>` and `&` stand for themselves nowhere."""
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(data: Any) -> Any:
    """What JSON does not have: no number is null, and an infinite one, as the error of a tensor that should be 0, its
    name in scripts."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    if isinstance(data, dict):
        return {name: _finite(item) for name, item in data.items()}
    return [_finite(item) for item in data] if isinstance(data, list) else data


def _scripts(folder: Traversable, names: tuple[str, ...]) -> str:
    return "\n".join(f"<script>{_without_maps(_read(folder, name))}</script>" for name in names)


def _without_maps(script: str) -> str:
    """Without the line that names a source map: a browser's tools would ask for it."""
    return "\n".join(line for line in script.splitlines() if not line.startswith("//# sourceMappingURL"))


def _read(folder: Traversable, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")
