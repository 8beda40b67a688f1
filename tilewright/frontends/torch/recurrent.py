"""Shapes of what recurrent layers give. PyTorch finds them by running all steps, which takes as long as it sounds, and
fixes the number of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import meta_table
from torch._subclasses.fake_impls import op_implementations_dict

_aten = torch.ops.aten


def _lstm(input: torch.Tensor, hx: Sequence[torch.Tensor], *args: Any) -> tuple[torch.Tensor, ...]:
    return _output(input, hx[0], *args), hx[0].new_empty(hx[0].shape), hx[1].new_empty(hx[1].shape)


def _simple(input: torch.Tensor, hx: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    return _output(input, hx, *args), hx.new_empty(hx.shape)


def _output(
    input: torch.Tensor, state: torch.Tensor, params: Any, has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> torch.Tensor:  # fmt: skip
    """[steps, batch, directions * hidden], or the batch first."""
    return input.new_empty((*input.shape[:2], state.shape[-1] * (2 if bidirectional else 1)))


_SHAPES = {
    _aten.lstm.input: _lstm, _aten.gru.input: _simple, _aten.rnn_tanh.input: _simple, _aten.rnn_relu.input: _simple,
}  # fmt: skip
_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


@contextmanager
def shapes_of_layers() -> Iterator[None]:
    """While the context lasts, tensors without elements go through recurrent layers in one step. PyTorch asks three
    tables, one after the other; each is put back."""
    entries: list[tuple[dict[Any, Any], Any, Any]] = []
    for op, shapes in _SHAPES.items():
        entries += [(meta_table, op, shapes), (op_implementations_dict, op, _fake(shapes))]
        entries += [(op.py_kernels, key, shapes) for key in _KEYS]
    before = [(table, key, table.get(key)) for table, key, _ in entries]
    try:
        for table, key, entry in entries:
            table[key] = entry
        _forget_dispatch()
        yield
    finally:
        for table, key, saved in before:
            if saved is None:
                table.pop(key, None)
            else:
                table[key] = saved
        _forget_dispatch()


def _forget_dispatch() -> None:
    for op in _SHAPES:
        op._dispatch_cache.clear()


def _fake(shapes: Any) -> Any:
    def rule(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return shapes(*args, **kwargs)

    return rule
