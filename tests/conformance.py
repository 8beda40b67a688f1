"""The conformance cases that come with the onnx package, each compiled and compared.

`python -m tests.conformance` runs all of them and writes what does not pass, and how many there are, to a file that
`docs/conformance.py` makes the page of (some minutes).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner

from docs.conformance import RESULTS, Other, Results, as_json
from tests.conformance_backend import prepare
from tests.onnx_cases import collected_quickly
from tilewright.ir.diag import TilewrightError, UnsupportedError

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class Case:
    """A model with inputs and expected outputs. `operator` is the one that it is about; "" for whole models."""

    name: str
    operator: str
    model: onnx.ModelProto
    sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float = 1e-3
    atol: float = 1e-7


def cases(kind: str) -> Iterator[Case]:
    """All cases of a kind."""
    with collected_quickly():
        found = load_model_tests(kind=kind)
    single = {c.name: _only_operator(c.model) for c in found if c.model is not None}
    for c in found:
        if c.model is None:
            model, sets = onnx.load(Path(c.model_dir, "model.onnx")), list(stored_sets(Path(c.model_dir)))
        else:
            model, sets = c.model, c.data_sets
        whole = re.sub(r"_expanded.*", "", c.name)
        operator = single.get(c.name) or single.get(whole) or _only_operator(model) or _named_after(c.name)
        yield Case(f"{kind}/{c.name}", operator, model, sets, c.rtol, c.atol)


def whole_models() -> Iterator[Case]:
    """Networks of which the package has the structure and made-up weights."""
    for path in sorted(Path(DATA_DIR, "light").glob("*.onnx")):
        model = onnx.load(path)
        preset = {t.name for t in model.graph.initializer}
        free = [i for i in model.graph.input if i.name not in preset]
        inputs = [Runner.generate_dummy_data(i, seed=0, name=path.stem, random=False) for i in free]
        (wanted,) = (_stored_value(path.with_name(f"{path.stem}_output_0.pb"), o.type) for o in model.graph.output[:1])
        yield Case(f"light/{path.stem}", "", model, [(inputs, [wanted])])


def _only_operator(model: onnx.ModelProto) -> str:
    names = {node.op_type for node in model.graph.node} - {"Constant", "Identity"}
    return names.pop() if len(names) == 1 else ""


def _named_after(case: str) -> str:
    """The operator whose name a case begins with, the longest of these."""
    text = case.removeprefix("test_").replace("_", "").lower()
    names = {s.name for s in onnx.defs.get_all_schemas_with_history()}
    return max((n for n in names if text.startswith(n.lower())), key=len, default="")


def stored_sets(folder: Path) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and expected outputs of a case in a folder."""
    model = onnx.load(folder / "model.onnx")
    for place in sorted(folder.glob("test_data_set_*")):
        yield tuple(  # type: ignore[misc]
            [_stored_value(place / f"{side}_{k}.pb", v.type) for k, v in enumerate(values)
             if (place / f"{side}_{k}.pb").exists()]
            for side, values in (("input", model.graph.input), ("output", model.graph.output))
        )  # fmt: skip


def _stored_value(path: Path, type: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    if type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def outcome(case: Case) -> Other | None:
    """Why a case does not pass; None where it does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(case.model.SerializeToString())
        try:
            run = prepare(case.model, path)
            for inputs, wanted in case.sets:
                for ours, theirs in zip(run(tensors(inputs)), tensors(wanted), strict=True):
                    compare(ours, theirs, case.rtol, case.atol)
        except UnsupportedError as e:
            reason = e.problems[0].reason if e.problems else e.what
            return Other(case.operator, "refused", reason)
        except TilewrightError as e:
            return Other(case.operator, "fails", e.what)
        except AssertionError:
            return Other(case.operator, "differs", "")
    return None


def tensors(values: Sequence[Any]) -> list[Any]:
    """Values as the cases have them, tensors as arrays: those of types that NumPy has not are messages there."""
    return [
        numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto)
        else np.array(x) if isinstance(x, np.ndarray | np.generic) else x
        for x in values
    ]  # fmt: skip


def compare(ours: Any, theirs: Any, rtol: float, atol: float) -> None:
    """AssertionError unless both are of the same kind, dtype and shape, with elements that are close."""
    if isinstance(theirs, list | tuple):
        assert isinstance(ours, list | tuple) and len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            compare(one, other, rtol, atol)
        return
    if theirs is None:
        assert ours is None
        return
    a, b = np.asarray(ours), np.asarray(theirs)
    assert a.shape == b.shape
    if b.dtype == object or b.dtype.kind in "US":
        assert [_text(x) for x in a.flat] == [_text(x) for x in b.flat]
        return
    assert a.dtype == b.dtype
    if a.dtype.name == "bfloat16":
        rtol = max(rtol, 2.0**-6)
    if a.dtype.kind not in "biufc":
        a, b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def _text(x: Any) -> str:
    return x.decode() if isinstance(x, bytes) else str(x)


def main() -> None:
    counts: dict[str, int] = {}
    others: dict[str, Other] = {}
    for k, case in enumerate([c for kind in KINDS for c in cases(kind)] + list(whole_models())):
        counts[case.operator] = counts.get(case.operator, 0) + 1
        if (found := outcome(case)) is not None:
            others[case.name] = found
        if k % 200 == 199:
            print(k + 1, "cases", file=sys.stderr)
    RESULTS.write_text(as_json(Results(onnx.__version__, counts, others)))
    print(json.dumps({"cases": sum(counts.values()), "do not pass": len(others)}))


if __name__ == "__main__":
    main()
