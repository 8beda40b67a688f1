"""What tests of several rooms share."""

from collections.abc import Callable

import pytest

from tilewright.ir.core import Module
from tilewright.ir.text import parse_module, print_module


@pytest.fixture
def check_round_trip() -> Callable[[Module], str]:
    """Assert that a module's text reads back as a module with the same text; gives the text."""

    def check(module: Module) -> str:
        text = print_module(module, locs=True)
        assert print_module(parse_module(text), locs=True) == text
        return text

    return check
