"""Pointers into shared memory with the type that says so: LLVM looks through no cast for their alignment, of which it
makes loads of four elements at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_CAST = re.compile(r"ptr addrspacecast \(ptr addrspace\(3\) (@\w+) to ptr\)")
_POINTER = re.compile(r"\bptr (%[\w.]+)")
_KNOWING = re.compile(r"(?:%\S+ = )?(getelementptr|load|store)\b")


def with_shared_pointers(lines: Sequence[str]) -> Iterator[str]:
    """The lines of a function in which pointers that are made of shared buffers have their type."""
    shared: set[str] = set()

    def typed(found: re.Match[str]) -> str:
        return f"ptr addrspace(3) {found[1]}" if found[1] in shared else found[0]

    for line in lines:
        matched = _KNOWING.match(line.strip())
        if matched is None:
            yield from (f"  {n}.g = addrspacecast ptr addrspace(3) {n} to ptr" for n in _used(line, shared))
            yield re.sub(_POINTER, lambda found: f"{found[0]}.g" if found[1] in shared else found[0], line)
            continue
        line = _POINTER.sub(typed, line)
        made = _CAST.sub(r"ptr addrspace(3) \1", line)
        if matched[1] == "getelementptr" and "ptr addrspace(3)" in made:
            shared.add(made.split()[0])
        yield made


def _used(line: str, shared: set[str]) -> list[str]:
    return [name for name in dict.fromkeys(_POINTER.findall(line)) if name in shared]
