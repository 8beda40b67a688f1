"""What comes from nothing: fills, counters, dims as data, and random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.exporters.onnx.forms.registry import form
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op
from tilewright.ir.sym import sym
from tilewright.ops.define.bodies import filled

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter

MOST_WRITTEN = 1 << 12
"""Elements of a counter up to which it is a constant."""


@form("full")
def full(w: OnnxWriter, op: Op) -> str:
    shape, dtype = tuple(map(sym, op.attrs["shape"])), op.attrs["dtype"]
    value = filled(op.attrs["value"], dtype)
    if all(d == 1 for d in shape):
        return w.constant(value.reshape((1,) * len(shape)))
    return w.node("Expand", w.constant(value.reshape(())), w.dims(shape))


@form("iota")
def iota(w: OnnxWriter, op: Op) -> str:
    shape, dtype = tuple(map(sym, op.attrs["shape"])), op.attrs["dtype"]
    axis = op.attrs["axis"] % len(shape)
    along = tuple(d if k == axis else sym(1) for k, d in enumerate(shape))
    if shape[axis].is_const and shape[axis].value <= MOST_WRITTEN:
        counted = np.arange(shape[axis].value).astype(dtype.storage).reshape([d.value for d in along])
        found = w.constant(counted)
    else:
        end = w.node("Reshape", w.size(shape[axis]), w.ints([]))
        found = w.node("Range", w.number(0, dt.i64), end, w.number(1, dt.i64))
        if dtype is not dt.i64:
            found = w.node("Cast", found, to=w.code(dtype))
        if len(shape) > 1:
            found = w.node("Reshape", found, w.ints([-1 if k == axis else 1 for k in range(len(shape))]))
    return found if along == shape else w.node("Expand", found, w.dims(shape))


@form("sym_tensor")
def sym_tensor(w: OnnxWriter, op: Op) -> str:
    values = tuple(map(sym, op.attrs["values"]))
    if not op.attrs["scalar"]:
        return w.dims(values)
    (value,) = values
    return w.number(value.value, dt.i64) if value.is_const else w.node("Reshape", w.size(value), w.ints([]))


@form("random_uniform", "random_normal")
def random(w: OnnxWriter, op: Op) -> str:
    """Numbers of the same distribution, which are others than ours; those of a constant key are the same in each
    call."""
    key = w.known(op.operands[0])
    seed = None if key is None else float((int(key.reshape(-1)[0]) + op.attrs["stream"]) % (1 << 23))
    shape, code = tuple(map(sym, op.attrs["shape"])), w.code(op.attrs["dtype"])
    name = "RandomUniform" if op.name == "random_uniform" else "RandomNormal"
    if all(d.is_const for d in shape):
        return w.node(name, shape=[d.value for d in shape], dtype=code, seed=seed)
    zeros = w.node("Expand", w.number(0, op.attrs["dtype"]), w.dims(shape))
    return w.node(f"{name}Like", zeros, dtype=code, seed=seed)


@form("fresh_key")
def fresh_key(w: OnnxWriter, op: Op) -> str:
    """The key is that of the nodes which read it: ONNX gives other numbers in each call where no seed is given."""
    return w.node("Expand", w.constant(np.zeros((), np.uint64)), w.dims(op.result.tensor.shape))
