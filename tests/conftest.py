"""What tests of several rooms share."""

from collections.abc import Callable, Iterator

import pytest

from tilewright.ir.core import Module
from tilewright.ir.text import parse_module, print_module


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled models of the tests stay out of the user's cache (commands that tests start inherit this)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def check_round_trip() -> Callable[[Module], str]:
    """Assert that a module's text reads back as a module with the same text; gives the text."""

    def check(module: Module) -> str:
        text = print_module(module, locs=True)
        assert print_module(parse_module(text), locs=True) == text
        return text

    return check
