"""A model before it is exported: a PyTorch module with inputs, and the names that both get in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Blueprint:
    """`inputs` are in the order of the module's arguments, by name."""

    module: nn.Module
    inputs: Mapping[str, torch.Tensor]
    outputs: Sequence[str]


def settle_batch_norms(module: nn.Module, batch: torch.Tensor) -> None:
    """Give batch normalisations the statistics of a random batch and weights near 1, so that the values inside of a
    network with random weights stay of the order of 1, as those of a trained one do."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    with torch.no_grad():
        for norm in norms:
            norm.momentum = 1.0
            norm.weight.uniform_(0.75, 1.25)
            norm.bias.uniform_(-0.15, 0.15)
        for part in module.modules():
            part.train(not isinstance(part, nn.Dropout))
        module(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    module.eval()
