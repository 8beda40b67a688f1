"""What commands say of the files that they wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewright.cli.amounts import bytes_text
from tilewright.cli.output import SafeConsole, print_json


def print_written(files: Sequence[Path], as_json: bool) -> None:
    """Each file and its size; as JSON the first of them by itself, too."""
    sizes = {str(file): file.stat().st_size for file in files}
    if as_json:
        print_json({"output": str(files[0]), "bytes": sizes})
        return
    for file, size in sizes.items():
        SafeConsole(soft_wrap=True).print(f"{file}: {bytes_text(size)}", markup=False)
