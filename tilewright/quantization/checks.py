"""Checks of quantisation that a model brings along: parameters that no integer can be read by."""

from __future__ import annotations

import numpy as np

from tilewright.compilation import Compilation
from tilewright.graph.pipeline import KEPT
from tilewright.ir.core import Module, Op
from tilewright.ir.rewrite import constant_array
from tilewright.ops.quant import changes_type_alone
from tilewright.quantization.methods.integers import TYPES, check_parameters


def check_quantised(module: Module) -> None:
    """InputError for scales that are zero, negative, denormal or NaN, with the node. That they are as many as the
    channels, and of the right types, is what the front ends see to."""
    folded = Compilation.by_default(module.copy()).apply([KEPT]).module  # scales are laid out along axes by ops
    for op in folded.main.body.walk():
        if changes_type_alone(op) and len(op.operands) > 1:
            _check(op, folded)


def _check(op: Op, module: Module) -> None:
    x, scale, zero = op.operands
    stored = x.tensor.dtype if op.result.tensor.dtype.is_float else op.result.tensor.dtype
    kind = TYPES.get(str(stored.storage))
    scales = constant_array(scale, module)
    zeros = constant_array(zero, module)
    if kind is None or scales is None:
        return
    given = np.zeros((), np.int64) if zeros is None else np.asarray(zeros).astype(np.int64)
    alike = np.broadcast_to(given, scales.shape).reshape(-1) if given.ndim else given
    check_parameters(scales.reshape(-1) if scales.ndim else scales, alike, kind, where=str(op.loc))
