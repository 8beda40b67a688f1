"""Errors of front ends: everything that a model asks for and does not get, reported at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.diag import Problem, UnsupportedError
from tilewright.runtime.errors import short_name

_SHOWN_NODES = 3
_SHOWN_GROUPS = 50


class ConstantNeededError(UnsupportedError):
    """An operand's value must be known at compile time; `inputs` names the graph inputs behind it."""

    def __init__(
        self, what: str, *, where: str | None = None, hint: str | None = None, inputs: tuple[str, ...] = ()
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.inputs = inputs


def shown(name: str, limit: int = 80) -> str:
    """A name from the file, safe to print: control characters escaped, long ones cut."""
    return short_name(name, limit)


@dataclass
class _Group:
    """Nodes of one operator that fail for one reason."""

    operator: str
    reason: str
    nodes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        more = len(self.nodes) - _SHOWN_NODES
        listed = ", ".join(self.nodes[:_SHOWN_NODES]) + (f" and {more} more" if more > 0 else "")
        return f"  {self.operator}: {self.reason} [{listed}]"


class Problems:
    """Collects reasons by operator. The error that lists them begins with `what`."""

    def __init__(self, what: str = "the model asks for what is not supported") -> None:
        self._what = what
        self._groups: dict[tuple[str, str], _Group] = {}
        self._errors: list[UnsupportedError] = []
        self._problems: list[Problem] = []

    def add(self, operator: str, node: str, error: UnsupportedError) -> None:
        group = self._groups.setdefault((operator, error.what), _Group(operator, error.what))
        group.nodes.append(node)
        self._errors.append(error)
        self._problems.append(Problem(operator, node, error.what, error.hint or ""))

    def extend(self, others: Problems) -> None:
        """Those that were collected apart."""
        for problem, error in zip(others._problems, others._errors, strict=True):
            self.add(problem.operator, problem.node, error)

    @property
    def first(self) -> UnsupportedError | None:
        return self._errors[0] if self._errors else None

    def raise_if_any(self) -> None:
        """UnsupportedError that lists all; ConstantNeededError when constants would solve each of them."""
        if not self._errors:
            return
        groups = list(self._groups.values())
        lines = [str(g) for g in groups[:_SHOWN_GROUPS]]
        if len(groups) > _SHOWN_GROUPS:
            lines.append(f"  and {len(groups) - _SHOWN_GROUPS} more")
        what = f"{self._what}:\n" + "\n".join(lines)
        hints = list(dict.fromkeys(e.hint for e in self._errors if e.hint))
        hint = "; ".join(hints[:5]) or "the operator tables of the documentation list what is supported"
        needed = [e for e in self._errors if isinstance(e, ConstantNeededError)]
        if len(needed) == len(self._errors):
            names = tuple(dict.fromkeys(n for e in needed for n in e.inputs))
            found: UnsupportedError = ConstantNeededError(what, hint=hint, inputs=names)
        else:
            found = UnsupportedError(what, hint=hint)
        found.problems = tuple(self._problems)
        raise found
