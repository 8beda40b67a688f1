"""Libraries are linked by the system's C compiler, which not every machine has."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(autouse=True)
def compiler() -> None:
    """Skips what cannot be linked here."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
