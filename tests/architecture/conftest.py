"""What the rules of the house share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.architecture.test_house import nodes, parsed


@pytest.fixture(scope="package", autouse=True)
def trees_end_with_the_rules() -> Iterator[None]:
    """Syntax trees of the whole package, which are hundreds of megabytes, are no burden of other tests."""
    yield
    nodes.cache_clear()
    parsed.cache_clear()
