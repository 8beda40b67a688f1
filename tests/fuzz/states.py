"""Random models, of which an input is a state: they give what they give to a caller who hands it on."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.registry import Tried
from tests.random_models.fuzz import described, grown
from tests.random_models.growth import Growth
from tilewright.api import compile_artifact
from tilewright.ir.diag import TilewrightError
from tilewright.options import Options
from tilewright.runtime import Model

CALLS = 3


def fuzz(seed: int) -> Tried:
    """Run a model a few times with a state that the model keeps, and with one that is handed on."""
    rng = random.Random(seed)
    growth, _ = grown(seed)
    results = growth.results()
    if not results:
        return Counter({("model", "left out"): 1})
    model = growth.model(results)
    pairs = with_next(model, growth, rng)
    if not pairs:
        return Counter({("model", "without a fixed input of floats"): 1})
    options = Options(cache=False, compile_threads=1, verify=True)
    try:
        plain = compile_artifact(model, options=options)
        Model(plain, 1).run_dict(growth.inputs)
    except TilewrightError:
        return Counter({("model", "refused"): 1})
    try:
        kept = compile_artifact(model, options=Options.of(options, states=pairs))
        for threads in (1, 2):
            compare(Model(plain, threads), Model(kept, threads), growth, pairs)
    except Exception as error:
        error.add_note(f"states: {pairs}\n{described(model)}")
        raise
    return Counter({("state", state.way): 1 for state in kept.states})


def with_next(model: onnx.ModelProto, growth: Growth, rng: random.Random) -> dict[str, str]:
    """Give a model outputs that become some of its inputs: of what it reads itself, of its results, or of both."""
    pairs: dict[str, str] = {}
    infos = {info.name: info for info in model.graph.input}
    for name, array in growth.inputs.items():
        dims = infos[name].type.tensor_type.shape.dim if name in infos else ()
        fixed = all(d.HasField("dim_value") for d in dims) and len(dims) == array.ndim
        if array.dtype != np.float32 or not fixed or rng.random() < 0.3:
            continue
        after = f"{name}_after"
        half = numpy_helper.from_array(np.array(0.5, np.float32), f"{name}_half")
        shape = numpy_helper.from_array(np.array(array.shape, np.int64), f"{name}_shape")
        model.graph.initializer.extend([half, shape])
        of = rng.choice([*model.graph.output]).name
        late = [
            helper.make_node("Cast", [of], [f"{name}_cast"], to=onnx.TensorProto.FLOAT),
            helper.make_node("ReduceMax", [f"{name}_cast"], [f"{name}_most"], keepdims=0),
            helper.make_node("Sigmoid", [f"{name}_most"], [f"{name}_share"]),
        ]
        match rng.choice(("early", "late", "both", "turned")):
            case "early":
                model.graph.node.insert(0, helper.make_node("Mul", [name, half.name], [after]))
            case "late":
                model.graph.node.extend([*late, helper.make_node("Expand", [f"{name}_share", shape.name], [after])])
            case "both":
                model.graph.node.extend([*late, helper.make_node("Mul", [name, f"{name}_share"], [after])])
            case _:
                nodes = [
                    helper.make_node("Reshape", [name, shape.name], [f"{name}_same"]),
                    helper.make_node("Transpose", [f"{name}_same"], [f"{name}_turned"]),
                    helper.make_node("Reshape", [f"{name}_turned", shape.name], [after]),
                ]
                model.graph.node.extend(nodes if 0 not in array.shape else [helper.make_node("Neg", [name], [after])])
        model.graph.output.append(helper.make_tensor_value_info(after, onnx.TensorProto.FLOAT, array.shape))
        pairs[name] = after
    return pairs


def compare(plain: Model, kept: Model, growth: Growth, pairs: dict[str, str]) -> None:
    values = dict(growth.inputs)
    for name in pairs:
        kept.set_state(name, values[name])
    for _ in range(CALLS):
        wanted = plain.run_dict(values)
        found = kept.run_dict({name: array for name, array in values.items() if name not in pairs})
        for name, array in found.items():
            same(name, array, wanted[name])
        values |= {name: wanted[after] for name, after in pairs.items()}
        for name in pairs:
            same(name, kept.state(name), values[name])


def same(name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape and found.dtype == wanted.dtype, f"{name}: {found.shape}, not {wanted.shape}"
    is_float = found.dtype.kind == "f"
    alike = np.allclose(found, wanted, 1e-5, 1e-6, equal_nan=True) if is_float else np.array_equal(found, wanted)
    assert alike, f"{name} is\n{found}\nnot\n{wanted}"
