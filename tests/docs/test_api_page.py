"""The page of the Python interface is that of today's docstrings, and leaves nothing public out."""

from __future__ import annotations

import tilewright
from docs import api


def test_the_page_is_up_to_date() -> None:
    assert api.PAGE.read_text() == api.page(), "run `make docs`"


def test_every_public_name_and_method_is_there() -> None:
    page = api.page()
    for name in tilewright.__all__:
        assert f"`tilewright.{name}`" in page or f"`tilewright.{name}()`" in page or f"- `{name}`: " in page, name
    for member in ("run", "run_dict", "trim", "close", "save", "artifact", "get_inputs"):
        assert f"`Model.{member}" in page
    assert "#### `model()`" in page


def test_everything_public_says_what_it_does() -> None:
    for name in tilewright.__all__:
        value = getattr(tilewright, name)
        assert value.__doc__, name
        if isinstance(value, type):
            undocumented = [m for m, v in vars(value).items() if callable(v) and m[0] != "_" and not v.__doc__]
            assert undocumented == [], name
