"""Configurations beside a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilewright.ir.diag import ModelError

_MOST_BYTES = 2**26


def read_json(path: Path) -> dict[str, Any]:
    """The object of a file, {} where there is none; ModelError where it is no object."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"a configuration cannot be read: {error}", where=str(path)) from None
    if not isinstance(found, dict):
        raise ModelError("a configuration is a JSON object, and this is none", where=str(path))
    return found
