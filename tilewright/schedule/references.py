"""Names by which the text of a schedule refers to the loops, buffers and accesses of a kernel, at one moment.

i0          the loop over i0, and the first one where several loops have this variable
i0@2        the second such loop, in program order
x, x@2      the buffer x, and the second buffer of this name: arguments first, then buffers in program order
x.load      the first load of the buffers called x
x.store@3   their third store
op.if@2     the second op of any other kind, by the name of its kind
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.loops.edit import is_loop, loop_var, loops_in

T = TypeVar("T")
ACCESSES = ("load", "store", "prefetch")
_NOT_IN_LABELS = re.compile(r"\W+", re.ASCII)


class References:
    """What finds the loops, buffers and accesses of `func` as it is now."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self._loops: list[Op] | None = None

    def to(self, subject: Op | Value) -> str:
        """The reference to `subject`."""
        if isinstance(subject, Value):
            label = _label(subject)
            others = self.func.args if subject.op is None else _buffers(self.func)
            return _numbered(label, (v for v in others if _label(v) == label), subject)
        if is_loop(subject):
            if self._loops is None:  # once for all loops of a step: steps are written down often
                self._loops = loops_in(self.func.body)
            name = loop_var(subject).name
            return _numbered(name, (o for o in self._loops if loop_var(o).name == name), subject)
        text = f"op.{subject.name}"
        if subject.name in ACCESSES:
            text = f"{_label(subject.operands[-1])}.{subject.name}"
        return _numbered(text, _ops_called(text, self.func), subject)


def find_buffer(reference: str, func: Func) -> Value:
    """The buffer of that reference. ScheduleError with similar names when there is none."""
    name, number = _parts(reference)
    buffers = list(_buffers(func))
    found = [v for v in buffers if _label(v) == name]
    return _chosen(reference, found, number, "buffer", [_label(v) for v in buffers])


def find_op(reference: str, func: Func) -> Op:
    """The loop, access or other op of that reference. ScheduleError with similar names when there is none."""
    name, number = _parts(reference)
    if "." in name and (found := list(_ops_called(name, func))):
        return _chosen(reference, found, number, "op", [])
    loops = loops_in(func.body)
    found = [o for o in loops if loop_var(o).name == name]
    names = [loop_var(o).name for o in loops]
    if "." in name:
        return _chosen(reference, found, number, "access", list(dict.fromkeys(_accesses(func))))
    return _chosen(reference, found, number, "loop", names)


def _label(buffer: Value) -> str:
    """The name of a buffer, as far as text allows it."""
    name = buffer.name
    return name if name.isidentifier() and name.isascii() else _spelled(name)


@lru_cache(maxsize=256)
def _spelled(name: str) -> str:
    """A name, which may be long and is asked for often, without what no label has."""
    name = _NOT_IN_LABELS.sub("_", name).strip("_")
    name = f"n{name}" if name[:1].isdigit() else name
    return name or "buffer"


def _numbered(text: str, candidates: Iterable[Op | Value], subject: Op | Value) -> str:
    for number, candidate in enumerate(candidates, 1):
        if candidate is subject:
            return text if number == 1 else f"{text}@{number}"
    raise ScheduleError(f"{text} is not in the kernel any more")


def _parts(reference: str) -> tuple[str, int]:
    name, _, number = reference.partition("@")
    return name, int(number or 1)


def _buffers(func: Func) -> Iterator[Value]:
    yield from func.args
    for op in func.body.walk():
        if op.name == "alloc":
            yield op.result


def _ops_called(text: str, func: Func) -> Iterator[Op]:
    """The ops that a reference without its number may mean."""
    label, _, name = text.rpartition(".")
    for op in func.body.walk():
        if op.name == name and (_label(op.operands[-1]) if name in ACCESSES else "op") == label:
            yield op


def _accesses(func: Func) -> Iterator[str]:
    for op in func.body.walk():
        if op.name in ACCESSES:
            yield f"{_label(op.operands[-1])}.{op.name}"


def _chosen(reference: str, found: Sequence[T], number: int, what: str, names: Sequence[str]) -> T:
    if 1 <= number <= len(found):
        return found[number - 1]
    if found:
        raise ScheduleError(f"there is no {what} '{reference}' here: there are {len(found)} of this name")
    known = list(dict.fromkeys(names))
    plural = "accesses" if what == "access" else f"{what}s"
    raise ScheduleError(
        f"there is no {what} '{reference}' here; the {plural} are {', '.join(known) or 'none'}",
        hint=similar(reference, known),
    )


def similar(name: str, names: Iterable[str]) -> str | None:
    """A hint at the names that `name` may have been meant to be."""
    near = difflib.get_close_matches(name, list(names), 2)
    return f"did you mean {' or '.join(near)}?" if near else None
