"""Calls of a model with names of inputs and outputs, also as ONNX Runtime's sessions have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.errors import InputError
from tilewright.runtime.values.inputs import check_named, place_named
from tilewright.runtime.values.node_arg import NodeArg
from tilewright.runtime.values.outputs import positions


class CalledByName:
    """What models have for callers who have names."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def __call__(self, /, *args: Any, out: Sequence[Any] | None = None, **named: Any) -> tuple[np.ndarray, ...]:
        """A call, as the model has it."""
        raise NotImplementedError

    @overload
    def run(self, inputs: Mapping[str, Any], *, out: Sequence[Any] | None = None) -> tuple[np.ndarray, ...]: ...

    @overload
    def run(
        self, inputs: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: None = None
    ) -> list[np.ndarray]: ...

    @overload
    def run(self, *, output_names: Sequence[str] | None = None, input_feed: Mapping[str, Any]) -> list[np.ndarray]: ...

    def run(
        self,
        inputs: Any = None,
        input_feed: Any = None,
        run_options: None = None,
        *,
        output_names: Any = None,
        out: Sequence[Any] | None = None,
    ) -> tuple[np.ndarray, ...] | list[np.ndarray]:
        """As a call with names, for names that are no Python identifiers: `run({"x": x})` gives a tuple.

        Also as ONNX Runtime's sessions have it: `run(None, {"x": x})` gives a list of all outputs,
        `run(["y"], {"x": x})` of those that are named, in that order.
        """
        if input_feed is None:
            if type(inputs) is not dict:
                inputs = check_named(inputs)
            return self(*place_named(self.inputs, (), inputs), out=out)
        if run_options is not None:
            raise InputError("run options of ONNX Runtime have no meaning here", hint="leave them out, or give None")
        chosen = positions(self.outputs, output_names if inputs is None else inputs)
        results = self(*place_named(self.inputs, (), check_named(input_feed)), out=out)
        return [results[index] for index in chosen]

    def run_dict(self, inputs: Mapping[str, Any], *, out: Sequence[Any] | None = None) -> dict[str, np.ndarray]:
        """As `run`, with the outputs by their names."""
        results = self(*place_named(self.inputs, (), check_named(inputs)), out=out)
        return {info.name: result for info, result in zip(self.outputs, results, strict=True)}

    def get_inputs(self) -> list[NodeArg]:
        """The inputs as ONNX Runtime's sessions describe them; see also `inputs`."""
        return [NodeArg.of(info) for info in self.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs as ONNX Runtime's sessions describe them; see also `outputs`."""
        return [NodeArg.of(info) for info in self.outputs]
