"""Amounts of memory as people write them."""

from __future__ import annotations

import click
import pytest

from tilewright.cli.amounts import Bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("49152", 49152),
        ("48KB", 49152),
        ("48 KiB", 49152),
        ("48k", 49152),
        ("1.5MiB", 3 << 19),
        ("2G", 2 << 30),
        ("1b", 1),
    ],
)
def test_bytes_are_read(text: str, size: int) -> None:
    assert Bytes().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "KB", "48XB", "nan", "inf", "1e999", "0.5", "48KB48"])
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no number of bytes"):
        Bytes().convert(text, None, None)
