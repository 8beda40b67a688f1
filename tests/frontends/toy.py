"""A front end that no file of the package knows: models in JSON, of a few operators, and the plugin that brings it.

{"toy": 1, "inputs": {"x": ["n", 4]}, "weights": {"w": [[1, 2], [3, 4]]}, "outputs": ["y"],
 "nodes": [["matmul", "x", "w", "h"], ["relu", "h", "y"]]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontends.files import digest_of_file, first_bytes, read_file
from tilewright.frontends.front_end import Remember
from tilewright.frontends.inputs import Declared
from tilewright.frontends.translation import BrokenInputError, Results, Translation, translated
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.diag import Loc, ModelError, UnsupportedError
from tilewright.ops.activation import relu
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.elementwise import add
from tilewright.ops.view import reshape, shape_of
from tilewright.plugins import Plugin


def _rows(translation: Translation, x: Value, shape: Value) -> Value:
    """x in a shape that must be known."""
    sizes = translation.symbols_of(shape)
    if sizes is None:
        raise translation.must_be_known(shape, "reshape needs the shape at compile time")
    return reshape(x, shape=tuple(sizes.reshape(-1)))


OPERATORS = {
    "matmul": lambda t, *xs: matmul(*xs),
    "add": lambda t, *xs: add(*xs),
    "relu": lambda t, *xs: relu(*xs),
    "reshape": _rows,
    "rank": lambda t, x: constant(np.array(len(shape_of(x))), "rank"),
}


class ToyFrontEnd:
    name = "toy"
    formats = "toy models (.toy files, their bytes)"

    def accepts(self, source: Any) -> bool:
        return (isinstance(source, Path) and source.suffix == ".toy") or b'"toy"' in first_bytes(source, 20)

    def digest(self, source: Any, remember: Remember) -> bytes:
        return source if isinstance(source, bytes) else remember(source, digest_of_file)

    def load(
        self,
        source: Any,
        *,
        constants: Mapping[str, np.ndarray],
        shapes: Mapping[str, Sequence[int | str]],
    ) -> Module:
        text = source if isinstance(source, bytes) else read_file(source, 2**20, "split it")
        where = "the given bytes" if isinstance(source, bytes) else str(source)
        try:
            model = json.loads(text)
        except ValueError as error:
            raise ModelError(f"not a toy model: {error}", where=where) from error
        inputs = {name: Declared(dt.f32, tuple(shape)) for name, shape in model["inputs"].items()}
        inputs |= {name: Declared(dt.i64, tuple(shape)) for name, shape in model.get("sizes", {}).items()}

        def translate(translation: Translation, values: dict[str, Value | None]) -> Results:
            values |= {name: constant(np.array(w, np.float32), name) for name, w in model["weights"].items()}
            for k, (op, *names, result) in enumerate(model["nodes"]):

                def write(op: str = op, names: list[str] = names) -> Results:
                    operands = [values[name] for name in names]
                    if op not in OPERATORS:
                        raise UnsupportedError("the operator is unknown")
                    if any(v is None for v in operands):
                        raise BrokenInputError
                    return translation.fit(operands, lambda: (OPERATORS[op](translation, *operands),))

                label = f"nodes[{k}] ({op}) of {where}"
                results = translation.node(Loc(node=result, op=op), label, op, write)
                values[result] = results[0] if results else None
            return [values[name] for name in model["outputs"]]

        nodes = len(model["nodes"])
        return translated(inputs, model["outputs"], nodes, translate, constants=constants, shapes=shapes)


PLUGIN = Plugin("toy", front_ends=(ToyFrontEnd(),))
