"""What the site has besides the pages in docs/: the README as its first page, and how to contribute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages beside docs/, and what they are called in the site."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside."""
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the site, where docs/ is the root. Links to files of the repository become their names."""
    if page.file.src_uri in OUTSIDE.values():
        markdown = markdown.replace("](docs/", "](")
        for name, made in OUTSIDE.items():
            markdown = markdown.replace(f"]({name}", f"]({made}")
    for name, made in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name}", f"]({made}")
    return re.sub(r"\[([^\]]*)\]\((?!https?:|#|mailto:)[^)\s]*(?:/|\.(?:py|toml|json|tw))\)", r"\1", markdown)
