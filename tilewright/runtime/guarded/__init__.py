"""Calls of native code between guard zones: memory that nobody may touch lies before and behind each buffer.

`pages` has the memory, `calls` gives it to the calls of models. What was compiled with `guarded=True` also keeps the
tensors of its arena, its constants and the scratch memories of its threads apart, and is looked at after each kernel.
Imported only for such models.
"""

PAGE = 4096
"""Bytes of a page, of which a guard zone has at least one."""

GUARD_ZONES = "guard zones"
"""The entry of what is attached to an artefact that tells of room for zones: the names of its `arena`'s tensors."""


def has_zones(triple: str) -> bool:
    """Whether code for a target triple can run between guard zones: the handler of accesses is for one system."""
    parts = triple.lower().split("-")
    return parts[0] in ("x86_64", "amd64") and any(part.startswith("linux") for part in parts[1:])
