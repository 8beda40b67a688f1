"""Modules become exported programs; what hinders PyTorch is said with its place in the module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from tilewright.frontends.torch.capture import without_checks
from tilewright.frontends.torch.origins import is_of_library
from tilewright.frontends.torch.recurrent import shapes_of_layers
from tilewright.frontends.torch.tensors import require_values
from tilewright.ir.diag import ModelError, UnsupportedError

_LONGEST = 600

_DIMS = "sizes that may be others in a call are named with dynamic_shapes=, as torch.export.export has it"

_HINTS = {
    "GuardOnDataDependentSymNode": "a branch or a shape depends on data: use torch.cond, torch.where or torch._check, "
    "or compile with torch.compile(backend='tilewright'), which runs such parts eagerly",
    "UserError": _DIMS,
    "ConstraintViolationError": _DIMS,
}


def exported(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dims: Any
) -> ExportedProgram:
    """The module's program for examples of its inputs. ModelError where PyTorch cannot export it, with its reason."""
    _check(module, args, kwargs)
    _check_axes(args, kwargs, dims)
    try:
        with torch.no_grad(), shapes_of_layers(), without_checks():
            program = torch.export.export(module, args, dict(kwargs), dynamic_shapes=dims, strict=False)
    except Exception as error:
        kind, reason = type(error).__name__, _reason(error)
        fallback = "do the example inputs fit the module? it must also run with them"
        raise ModelError(
            f"PyTorch cannot export {type(module).__name__}: {kind}: {reason}",
            where=_place(module, error) or None,
            hint=_HINTS.get(kind, _DIMS if "dynamic_shapes" in reason else fallback),
        ) from error
    _take_out_dropout(program.graph_module)
    return program


def _take_out_dropout(module: torch.fx.GraphModule) -> None:
    """While evaluating, dropout gives its own input. Its schema does not say so, and PyTorch would lose what is written
    to its result."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.dropout.default):
        x, _, train = node.args
        if not train and not any(user.op == "output" for user in node.users):
            node.replace_all_uses_with(x)
            module.graph.erase_node(node)
    module.recompile()


def _check(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Errors for what PyTorch would refuse in its own words, or later."""
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError(
            "a module of TorchScript has no Python code that could be exported",
            hint="give the torch.nn.Module that it was made of",
        )
    if _is_training(module):
        raise ModelError(
            f"the module {type(module).__name__} is in training mode",
            hint="call .eval() first: dropout and batch norm compute something else while training",
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        require_values(tensor, f"'{name}'")
    _check_packed(module)
    for path, leaf in pytree.tree_flatten_with_path((args, dict(kwargs)))[0]:
        where = "".join(map(str, path[1:]))
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor):  # their shapes are enough
            require_values(leaf, f"the example input {where}")
        elif type(leaf).__module__ == "numpy":
            raise ModelError(
                f"the example input {where} is a {type(leaf).__name__} of NumPy",
                hint="give tensors: torch.from_numpy(array)",
            )


def _check_axes(args: Sequence[Any], kwargs: Mapping[str, Any], dims: Any) -> None:
    """ModelError for dynamic_shapes of axes that an example does not have."""
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    named = dims if isinstance(dims, Mapping) else dict(enumerate(dims)) if isinstance(dims, tuple | list) else {}
    for key, axes in named.items():
        x = given.get(key)
        if not isinstance(x, torch.Tensor) or not isinstance(axes, Mapping):
            continue
        if beyond := [axis for axis in axes if axis >= x.dim()]:
            raise ModelError(
                f"dynamic_shapes[{key!r}] names axis {beyond[0]}, and the example has {x.dim()} axes",
                hint="axes are counted from 0",
            )


def _check_packed(module: torch.nn.Module) -> None:
    """UnsupportedError for weights that are packed for kernels of PyTorch's, as those of `quantize_dynamic` are."""
    for name, child in module.named_modules():
        if any(isinstance(value, torch.ScriptObject) for value in vars(child).values()):
            raise UnsupportedError(
                f"'{name}' holds packed weights, which are no tensors",
                hint="quantise the module with PT2E or with quantize_ of torchao instead; "
                "torch.compile(backend='tilewright') runs layers with packed weights eagerly",
            )


def _is_training(module: torch.nn.Module) -> bool:
    """Of a graph, whether modules that it calls are: its own code is the same in both modes, and a program that was
    exported and quantised (PT2E) is marked as training and refuses `.eval()`."""
    if not isinstance(module, torch.fx.GraphModule):
        return module.training and not type(module).__module__.startswith("torch.export")  # checks of its inputs
    called = {str(node.target) for node in module.graph.find_nodes(op="call_module")}
    return any(_is_training(module.get_submodule(target)) for target in called)


def _reason(error: Exception) -> str:
    """The first paragraph of a message; of several lines those that say what to do."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    first = lines[0] if lines else type(error).__name__
    more = [line for line in lines[1:6] if line.startswith("- ")]
    return " ".join((first, *more))[:_LONGEST]


def _place(module: torch.nn.Module, error: BaseException) -> str:
    """The innermost module that was running, and the innermost line that is not PyTorch's."""
    names = {id(child): name for name, child in module.named_modules()}
    path = source = ""
    for frame, line in _frames(error):
        path = names.get(id(frame.f_locals.get("self"))) or path
        if not is_of_library(frame.f_code.co_filename):
            source = f"{frame.f_code.co_filename}:{line}"
    return ", ".join(filter(None, (path, source)))


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames that the error went through, outermost first."""
    at = error.__traceback__
    while at is not None:
        yield at.tb_frame, at.tb_lineno
        at = at.tb_next
