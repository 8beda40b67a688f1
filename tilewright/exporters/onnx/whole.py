"""Which composites stay whole in a graph that is to be ONNX."""

from __future__ import annotations

from tilewright.exporters.onnx import forms as forms
from tilewright.exporters.onnx.forms.registry import forms_of
from tilewright.ops.define import OPERATORS


def whole_composites() -> frozenset[str]:
    """Those that ONNX may have an operator for, so that they need not be said by others."""
    return frozenset(
        operator.name
        for operator in OPERATORS.values()
        if operator.kind == "composite"
        and (forms_of(operator.name) or any(not binding.domain for binding in operator.onnx_bindings))
    )
