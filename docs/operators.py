"""Writes docs/operators.md from the definitions of the operators. Run by `make docs`; a test compares."""

from __future__ import annotations

import inspect
from pathlib import Path

from tilewright.frontends.onnx.registry import translated
from tilewright.ops.define import OPERATORS, Operator

PAGE = Path(__file__).parent / "operators.md"

INTRODUCTION = """\
# Operators

Made by `make docs` from the definitions in `tilewright/ops`; do not edit.

A *primitive* says one element of its result by elements of its operands, and gets loops from that; a
*composite* is a function over other operators (*kept*: it stays whole until a pass expands it, so that a better
kernel may claim it); an *irregular* operator brings its own loops. Parameters after `*` are attributes.
Elementwise operators broadcast as NumPy does. ONNX operators that are this operator under another name are
listed with it; the others are translated by `tilewright/frontends/onnx`. All that are translated stand at the
end of this page.
"""


def page() -> str:
    """The text of the page: a section for each family, which is a file."""
    families: dict[str, list[Operator]] = {}
    for operator in OPERATORS.values():
        families.setdefault(operator.fn.__module__.rpartition(".")[2], []).append(operator)
    parts = [INTRODUCTION]
    for family in sorted(families):
        parts.append(f"## {family}\n")
        parts += [entry(operator) for operator in sorted(families[family], key=lambda o: o.name)]
    return "\n".join([*parts, onnx_section()])


def entry(operator: Operator) -> str:
    """The heading, kind and documentation of one operator."""
    kind = f"{operator.kind}, kept" if operator.keep else operator.kind
    names = ", ".join(sorted({f"{b.domain}.{b.name}".lstrip(".") for b in operator.onnx_bindings}))
    lines = [
        f"### `{operator.name}{signature(operator)}`",
        "",
        f"*{kind}*{f' · ONNX: {names}' if names else ''}",
        "",
    ]
    if operator.doc:
        lines += [operator.doc, ""]
    return "\n".join(lines)


def signature(operator: Operator) -> str:
    """Parameters with defaults and without types: all positional ones are tensors."""
    parameters = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in inspect.signature(operator.fn).parameters.values()
    ]
    return str(inspect.Signature(parameters))


def onnx_section() -> str:
    """All ONNX operators that can be translated, by domain."""
    domains: dict[str, list[str]] = {}
    for domain, name in sorted(translated()):
        domains.setdefault(domain or "ai.onnx", []).append(name)
    lines = [f"**{domain}** ({len(names)}): {', '.join(names)}.\n" for domain, names in domains.items()]
    return "\n".join(["## ONNX operators that are translated\n", *lines])


if __name__ == "__main__":
    PAGE.write_text(page())
