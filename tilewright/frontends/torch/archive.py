"""Files that `torch.export.save` writes."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch.export import ExportedProgram

from tilewright.frontends.files import check_file
from tilewright.ir.diag import ModelError


def read_program(path: Path) -> ExportedProgram:
    """The exported program in a file. ModelError for a file that is none, is damaged, or of another version."""
    check_file(path)
    if not zipfile.is_zipfile(path):
        raise ModelError(
            "the file is no archive of torch.export.save", where=str(path), hint="export the model again"
        )
    try:
        return torch.export.load(path)
    except Exception as error:
        (first, *_) = str(error).splitlines() or [type(error).__name__]
        raise ModelError(
            f"PyTorch {torch.__version__} cannot read the exported program: {first[:300]}",
            where=str(path),
            hint="export it again with this version of PyTorch",
        ) from error
