"""Writes docs/operators.md from the definitions of the operators. Run by `make docs`; a test compares."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.defs import OpSchema

from tilewright.frontends.onnx.load import load_onnx
from tilewright.frontends.onnx.registry import find_adapter, find_host_adapter, refused, translated
from tilewright.frontends.torch import adapters as torch_adapters
from tilewright.frontends.torch import registry as torch_registry
from tilewright.ir.diag import UnsupportedError
from tilewright.ops.composites.listed import COMPOSITES, FAMILIES
from tilewright.ops.define import OPERATORS, Operator

PAGE = Path(__file__).parent / "operators.md"
STANDARD: Mapping[str, int] = MappingProxyType({"": 28, "ai.onnx.ml": 5})
"""The operator sets that the page lists, and the versions it was made for: a newer onnx package changes nothing."""

INTRODUCTION = """\
# Operators

Made by `make docs` from the definitions in `tilewright/ops`; do not edit.

A *primitive* says one element of its result by elements of its operands, and gets loops from that; a
*composite* is a function over other operators (*kept*: it stays whole until a pass expands it, so that a better
kernel may claim it); an *irregular* operator brings its own loops. Parameters after `*` are attributes.
Elementwise operators broadcast as NumPy does. ONNX operators that are this operator under another name are
listed with it, and so are those of PyTorch (ATen); the others are translated by `tilewright/frontends/onnx` and
`tilewright/frontends/torch`, which share [functions of several operators](#functions-of-several-operators). All ONNX
operators, with what becomes of them, stand in a table [below](#onnx-operators), and the operators of PyTorch that are
translated [after it](#pytorch-operators).
"""

FUNCTIONS_INTRODUCTION = """\
## Functions of several operators

What formats have one operator for and this compiler has several: functions in `tilewright/ops/composites` that write
operators where they are called, so that no pass knows them. Front ends share them, and those of plugins may call them.
Complex numbers are pairs of real tensors to them.
"""

TORCH_INTRODUCTION = """\
## PyTorch operators

Operators that are translated as they are, by a function in `tilewright/frontends/torch/adapters` or because they are
one of those above (in `code`). A name without an overload stands for all of them; those with a star take and give
complex numbers, too. Others are decomposed by PyTorch into these first, as far as it has a decomposition; what is left
is refused, or run eagerly by the backend of `torch.compile`.
"""

ONNX_INTRODUCTION = """\
## ONNX operators

All operators of version {versions[0]} of the standard operator set (`ai.onnx`) and of version {versions[1]} of
`ai.onnx.ml`, with the version in which each got its present meaning. Models may use all versions from 1 on: an operator
that had other meanings before is translated in those too, as far as it is at all.

- A name in `code` is the operator above that it is, with the same operands.
- *translated*: by a function in `tilewright/frontends/onnx/adapters`, which may refuse some attributes or operands
  with a reason. Those of strings, sequences, optional values, maps and encoded images are computed by the host, between
  parts of native code; operators that only move elements move strings, too.
- *function body*: by the definition that the standard gives in terms of other operators.
- **missing**: a model with it is refused, and the error lists all such nodes at once.
- Random numbers are those of a generator that counts (Philox), whatever the number of threads: with a `seed` a node
  gives the same numbers in each call, without one new numbers in each call. They are not those of other programs.
"""

Example = tuple[Sequence[tuple[int, ...] | np.ndarray], Mapping[str, Any]]
_F = (2, 3, 4)
EXAMPLES: Mapping[str, Example] = MappingProxyType(
    {
        "Attention": ([(1, 2, 3, 4)] * 3, {}),
        "CausalConvWithState": ([(1, 2, 5), (2, 1, 3)], {}),
        "CenterCropPad": ([_F, np.array([2, 2, 6])], {}),
        "LinearAttention": ([(1, 3, 8)] * 3, {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}),
        "NegativeLogLikelihoodLoss": ([(3, 5), np.array([1, 0, 4])], {}),
        "RotaryEmbedding": ([(1, 2, 3, 4), (1, 3, 2), (1, 3, 2)], {}),
        "SoftmaxCrossEntropyLoss": ([(3, 5), np.array([1, 0, 4])], {}),
        "SwiGLU": ([_F, _F], {}),
    }
)
"""A use of each operator that has a function body: shapes of float tensors, or constants, and attributes."""
NOT_TENSORS = frozenset({"SequenceMap"})
"""Operators with a function body whose operands are not tensors; it needs what is translated."""


def page() -> str:
    """The text of the page: a section for each family, which is a file."""
    families: dict[str, list[Operator]] = {}
    for operator in OPERATORS.values():
        if not operator.fn.__module__.startswith("tilewright."):
            continue  # defined by the program that makes the page
        families.setdefault(operator.fn.__module__.rpartition(".")[2], []).append(operator)
    parts = [INTRODUCTION]
    for family in sorted(families):
        parts.append(f"## {family}\n")
        parts += [entry(operator) for operator in sorted(families[family], key=lambda o: o.name)]
    return "\n".join([*parts, functions_section(), onnx_section(), torch_section()])


def functions_section() -> str:
    """The functions over operators that are declared, by their files."""
    parts = [FUNCTIONS_INTRODUCTION]
    for family in FAMILIES:
        name = family.__name__.rpartition(".")[2]
        parts += [f"### {name}\n", f"{inspect.getdoc(family)}\n"]
        for full, function in COMPOSITES.items():
            if full.startswith(f"{name}."):
                text = " ".join((inspect.getdoc(function) or "").split())
                parts.append(f"- `{function.__name__}{signature(function)}`{f': {text}' if text else ''}")
        parts.append("")
    return "\n".join(parts)


def entry(operator: Operator) -> str:
    """The heading, kind and documentation of one operator."""
    kind = f"{operator.kind}, kept" if operator.keep else operator.kind
    names = ", ".join(sorted({f"{b.domain}.{b.name}".lstrip(".") for b in operator.onnx_bindings}))
    aten = ", ".join(sorted(binding.name for binding in operator.torch_bindings))
    lines = [
        f"### `{operator.name}{signature(operator.fn)}`",
        "",
        f"*{kind}*{f' · ONNX: {names}' if names else ''}{f' · ATen: {aten}' if aten else ''}",
        "",
    ]
    if operator.doc:
        lines += [operator.doc, ""]
    return "\n".join(lines)


def signature(function: Callable[..., Any]) -> str:
    """Parameters with defaults and without types: all positional ones of an operator are tensors."""
    parameters = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(parameters))


def onnx_section() -> str:
    """A table of all operators of the standard, with what becomes of each, and what else is translated."""
    parts = [ONNX_INTRODUCTION.format(versions=tuple(STANDARD.values()))]
    for domain, version in STANDARD.items():
        rows = [(schema, becomes(schema, version)) for schema in schemas(domain, version)]
        count = {
            how: sum(found.startswith(how) for _, found in rows) for how in ("function body", "**missing**")
        }
        own = len(rows) - sum(count.values())
        parts.append(f"### {domain or 'ai.onnx'}\n")
        parts.append(
            f"Of {len(rows)} operators {own} are translated, {count['function body']} by their function bodies; "
            f"{count['**missing**']} are missing.\n"
        )
        parts.append("| operator | version | |\n|---|---|---|")
        parts += [f"| {schema.name} | {schema.since_version} | {found} |" for schema, found in rows]
        parts.append("")
    others = sorted(f"{domain}.{name}" for domain, name in translated() if domain == "com.microsoft")
    parts.append(f"### Others\n\nOperators of ONNX Runtime that are translated: {', '.join(others)}.\n")
    parts.append("Known and refused, with the reason that the error gives, too:\n")
    by_reason: dict[str, list[str]] = {}
    for (domain, name), reason in sorted(refused().items()):
        by_reason.setdefault(reason, []).append(f"{domain}.{name}".lstrip("."))
    parts += [f"- {', '.join(names)}: {reason}." for reason, names in by_reason.items()]
    parts.append("")
    return "\n".join(parts)


def torch_section() -> str:
    """The operators of PyTorch that are translated, by namespace."""
    assert torch_adapters.DEFINITIONS
    bound = {
        binding.name: operator.name for operator in OPERATORS.values() for binding in operator.torch_bindings
    }
    names: dict[str, list[str]] = {}
    for full in sorted(torch_registry.translated()):
        on_complex = torch_registry.find_complex(full)
        adapter = torch_registry.find_adapter(full) or on_complex
        assert adapter is not None
        if not adapter.__module__.startswith("tilewright."):
            continue  # defined by the program that makes the page
        namespace, _, name = full.partition("::")
        same = bound.get(name) if namespace == "aten" else None
        star = "\\*" if on_complex is not None else ""
        names.setdefault(namespace, []).append(f"{name}{star} (`{same}`)" if same else f"{name}{star}")
    parts = [TORCH_INTRODUCTION]
    for namespace, listed in names.items():
        rows = [f"- {title}: {', '.join(group)}" for title, group in by_letter(listed)]
        parts += [f"### {namespace}\n", f"{len(listed)} operators.\n", *rows, ""]
    return "\n".join(parts)


def by_letter(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Names by their first letter, those that begin with an underscore first."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name[0] if name[0] != "_" else "internal", []).append(name)
    return sorted(groups.items(), key=lambda pair: (pair[0] != "internal", pair[0]))


def schemas(domain: str, version: int) -> list[OpSchema]:
    """The operators of a domain at a version of it, by name; those that were removed since an earlier one stay."""
    names = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain}
    found = []
    for name in sorted(names):
        try:
            found.append(onnx.defs.get_schema(name, version, domain))
        except onnx.defs.SchemaError:
            continue  # newer than the version
    return found


def becomes(schema: OpSchema, version: int) -> str:
    """What the frontend does with an operator: a cell of the table."""
    deprecated = f"; deprecated since version {schema.since_version}" if schema.deprecated else ""
    key = (schema.domain, schema.name, version)
    if find_adapter(*key) is not None or find_host_adapter(*key) is not None:
        bound = sorted(
            f"`{operator.name}`"
            for operator in OPERATORS.values()
            if any((b.domain, b.name) == (schema.domain, schema.name) for b in operator.onnx_bindings)
        )
        return (", ".join(bound) or "translated") + deprecated
    has_body = schema.has_function or schema.has_context_dependent_function
    if (schema.domain, schema.name) in refused():
        return "**refused**: see below"
    if not has_body:
        return "**missing**" + deprecated
    lacking = [] if schema.name in NOT_TENSORS else lacks(schema, version)
    return f"**missing**: its function body needs {', '.join(lacking)}" if lacking else "function body"


def lacks(schema: OpSchema, version: int) -> list[str]:
    """The operators that an example of `schema` needs and the frontend has not."""
    try:
        load_onnx(example(schema, version))
    except UnsupportedError as error:
        return re.findall(r"^  (\w+): the operator is not supported", error.what, re.MULTILINE) or [
            error.what
        ]
    return []


def example(schema: OpSchema, version: int) -> onnx.ModelProto:
    """A model of the one node that `EXAMPLES` has for an operator."""
    operands, attributes = EXAMPLES[schema.name]
    names = [f"x{k}" for k in range(len(operands))]
    outputs = [formal.name for formal in schema.outputs[: max(1, schema.min_output)]]
    graph = helper.make_graph(
        [helper.make_node(schema.name, names, outputs, domain=schema.domain, **attributes)],
        schema.name,
        [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, operand)
            for name, operand in zip(names, operands, strict=True)
            if not isinstance(operand, np.ndarray)
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [
            onnx.numpy_helper.from_array(operand, name)
            for name, operand in zip(names, operands, strict=True)
            if isinstance(operand, np.ndarray)
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(schema.domain, version)])


if __name__ == "__main__":
    PAGE.write_text(page())
