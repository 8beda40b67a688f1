"""Amounts as people read them."""

from __future__ import annotations


def bytes_text(size: int) -> str:
    """Bytes in the unit that fits: `3.2 MiB`."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size} B"


def ago(seconds: float) -> str:
    """A time that has passed: `3 days ago`."""
    for unit, scale in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * scale:
            return f"{seconds // scale:.0f} {unit} ago"
    return "just now" if seconds < 60 else "1 minute ago"
