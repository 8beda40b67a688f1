"""What the ONNX specification says about a node: arity, attributes, element types, function bodies."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.defs
from onnx import AttributeProto
from onnx.defs import OpSchema

from tilewright.frontends.onnx.attributes import checked_flag
from tilewright.frontends.onnx.types import onnx_type, type_proto
from tilewright.frontends.problems import shown
from tilewright.ir.diag import ModelError
from tilewright.ir.types import TensorType, Type

NEWEST_OPSET: int = onnx.defs.onnx_opset_version()

IMPLIED_OPSETS: Mapping[str, int] = {"com.microsoft": 1, "ai.onnx.ml": 3}
"""Versions of the domains that a model uses without importing them, as those do that ONNX Runtime's optimiser for
transformers has in memory, and as ONNX Runtime runs them."""


FLAGS = frozenset({
    "align_corners", "allowzero", "antialias", "broadcast", "ceil_mode", "center_point_box", "count_include_pad",
    "detect_negative", "detect_positive", "exclude_outside", "exclusive", "fmod", "input_forget", "interleaved",
    "inverse", "is_case_sensitive", "is_causal", "keepdims", "largest", "layout", "linear_before_reset", "new_axis",
    "noop_with_empty_axes", "onesided", "periodic", "reverse", "saturate", "select_last_index", "sorted", "spatial",
    "storage_order", "training_mode", "transA", "transB", "upper",
})  # fmt: skip
"""Attributes of the standard's operators that are 0 or 1. Function bodies and engines read other numbers in different
ways."""

_PARAMETERS = {"QLinearConv": 6, "QLinearMatMul": 6, "QGemm": 7}
"""Where operators on integers have the scale and the zero point of their result; others of the kind have them last."""

REMEMBERED = 1024
"""Schemas, each of which onnx makes anew whenever it is asked."""


def parameters_of(node: onnx.NodeProto) -> tuple[str, str] | None:
    """The names of the scale and the zero point of the integers that an operator on integers gives; None for others,
    and where one of them is left out."""
    if not node.op_type.startswith("QLinear") and node.op_type not in _PARAMETERS:
        return None
    place = _PARAMETERS.get(node.op_type, len(node.input) - 2)
    scale, zero = (*node.input[place : place + 2], "", "")[:2]
    return (scale, zero) if scale and zero else None


@functools.lru_cache(REMEMBERED)
def _known_schema(op: str, version: int, domain: str) -> OpSchema:
    return onnx.defs.get_schema(op, version, domain)


@functools.lru_cache(REMEMBERED)
def attributes_of(schema: OpSchema) -> Mapping[str, OpSchema.Attribute]:
    """What a schema has by name; as all of its fields, a new mapping whenever it is asked itself."""
    return dict(schema.attributes)


@functools.lru_cache(REMEMBERED)
def _required_attributes(schema: OpSchema) -> tuple[str, ...]:
    return tuple(name for name, attribute in attributes_of(schema).items() if attribute.required)


@functools.lru_cache(REMEMBERED)
def _allowed_types(schema: OpSchema) -> Mapping[str, frozenset[str]]:
    """The element types that each type variable may stand for."""
    return {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}


def schema_of(op: str, version: int, domain: str) -> OpSchema | None:
    """The schema of an operator at an opset version; None when there is none."""
    try:
        return _known_schema(op, version, domain)
    except (onnx.defs.SchemaError, TypeError):  # the latter for a version that is no 32-bit number
        return None


@functools.cache
def earliest_schema(op: str, domain: str) -> OpSchema | None:
    """The first schema of an operator, which nodes of models of earlier opsets are checked against; None where the
    specification does not have it."""
    if not onnx.defs.has(op, domain):
        return None
    found = [s for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (op, domain)]
    return min(found, key=lambda schema: schema.since_version)


def check_node(node: onnx.NodeProto, attributes: Mapping[str, AttributeProto], schema: OpSchema) -> None:
    """ModelError when the number of inputs or outputs or the attributes are not those of the operator."""
    given = len(node.input)
    if not schema.min_input <= given <= schema.max_input:
        raise ModelError(
            f"{schema.name} takes {_count(schema.min_input, schema.max_input)} inputs, not {given}"
        )
    for formal, name in zip(schema.inputs, node.input, strict=False):
        if not name and formal.option == OpSchema.FormalParameterOption.Single:
            raise ModelError(f"input '{formal.name}' of {schema.name} must be given")
    if not schema.min_output <= len(node.output) <= schema.max_output:
        wanted = _count(schema.min_output, schema.max_output)
        raise ModelError(f"{schema.name} has {wanted} outputs, not {len(node.output)}")
    for name, attribute in attributes.items():
        known = attributes_of(schema).get(name)
        if known is None:
            raise ModelError(
                f"{schema.name} has no attribute '{shown(name)}'",
                hint=f"version {schema.since_version} has: {', '.join(sorted(schema.attributes)) or 'none'}",
            )
        kind: Any = known.type
        if attribute.type != kind.value:
            raise ModelError(f"attribute '{name}' of {schema.name} must be of type {kind.name}")
        if name in FLAGS and not schema.domain:
            checked_flag(schema.name, name, attribute.i)
    missing = [name for name in _required_attributes(schema) if name not in attributes]
    if missing:
        raise ModelError(f"attribute '{missing[0]}' of {schema.name} must be given")


def check_types(types: Sequence[Type | None], schema: OpSchema) -> None:
    """ModelError when element types are not allowed, or differ where the operator wants the same."""
    allowed, inputs = _allowed_types(schema), schema.inputs
    seen: dict[str, str] = {}
    for k, type in enumerate(types):
        if type is None:
            continue
        formal = inputs[min(k, len(inputs) - 1)]
        text = onnx_type(type)
        if text not in allowed.get(formal.type_str, {formal.type_str}):
            raise ModelError(
                f"input '{formal.name}' of {schema.name} cannot be {_shown(type)}"
            )
        is_bound = formal.is_homogeneous and formal.type_str in allowed
        if is_bound and seen.setdefault(formal.type_str, text) != text:
            listed = ", ".join("-" if t is None else str(t) for t in types)
            raise ModelError(f"{schema.name}({listed}): element types must be the same")


def _shown(type: Type) -> str:
    return f"of the element type {type.dtype}" if isinstance(type, TensorType) else str(type)


def has_body(schema: Any) -> bool:
    """Whether the specification may give a decomposition."""
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def function_body(
    node: onnx.NodeProto, schema: Any, version: int, types: Sequence[Type | None]
) -> onnx.FunctionProto | None:
    """The decomposition that the specification gives for the operator, or None."""
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        body = schema.get_function_with_opset_version(max(versions)) if versions else schema.function_body
        return body if isinstance(body, onnx.FunctionProto) else onnx.FunctionProto.FromString(body)
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        if not versions:
            return None
        given = [type_proto(t).SerializeToString() for t in types]
        try:
            text = schema.get_context_dependent_function_with_opset_version(
                max(versions), node.SerializeToString(), given
            )
        except (ValueError, RuntimeError, TypeError) as error:
            raise ModelError(f"{schema.name} has attributes or operands that do not fit: {error}") from error
        return onnx.FunctionProto.FromString(text) if text else None
    return None


def _count(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} or more" if high > 2**20 else f"{low} to {high}"
