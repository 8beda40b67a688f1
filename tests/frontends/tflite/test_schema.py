"""The table of the schema agrees with the classes that are generated from it (the package tflite)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.frontends.tflite.models import Graph, Node, Tensor, written
from tilewright.frontends.tflite.flatbuffer import Reader
from tilewright.frontends.tflite.schema import ACTIVATIONS, ELEMENT_TYPES, OPERATORS, OPTIONS, PADDINGS
from tilewright.ir.diag import ModelError
from tilewright.ir.dtype import DType

tflite = pytest.importorskip("tflite")

KINDS = {"Int8": "b", "Int32": "i", "Uint32": "I", "Int64": "q", "Bool": "?", "Float32": "f"}


def _numbers(cls: type) -> dict[str, int]:
    return {name: value for name, value in vars(cls).items() if isinstance(value, int)}


def test_numbers_of_operators_types_and_words() -> None:
    assert all(OPERATORS[n] == name for name, n in _numbers(tflite.BuiltinOperator).items())
    assert [_numbers(tflite.ActivationFunctionType)[name] for name in ACTIVATIONS] == list(range(len(ACTIVATIONS)))
    assert [_numbers(tflite.Padding)[name] for name in PADDINGS] == [0, 1]
    for name, n in _numbers(tflite.TensorType).items():
        found = ELEMENT_TYPES[n]
        word = f"{found.kind}{found.bits}".replace("bool8", "bool") if isinstance(found, DType) else found
        assert word == name.lower().replace("bfloat", "float") or word == name


def test_fields_of_options() -> None:
    tables = {n: name for name, n in _numbers(tflite.BuiltinOptions).items()}
    folder = Path(tflite.__file__).parent
    for operator, (number, fields) in OPTIONS.items():
        source = (folder / f"{tables[number]}.py").read_text()
        for field in fields.split():
            name, kind, place = re.fullmatch(r"(\w+):(\[?.)@(\d+)(?:=.*)?", field).groups()  # type: ignore[union-attr]
            found = [
                (body, method) for method, body in re.findall(r"def (\w+)\(self(?:, j)?\):\n((?: {8}.*\n|\n)+)", source)
                if f"self._tab.Offset({4 + 2 * int(place)})" in body and "_tab.Get(" in body
            ]  # fmt: skip
            assert found, (operator, field)
            body, method = found[0]
            word = re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower().replace("fused_activation_function", "activation")
            assert word.replace("_factor", "") == name, (operator, field)
            stored = re.findall(r"_tab\.Get\(flatbuffers\.number_types\.(\w+)Flags", body)[0]
            assert KINDS[stored] == kind.strip("["), (operator, field)


def test_a_file_whose_parts_are_shared_too_often_is_refused() -> None:
    """A small file may not unfold to a large one: its subgraphs could be the same table, many times."""
    data = written(Graph([Tensor("x", (2,)), Tensor("y", (2,))], [Node("NEG", ["x"], ["y"])], ["x"], ["y"]))
    reader = Reader(data, "here")
    table = reader.root()
    with pytest.raises(ModelError, match="too often"):
        for _ in range(len(data) * 16):
            table.tables(2)
