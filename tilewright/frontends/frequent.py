"""Frequent sizes of symbolic dims: the shapes of inputs for which a variant of a program is compiled."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.errors import shown
from tilewright.frontends.inputs import MAX_DIM
from tilewright.ir.core import Module, substitute
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.runtime.errors import OptionError


def shapes_with(module: Module, sizes: Mapping[str, int]) -> dict[str, tuple[int | str, ...]]:
    """The shapes of the inputs of a module that was imported with symbolic dims, with `sizes` in place of the dims of
    these names. OptionError for sizes that no call can have."""
    main = module.main
    names = main.attrs.get("inputs", tuple(a.name for a in main.args))
    tensors = {name: a.type for name, a in zip(names, main.args, strict=True) if isinstance(a.type, TensorType)}
    dims = {str(d): d for type in tensors.values() for d in type.shape if d.kind == "var"}
    for name, size in sizes.items():
        if name not in dims:
            known = f"its symbolic dims are: {', '.join(dims)}" if dims else "all its dims are fixed"
            raise OptionError(f"the model has no symbolic dim '{shown(name)}'; {known}")
        if size > MAX_DIM:
            raise OptionError(f"the size {size} of '{name}' is not possible", hint=f"the most is {MAX_DIM}")
    fixed = {dims[name]: sym(size) for name, size in sizes.items()}
    for condition, message, node, operator in main.attrs.get("assumed", ()):
        holds = substitute(condition, fixed)
        if holds.is_const and not holds.value:
            raise OptionError(
                f"the general program refuses these sizes: {message} (in node '{shown(node)}', {operator})",
                hint="leave them out, or compile a model of its own for these shapes",
            )
    # all names are given, also of inputs without such a dim: variables must not get other names than before
    parts = main.attrs.get("complex_inputs", ())
    return {
        name: tuple(_dim(fixed.get(d, d)) for d in (type.shape[:-1] if name in parts else type.shape))
        for name, type in tensors.items()
        if not type.is_static
    }


def _dim(dim: Sym) -> int | str:
    return dim.value if dim.is_const else str(dim)
