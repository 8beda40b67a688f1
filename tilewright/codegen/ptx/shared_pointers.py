"""Pointers into shared memory with the type that says so: LLVM looks through no cast for their alignment, of which it
makes loads of four elements at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_CAST = re.compile(r"ptr addrspacecast \(ptr addrspace\(3\) (@\w+) to ptr\)")
_POINTER = re.compile(r"\bptr (%[\w.]+)")
_KNOWING = re.compile(r"(?:%\S+ = )?(getelementptr|load|store)\b")


def with_shared_pointers(lines: Sequence[str]) -> Iterator[str]:
    """The lines of a function in which pointers that are made of shared buffers have their type. What else takes one
    takes it without: a pointer `%v` is then `%v.g` as well."""
    shared: set[str] = set()
    cast: set[str] = set()
    made = [_typed(line, shared, cast) for line in lines]
    for line in made:
        yield line
        if (name := line.partition("=")[0].strip()) in cast:
            yield f"  {name}.g = addrspacecast ptr addrspace(3) {name} to ptr"


def _typed(line: str, shared: set[str], cast: set[str]) -> str:
    """A line with the types of the `shared` pointers, to which its result is added; `cast` gets those that it takes
    without."""
    matched = _KNOWING.match(line.strip())

    def spelled(found: re.Match[str]) -> str:
        if found[1] not in shared:
            return found[0]
        if matched is not None:
            return f"ptr addrspace(3) {found[1]}"
        cast.add(found[1])
        return f"{found[0]}.g"

    line = _POINTER.sub(spelled, line)
    if matched is None:
        return line
    line = _CAST.sub(r"ptr addrspace(3) \1", line)
    if matched[1] == "getelementptr" and "ptr addrspace(3)" in line:
        shared.add(line.split()[0])
    return line
