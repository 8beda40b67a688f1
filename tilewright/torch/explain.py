"""What `torch.compile` makes of a module with this backend, and why parts of it run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._dynamo

from tilewright.runtime.errors import printable
from tilewright.torch.backend import backend
from tilewright.torch.records import GraphRecord


@dataclass(frozen=True)
class Explanation:
    """The graphs that Dynamo captured of one call, in order, why it broke off between them, each with its line, and
    what it does not capture at all."""

    graphs: tuple[GraphRecord, ...]
    breaks: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<explanation: {str(self).splitlines()[0]}; print it for all>"

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graphs, {len(self.breaks)} graph breaks"]
        lines += [f"  break: {reason}" for reason in self.breaks]
        lines += [f"  not captured: {reason}" for reason in self.left_out]
        for k, record in enumerate(self.graphs):
            calls = sum(node.op.startswith("call") for node in record.graph.graph.nodes)
            if record.reason:
                lines.append(f"  graph {k}: {calls} operators run eagerly: {record.reason}")
                continue
            compiled = [
                f"{p.operators} operators in {p.model.report().kernels} kernels"
                for p in record.pieces or ()
            ]
            lines.append(f"  graph {k}: {len(compiled)} compiled pieces: {'; '.join(compiled) or 'none'}")
            lines += [f"    eager: {op} at {place}: {reason}" for op, place, reason in record.eager]
        return printable("\n".join(lines))


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile a module or a function for one call, run it, and tell what was compiled. What `torch.compile` has made of
    it before is made anew."""
    records: list[GraphRecord] = []
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=partial(backend, record=records.append))
    with torch.no_grad():
        compiled(*args, **kwargs)
    torch._dynamo.reset()
    return Explanation(tuple(records), tuple(r.ended for r in records if r.ended), _left_out(function))


def _left_out(function: Callable[..., Any]) -> tuple[str, ...]:
    """Recurrent layers, which Dynamo runs as they are unless it is told to trace them: backends that unroll their steps
    would take very long."""
    modules = function.named_modules() if isinstance(function, torch.nn.Module) else ()
    layers = [name or "the module itself" for name, module in modules if isinstance(module, torch.nn.RNNBase)]
    if not layers or torch._dynamo.config.allow_rnn:
        return ()
    return (f"recurrent layers ({', '.join(layers)}): set torch._dynamo.config.allow_rnn = True",)
