"""Compilers of vendors, which are given parts of a graph. Docs/external.md has a whole example."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.external.kernel import WholeOperator
from tilewright.ir.core import Module, Value
from tilewright.ops.define import OPERATORS

Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
"""Computes the results of a part of its inputs, which it may only read, and not keep."""


@dataclass(frozen=True)
class GraphStep:
    """An operator of a part, by the names of the values that it reads and gives."""

    op: WholeOperator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ExternalGraph:
    """A part of a graph: the main function of `module`, in the operators of the front end. Sizes that are not known are
    variables in the types of `module.main.args`."""

    module: Module

    @cached_property
    def _names(self) -> dict[Value, str]:
        main = self.module.main
        made = [v for op in main.body.ops for v in op.results]
        found = dict(zip(main.args, main.attrs["inputs"], strict=True))
        taken = {*found.values(), *main.attrs["outputs"]}
        for k, value in enumerate(made):
            constant = value.op is not None and value.op.name not in OPERATORS
            name = value.op.attrs["name"] if constant and value.op is not None else f"value {k}"
            while name in taken and not constant:
                name += "'"
            found[value] = name
        return found

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what a call gives, in order; the last one may be a vector of sizes that nothing reads."""
        return tuple(self._names[a] for a in self.module.main.args)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the values that a call has to give, in order."""
        return tuple(self._names[v] for v in self.module.main.returns)

    @property
    def constants(self) -> Mapping[str, np.ndarray]:
        """The values that are known, by name."""
        return {name: np.asarray(self.module.constants[name]) for name in self.module.constants}

    @property
    def steps(self) -> list[GraphStep]:
        """The operators, in an order in which each follows what it reads."""
        ops = [op for op in self.module.main.body.ops if op.name in OPERATORS]
        names = self._names
        return [
            GraphStep(WholeOperator.of(op), tuple(names[v] for v in op.operands), tuple(names[v] for v in op.results))
            for op in ops
        ]


class ExternalCompiler(ABC):
    """A compiler of others. It is given the greatest connected parts of a model of operators that it accepts, and whose
    time it makes shorter; what it makes of a part is opaque, is kept in the artefact, and runs on the host's memory."""

    name: str
    """In artefacts and reports: letters, digits and underscores."""
    version: str
    """Part of artefacts, which run where a compiler of this name and version is."""
    call: float = 20e-6
    """Seconds that a call of a part takes beside its operators."""
    bus: float = 10e9
    """Bytes a second at which tensors come to it and back."""

    def refuses(self, op: WholeOperator) -> str:
        """Why it does not take an operator of these types, sizes and attributes; "" where it does."""
        return ""

    def seconds(self, op: WholeOperator) -> float | None:
        """How long an operator takes among others. With None it takes what it does not refuse."""
        return None

    @abstractmethod
    def compile(self, graph: ExternalGraph) -> bytes:
        """What `load` takes. Where it raises, our own kernels compute the part, and a remark says so."""

    @abstractmethod
    def load(self, data: bytes) -> Run:
        """What runs a part; called once, and again after a call that failed. Calls follow each other. Results have the
        types and shapes that the graph says, and one that raises becomes a DeviceError of the call."""
